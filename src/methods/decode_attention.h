// Decode attention under a method, one layer: complete units, gate, score, pool, select, attend, select for the next
// step, observe.
//
// Rows without a method, dense layers, and sequences within the budget attend everything, bit-identical to full
// attention: entries and their order are the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/kv/sequence_cache.h"
#include "src/methods/decode_observer.h"
#include "src/methods/layer_selector.h"
#include "src/methods/method_state.h"
#include "src/methods/positions/query_rotator.h"
#include "src/ops/attention/attention.h"
#include "src/ops/simd/cpu_context.h"
#include "src/selection/topk/rank.h"

namespace mneme {

struct DecodeRow {
  const SequenceCache* cache = nullptr;  // the row's own key and value are its last token
  MethodState* method = nullptr;         // null: full attention
  const float* q = nullptr;              // [n_heads, D] post-RoPE
  float* out = nullptr;                  // [n_heads, D]
  std::int32_t window = 0;               // the model's own sliding window in this layer; 0: none
  const float* sinks = nullptr;          // [n_heads]; null: none
  float* lse = nullptr;                  // [n_heads] out: log-sum-exp of the attended scores; or null
  std::int32_t prefill_left = 0;         // of close_units(): prompt tokens still to come

  // Whether keys are rotated when they are attended. Where the model has a window of its own they never are.
  bool pre_rope() const { return window == 0 && cache->key_basis() == KeyBasis::kPreRope; }
  const float* sinks_of(std::int32_t head) const { return sinks == nullptr ? nullptr : sinks + head; }
};

class DecodeAttention {
 public:
  // rope: the model's, for methods that rotate queries or keys themselves.
  explicit DecodeAttention(const CpuContext& context, const RopeTable& rope = {});
  ~DecodeAttention();

  // Every n-th decode step of a sequence also computes the true attention and records how much of it the selection
  // covers; 0: never.
  void set_audit(std::int32_t every) { audit_every_ = every; }
  // Called for every row of later runs; null: none.
  void set_observer(DecodeObserver* observer) { observer_ = observer; }

  void run(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  // After a prefill chunk's keys are stored: builds the index entries that it completed. Ignores q and out.
  void close_units(std::int32_t layer, std::span<const DecodeRow> rows);

 private:
  struct Item;
  struct Worker {  // one thread's memory
    ScoreScratch score;
    RankScratch rank;
    std::vector<float> scores, query;
    std::vector<std::int32_t> before, fresh, wanted, there;
    std::vector<std::uint64_t> marks;
  };

  // Queries and keys of this step at remapped positions, for methods that have them.
  void rotate_rows(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void select_layers(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void add_masses(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void build_units(std::int32_t layer, std::span<const DecodeRow> rows);
  void gate_row(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape);
  void plan_row(std::int32_t layer, const DecodeRow& row, std::size_t r, const AttentionShape& shape);
  void select(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker);
  std::span<const float> score(std::int32_t layer, Item& item, const Region& region, const AttentionShape& shape,
                               Worker& worker);
  // Pools the scores of select=layer over the KV heads of each row.
  void score_layers(std::int32_t layer, const AttentionShape& shape);
  // The scores of the whole layer where it selects together, else score().
  std::span<const float> scores_of(std::int32_t layer, Item& item, const Region& region, const AttentionShape& shape,
                                   Worker& worker);
  void hold_units(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker,
                  std::vector<std::int32_t>& units);
  void keep_top_p(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker);
  // Returns one score per candidate.
  std::span<const float> select_units(std::int32_t layer, Item& item, const Region& region, const AttentionShape& shape,
                                      Worker& worker, std::vector<std::int32_t>& units);
  void select_by_mass(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker,
                      std::vector<std::int32_t>& attended);
  void rank(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker, Ranking& ranking);
  void gather_runs(std::int32_t layer, Item& item);
  void attend(const AttentionShape& shape);
  void observe(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void remember(std::int32_t layer, const DecodeRow& row, bool sparse, std::size_t n_q);
  void audit(std::int32_t layer, const DecodeRow& row, const float* remote_q, const AttentionShape& shape);

  struct LocalAngles {  // of positions [range.begin, range.end)
    RotatedWindow::Range range;
    RopeAngles angles;
  };
  struct Remapped {  // queries and keys at remapped positions
    RopeTable table;
    QueryRotator rotator;
    std::vector<QueryRotator::Rotation> rows;
    std::vector<const float*> q;  // by row: [n_heads, D]; null: no remapped positions
    std::vector<LocalAngles> angles;
  };
  struct ByLayer {  // selection per layer
    LayerSelector selector;
    std::vector<std::int32_t> before;
    std::vector<std::int64_t> replaced;  // by row: newly selected units
    std::vector<std::vector<KvRun>> local_runs;
    std::vector<std::span<const KvRun>> local_spans;
  };

  CpuContext context_;
  Remapped remapped_;
  ByLayer by_layer_;
  std::vector<std::size_t> first_item_;  // by row
  std::vector<float> lse_;               // [items, G]
  std::int32_t audit_every_ = 0;
  DecodeObserver* observer_ = nullptr;
  std::vector<Item> items_;
  std::vector<std::uint8_t> select_now_;  // [rows, KV heads]: the gate's decision
  std::vector<Worker> workers_;
  std::vector<std::vector<KvRun>> runs_;          // by item
  std::vector<std::vector<float>> layer_scores_;  // by item, of select=layer
  std::vector<DecodePart> parts_;
  std::vector<DecodeHead> heads_;
};

}  // namespace mneme
