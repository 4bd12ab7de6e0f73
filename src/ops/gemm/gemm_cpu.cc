// Splits GEMMs over the pool and dispatches to the kernels of gemm_kernels.h.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iterator>
#include <vector>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/ops/gemm/gemm.h"
#include "src/ops/gemm/gemm_kernels.h"
#include "src/ops/gemm/gemm_onednn.h"

namespace mneme {
namespace {

// From this many rows on the tile is faster than the few-rows kernels, which read weights once but compute less per
// load.
constexpr std::int64_t kManyRows = 8;
// The same where vnni_batch_kernel() is available.
constexpr std::int64_t kManyRowsByVnni = kMaxFewRows + 1;
// Weight rows per task, converted where needed: a column block of them (kBlockBytes per row) shares an L2 of 1 MiB with
// one of a tile of x. Fewer for long rows, so that the converted panel stays cached; not below 32, or reading x would
// become the limit.
constexpr std::size_t kPanelBytes = 512 << 10;
constexpr std::int64_t kMinPanelRows = 32, kMaxPanelRows = 64;
// Packed x per pass; more rows take several passes.
constexpr std::size_t kMaxPackedBytes = 16 << 20;
// Weights that one core reads in the time of a fork and join.
constexpr std::size_t kBytesAlone = 64 << 10;
constexpr std::int64_t kMaxRowsGrain = 128;

std::size_t element_bytes(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kFp8:
    case DType::kInt4:
    case DType::kInt8:
    case DType::kNVFP4:
      return 4;
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS:
      return 2;
    case DType::kMXFP4:
      return 1;
    case DType::kI32:
    case DType::kU8:
      break;
  }
  MNEME_CHECK(false, "{} holds no weights", dtype_name(type));
}

const TileKernel& tile_kernel(DType weights) {
  const TileKernel* bf16_kernel = bf16_tile_kernel();
  const bool exact = weights == DType::kF32 || weights == DType::kF16;
  return exact || bf16_kernel == nullptr ? f32_tile_kernel() : *bf16_kernel;
}

void check_shapes(const ConstTensorView& x, std::span<const GemmOutput> outputs) {
  MNEME_CHECK(x.rank() == 2 && (x.dtype() == DType::kF32 || x.dtype() == DType::kBF16), "x is {}", x.to_string());
  for (const GemmOutput& o : outputs) {
    MNEME_CHECK(o.w != nullptr && o.w->n_in() == x.dim(1), "x {} times w {}", x.to_string(),
                o.w == nullptr ? "null" : o.w->view().to_string());
    expect_shape("y", o.y, DType::kF32, {x.dim(0), o.w->n_out()});
  }
}

// ---- many rows

// Weight rows [begin, end) of one output.
struct Panel {
  const GemmOutput* output;
  std::int64_t begin, end;
};

std::vector<Panel> panels_of(std::span<const GemmOutput> outputs, const TileKernel& kernel, std::size_t row) {
  const std::int64_t fitting = kPanelBytes / row / kTileRows * kTileRows;
  const std::int64_t rows = std::clamp(fitting, kMinPanelRows, kMaxPanelRows);
  std::vector<Panel> panels;
  for (const GemmOutput& o : outputs) {
    if (tile_kernel(o.w->view().dtype()).element != kernel.element) continue;
    for (std::int64_t r = 0; r < o.w->n_out(); r += rows) panels.push_back({&o, r, std::min(r + rows, o.w->n_out())});
  }
  return panels;
}

// Multiplies one panel of weights with tokens [first, last) of a pass, whose token 0 is row `row0` of y.
void panel_gemm(const TileKernel& kernel, const Panel& panel, const std::byte* packed, std::int64_t first,
                std::int64_t last, std::int64_t row0) {
  const ConstTensorView& w = panel.output->w->view();
  const std::int64_t k = w.dim(1), columns = padded_columns(kernel.element, k);
  const std::size_t row = row_bytes(kernel.element, columns);
  const bool as_it_is = w.dtype() == kernel.element && columns == k;
  thread_local Buffer converted;
  if (!as_it_is) {
    converted.reserve((panel.end - panel.begin) * row);
    kernel.convert(w, panel.begin, panel.end, converted.data());
  }
  const auto weight_row = [&](std::int64_t r) {
    r = std::min(r, panel.end - 1);  // the last tile may have fewer rows; its surplus sums are not written
    return as_it_is ? w.row(r) : converted.data() + (r - panel.begin) * row;
  };
  const GemmOutput& out = *panel.output;
  const std::int64_t stride = out.y.stride_bytes() / sizeof(float);
  const std::int64_t block = kBlockBytes / dtype_info(kernel.element).bytes;
  const int n_rows = count32(panel.end - panel.begin);
  alignas(64) float sums[kMaxPanelRows * kMaxTileTokens];
  for (std::int64_t t = first; t < last; t += kernel.tokens) {
    const int tokens = count32(std::min<std::int64_t>(kernel.tokens, last - t));
    // Prefetch y: it is needed last and is not cached.
    for (int i = 0; i < tokens; ++i) {
      const float* y = out.y.row_as<float>(row0 + t + i) + panel.begin;
      for (int r = 0; r < n_rows; r += 16) __builtin_prefetch(y + r, 1, 2);
    }
    for (std::int64_t j = 0; j < k; j += block) {
      const auto offset = row_bytes(kernel.element, j);
      const std::byte* x = packed + t * row + offset * kernel.tokens;
      for (int r = 0; r < n_rows; r += kTileRows) {
        const std::byte* rows[kTileRows];
        for (int i = 0; i < kTileRows; ++i) rows[i] = weight_row(panel.begin + r + i) + offset;
        kernel.gemm(x, rows, std::min(block, k - j), tokens, j == 0 ? Sums::kStart : Sums::kGoOn,
                    sums + r * kernel.tokens);
      }
    }
    write_tiles(sums, kernel.tokens,
                {.y = out.y.row_as<float>(row0 + t) + panel.begin,
                 .stride = stride,
                 .bias = out.bias == nullptr ? nullptr : out.bias + panel.begin,
                 .accumulate = out.accumulate,
                 .rows = n_rows,
                 .tokens = tokens});
  }
}

void many_rows(const ConstTensorView& x, std::span<const GemmOutput> outputs, const TileKernel& kernel,
               ThreadPool& pool) {
  const std::int64_t m = x.dim(0), k = x.dim(1), tile = kernel.tokens;
  const std::size_t row = row_bytes(kernel.element, padded_columns(kernel.element, k));
  const std::vector<Panel> panels = panels_of(outputs, kernel, row);
  if (panels.empty()) return;
  const std::int64_t n_panels = panels.size();
  const std::int64_t pass = std::max<std::int64_t>(kMaxPackedBytes / row / tile * tile, tile);
  thread_local Buffer buffer;
  buffer.reserve(((std::min(pass, m) + tile - 1) / tile * tile) * row);
  std::byte* const packed = buffer.data();
  for (std::int64_t begin = 0; begin < m; begin += pass) {
    const std::int64_t n = std::min(pass, m - begin), n_tiles = (n + tile - 1) / tile;
    pool.parallel_for(n_tiles, 1, [&](std::int64_t first, std::int64_t last, int) {
      for (std::int64_t t = first; t < last; ++t)
        pack_tile(kernel, x, begin + t * tile, count32(std::min(tile, n - t * tile)), packed + (t * tile) * row);
    });
    // Few panels for many threads: split tokens too, at the cost of converting a panel more than once.
    const std::int64_t wanted = pool.size() == 1 ? 1 : 4 * pool.size();
    const std::int64_t splits =
        std::clamp<std::int64_t>((wanted + n_panels - 1) / n_panels, 1, std::max<std::int64_t>(n_tiles / 4, 1));
    pool.parallel_for(n_panels * splits, 1, [&](std::int64_t task, std::int64_t end, int) {
      for (; task < end; ++task) {
        const std::int64_t s = task % splits;
        panel_gemm(kernel, panels[task / splits], packed, n_tiles * s / splits * tile,
                   std::min(n, n_tiles * (s + 1) / splits * tile), begin);
      }
    });
  }
}

// ---- few rows

bool all_finite(const ConstTensorView& x) {
  constexpr std::int64_t kLanes = 16;  // so that the compiler vectorises it
  float sum[kLanes] = {};              // 0 * v is 0 only for finite v
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const float* row = x.row_as<float>(i);
    std::int64_t j = 0;
    for (; j + kLanes <= x.dim(1); j += kLanes)
      for (std::int64_t l = 0; l < kLanes; ++l) sum[l] += 0.0f * row[j + l];
    for (; j < x.dim(1); ++j) sum[0] += 0.0f * row[j];
  }
  return std::all_of(sum, sum + kLanes, [](float s) { return s == 0.0f; });
}

std::int64_t many_rows_from(DType weights) {
  return vnni_batch_kernel(weights) == nullptr ? kManyRows : kManyRowsByVnni;
}

// x in every format that some output needs.
class PreparedInput {
 public:
  explicit PreparedInput(const ConstTensorView& x) : x_(x) {
    if (x.dtype() != DType::kF32) {
      const std::int64_t m = x.dim(0), k = x.dim(1);
      widened_.reserve(4 * m * k);
      for (std::int64_t i = 0; i < m; ++i) dequantise_row(x, i, widened_.as<float>() + i * k);
      x_ = ConstTensorView(widened_.data(), DType::kF32, {m, k});
    }
  }

  struct Form {
    const SkinnyKernel* kernel;
    const std::byte* prepared;
  };
  Form form(DType weights) {
    const SkinnyKernel* kernel = &rows_kernel(weights);
    if (is_quantised(weights)) {
      const SkinnyKernel* vnni = vnni_rows_kernel(weights);
      if (finite_ < 0) finite_ = all_finite(x_) ? 1 : 0;
      if (finite_ == 0)
        kernel = &exact_rows_kernel();
      else if (vnni != nullptr)
        kernel = x_.dim(0) < kBatchRows || vnni_batch_kernel(weights) == nullptr ? vnni : vnni_batch_kernel(weights);
    }
    // Types whose kernels take the same form of x share it.
    for (int i = 0; i < n_forms_; ++i)
      if (forms_[i].kernel->prepare == kernel->prepare) return {kernel, forms_[i].prepared};
    Buffer& buffer = buffers_[n_forms_];
    buffer.reserve(kernel->prepared_bytes(x_.dim(0), x_.dim(1)));
    kernel->prepare(x_, buffer.data());
    return forms_[n_forms_++] = {kernel, buffer.data()};
  }

 private:
  static constexpr int kMaxForms = 7;  // f32, even and odd, int16, and four of VNNI
  static thread_local Buffer widened_;
  static thread_local Buffer buffers_[kMaxForms];
  ConstTensorView x_;
  Form forms_[kMaxForms];
  int n_forms_ = 0;
  int finite_ = -1;  // -1: unknown
};
thread_local Buffer PreparedInput::widened_;
thread_local Buffer PreparedInput::buffers_[PreparedInput::kMaxForms];

// Rows [begin, end) of one output.
void few_rows_part(const GemmOutput& o, const PreparedInput::Form& form, std::int64_t m, std::int64_t begin,
                   std::int64_t end) {
  float sums[kMaxFewRows * kMaxRowsGrain];
  form.kernel->gemm(form.prepared, m, o.w->view(), begin, end, sums, kMaxRowsGrain);
  for (std::int64_t i = 0; i < m; ++i) {
    float* y = o.y.row_as<float>(i) + begin;
    const float* s = sums + i * kMaxRowsGrain;
    for (std::int64_t r = 0; r < end - begin; ++r) {
      const float v = o.bias == nullptr ? s[r] : s[r] + o.bias[begin + r];
      y[r] = o.accumulate ? y[r] + v : v;
    }
  }
}

void few_rows(const ConstTensorView& x, std::span<const GemmOutput> outputs, ThreadPool& pool) {
  constexpr std::size_t kAtOnce = 8;
  for (; outputs.size() > kAtOnce; outputs = outputs.subspan(kAtOnce)) few_rows(x, outputs.first(kAtOnce), pool);
  PreparedInput prepared(x);
  std::array<PreparedInput::Form, kAtOnce> forms;
  std::array<std::int64_t, kAtOnce + 1> start{};  // first of each output among all rows
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    forms[i] = prepared.form(outputs[i].w->view().dtype());
    start[i + 1] = start[i] + outputs[i].w->n_out();
    bytes += outputs[i].w->bytes();
  }
  const std::int64_t n_rows = start[outputs.size()], m = x.dim(0);
  const auto part = [&](std::int64_t begin, std::int64_t end, int) {
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const std::int64_t last = std::min(end, start[i + 1]) - start[i];
      for (std::int64_t r = std::max(begin, start[i]) - start[i]; r < last; r += kMaxRowsGrain)
        few_rows_part(outputs[i], forms[i], m, r, std::min(r + kMaxRowsGrain, last));
    }
  };
  if (bytes <= kBytesAlone) return part(0, n_rows, 0);
  const std::int64_t grain = (n_rows / (4 * pool.size()) + 3) / 4 * 4;
  pool.parallel_for(n_rows, std::clamp<std::int64_t>(grain, 16, kMaxRowsGrain), part);
}

// ---- columns in another order

bool has_columns(const GemmOutput& o) {
  return !o.w->columns().empty();
}

template <typename T>
void gather_columns(const ConstTensorView& x, std::span<const std::int32_t> columns, std::byte* out) {
  auto* to = reinterpret_cast<T*>(out);
  for (std::int64_t i = 0; i < x.dim(0); ++i) {
    const T* row = x.row_as<T>(i);
    for (const std::int32_t c : columns) *to++ = row[c];
  }
}

// Each output with columns takes a copy of x in their order; the others go in one call.
void gemm_of_columns(const ConstTensorView& x, std::span<const GemmOutput> outputs, const CpuContext& context) {
  std::vector<GemmOutput> plain;
  std::copy_if(outputs.begin(), outputs.end(), std::back_inserter(plain),
               [](const auto& o) { return !has_columns(o); });
  gemm_cpu(x, plain, context);
  const std::int64_t m = x.dim(0), k = x.dim(1);
  Buffer gathered(m * row_bytes(x.dtype(), k));
  for (const GemmOutput& o : outputs) {
    if (!has_columns(o)) continue;
    if (x.dtype() == DType::kBF16)
      gather_columns<bf16>(x, o.w->columns(), gathered.data());
    else
      gather_columns<float>(x, o.w->columns(), gathered.data());
    const WeightMatrix w = o.w->without_columns();
    GemmOutput output = o;
    output.w = &w;
    gemm_cpu(ConstTensorView(gathered.data(), x.dtype(), {m, k}), {&output, 1}, context);
  }
}

}  // namespace

WeightMatrix::WeightMatrix(ConstTensorView w) : w_(w) {
  MNEME_CHECK(w.rank() == 2, "a weight matrix has two dimensions: {}", w.to_string());
  const std::size_t alignment = element_bytes(w.dtype()), row = row_bytes(w.dtype(), w.dim(1));
  if (reinterpret_cast<std::uintptr_t>(w.data()) % alignment == 0 && w.stride_bytes() % alignment == 0) return;
  auto copy = std::make_shared<Buffer>(w.dim(0) * row);
  for (std::int64_t r = 0; r < w.dim(0); ++r) std::memcpy(copy->data() + r * row, w.row(r), row);
  w_ = ConstTensorView(copy->data(), w.dtype(), {w.dim(0), w.dim(1)});
  copy_ = std::move(copy);
}

WeightMatrix::WeightMatrix(ConstTensorView w, std::span<const std::int32_t> columns) : WeightMatrix(w) {
  MNEME_CHECK(columns.empty() || std::ssize(columns) == w.dim(1), "{} columns of {}", columns.size(), w.to_string());
  columns_ = columns;
}

WeightMatrix WeightMatrix::without_columns() const {
  WeightMatrix w = *this;
  w.columns_ = {};
  return w;
}

DType gemm_input_dtype(const WeightMatrix& w, std::int64_t m) {
  return m >= many_rows_from(w.view().dtype()) ? tile_kernel(w.view().dtype()).element : DType::kF32;
}

void gemm_cpu(const ConstTensorView& x, std::span<const GemmOutput> outputs, const CpuContext& context) {
  check_shapes(x, outputs);
  if (x.dim(0) == 0 || outputs.empty()) return;
  if (std::any_of(outputs.begin(), outputs.end(), has_columns)) return gemm_of_columns(x, outputs, context);
  if (context.rounding == Rounding::kFast) {
    const auto few = [&](const GemmOutput& o) { return x.dim(0) < many_rows_from(o.w->view().dtype()); };
    if (std::all_of(outputs.begin(), outputs.end(), few)) return few_rows(x, outputs, *context.pool);
    // All outputs of a call or none: their weights are nearly always of one type, and x is then converted once.
    const auto faster = [&](const GemmOutput& o) { return onednn_is_faster(o.w->view().dtype(), x.dim(0)); };
    if (std::all_of(outputs.begin(), outputs.end(), faster)) return gemm_onednn(x, outputs, *context.pool);
  }
  // kFixed takes this path even for one row: the tile accumulates each sum in the same order in every batch.
  // docs/design/numerics.md has the cost.
  many_rows(x, outputs, f32_tile_kernel(), *context.pool);
  if (const TileKernel* kernel = bf16_tile_kernel()) many_rows(x, outputs, *kernel, *context.pool);
}

}  // namespace mneme
