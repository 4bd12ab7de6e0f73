// What stands for a unit's keys, and how a query is scored against it: one class an index, for one (layer, KV head) at
// a time.
//
// Where units are lists, entry u is that of unit u, whatever entry_tokens() says.
//
// Indexes hold no state: entries lie in an EntryStore that the sequence owns, keys in its cache.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/blocks/entry_store.h"
#include "src/cache/sequence_cache.h"
#include "src/kernels/attention.h"
#include "src/kernels/box.h"
#include "src/kernels/one_bit.h"

namespace mneme {

// Where the keys and entries of one KV head are.
struct HeadKeys {
  const SequenceCache* cache = nullptr;
  const EntryStore* entries = nullptr;
  std::int32_t layer = 0, kv_head = 0;
};

// Memory of one thread between calls.
struct ScoreScratch {
  std::vector<KvRun> runs;
  std::vector<float> token_scores;
};

struct ScoreTask {
  HeadKeys head;
  const float* q = nullptr;  // [shape.group, D]: the group's queries, or one that stands for them
  AttentionShape shape;
  std::int32_t first_unit = 0, last_unit = 0;  // units to score
  float alpha = 1.0f;             // scale of scores before a softmax, for units whose score is a log-sum-exp
  float* scores = nullptr;        // [group, last_unit - first_unit] out
  std::int64_t score_stride = 0;  // floats between rows
};

class UnitIndex {
 public:
  virtual ~UnitIndex() = default;

  // Bytes of an entry and the tokens that it covers; 0 bytes: nothing is stored (entry_tokens is then 1).
  virtual std::size_t entry_bytes(const AttentionShape& shape) const = 0;
  virtual std::int32_t entry_tokens() const = 0;
  // The entry of the entry_tokens() tokens of `runs`; boxes and centroids take any other number too.
  virtual void build(std::span<const KvRun> runs, const AttentionShape& shape, std::byte* entry) const = 0;
  // Requires  every unit of the task is complete and its entries are built. Equal keys give equal scores wherever they
  // stand.
  virtual void score(const ScoreTask& task, ScoreScratch& scratch) const = 0;
  // Bytes of index (or keys) that scoring n units reads.
  virtual std::size_t bytes_read(std::int32_t n_units, const AttentionShape& shape) const = 0;
};

// Boxes over units of `unit_tokens`.
std::unique_ptr<UnitIndex> make_box_index(BoxKind kind, std::int32_t unit_tokens);
// 1-bit keys in groups of `group` tokens; a unit of several tokens scores as the mean of its tokens.
std::unique_ptr<UnitIndex> make_one_bit_index(OneBitLevels levels, std::int32_t group, std::int32_t unit_tokens);
// Means of keys, over units of `unit_tokens`.
std::unique_ptr<UnitIndex> make_centroid_index(std::int32_t unit_tokens);
// Exact scores; a unit of several tokens scores as log(sum exp(alpha q . k)) / alpha.
std::unique_ptr<UnitIndex> make_raw_key_index(std::int32_t unit_tokens);
// Uniform draws, a pure function of seed, layer, KV head, tokens stored and unit.
std::unique_ptr<UnitIndex> make_random_index(std::uint64_t seed);

}  // namespace mneme
