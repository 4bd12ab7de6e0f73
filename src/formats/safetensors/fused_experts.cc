#include "src/formats/safetensors/fused_experts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstring>
#include <string>

#include "src/base/error.h"
#include "src/ops/gemm/quant.h"

namespace mneme {
namespace {

using Type = SafetensorsType;

constexpr std::int64_t kHalf = kQuantBlock / 2;

// Rows of the tensor in the folder that a stack's rows are.
struct StackStride {
  std::int64_t first, step, stored;  // stored: rows of the tensor
  std::int64_t of(std::int64_t r) const { return first + step * r; }
};

// Of a stack whose matrices have n rows.
StackStride rows_of(FusedSplit fused, std::int64_t n) {
  switch (fused) {
    case FusedSplit::kNone:
    case FusedSplit::kAll:
    case FusedSplit::kAllOutputs:
    case FusedSplit::kFirstOutputs:
    case FusedSplit::kSecondOutputs:
    case FusedSplit::kQkv:
    case FusedSplit::kZ:
      return {0, 1, n};
    case FusedSplit::kEven:
      return {0, 2, 2 * n};
    case FusedSplit::kOdd:
      return {1, 2, 2 * n};
    case FusedSplit::kFirstHalf:
      return {0, 1, 2 * n};
    case FusedSplit::kSecondHalf:
      return {n, 1, 2 * n};
  }
  return {};
}

void expect(const SafetensorsTensor& t, std::string_view types, bool has_type, std::initializer_list<std::int64_t> dims,
            std::string_view file) {
  bool fits = has_type && t.rank == std::ssize(dims);
  for (int i = 0; fits && i < t.rank; ++i) fits = t.dims[i] == dims.begin()[i];
  if (!fits)
    fail(ErrorKind::kFormat, "{}: tensor '{}': expected {} [{}], found {}", file, t.name, types, fmt::join(dims, ", "),
         t.shape());
}

const SafetensorsTensor& require(FindTensor find, const std::string& name, std::string_view file) {
  const SafetensorsTensor* t = find(name);
  if (t == nullptr) fail(ErrorKind::kFormat, "{}: tensor '{}' is missing", file, name);
  return *t;
}

// A block of 32 whose neighbours share a byte, as GGUF has it: values i and i + 16 share one.
void repack_block(const std::byte* from, std::uint8_t* to) {
  const auto code = [from](std::int64_t i) { return std::to_integer<std::uint8_t>(from[i / 2]) >> (i % 2 * 4) & 15; };
  for (std::int64_t i = 0; i < kHalf; ++i) to[i] = static_cast<std::uint8_t>(code(i) | code(i + kHalf) << 4);
}

RepackedMatrix repack_mxfp4(const WeightSpec& w, const SafetensorsTensor& blocks, const SafetensorsTensor& scales,
                            std::string_view file, ThreadPool& pool) {
  const StackStride rows = rows_of(w.fused, w.n_out);
  const std::int64_t stored = rows.stored, n_blocks = w.n_in / kQuantBlock;
  if (w.n_in % kQuantBlock != 0)
    fail(ErrorKind::kFormat, "{}: tensor '{}': rows of {} values; expected a multiple of {}", file, blocks.name, w.n_in,
         kQuantBlock);
  expect(blocks, "U8", blocks.type == Type::kU8, {w.n_experts, stored, n_blocks, kHalf}, file);
  expect(scales, "U8", scales.type == Type::kU8, {w.n_experts, stored, n_blocks}, file);
  RepackedMatrix out{.dtype = DType::kMXFP4,
                     .blocks = Buffer(w.n_experts * w.n_out * row_bytes(DType::kMXFP4, w.n_in)),
                     .columns = {}};
  auto* to = out.blocks.as<BlockMXFP4>();
  pool.parallel_for(w.n_experts * w.n_out, 64, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t first = (r / w.n_out * stored + rows.of(r % w.n_out)) * n_blocks;
      for (std::int64_t b = 0; b < n_blocks; ++b) {
        BlockMXFP4& block = to[r * n_blocks + b];
        block.e = std::to_integer<std::uint8_t>(scales.data[first + b]);
        repack_block(blocks.data.data() + (first + b) * kHalf, block.q);
      }
    }
  });
  return out;
}

// [E, n_in, stored rows] to [E, n_out, n_in].
RepackedMatrix transpose(const WeightSpec& w, const SafetensorsTensor& t, std::string_view file, ThreadPool& pool) {
  const StackStride rows = rows_of(w.fused, w.n_out);
  const std::int64_t stored = rows.stored;
  const auto dtype = float_dtype(t.type);
  expect(t, "BF16, F16 or F32", dtype.has_value(), {w.n_experts, w.n_in, stored}, file);
  const std::size_t size = row_bytes(*dtype, 1);
  RepackedMatrix out{.dtype = *dtype, .blocks = Buffer(w.n_experts * w.n_out * w.n_in * size), .columns = {}};
  pool.parallel_for(w.n_experts * w.n_out, 16, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t r = begin; r < end; ++r)
      for (std::int64_t c = 0; c < w.n_in; ++c) {
        const std::int64_t from = (r / w.n_out * w.n_in + c) * stored + rows.of(r % w.n_out);
        std::memcpy(out.blocks.data() + (r * w.n_in + c) * size, t.data.data() + from * size, size);
      }
  });
  return out;
}

RepackedMatrix repack_biases(const WeightSpec& w, const SafetensorsTensor& t, std::string_view file) {
  const StackStride rows = rows_of(w.fused, w.n_in);
  const std::int64_t stored = rows.stored;
  expect(t, "BF16, F16 or F32", float_dtype(t.type).has_value(), {w.n_out, stored}, file);
  RepackedMatrix out{.dtype = DType::kF32, .blocks = Buffer(w.n_out * w.n_in * sizeof(float)), .columns = {}};
  for (std::int64_t e = 0; e < w.n_out; ++e)
    for (std::int64_t i = 0; i < w.n_in; ++i)
      out.blocks.as<float>()[e * w.n_in + i] = float_at(t, e * stored + rows.of(i));
  return out;
}

}  // namespace

RepackedMatrix repack_fused(const WeightSpec& w, FindTensor find, std::string_view file, ThreadPool& pool) {
  if (w.n_experts == 0) return repack_biases(w, require(find, w.hf_name, file), file);
  const SafetensorsTensor* blocks = find(w.hf_name + "_blocks");
  if (blocks == nullptr) return transpose(w, require(find, w.hf_name, file), file, pool);
  return repack_mxfp4(w, *blocks, require(find, w.hf_name + "_scales", file), file, pool);
}

}  // namespace mneme
