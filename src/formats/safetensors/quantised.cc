#include "src/formats/safetensors/quantised.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/formats/nvfp4.h"
#include "src/formats/safetensors/packed_words.h"
#include "src/ops/gemm/quant.h"

namespace mneme {
namespace {

using Type = SafetensorsType;

constexpr std::int64_t kRowsPerTask = 64;  // a line of the words of gptq, half a line of awq's

// Scales (and zero points) of a matrix in blocks of rows by columns.
struct ScaleGrid {
  std::vector<float> scales;  // [rows of blocks, columns of blocks]
  std::vector<int> zeros;     // the same; empty: what the format has for none
  std::int64_t columns = 1;   // of blocks
  std::int64_t block_rows = 1, block_columns = 1;

  std::size_t at(std::int64_t row, std::int64_t column) const {
    return row / block_rows * columns + column / block_columns;
  }
};

std::int64_t elements_of(const SafetensorsTensor& t) {
  return std::accumulate(t.dims.begin(), t.dims.begin() + t.rank, std::int64_t{1}, std::multiplies<>());
}

bool is_f16(float v) {
  return static_cast<float>(f16(v)) == v;
}

// One matrix of the folder: finds its parts and repacks them.
class Matrix {
 public:
  Matrix(const QuantConfig& config, const WeightSpec& weight, FindTensor find, std::string_view file, ThreadPool& pool)
      : config_(config),
        find_(find),
        file_(file),
        pool_(pool),
        base_(weight.hf_name.substr(0, weight.hf_name.rfind('.'))),
        n_(weight.n_out),
        k_(weight.n_in) {}

  std::optional<RepackedMatrix> repack() {
    if (const SafetensorsTensor* t = find(".weight")) {
      if (float_dtype(t->type)) return std::nullopt;
      return t->type == Type::kU8 ? repack_nvfp4(*t, ".weight_scale_2") : repack_bytes(*t);
    }
    if (const SafetensorsTensor* t = find(".weight_packed"))
      return t->type == Type::kU8 ? repack_nvfp4(*t, ".weight_global_scale") : repack_packed(*t);
    if (const SafetensorsTensor* t = find(".qweight")) return repack_qweight(*t);
    return std::nullopt;
  }

 private:
  const SafetensorsTensor* find(const char* part) const { return find_(base_ + part); }

  void expect_method(const SafetensorsTensor& t, std::initializer_list<QuantMethod> methods) const {
    if (std::find(methods.begin(), methods.end(), config_.method) == methods.end())
      fail(ErrorKind::kFormat, "{}: tensor '{}' is {}, but config.json's quant_method is {}", file_, t.name, t.shape(),
           config_.name);
  }

  const SafetensorsTensor& require(const char* part) const {
    const SafetensorsTensor* t = find(part);
    if (t == nullptr) fail(ErrorKind::kFormat, "{}: tensor '{}{}' is missing", file_, base_, part);
    return *t;
  }

  [[noreturn]] void wrong(const SafetensorsTensor& t, std::string_view expected) const {
    fail(ErrorKind::kFormat, "{}: tensor '{}': expected {}, found {}", file_, t.name, expected, t.shape());
  }

  bool has_shape(const SafetensorsTensor& t, std::int64_t rows, std::int64_t columns) const {
    return t.rank == 2 && t.dims[0] == rows && t.dims[1] == columns;
  }
  void expect(const SafetensorsTensor& t, Type type, std::int64_t rows, std::int64_t columns) const {
    if (t.type != type || !has_shape(t, rows, columns))
      wrong(t, fmt::format("{} [{}, {}]", safetensors_type_name(type), rows, columns));
  }
  void expect_blocks(std::int64_t block) const {
    if (k_ % block != 0)
      fail(ErrorKind::kUnsupported, "{}: tensor '{}.weight': rows of {} values; expected a multiple of {}", file_,
           base_, k_, block);
  }

  // A scale for each group of columns of a row: t is [rows, groups], or [groups, rows] where `transposed`.
  ScaleGrid group_scales(const SafetensorsTensor& t, bool transposed) const {
    const int rows_at = transposed ? 1 : 0;
    const std::int64_t groups = t.dims[1 - rows_at];
    const bool halves = t.type == Type::kF16 || t.type == Type::kBF16;
    if (!halves || t.rank != 2 || t.dims[rows_at] != n_ || k_ % groups != 0 || k_ / groups % kQuantBlock != 0)
      wrong(t,
            fmt::format("F16 or BF16 {}, groups of a multiple of {} columns",
                        transposed ? fmt::format("[groups, {}]", n_) : fmt::format("[{}, groups]", n_), kQuantBlock));
    ScaleGrid grid{.columns = groups, .block_columns = k_ / groups};
    grid.scales.resize(n_ * groups);
    for (std::int64_t r = 0; r < n_; ++r)
      for (std::int64_t g = 0; g < groups; ++g)
        grid.scales[r * groups + g] = float_at(t, transposed ? g * n_ + r : r * groups + g);
    return grid;
  }

  // ---- a byte a weight: fp8 and int8

  RepackedMatrix repack_bytes(const SafetensorsTensor& t) {
    expect_method(t, {QuantMethod::kFp8, QuantMethod::kCompressedTensors, QuantMethod::kModelOpt});
    if (t.type != Type::kF8E4M3 && t.type != Type::kI8) wrong(t, "BF16, F16, F32, F8_E4M3 or I8");
    expect(t, t.type, n_, k_);
    const bool is_fp8 = t.type == Type::kF8E4M3;
    expect_blocks(is_fp8 ? kFp8Block : kQuantBlock);
    const ScaleGrid grid = byte_scales(is_fp8 ? kFp8Block : kQuantBlock);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(t.data.data());
    if (is_fp8) return pack_fp8(codes, grid);
    if (const SafetensorsTensor* zero = find(".weight_zero_point")) refuse_zero(*zero);
    return pack_int8(grid, [&](std::int64_t r, std::int64_t c) { return codes[r * k_ + c]; });
  }

  // One scale of the tensor, of each row, or of each block.
  ScaleGrid byte_scales(std::int64_t unit) const {
    const SafetensorsTensor* inverse = find(".weight_scale_inv");
    const SafetensorsTensor& t = inverse != nullptr ? *inverse : require(".weight_scale");
    const auto [rows, columns] = config_.block;
    const auto blocks = [](std::int64_t size, std::int64_t block) { return (size + block - 1) / block; };
    ScaleGrid grid{.block_rows = n_, .block_columns = k_};
    if (!float_dtype(t.type)) wrong(t, "F32, BF16 or F16");
    if (elements_of(t) == 1) {
      // as it is
    } else if (has_shape(t, n_, 1) || (t.rank == 1 && t.dims[0] == n_)) {
      grid.block_rows = 1;
    } else if (rows > 0 && has_shape(t, blocks(n_, rows), blocks(k_, columns))) {
      if (columns % unit != 0)
        fail(ErrorKind::kUnsupported, "{}: tensor '{}': blocks of {} columns; expected a multiple of {}", file_, t.name,
             columns, unit);
      grid = {.columns = t.dims[1], .block_rows = rows, .block_columns = columns};
    } else {
      const std::string of_blocks =
          rows > 0 ? fmt::format(" or [{}, {}]", blocks(n_, rows), blocks(k_, columns)) : std::string();
      wrong(t, fmt::format("[1], [{}, 1]{}", n_, of_blocks));
    }
    for (std::int64_t i = 0; i < elements_of(t); ++i) grid.scales.push_back(float_at(t, i));
    return grid;
  }

  void refuse_zero(const SafetensorsTensor& t) const {
    fail(ErrorKind::kUnsupported, "{}: tensor '{}': zero points of weights in 8 bits; expected symmetric ones", file_,
         t.name);
  }

  template <typename Block>
  Block* make_blocks(DType dtype, RepackedMatrix& out) const {
    out.dtype = dtype;
    out.blocks = Buffer(n_ * row_bytes(dtype, k_));
    return out.blocks.template as<Block>();
  }

  // Calls fn(row, block of the row, its first column) for all blocks, a few rows side by side.
  template <typename Fn>
  void for_blocks(std::int64_t width, Fn fn) const {
    pool_.parallel_for((n_ + kRowsPerTask - 1) / kRowsPerTask, 1, [&](std::int64_t task, std::int64_t end, int) {
      for (; task < end; ++task)
        for (std::int64_t b = 0; b < k_ / width; ++b)
          for (std::int64_t r = task * kRowsPerTask; r < std::min(n_, (task + 1) * kRowsPerTask); ++r)
            fn(r, r * (k_ / width) + b, b * width);
    });
  }

  RepackedMatrix pack_fp8(const std::uint8_t* codes, const ScaleGrid& grid) const {
    RepackedMatrix out;
    auto* blocks = make_blocks<BlockFp8>(DType::kFp8, out);
    for_blocks(kFp8Block, [&](std::int64_t r, std::int64_t b, std::int64_t column) {
      const std::uint8_t* from = codes + r * k_ + column;
      const bool has_nan = std::any_of(from, from + kFp8Block, [](std::uint8_t c) { return (c & 0x7f) == 0x7f; });
      blocks[b].d = has_nan ? std::numeric_limits<float>::quiet_NaN() : grid.scales[grid.at(r, column)];
      std::memcpy(blocks[b].q, from, kFp8Block);
    });
    return out;
  }

  template <typename Code>
  RepackedMatrix pack_int8(const ScaleGrid& grid, Code code) const {
    const auto fill = [&](auto* blocks) {
      for_blocks(kQuantBlock, [&](std::int64_t r, std::int64_t b, std::int64_t column) {
        blocks[b].d = decltype(blocks[b].d)(grid.scales[grid.at(r, column)]);
        for (int i = 0; i < kQuantBlock; ++i) blocks[b].q[i] = static_cast<std::int8_t>(code(r, column + i));
      });
    };
    RepackedMatrix out;
    if (std::all_of(grid.scales.begin(), grid.scales.end(), is_f16))
      fill(make_blocks<BlockQ8_0>(DType::kQ8_0, out));
    else
      fill(make_blocks<BlockInt8>(DType::kInt8, out));
    return out;
  }

  // ---- words of 4 bits, or 8

  template <typename Code>
  RepackedMatrix pack_int4(const ScaleGrid& grid, std::vector<std::int32_t> columns, Code code) const {
    const auto fill = [&](auto* blocks, auto put_scale) {
      for_blocks(kQuantBlock, [&](std::int64_t r, std::int64_t b, std::int64_t column) {
        put_scale(grid.at(r, column), blocks[b]);
        const auto at = [&](std::int64_t j) { return columns.empty() ? column + j : columns[column + j]; };
        for (int i = 0; i < kQuantBlock / 2; ++i)
          blocks[b].q[i] = static_cast<std::uint8_t>(code(r, at(i)) | code(r, at(i + kQuantBlock / 2)) << 4);
      });
    };
    RepackedMatrix out;
    MNEME_CHECK(std::all_of(grid.zeros.begin(), grid.zeros.end(), [](int z) { return z >= 0 && z < 16; }),
                "a zero point of {} is none of 4 bits", base_);
    const bool symmetric = std::all_of(grid.zeros.begin(), grid.zeros.end(), [](int z) { return z == 8; });
    if (symmetric && std::all_of(grid.scales.begin(), grid.scales.end(), is_f16)) {
      fill(make_blocks<BlockQ4_0>(DType::kQ4_0, out), [&](std::size_t i, BlockQ4_0& b) { b.d = f16(grid.scales[i]); });
    } else {
      fill(make_blocks<BlockInt4>(DType::kInt4, out), [&](std::size_t i, BlockInt4& b) {
        const std::uint32_t zero = static_cast<std::uint32_t>(grid.zeros.empty() ? 8 : grid.zeros[i]);
        b.scale_and_zero = std::bit_cast<std::uint32_t>(grid.scales[i]) | zero;
      });
    }
    out.columns = std::move(columns);
    return out;
  }

  // compressed-tensors: [n, k / 8] for 4 bits, [n, k / 4] for 8.
  RepackedMatrix repack_packed(const SafetensorsTensor& t) {
    expect_method(t, {QuantMethod::kCompressedTensors});
    expect_blocks(kQuantBlock);
    if (const SafetensorsTensor* shape = find(".weight_shape")) expect_stored_shape(*shape);
    const bool eight = has_shape(t, n_, k_ / 4);
    if (t.type != Type::kI32 || (!eight && !has_shape(t, n_, k_ / 8)))
      wrong(t, fmt::format("I32 [{}, {}] or [{}, {}]", n_, k_ / 8, n_, k_ / 4));
    ScaleGrid grid = group_scales(require(".weight_scale"), false);
    const SafetensorsTensor* zero = find(".weight_zero_point");
    const SafetensorsTensor* g_idx = find(".weight_g_idx");
    if (eight) {
      if (zero != nullptr) refuse_zero(*zero);
      if (g_idx != nullptr)
        fail(ErrorKind::kUnsupported, "{}: tensor '{}': groups in another order, in 8 bits", file_, g_idx->name);
      const auto* bytes = reinterpret_cast<const std::uint8_t*>(t.data.data());
      return pack_int8(grid, [&](std::int64_t r, std::int64_t c) { return bytes[r * k_ + c] - 128; });
    }
    if (zero != nullptr) {
      expect(*zero, Type::kI32, (n_ + 7) / 8, grid.columns);
      const auto* z = reinterpret_cast<const std::uint32_t*>(zero->data.data());
      for (std::int64_t r = 0; r < n_; ++r)
        for (std::int64_t g = 0; g < grid.columns; ++g)
          grid.zeros.push_back(nibble_of(z[r / 8 * grid.columns + g], r % 8));
    }
    const auto* words = reinterpret_cast<const std::uint32_t*>(t.data.data());
    return pack_int4(grid, columns_of(g_idx, grid),
                     [&](std::int64_t r, std::int64_t c) { return nibble_of(words[r * (k_ / 8) + c / 8], c % 8); });
  }

  // Codes of e2m1, a scale in e4m3 for 16 columns, and a factor: modelopt multiplies with it, compressed-tensors divides.
  RepackedMatrix repack_nvfp4(const SafetensorsTensor& t, const char* factor_part) const {
    const bool divides = config_.method == QuantMethod::kCompressedTensors;
    expect_method(t, {QuantMethod::kModelOpt, QuantMethod::kCompressedTensors});
    expect_blocks(kNvfp4Block);
    expect(t, Type::kU8, n_, k_ / 2);
    const SafetensorsTensor &scales = require(".weight_scale"), &global = require(factor_part);
    expect(scales, Type::kF8E4M3, n_, k_ / kNvfp4Group);
    if (global.type != Type::kF32 || elements_of(global) != 1) wrong(global, "one F32");
    const float factor = divides ? 1.0f / float_at(global, 0) : float_at(global, 0);
    if (!std::isfinite(factor))
      fail(ErrorKind::kFormat, "{}: tensor '{}': expected a number{}, found {}", file_, global.name,
           divides ? " other than 0" : "", float_at(global, 0));
    RepackedMatrix out;
    auto* blocks = make_blocks<BlockNVFP4>(DType::kNVFP4, out);
    const auto* codes = reinterpret_cast<const std::uint8_t*>(t.data.data());
    const auto* e4m3 = reinterpret_cast<const std::uint8_t*>(scales.data.data());
    std::atomic<bool> numbers = true;
    pool_.parallel_for(n_, kRowsPerTask, [&](std::int64_t r, std::int64_t end, int) {
      for (; r < end; ++r)
        if (!pack_nvfp4_row(k_, codes + r * (k_ / 2), e4m3 + r * (k_ / kNvfp4Group), factor,
                            blocks + r * (k_ / kNvfp4Block)))
          numbers = false;
    });
    if (!numbers) fail(ErrorKind::kFormat, "{}: tensor '{}': a scale is NaN", file_, scales.name);
    return out;
  }

  void expect_stored_shape(const SafetensorsTensor& t) const {
    if (t.type != Type::kI64 || elements_of(t) != 2) wrong(t, "I64 [2]");
    const auto* sizes = reinterpret_cast<const std::int64_t*>(t.data.data());
    if (sizes[0] != n_ || sizes[1] != k_)
      fail(ErrorKind::kFormat, "{}: tensor '{}': expected [{}, {}], found [{}, {}]", file_, t.name, n_, k_, sizes[0],
           sizes[1]);
  }

  RepackedMatrix repack_qweight(const SafetensorsTensor& t) {
    expect_method(t, {QuantMethod::kGptq, QuantMethod::kAwq});
    expect_blocks(kQuantBlock);
    if (n_ % 8 != 0)
      fail(ErrorKind::kUnsupported, "{}: tensor '{}': {} outputs; expected a multiple of 8", file_, t.name, n_);
    const bool awq = config_.method == QuantMethod::kAwq;
    if (awq)
      expect(t, Type::kI32, k_, n_ / 8);
    else
      expect(t, Type::kI32, k_ / 8, n_);
    ScaleGrid grid = group_scales(require(".scales"), true);
    const SafetensorsTensor& zeros = require(".qzeros");
    expect(zeros, Type::kI32, grid.columns, n_ / 8);
    const auto* z = reinterpret_cast<const std::uint32_t*>(zeros.data.data());
    for (std::int64_t r = 0; r < n_; ++r)
      for (std::int64_t g = 0; g < grid.columns; ++g)
        grid.zeros.push_back(
            nibble_of(zeros_of(z[g * (n_ / 8) + r / 8], config_.zeros), awq ? kAwqOrder[r % 8] : r % 8));
    const auto* words = reinterpret_cast<const std::uint32_t*>(t.data.data());
    if (awq)
      return pack_int4(grid, {}, [&](std::int64_t r, std::int64_t c) {
        return nibble_of(words[c * (n_ / 8) + r / 8], kAwqOrder[r % 8]);
      });
    return pack_int4(grid, columns_of(find(".g_idx"), grid),
                     [&](std::int64_t r, std::int64_t c) { return nibble_of(words[c / 8 * n_ + r], c % 8); });
  }

  // Columns sorted by their group; empty where they are in that order as stored.
  std::vector<std::int32_t> columns_of(const SafetensorsTensor* t, const ScaleGrid& grid) const {
    if (t == nullptr) return {};
    if (t->type != Type::kI32 || t->rank != 1 || t->dims[0] != k_) wrong(*t, fmt::format("I32 [{}]", k_));
    const auto* group = reinterpret_cast<const std::int32_t*>(t->data.data());
    std::vector<std::int64_t> sizes(grid.columns);
    bool in_order = true;
    for (std::int64_t c = 0; c < k_; ++c) {
      if (group[c] < 0 || group[c] >= grid.columns)
        fail(ErrorKind::kFormat, "{}: tensor '{}': group of column {}: expected 0 to {}, found {}", file_, t->name, c,
             grid.columns - 1, group[c]);
      ++sizes[group[c]];
      in_order = in_order && group[c] == c / grid.block_columns;
    }
    for (std::int64_t g = 0; g < grid.columns; ++g)
      if (sizes[g] != grid.block_columns)
        fail(ErrorKind::kFormat, "{}: tensor '{}': group {}: expected {} columns, found {}", file_, t->name, g,
             grid.block_columns, sizes[g]);
    if (in_order) return {};
    std::vector<std::int32_t> columns(k_);
    std::iota(columns.begin(), columns.end(), 0);
    std::stable_sort(columns.begin(), columns.end(), [group](int a, int b) { return group[a] < group[b]; });
    return columns;
  }

  static constexpr int kAwqOrder[8] = {0, 4, 1, 5, 2, 6, 3, 7};

  const QuantConfig& config_;
  FindTensor find_;
  std::string_view file_;
  ThreadPool& pool_;
  std::string base_;
  std::int64_t n_, k_;
};

}  // namespace

std::optional<RepackedMatrix> repack_quantised(const QuantConfig& config, const WeightSpec& weight, FindTensor find,
                                               std::string_view file, ThreadPool& pool) {
  return Matrix(config, weight, find, file, pool).repack();
}

}  // namespace mneme
