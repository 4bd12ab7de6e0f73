// A GEMM by oneDNN behind one C function, as a library that a program loads at run time.
#include <filesystem>
#include <iterator>
#include <vector>

#include "src/base/thread_pool.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/gemm_onednn.h"

// Threads of the process that one GEMM added, or -1: this build or this CPU has no GEMM by oneDNN.
extern "C" int threads_added_by_onednn() {
  using namespace mneme;
  if (!built_with_onednn() || bf16_tile_kernel() == nullptr) return -1;
  const auto threads = [] {
    namespace fs = std::filesystem;
    return std::distance(fs::directory_iterator("/proc/self/task"), fs::directory_iterator());
  };
  constexpr std::int64_t m = 512, n = 1024, k = 512;
  ThreadPool pool(2);
  const std::vector<bf16> weights(n * k), x(m * k);
  std::vector<float> y(m * n);
  const WeightMatrix w(view_of(weights.data(), {n, k}));
  const GemmOutput output{.w = &w, .y = view_of(y.data(), {m, n})};
  const auto before = threads();
  gemm_onednn(view_of(x.data(), {m, k}), {&output, 1}, pool);
  return static_cast<int>(threads() - before);
}
