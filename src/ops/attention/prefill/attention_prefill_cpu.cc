// Prefill attention on a CPU: workers take tiles of up to 64 queries of one KV head, the largest first, and iterate
// over the keys that any query of the tile attends.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "src/base/check.h"
#include "src/kv/kv_quant.h"
#include "src/ops/attention/attention.h"
#include "src/ops/attention/prefill/attention_prefill_tile.h"
#include "src/ops/attention/sink.h"
#include "src/tensor/buffer.h"

namespace mneme {
namespace {

constexpr float kLog2e = 1.44269504f;
constexpr float kLn2 = 0.693147181f;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

struct Span32 {
  std::int32_t first = 0;
  std::int32_t last = 0;
};

struct Item {
  std::size_t head = 0;
  std::int32_t first_query = 0;  // row * G + head in group
  std::int64_t cost = 0;
};

// Working memory of one call, kept by the calling thread.
struct CallScratch {
  std::vector<Item> items;
  std::vector<std::int32_t> n_tokens;   // of every part of every head, concatenated
  std::vector<std::size_t> first_part;  // per head, into n_tokens
};

std::int32_t count_tokens(std::span<const KvRun> runs) {
  std::int64_t n = 0;
  for (const KvRun& run : runs) n += run.n_tokens;
  MNEME_CHECK(n <= std::numeric_limits<std::int32_t>::max() - kKeyTile, "{} tokens in one part", n);
  return static_cast<std::int32_t>(n);
}

// Tokens that a row attends.
Span32 seen_by(const PrefillPart& part, std::int32_t n_tokens, std::int32_t n_rows, std::int32_t row) {
  if (!part.causal) return {0, n_tokens};
  const std::int32_t last = std::max(0, n_tokens - n_rows + 1 + row);
  return {part.window > 0 ? std::max(0, last - part.window) : 0, last};
}

// Tokens of a part are counted from the tile that has its first one, of which `lead` places are empty.
std::int32_t lead_of(const PrefillPart& part) {
  return part.first_position % kKeyTile;
}

// Iterates over the tokens of a part in tiles that start at multiples of kKeyTile. Empty places of the first tile repeat
// its first token, which no lane attends there.
struct TileReader {
  std::span<const KvRun> runs;
  std::size_t token_bytes = 0;
  std::int32_t lead = 0;
  std::size_t run = 0;
  std::int32_t offset = 0;
  std::int32_t token = 0;

  void skip_to(std::int32_t first) {
    if (first == 0) return;
    token = lead;
    while (token < first) {
      const std::int32_t take = std::min(first - token, runs[run].n_tokens - offset);
      advance(take);
    }
  }
  void advance(std::int32_t n) {
    token += n;
    offset += n;
    if (offset == runs[run].n_tokens) {
      ++run;
      offset = 0;
    }
  }
  // The next tile, limited to tokens below `last`.
  void next(KeyTile& tile, std::int32_t last) {
    tile.begin = token;
    tile.n = std::clamp(last - token, 0, kKeyTile);
    int n = 0;
    if (token == 0) {
      n = token = lead;
      std::fill_n(tile.rows, lead, runs[0].kv);
    }
    while (n < tile.n) {
      const std::int32_t take = std::min(tile.n - n, runs[run].n_tokens - offset);
      const std::byte* row = runs[run].kv + offset * token_bytes;
      for (std::int32_t i = 0; i < take; ++i, row += token_bytes) tile.rows[n + i] = row;
      n += take;
      advance(take);
    }
    for (; n > 0 && n % 16 != 0; ++n) tile.rows[n] = tile.rows[tile.n - 1];
  }
};

// The kernel, and its query layout.
enum class Arithmetic { kF32, kBF16 };

class QueryWorker {
 public:
  QueryWorker(const AttentionShape& shape, Arithmetic arithmetic, int n_lanes)
      : shape_(shape), arithmetic_(arithmetic) {
    static thread_local Buffer t_scratch;
    const std::size_t lanes = n_lanes;
    const std::size_t d = shape.head_dim;
    std::size_t bytes = 0;
    const auto take = [&](std::size_t n) {
      const std::size_t at = bytes;
      bytes += (n * 4 + 63) & ~std::size_t{63};
      return at;
    };
    const std::size_t at[] = {take(lanes * d),
                              take(lanes),
                              take(lanes),
                              take(lanes),
                              take(lanes * d),
                              take(lanes),
                              take(lanes),
                              take(kKeyTile * lanes),
                              take(kKeyTile * lanes),
                              take(kKeyTile * d),
                              take(kKeyTile * d),
                              is_eight_bit(shape.kv_dtype) ? take(kKeyTile * d) : 0};
    t_scratch.reserve(bytes);
    std::byte* base = t_scratch.data();
    const auto floats = [&](int i) { return reinterpret_cast<float*>(base + at[i]); };
    const auto ints = [&](int i) { return reinterpret_cast<std::int32_t*>(base + at[i]); };
    wide_ = base + at[11];
    tile_ = {n_lanes,   shape.head_dim, shape.wide().kv_dtype,
             floats(0), floats(1),      floats(2),
             floats(3), floats(4),      ints(5),
             ints(6),   floats(7),      floats(8),
             floats(9), floats(10)};
  }

  void attend(const PrefillHead& head, const std::int32_t* n_tokens, std::int32_t first_query) {
    const std::int32_t n = std::min(tile_.n_lanes, head.n_rows * shape_.group - first_query);
    std::fill_n(tile_.top, tile_.n_lanes, kMinusInf);
    std::fill_n(tile_.sum, tile_.n_lanes, 0.0f);
    std::fill_n(tile_.out, tile_.n_lanes * shape_.head_dim, 0.0f);
    for (std::size_t p = 0; p < head.parts.size(); ++p) attend_part(head, head.parts[p], n_tokens[p], first_query, n);
    for (std::int32_t lane = 0; lane < n; ++lane) write(head, first_query + lane, lane);
  }

 private:
  void attend_part(const PrefillHead& head, const PrefillPart& part, std::int32_t n_tokens, std::int32_t first_query,
                   std::int32_t n) {
    Span32 any{std::numeric_limits<std::int32_t>::max(), 0};  // union and intersection of what the lanes attend
    Span32 all{0, std::numeric_limits<std::int32_t>::max()};
    const std::int32_t lead = lead_of(part);
    for (std::int32_t lane = 0; lane < tile_.n_lanes; ++lane) {  // unused lanes repeat the last
      const std::int32_t row = (first_query + std::min(lane, n - 1)) / shape_.group;
      const Span32 at = seen_by(part, n_tokens, head.n_rows, row), seen{at.first + lead, at.last + lead};
      tile_.first[lane] = seen.first;
      tile_.last[lane] = seen.last;
      any = {std::min(any.first, seen.first), std::max(any.last, seen.last)};
      all = {std::max(all.first, seen.first), std::min(all.last, seen.last)};
    }
    if (any.first >= any.last) return;
    pack_queries(part, first_query, n);
    TileReader reader{part.runs, shape_.token_bytes(), lead};
    reader.skip_to(any.first / kKeyTile * kKeyTile);
    KeyTile tiles[2];
    reader.next(tiles[0], any.last);
    for (int i = 0; tiles[i].n > 0; i ^= 1) {
      KeyTile& tile = tiles[i];
      reader.next(tiles[i ^ 1], any.last);
      tile.masked = tile.n < kKeyTile || tile.begin < all.first || tile.begin + tile.n > all.last;
      if (is_eight_bit(shape_.kv_dtype)) widen(tile);
      if (arithmetic_ == Arithmetic::kBF16)
        attend_key_tile_bf16(tile, tiles[i ^ 1], tile_);
      else
        attend_key_tile_f32(tile, tiles[i ^ 1], tile_);
    }
  }

  // Replaces a tile's tokens by copies in bf16.
  void widen(KeyTile& tile) {
    const std::size_t bytes = shape_.wide().token_bytes();
    widen_tokens_cpu(std::span(tile.rows).first(tile.n), shape_, KvPart::kKeysAndValues, wide_);
    for (int i = 0; i < tile.n; ++i) tile.rows[i] = wide_ + i * bytes;
    for (int n = tile.n; n % 16 != 0; ++n) tile.rows[n] = tile.rows[tile.n - 1];
  }

  void pack_queries(const PrefillPart& part, std::int32_t first_query, std::int32_t n) {
    const float scale = shape_.scale * kLog2e;
    for (std::int32_t lane = 0; lane < tile_.n_lanes; ++lane) {
      const std::int32_t query = first_query + std::min(lane, n - 1);
      const float* q = part.q + query / shape_.group * part.q_stride + query % shape_.group * shape_.head_dim;
      if (arithmetic_ == Arithmetic::kBF16) {
        auto* to = static_cast<bf16*>(tile_.q) + 2 * lane;
        for (std::int32_t d = 0; d < shape_.head_dim; d += 2, to += 2 * tile_.n_lanes) {
          to[0] = bf16(q[d] * scale);
          to[1] = bf16(q[d + 1] * scale);
        }
      } else {
        float* to = static_cast<float*>(tile_.q) + lane;
        for (std::int32_t d = 0; d < shape_.head_dim; ++d, to += tile_.n_lanes) *to = q[d] * scale;
      }
    }
  }

  // No entries, or none with nonzero weight: out = 0, lse = -inf or the sink.
  void write(const PrefillHead& head, std::int32_t query, std::int32_t lane) const {
    const std::int32_t row = query / shape_.group;
    const std::int32_t g = query % shape_.group;
    const float sum = tile_.sum[lane];
    float norm = sum == 0 ? 0.0f : 1 / sum;
    float lse = sum == 0 ? kMinusInf : (tile_.top[lane] + std::log2(sum)) * kLn2;
    if (head.sinks != nullptr) {
      const SinkMerge merged = merge_sink(tile_.top[lane], sum, head.sinks[g]);
      norm = merged.norm;
      lse = merged.lse;
    }
    const std::int64_t at = row * head.out_stride + g * shape_.head_dim;
    const float* from = tile_.out + lane;
    if (head.out_dtype == DType::kF32) {
      float* to = reinterpret_cast<float*>(head.out) + at;
      for (std::int32_t d = 0; d < shape_.head_dim; ++d) to[d] = from[d * tile_.n_lanes] * norm;
    } else {
      bf16* to = reinterpret_cast<bf16*>(head.out) + at;
      for (std::int32_t d = 0; d < shape_.head_dim; ++d) to[d] = bf16(from[d * tile_.n_lanes] * norm);
    }
    if (head.lse != nullptr) head.lse[row * shape_.group + g] = lse;
  }

  const AttentionShape& shape_;
  Arithmetic arithmetic_;
  QueryTile tile_;
  std::byte* wide_ = nullptr;  // [kKeyTile, 2, D] bf16: a tile of keys and values in 8 bits
};

// Queries per tile: 64, unless that leaves workers idle. Results do not depend on it.
int count_lanes(std::span<const PrefillHead> heads, const AttentionShape& shape, int n_workers) {
  for (int lanes = kMaxLanes; lanes > 16; lanes /= 2) {
    std::int64_t items = 0;
    for (const PrefillHead& head : heads) items += (std::int64_t{head.n_rows} * shape.group + lanes - 1) / lanes;
    if (n_workers == 1 || items >= 2 * n_workers) return lanes;
  }
  return 16;
}

void list_items(std::span<const PrefillHead> heads, const AttentionShape& shape, int n_lanes, CallScratch& call) {
  call.items.clear();
  call.n_tokens.clear();
  call.first_part.clear();
  for (std::size_t h = 0; h < heads.size(); ++h) {
    const PrefillHead& head = heads[h];
    call.first_part.push_back(call.n_tokens.size());
    for (const PrefillPart& part : head.parts) {
      call.n_tokens.push_back(count_tokens(part.runs));
    }
    for (std::int32_t query = 0; query < head.n_rows * shape.group; query += n_lanes) {
      std::int64_t cost = 0;
      for (std::size_t p = 0; p < head.parts.size(); ++p) {
        const Span32 seen =
            seen_by(head.parts[p], call.n_tokens[call.first_part[h] + p], head.n_rows, query / shape.group);
        cost += seen.last - seen.first;
      }
      call.items.push_back({h, query, cost});
    }
  }
  std::stable_sort(call.items.begin(), call.items.end(), [](const Item& a, const Item& b) { return a.cost > b.cost; });
}

}  // namespace

void attend_prefill_cpu(std::span<const PrefillHead> heads, const AttentionShape& shape, const CpuContext& context) {
  check_attention_shape(shape);
  static thread_local CallScratch t_call;
  CallScratch& call = t_call;
  const int n_lanes = count_lanes(heads, shape, context.pool->size());
  list_items(heads, shape, n_lanes, call);
  const Arithmetic arithmetic =
      shape.wide().kv_dtype == DType::kBF16 && has_avx512_bf16() ? Arithmetic::kBF16 : Arithmetic::kF32;
  context.pool->parallel_for(call.items.size(), 1, [&](std::int64_t begin, std::int64_t end, int /*worker*/) {
    QueryWorker worker(shape, arithmetic, n_lanes);
    for (std::int64_t i = begin; i < end; ++i) {
      const Item& item = call.items[i];
      worker.attend(heads[item.head], call.n_tokens.data() + call.first_part[item.head], item.first_query);
    }
  });
}

}  // namespace mneme
