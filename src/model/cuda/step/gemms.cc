#include "src/model/cuda/step/gemms.h"

#include <algorithm>

#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {
namespace {

// Rows of batch-invariant skinny GEMMs. One kernel has 1 to 8 rows of bf16, and 2 to 8 rows of other weights: a single one
// has another where the device has sm_90 code. Another kernel has 9 to 16 rows of each, as slow with one.
constexpr std::int32_t kFewGroup = 8, kManyGroup = 16;
// Batch-invariant GEMMs by cuBLASLt, of rows that decode.
constexpr std::int32_t kFewInvariantRows = kSkinnyRows;

const void* row_of(const void* x, std::int32_t row, std::int64_t row_bytes) {
  return static_cast<const std::byte*>(x) + row * row_bytes;
}
void* row_of(void* x, std::int32_t row, std::int64_t row_bytes) {
  return static_cast<std::byte*>(x) + row * row_bytes;
}

DeferredNorm norm_of(DeferredNorm norm, std::int32_t row) {
  if (norm.sums != nullptr) norm.sums += std::int64_t{row} * norm.n_parts;
  return norm;
}

}  // namespace

CudaGemms::CudaGemms(const CudaWeights& weights, const StepLaunch& launch, const CudaForwardOptions& options)
    : weights_(weights), launch_(launch), batch_invariant_(options.batch_invariant) {
  group_rows_ =
      options.max_sequences > kFewGroup && skinny_gemm_takes(DType::kBF16, kManyGroup) ? kManyGroup : kFewGroup;
  if (batch_invariant_) return;  // every type has a kernel for these
  weights.for_each([&](const DeviceMatrix& w) {
    for (const std::int32_t fewer : {kWgmmaBf16Rows, kSkinnyBf16Rows, 8})
      if (!skinny_gemm_takes(w.dtype, few_rows_)) few_rows_ = std::min(few_rows_, fewer);
  });
}

void CudaGemms::reserve(ArenaLayout& arena, std::int32_t n_rows) {
  std::int64_t input = weights_.head().n_in;  // of the widest matrix
  std::size_t converted = 0;                  // elements that become bf16 for many rows; the head has few
  std::size_t reordered = 0;                  // columns of the widest whose columns are in another order
  weights_.for_each_in_layers([&](const DeviceMatrix& w) {
    input = std::max(input, w.n_in);
    if (is_quantised(w.dtype) || w.on_host) converted = std::max(converted, static_cast<std::size_t>(w.n_out * w.n_in));
    if (w.columns != nullptr) reordered = std::max(reordered, static_cast<std::size_t>(w.n_in));
  });
  arena.add(gathered_, static_cast<std::size_t>(n_rows) * reordered * 2);
  arena.add(dequantised_, converted * 2);
  arena.add(workspace_.partial, skinny_partial_bytes());
  arena.add(workspace_.arrived, kSkinnyUnits * 4);
  arena.add(workspace_.permuted, skinny_permuted_bytes(input));
}

const void* CudaGemms::ordered(const void* x, const DeviceMatrix& w, std::int64_t n, const CudaContext& context) const {
  if (w.columns == nullptr) return x;
  gather_columns_cuda(x, static_cast<std::int32_t>(n), w.n_in, w.columns, gathered_, context);
  return gathered_;
}

std::int32_t CudaGemms::parts_of_sums(std::int64_t n_out, std::int32_t n) const {
  return residual_parts(n_out, batch_invariant_ ? group_rows_ : n);
}

template <typename Launch>
void CudaGemms::in_groups(std::int32_t n, const DeviceMatrix& w, const Launch& launch) const {
  if (!batch_invariant_) return launch(0, n);
  const std::int32_t least = group_rows_ == kManyGroup ? kFewGroup + 1 : is_quantised(w.dtype) ? 2 : 1;
  for (std::int32_t first = 0; first < n; first += group_rows_)
    launch(first, std::max(least, std::min(group_rows_, n - first)));  // rows behind the last are unused
}

void CudaGemms::few(const void* x, std::int32_t n, const DeviceMatrix& w, const DeferredNorm& norm,
                    const SkinnyGemmStore& out, const CudaContext& context) {
  const void* const in_order = ordered(x, w, n, context);
  const std::int64_t stride = (out.stride == 0 ? w.n_out : out.stride) * (out.bf16 ? 2 : 4);
  in_groups(n, w, [&](std::int32_t first, std::int32_t rows) {
    SkinnyGemmStore to = out;
    to.y = row_of(out.y, first, stride);
    skinny_gemm_cuda(row_of(in_order, first, 2 * w.n_in), rows, w, norm_of(norm, first), to, workspace_, context);
  });
}

void CudaGemms::few_residual(const void* x, std::int32_t n, const DeviceMatrix& w, const SkinnyGemmResidual& out) {
  const CudaContext context = launch_.overlapped();
  const void* const in_order = ordered(x, w, n, context);
  in_groups(n, w, [&](std::int32_t first, std::int32_t rows) {
    SkinnyGemmResidual to = out;
    to.residual += first * w.n_out;
    to.x_next = row_of(out.x_next, first, 2 * w.n_out);
    to.sums += std::int64_t{first} * parts_of_sums(w.n_out, n);
    skinny_gemm_residual_cuda(row_of(in_order, first, 2 * w.n_in), rows, w, to, workspace_, context);
  });
}

void CudaGemms::few_swiglu(const void* x, std::int32_t n, const DeviceMatrix& w, const DeferredNorm& norm, void* out) {
  const CudaContext context = launch_.overlapped();
  const void* const in_order = ordered(x, w, n, context);
  in_groups(n, w, [&](std::int32_t first, std::int32_t rows) {
    skinny_gemm_swiglu_cuda(row_of(in_order, first, 2 * w.n_in), rows, w, norm_of(norm, first),
                            row_of(out, first, w.n_out), workspace_, context);
  });
}

// Quantised weights: by skinny GEMMs where there are few rows, else converted to bf16.
void CudaGemms::many(const void* x, std::int64_t n, const DeviceMatrix& w, const Output& out) {
  const CudaContext context = launch_.serial();
  const bool few_rows = batch_invariant_ ? !of_prompt_ : n <= kSkinnyRows;
  if (is_quantised(w.dtype) && few_rows)
    return few(x, static_cast<std::int32_t>(n), w, {},
               {.y = out.y, .stride = out.stride, .bf16 = !out.f32, .accumulate = out.accumulate}, context);
  const void* values = w.values;
  x = ordered(x, w, n, context);
  if (is_quantised(w.dtype)) {
    dequantise_cuda(w, 0, w.n_out, dequantised_, context);
    values = dequantised_;
  } else if (w.on_host) {  // cuBLASLt reads weights several times
    copy_bytes(dequantised_, w.values, w.bytes(), launch_.stream);
    values = dequantised_;
  }
  multiply(x, n, w, values, out, context);
}

// Batch-invariant: one number of rows has one algorithm, and a row has its place in it by its position. Rows behind the
// last one are multiplied too, into memory that nothing reads.
void CudaGemms::multiply(const void* x, std::int64_t n, const DeviceMatrix& w, const void* values, const Output& out,
                         const CudaContext& context) {
  const std::int64_t stride = (out.stride == 0 ? w.n_out : out.stride) * (out.f32 ? 4 : 2);
  const std::int64_t each = !batch_invariant_ ? n : of_prompt_ ? kInvariantRows : kFewInvariantRows;
  for (std::int64_t first = 0; first < n; first += each) {
    const auto row = static_cast<std::int32_t>(first);
    library_.run(
        {.m = each, .n = w.n_out, .k = w.n_in, .f32 = out.f32, .accumulate = out.accumulate, .stride = out.stride},
        row_of(x, row, 2 * w.n_in), values, row_of(out.y, row, stride), context);
  }
}

}  // namespace mneme
