// Index interface: what is stored per unit, and how queries are scored against it. A call handles one (layer,
// KV head).
//
// Where units are lists, entry u belongs to unit u, whatever entry_tokens() is. Index objects are stateless: entries
// are in an EntryStore that the sequence owns, keys in its cache.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/kv/kv_run.h"
#include "src/kv/sequence_cache.h"
#include "src/selection/index/box.h"
#include "src/selection/index/entry_store.h"
#include "src/selection/index/one_bit.h"

namespace mneme {

// Keys and entries of one KV head.
struct HeadKeys {
  const SequenceCache* cache = nullptr;
  const EntryStore* entries = nullptr;
  std::int32_t layer = 0, kv_head = 0;
  const float* frame = nullptr;  // what the head's entries share, of indexes that have a frame
};

// Working memory of one thread, kept between calls.
struct ScoreScratch {
  std::vector<KvRun> runs;
  std::vector<float> token_scores;
};

struct ScoreTask {
  HeadKeys head;
  const float* q = nullptr;  // [shape.group, D]: the group's queries, or one pooled query
  AttentionShape shape;
  std::int32_t first_unit = 0, last_unit = 0;  // units to score
  float alpha = 1.0f;                          // softmax scale, for units that score as a log-sum-exp
  float* scores = nullptr;                     // [group, last_unit - first_unit] out
  std::int64_t score_stride = 0;               // floats between rows
};

class UnitIndex {
 public:
  virtual ~UnitIndex() = default;

  // Bytes per entry, and tokens per entry; 0 bytes: nothing is stored (entry_tokens is then 1).
  virtual std::size_t entry_bytes(const AttentionShape& shape) const = 0;
  virtual std::int32_t entry_tokens() const = 0;
  // Builds the entry of the entry_tokens() tokens of `runs`; boxes and centroids accept any number of tokens.
  virtual void build(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* entry) const = 0;
  // Indexes with a frame: f32 values that all entries of a head share, fitted to the keys of its first n_entries
  // entries (selection/summary/key_frame.h). 0 values: none, and build() needs none.
  virtual std::int64_t frame_floats(const AttentionShape&) const { return 0; }
  virtual void fit(const HeadKeys&, std::int32_t /*n_entries*/, const AttentionShape&, float* /*frame*/) const {}
  virtual void build_in(const float* /*frame*/, std::span<const KvRun> runs, const AttentionShape& shape,
                        std::byte* entry) const {
    build(runs, shape, entry);
  }
  // Scores units. Requires  every unit of the task is complete and its entries are built. Ties: equal keys give equal
  // scores at any index.
  virtual void score(const ScoreTask& task, ScoreScratch& scratch) const = 0;
  // Bytes of index (or keys) read to score n units.
  virtual std::size_t bytes_read(std::int32_t n_units, const AttentionShape& shape) const = 0;
};

// What an index of one entry a unit is made of: bytes of an entry, and its kernels. `entries` are contiguous.
using BuildEntry = void (*)(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* entry);
struct EntryForm {
  std::size_t (*bytes)(const AttentionShape& shape);
  BuildEntry build;
  void (*score)(const float* q, const AttentionShape& shape, const std::byte* entries, std::int64_t n, float* scores,
                std::int64_t score_stride);
};
std::unique_ptr<UnitIndex> make_entry_index(const EntryForm& form, std::int32_t unit_tokens);

// Boxes over units of `unit_tokens`, of a kind or as `build` makes them.
std::unique_ptr<UnitIndex> make_box_index(BoxKind kind, std::int32_t unit_tokens);
std::unique_ptr<UnitIndex> make_box_index(BuildEntry build, std::int32_t unit_tokens);
// 1-bit keys in groups of bits.group tokens; a unit of several tokens scores their mean. Tokens behind the
// complete groups have exact scores.
std::unique_ptr<UnitIndex> make_one_bit_index(const OneBit& bits, std::int32_t unit_tokens);
// Means of keys, over units of `unit_tokens`.
std::unique_ptr<UnitIndex> make_centroid_index(std::int32_t unit_tokens);
// Exact scores; a unit of several tokens scores as log(sum exp(alpha q . k)) / alpha.
std::unique_ptr<UnitIndex> make_raw_key_index(std::int32_t unit_tokens);
// Uniform random scores, a pure function of seed, layer, KV head, stored tokens and unit.
std::unique_ptr<UnitIndex> make_random_index(std::uint64_t seed);

}  // namespace mneme
