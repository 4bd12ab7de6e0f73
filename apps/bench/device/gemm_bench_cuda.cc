#include <algorithm>
#include <functional>
#include <vector>

#include "apps/bench/device/device_bench_cuda.h"
#include "apps/bench/timed/samples.h"
#include "src/cuda/device.h"
#include "src/cuda/memory.h"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {
namespace {

constexpr int kLayers = 16;  // a layer's smallest matrices alone would stay in the L2 cache
constexpr std::uint64_t kSeed = 7;

// Matrices of kLayers layers, and rows that they multiply.
class Layers {
 public:
  Layers(const ModelConfig& c, const GemmCase& bench) : case_(bench), stream_(Stream::make()) {
    const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
    const std::array<std::array<std::int64_t, 2>, kGemmNames.size()> shapes = {
        {{q + 2 * kv, c.hidden}, {c.hidden, q}, {2 * c.ffn, c.hidden}, {c.hidden, c.ffn}}};
    std::uint64_t seed = kSeed;
    for (int layer = 0; layer < kLayers; ++layer)
      for (const auto& [n_out, n_in] : shapes) {
        DeviceMatrix m{.values = nullptr, .dtype = bench.weights, .n_out = n_out, .n_in = n_in};
        m.values = take(m.bytes());
        random_weights_cuda(m, seed++, {.stream = stream_.get()});
        matrices_.push_back(m);
      }
    const std::int64_t widest = std::max({c.hidden, c.ffn, q, q + 2 * kv});
    x_ = take(kSkinnyRows * widest * 2);
    random_kv_cuda(x_, kSkinnyRows * widest, false, kSeed, {.stream = stream_.get()});
    y_ = take(kSkinnyRows * widest * 4);
    ffn_ = take(kSkinnyRows * c.ffn * 2);
    x_next_ = take(kSkinnyRows * c.hidden * 2);
    residual_ = zeros(kSkinnyRows * c.hidden * 4);
    sums_ = zeros((c.hidden / 16 + 1) * kSkinnyRows * 4);
    norm_ = zeros(c.hidden * 4);
    workspace_ = {.partial = reinterpret_cast<float*>(take(static_cast<std::int64_t>(skinny_partial_bytes()))),
                  .arrived = reinterpret_cast<std::int32_t*>(zeros(kSkinnyUnits * 4)),
                  .splits = bench.splits,
                  .permuted = take(skinny_permuted_bytes(widest))};
    stream_.synchronize();
  }

  // Seconds of a layer's matrices `first` to `last`.
  double seconds(int first, int last, std::int32_t times) {
    const CudaContext context{.stream = stream_.get(), .order = LaunchOrder::kOverlapped};
    const auto work = [&] {
      for (int layer = 0; layer < kLayers; ++layer)
        for (int i = first; i <= last; ++i) launch(i, matrix(layer, i), context);
    };
    work();
    const Graph graph = Graph::capture(stream_, work);
    const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
    std::vector<double> all;
    for (std::int32_t i = 0; i < times; ++i) {
      begin.record(stream_);
      graph.launch(stream_);
      end.record(stream_);
      end.synchronize();
      all.push_back(end.seconds_since(begin) / kLayers);
    }
    std::sort(all.begin(), all.end());
    return all[all.size() / 2];
  }

  const DeviceMatrix& matrix(int layer, int i) const {
    return matrices_[static_cast<std::size_t>(layer) * kGemmNames.size() + static_cast<std::size_t>(i)];
  }

 private:
  template <typename T>
  std::byte* take(T bytes) {
    memory_.emplace_back(static_cast<std::size_t>(bytes), "what is measured");
    return memory_.back().data();
  }
  std::byte* zeros(std::int64_t bytes) {
    std::byte* p = take(bytes);
    set_bytes(p, 0, static_cast<std::size_t>(bytes), stream_);
    return p;
  }

  void launch(int i, const DeviceMatrix& w, const CudaContext& context) const {
    const std::int32_t m = case_.rows;
    if (i == 0) {
      skinny_gemm_cuda(x_, m, w, {}, {.y = y_}, workspace_, context);
    } else if (i == 2) {
      skinny_gemm_swiglu_cuda(x_, m, w, {}, ffn_, workspace_, context);
    } else {
      skinny_gemm_residual_cuda(x_, m, w,
                                {.residual = reinterpret_cast<float*>(residual_),
                                 .norm_weight = reinterpret_cast<const float*>(norm_),
                                 .x_next = x_next_,
                                 .sums = reinterpret_cast<float*>(sums_)},
                                workspace_, context);
    }
  }

  GemmCase case_;
  Stream stream_;
  std::vector<DeviceBuffer> memory_;
  std::vector<DeviceMatrix> matrices_;
  std::byte *x_ = nullptr, *y_ = nullptr, *ffn_ = nullptr, *x_next_ = nullptr, *residual_ = nullptr, *sums_ = nullptr,
            *norm_ = nullptr;
  SkinnyWorkspace workspace_;
};

}  // namespace

GemmResult measure_gemm_cuda(const ModelConfig& config, const GemmCase& c, std::int32_t times) {
  use_device(0);
  Layers layers(config, c);
  GemmResult result;
  for (int i = 0; i < static_cast<int>(kGemmNames.size()); ++i) {
    const auto at = static_cast<std::size_t>(i);
    result.bytes[at] = static_cast<double>(layers.matrix(0, i).bytes());
    result.seconds[at] = layers.seconds(i, i, times);
  }
  result.layer_seconds = layers.seconds(0, static_cast<int>(kGemmNames.size()) - 1, times);
  return result;
}

}  // namespace mneme
