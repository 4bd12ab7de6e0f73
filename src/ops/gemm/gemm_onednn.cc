#include "src/ops/gemm/gemm_onednn.h"

#include "src/base/check.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/simd/cpu_isa.h"

#ifndef MNEME_HAVE_ONEDNN

namespace mneme {

bool built_with_onednn() {
  return false;
}
bool onednn_is_faster(DType, std::int64_t) {
  return false;
}
void gemm_onednn(const ConstTensorView&, std::span<const GemmOutput>, ThreadPool&) {
  MNEME_CHECK(false, "built without oneDNN");
}

}  // namespace mneme

#else

#include <dlfcn.h>

#include <algorithm>
#include <dnnl.hpp>
#include <map>
#include <unordered_map>
#include <vector>

namespace mneme {
namespace {

using dnnl::memory;

constexpr std::int64_t kManyEnough = 256;
constexpr std::int64_t kAmxManyEnough = 16;
// One oneDNN call: enough rows on both sides to amortise the packing of each.
constexpr std::int64_t kPanelRows = 512, kMinTokens = 128, kMaxTokens = 512;
// Primitives that a thread caches; a step of a model has about ten shapes, and prefill chunks repeat.
constexpr std::size_t kMaxPrimitives = 128;

struct OpenMp {
  int (*get_max_threads)() = nullptr;
  void (*set_num_threads)(int) = nullptr;
};

OpenMp openmp_of(void* library) {
  return {reinterpret_cast<int (*)()>(dlsym(library, "omp_get_max_threads")),
          reinterpret_cast<void (*)(int)>(dlsym(library, "omp_set_num_threads"))};
}

// The OpenMP libraries that oneDNN may use. The dynamic linker binds oneDNN to one in the global scope at load time,
// otherwise to the one that oneDNN was linked with; a process may contain both, and may load others later. A oneDNN
// without OpenMP, in a process without it, has none.
const std::vector<OpenMp>& openmp_libraries() {
  static const std::vector<OpenMp> found = [] {
    std::vector<OpenMp> all;
    const auto add = [&](const OpenMp& f) {
      if (f.get_max_threads == nullptr || f.set_num_threads == nullptr) return;
      for (const OpenMp& other : all)
        if (other.set_num_threads == f.set_num_threads) return;
      all.push_back(f);
    };
    add(openmp_of(RTLD_DEFAULT));
    Dl_info info{};
    if (dladdr(reinterpret_cast<const void*>(&dnnl_version), &info) != 0 && info.dli_fname != nullptr)
      if (void* onednn = dlopen(info.dli_fname, RTLD_LAZY | RTLD_NOLOAD)) add(openmp_of(onednn));
    return all;
  }();
  return found;
}

// Keeps oneDNN's OpenMP from starting threads while this thread is inside.
class OneThread {
 public:
  OneThread() {
    for (const OpenMp& f : openmp_libraries()) {
      before_.push_back(f.get_max_threads());
      f.set_num_threads(1);
    }
  }
  ~OneThread() {
    for (std::size_t i = 0; i < before_.size(); ++i) openmp_libraries()[i].set_num_threads(before_[i]);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  std::vector<int> before_;
};

const dnnl::engine& engine() {
  static const dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

struct Shape {
  std::int64_t m, n, k, x_stride, w_stride, y_stride;  // strides in elements
  bool bias, accumulate;
  auto operator<=>(const Shape&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 sees 0 in it
};

struct Primitive {
  memory::desc x, w, bias, y;
  dnnl::matmul matmul;

  explicit Primitive(const Shape& s)
      : x({s.m, s.k}, memory::data_type::bf16, memory::dims{s.x_stride, 1}),
        w({s.k, s.n}, memory::data_type::bf16, memory::dims{1, s.w_stride}),
        bias({1, s.n}, memory::data_type::f32, memory::dims{s.n, 1}),
        y({s.m, s.n}, memory::data_type::f32, memory::dims{s.y_stride, 1}) {
    dnnl::primitive_attr attr;
    if (s.accumulate) {
      dnnl::post_ops ops;
      ops.append_sum(1.0f);
      attr.set_post_ops(ops);
    }
    const dnnl::matmul::desc desc = s.bias ? dnnl::matmul::desc(x, w, bias, y) : dnnl::matmul::desc(x, w, y);
    matmul = dnnl::matmul(dnnl::matmul::primitive_desc(desc, attr, engine()));
  }
};

const Primitive& primitive(const Shape& shape) {
  thread_local std::map<Shape, Primitive> known;
  const auto found = known.find(shape);
  if (found != known.end()) return found->second;
  if (known.size() >= kMaxPrimitives) known.clear();
  return known.try_emplace(shape, shape).first->second;
}

struct Operands {
  const std::byte *x, *w;
  const float* bias;
  float* y;
};

void multiply(const Shape& shape, const Operands& o) {
  const Primitive& p = primitive(shape);
  thread_local dnnl::stream stream(engine());
  const auto at = [](const memory::desc& desc, const void* data) {
    return memory(desc, engine(), const_cast<void*>(data));
  };
  std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, at(p.x, o.x)}, {DNNL_ARG_WEIGHTS, at(p.w, o.w)}, {DNNL_ARG_DST, at(p.y, o.y)}};
  if (shape.bias) arguments.emplace(DNNL_ARG_BIAS, at(p.bias, o.bias));
  p.matmul.execute(stream, arguments);
  stream.wait();
}

// Weight rows [begin, end) of one output.
struct Panel {
  const GemmOutput* output;
  std::int64_t begin, end;
};

void panel_gemm(const ConstTensorView& x, const Panel& panel, std::int64_t first, std::int64_t last) {
  const GemmOutput& out = *panel.output;
  const ConstTensorView& w = out.w->view();
  const std::int64_t k = w.dim(1), n = panel.end - panel.begin;
  const std::byte* rows = w.row(panel.begin);
  std::int64_t w_stride = w.stride_bytes() / sizeof(bf16);
  if (w.dtype() != DType::kBF16) {
    thread_local Buffer converted;
    w_stride = padded_columns(DType::kBF16, k);
    converted.reserve((n * w_stride) * sizeof(bf16));
    if (const TileKernel* kernel = bf16_tile_kernel())
      kernel->convert(w, panel.begin, panel.end, converted.data());
    else
      convert_rows(w, panel.begin, panel.end, DType::kBF16, converted.data());
    rows = converted.data();
  }
  const Shape shape{.m = last - first,
                    .n = n,
                    .k = k,
                    .x_stride = static_cast<std::int64_t>(x.stride_bytes() / sizeof(bf16)),
                    .w_stride = w_stride,
                    .y_stride = static_cast<std::int64_t>(out.y.stride_bytes() / sizeof(float)),
                    .bias = out.bias != nullptr,
                    .accumulate = out.accumulate};
  multiply(shape, {.x = x.row(first),
                   .w = rows,
                   .bias = out.bias == nullptr ? nullptr : out.bias + panel.begin,
                   .y = out.y.row_as<float>(first) + panel.begin});
}

bool has_amx() {
  static const bool amx = [] {
    if (permitted_cpu_isa() < CpuIsa::kAmx) dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core_bf16);
    return dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
  }();
  return amx;
}

}  // namespace

bool built_with_onednn() {
  return true;
}

bool onednn_is_faster(DType weights, std::int64_t m) {
  if (bf16_tile_kernel() == nullptr || weights == DType::kF32 || weights == DType::kF16) return false;
  return has_amx() ? m >= kAmxManyEnough : m >= kManyEnough && weights == DType::kBF16;
}

void gemm_onednn(const ConstTensorView& x, std::span<const GemmOutput> outputs, ThreadPool& pool) {
  const std::int64_t m = x.dim(0), k = x.dim(1);
  ConstTensorView rows = x;
  if (x.dtype() != DType::kBF16) {
    thread_local Buffer narrowed;
    const std::int64_t columns = padded_columns(DType::kBF16, k);
    narrowed.reserve((m * columns) * sizeof(bf16));
    std::byte* const to = narrowed.data();
    pool.parallel_for(m, 64, [&](std::int64_t begin, std::int64_t end, int) {
      convert_rows(x, begin, end, DType::kBF16, to + (begin * columns) * sizeof(bf16));
    });
    rows = ConstTensorView(to, DType::kBF16, {m, k}).with_stride(columns * sizeof(bf16));
  }
  std::vector<Panel> panels;
  for (const GemmOutput& o : outputs)
    for (std::int64_t r = 0; r < o.w->n_out(); r += kPanelRows)
      panels.push_back({&o, r, std::min(r + kPanelRows, o.w->n_out())});
  const std::int64_t tokens = std::clamp((m + pool.size() - 1) / pool.size(), kMinTokens, kMaxTokens);
  const std::int64_t n_chunks = (m + tokens - 1) / tokens;
  pool.parallel_for(std::ssize(panels) * n_chunks, 1, [&](std::int64_t task, std::int64_t end, int) {
    const OneThread one_thread;
    for (; task < end; ++task) {
      const std::int64_t first = task % n_chunks * tokens;
      panel_gemm(rows, panels[task / n_chunks], first, std::min(m, first + tokens));
    }
  });
}

}  // namespace mneme

#endif  // MNEME_HAVE_ONEDNN
