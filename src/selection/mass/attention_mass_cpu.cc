// Attention mass in two forms.
//
//   few rows   scores of a range of the context by the dot products of key_score_cpu, then their exponentials
//   many rows  64 keys at a time, transposed so that lanes are tokens: every key element is read once for all rows, and
//              sums over rows need no reduction across lanes
//
// Ranges of the context are independent, so threads share them and nothing is merged. A token's mass depends only on
// its key and the rows that attend it: equal tokens attended by the same rows have equal mass, bit for bit.
#include "src/base/size32.h"
#include "src/selection/mass/attention_mass.h"

#include "src/ops/simd/fixed_width_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/selection/mass/attention_mass_cpu.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "src/ops/simd/load_half-inl.h"
#include "src/ops/simd/vec_math-inl.h"

#ifndef MNEME_KERNELS_ATTENTION_MASS_CPU_ONCE_
#define MNEME_KERNELS_ATTENTION_MASS_CPU_ONCE_
#include <algorithm>
#include <limits>
#include <vector>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/selection/index/box.h"

namespace mneme {
namespace {

constexpr std::int32_t kTile = 64;        // tokens
constexpr std::int32_t kFewQueries = 16;  // up to this, transposing keys costs more than it saves
constexpr std::int32_t kPieceTokens = 1024;
constexpr std::int32_t kMaxDim = 256;

// Up to kTile tokens of one head.
struct TileTask {
  const MassHead* head = nullptr;
  const std::byte* const* rows = nullptr;  // their [K | V]
  std::int32_t begin = 0, n = 0;           // index of the first one in the head; count
  std::int32_t n_tokens = 0;               // M
  float* keys = nullptr;                   // [D, kTile] scratch
};

// One row of one head over a range of the context, with known scores.
struct MassTask {
  const float* scores = nullptr;
  std::int32_t n = 0;  // tokens that the row attends
  float scale = 0.0f, lse = 0.0f;
  float* mass = nullptr;
};

}  // namespace
}  // namespace mneme
#endif

HWY_BEFORE_NAMESPACE();
namespace mneme {
namespace HWY_NAMESPACE {
namespace {
namespace hn = hwy::HWY_NAMESPACE;

using D = hn::ScalableTag<float>;
using V = hn::Vec<D>;
// 16 accumulators of AVX-512's 32 registers, 8 of the 16 of other targets.
inline constexpr int kRowsAtOnce = HWY_TARGET <= HWY_AVX3 ? 4 : 2;
inline constexpr int kVecs = 4;

// keys[c * kTile + i] = key element c of token i; padding repeats the last token.
template <class Load>
HWY_INLINE void rotate_keys(const TileTask& t, std::int32_t dim, Load load) {
  const hn::CappedTag<float, 8> d;  // D is a multiple of 8
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  HWY_ALIGN float key[kMaxDim];
  for (std::int32_t i = 0; i < kTile; ++i) {
    const std::byte* row = t.rows[std::min(i, t.n - 1)];
    for (std::int32_t c = 0; c < dim; c += lanes) hn::Store(load(d, row + 2 * c), d, key + c);
    for (std::int32_t c = 0; c < dim; ++c) t.keys[c * kTile + i] = key[c];
  }
}

// Adds the probabilities of kRows rows from `first` on to the tokens at `at` of the tile.
template <int kRows>
HWY_INLINE void add_rows(const TileTask& t, const AttentionShape& shape, std::int32_t g, std::int32_t first,
                         std::int32_t at, V* sums) {
  const D d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const MassHead& head = *t.head;
  const float* q = head.q + first * head.q_stride + g * shape.head_dim;
  V acc[kRows][kVecs];
  for (int r = 0; r < kRows; ++r)
    for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::Zero(d);
  const float* keys = t.keys + at;
  for (std::int32_t c = 0; c < shape.head_dim; ++c, keys += kTile) {
    V k[kVecs];
    for (int v = 0; v < kVecs; ++v) k[v] = hn::LoadU(d, keys + v * lanes);
    for (int r = 0; r < kRows; ++r) {
      const V x = hn::Set(d, q[r * head.q_stride + c]);
      for (int v = 0; v < kVecs; ++v) acc[r][v] = hn::MulAdd(x, k[v], acc[r][v]);
    }
  }
  const V scale = hn::Set(d, shape.scale);
  for (int r = 0; r < kRows; ++r) {
    const std::int32_t row = first + r;
    const V lse = hn::Set(d, head.lse[row * head.lse_stride + g]);
    // The row attends the tokens up to itself, or only the last of them.
    const std::int32_t seen = t.n_tokens - head.n_rows + 1 + row - t.begin - at;
    const std::int32_t gone = head.window > 0 ? seen - head.window : 0;
    for (int v = 0; v < kVecs; ++v) {
      V p = vec_exp(d, hn::MulSub(acc[r][v], scale, lse));
      if (gone > v * lanes) {
        const auto limit = hn::Set(d, static_cast<float>(gone - v * lanes));
        p = hn::IfThenZeroElse(hn::Lt(hn::Iota(d, 0.0f), limit), p);
      }
      if (seen < (v + 1) * lanes) {
        const auto limit = hn::Set(d, static_cast<float>(std::max(seen - v * lanes, 0)));
        p = hn::IfThenElseZero(hn::Lt(hn::Iota(d, 0.0f), limit), p);
      }
      sums[v] = hn::Add(sums[v], p);
    }
  }
}

HWY_INLINE void add_sums(const V* sums, std::int32_t n, float* mass) {
  const D d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  for (int v = 0; v < kVecs && v * lanes < n; ++v) {
    float* to = mass + v * lanes;
    if (n - v * lanes >= lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, to), sums[v]), d, to);
    } else {
      HWY_ALIGN float rest[HWY_MAX_BYTES / sizeof(float)];
      hn::Store(sums[v], d, rest);
      for (std::int32_t i = 0; i < n - v * lanes; ++i) to[i] += rest[i];
    }
  }
}

void mass_tile(const TileTask& t, const AttentionShape& shape, MassBy by) {
  if (shape.kv_dtype == DType::kBF16)
    rotate_keys(t, shape.head_dim, LoadBf16());
  else
    rotate_keys(t, shape.head_dim, LoadF16());
  const D d;
  const MassHead& head = *t.head;
  const auto step = kVecs * static_cast<std::int32_t>(hn::Lanes(d));
  const std::int32_t first_row = std::max(0, t.begin - (t.n_tokens - head.n_rows));  // earlier rows: none
  std::int32_t last_row = head.n_rows;  // rows from here on attend none of these
  if (head.window > 0) last_row = std::min(last_row, t.begin + t.n + head.window - 1 - (t.n_tokens - head.n_rows));
  for (std::int32_t at = 0; at < t.n; at += step) {
    V sums[kVecs];
    for (int v = 0; v < kVecs; ++v) sums[v] = hn::Zero(d);
    for (std::int32_t g = 0; g < shape.group; ++g) {
      std::int32_t row = first_row;
      for (; row + kRowsAtOnce <= last_row; row += kRowsAtOnce) add_rows<kRowsAtOnce>(t, shape, g, row, at, sums);
      for (; row < last_row; ++row) add_rows<1>(t, shape, g, row, at, sums);
      if (by == MassBy::kGroup && g + 1 < shape.group) continue;
      add_sums(sums, t.n - at, head.mass + (by == MassBy::kGroup ? 0 : g * head.mass_stride) + t.begin + at);
      for (int v = 0; v < kVecs; ++v) sums[v] = hn::Zero(d);
    }
  }
}

// mass[i] += exp(scores[i] * scale - lse)
void add_exponentials(const MassTask& t) {
  const D d;
  const auto lanes = static_cast<std::int32_t>(hn::Lanes(d));
  const V scale = hn::Set(d, t.scale), lse = hn::Set(d, t.lse);
  std::int32_t i = 0;
  for (; i + lanes <= t.n; i += lanes)
    hn::StoreU(hn::Add(hn::LoadU(d, t.mass + i), vec_exp(d, hn::MulSub(hn::LoadU(d, t.scores + i), scale, lse))), d,
               t.mass + i);
  if (i == t.n) return;
  HWY_ALIGN float rest[HWY_MAX_BYTES / sizeof(float)] = {};
  std::copy(t.scores + i, t.scores + t.n, rest);
  hn::Store(vec_exp(d, hn::MulSub(hn::Load(d, rest), scale, lse)), d, rest);
  for (std::int32_t j = 0; i + j < t.n; ++j) t.mass[i + j] += rest[j];
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace mneme
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace mneme {
namespace {

HWY_EXPORT(mass_tile);
HWY_EXPORT(add_exponentials);

// A range of one head's context: runs for few rows, tokens for many.
struct Piece {
  std::size_t head = 0;
  std::size_t first_run = 0, last_run = 0;
  std::int32_t begin = 0, n = 0;
};

// Working memory of one call, kept by the calling thread.
struct CallScratch {
  std::vector<Piece> pieces;
  std::vector<std::int32_t> n_tokens;    // by head
  std::vector<const std::byte*> rows;    // all tokens of all heads
  std::vector<std::size_t> first_token;  // by head, in rows
};

// Up to kTile tokens as the kernel reads them: where they are, or widened.
class WideTile {
 public:
  const std::byte* const* rows_of(std::span<const std::byte* const> rows, const AttentionShape& shape) {
    if (!is_eight_bit(shape.kv_dtype)) return rows.data();
    const std::size_t bytes = shape.wide().token_bytes();
    wide_.reserve(kTile * bytes);
    widen_tokens_cpu(rows, shape, KvPart::kKeys, wide_.data());
    for (std::size_t i = 0; i < rows.size(); ++i) rows_[i] = wide_.data() + i * bytes;
    return rows_;
  }

 private:
  Buffer wide_;
  const std::byte* rows_[kTile] = {};
};

// Splits into whole runs with enough tokens.
void list_run_pieces(std::size_t h, const MassHead& head, CallScratch& call) {
  std::int32_t at = 0;
  Piece piece{.head = h};
  for (std::size_t r = 0; r < head.runs.size(); ++r) {
    at += head.runs[r].n_tokens;
    piece.last_run = r + 1;
    piece.n = at - piece.begin;
    if (piece.n < kPieceTokens && r + 1 < head.runs.size()) continue;
    call.pieces.push_back(piece);
    piece.first_run = r + 1;
    piece.begin = at;
  }
}

void list_token_pieces(std::size_t h, const MassHead& head, std::size_t token_bytes, CallScratch& call) {
  call.first_token[h] = call.rows.size();
  for (const KvRun& run : head.runs)
    for (std::int32_t i = 0; i < run.n_tokens; ++i) call.rows.push_back(run.kv + i * token_bytes);
  for (std::int32_t at = 0; at < call.n_tokens[h]; at += kTile)
    call.pieces.push_back({.head = h, .begin = at, .n = std::min(kTile, call.n_tokens[h] - at)});
}

void add_few(const MassHead& head, const Piece& piece, const AttentionShape& shape, MassBy by, std::int32_t n_tokens) {
  static thread_local std::vector<float> t_scores;
  t_scores.resize(std::int64_t{piece.n} * shape.group);
  const auto runs = head.runs.subspan(piece.first_run, piece.last_run - piece.first_run);
  for (std::int32_t i = 0; i < head.n_rows; ++i) {
    const std::int32_t seen = std::min(piece.n, n_tokens - head.n_rows + 1 + i - piece.begin);
    const std::int32_t gone =
        head.window > 0 ? std::max(0, n_tokens - head.n_rows + 1 + i - piece.begin - head.window) : 0;
    if (seen <= gone) continue;
    key_score_cpu(head.q + i * head.q_stride, shape, runs, t_scores.data(), piece.n);
    for (std::int32_t g = 0; g < shape.group; ++g) HWY_DYNAMIC_DISPATCH(add_exponentials)
    ({.scores = t_scores.data() + std::int64_t{g} * piece.n + gone,
      .n = seen - gone,
      .scale = shape.scale,
      .lse = head.lse[i * head.lse_stride + g],
      .mass = head.mass + (by == MassBy::kGroup ? 0 : g * head.mass_stride) + piece.begin + gone});
  }
}

}  // namespace

void attention_mass_cpu(std::span<const MassHead> heads, const AttentionShape& shape, MassBy by,
                        const CpuContext& context) {
  check_attention_shape(shape);
  static thread_local CallScratch t_call;
  CallScratch& call = t_call;
  call.pieces.clear();
  call.rows.clear();
  call.n_tokens.assign(heads.size(), 0);
  call.first_token.assign(heads.size(), 0);
  const auto few = [&](const MassHead& head) { return head.n_rows * shape.group <= kFewQueries; };
  for (std::size_t h = 0; h < heads.size(); ++h) {
    std::int64_t n = 0;
    for (const KvRun& run : heads[h].runs) n += run.n_tokens;
    MNEME_CHECK(n >= heads[h].n_rows && n <= std::numeric_limits<std::int32_t>::max() - kTile,
                "{} rows see themselves among {} tokens", heads[h].n_rows, n);
    call.n_tokens[h] = count32(n);
    if (heads[h].n_rows == 0) continue;
    few(heads[h]) ? list_run_pieces(h, heads[h], call) : list_token_pieces(h, heads[h], shape.token_bytes(), call);
  }
  context.pool->parallel_for(call.pieces.size(), 1, [&](std::int64_t begin, std::int64_t end, int) {
    alignas(64) static thread_local float t_keys[kMaxDim * kTile];
    static thread_local WideTile t_wide;
    for (std::int64_t i = begin; i < end; ++i) {
      const Piece& piece = call.pieces[i];
      const MassHead& head = heads[piece.head];
      const std::int32_t n_tokens = call.n_tokens[piece.head];
      if (few(head)) {
        add_few(head, piece, shape, by, n_tokens);
        continue;
      }
      const std::span rows = std::span(call.rows).subspan(call.first_token[piece.head] + piece.begin, piece.n);
      HWY_DYNAMIC_DISPATCH(mass_tile)
      ({.head = &head,
        .rows = t_wide.rows_of(rows, shape),
        .begin = piece.begin,
        .n = piece.n,
        .n_tokens = n_tokens,
        .keys = t_keys},
       shape.wide(), by);
    }
  });
}

}  // namespace mneme
#endif
