// One layer's attention for the rows that decode: close units, gate, score, pool, select, attend, select ahead,
// observe.
//
// Rows without a method, layers that a method leaves dense, and sequences within the budget attend everything; the bits
// are then those of full attention, because the entries and their order are the same.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "src/attention/decode_tap.h"
#include "src/attention/layer_chooser.h"
#include "src/attention/method_state.h"
#include "src/attention/query_turner.h"
#include "src/cache/sequence_cache.h"
#include "src/kernels/cpu_context.h"
#include "src/kernels/rank.h"

namespace mneme {

struct DecodeRow {
  const SequenceCache* cache = nullptr;  // the row's own key and value are its last token
  MethodState* method = nullptr;         // null: full attention
  const float* q = nullptr;              // [n_heads, D] after RoPE
  float* out = nullptr;                  // [n_heads, D]
  std::int32_t window = 0;               // the model's own sliding window; 0: none
  float* lse = nullptr;                  // [n_heads] out: log-sum-exp of the attended scores; or null
  std::int32_t prefill_left = 0;         // of close_units(): tokens of the prompt that are still to come
};

class DecodeAttention {
 public:
  // rope  of the model, for methods that turn queries or keys themselves.
  explicit DecodeAttention(const CpuContext& context, const RopeTable& rope = {});
  ~DecodeAttention();

  // Every n-th decode step of a sequence also computes the true attention and records how much the selection had of it;
  // 0: never.
  void set_audit(std::int32_t every) { audit_every_ = every; }
  // Sees every row of the next runs; null: nobody does.
  void set_tap(DecodeTap* tap) { tap_ = tap; }

  void run(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  // After a prefill chunk's keys are stored: builds the index entries that it completed (q and out are not looked at).
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

  // Queries and keys of this step as methods with positions of their own see them.
  void turn_rows(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void choose_layers(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void add_masses(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void build_units(std::int32_t layer, std::span<const DecodeRow> rows);
  void gate_row(std::int32_t layer, const DecodeRow& row, const AttentionShape& shape);
  void plan_row(std::int32_t layer, const DecodeRow& row, std::size_t r, const AttentionShape& shape);
  void select(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker);
  std::span<const float> score(std::int32_t layer, Item& item, const Region& region, const AttentionShape& shape,
                               Worker& worker);
  // Returns one score for every candidate.
  std::span<const float> choose(std::int32_t layer, Item& item, const Region& region, const AttentionShape& shape,
                                Worker& worker, std::vector<std::int32_t>& units);
  void choose_by_mass(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker,
                      std::vector<std::int32_t>& attended);
  void rank(std::int32_t layer, Item& item, const AttentionShape& shape, Worker& worker, Ranking& ranking);
  void gather_runs(std::int32_t layer, Item& item);
  void attend(const AttentionShape& shape);
  void observe(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape);
  void remember(std::int32_t layer, const DecodeRow& row, bool sparse, std::size_t n_q);
  void audit(std::int32_t layer, const DecodeRow& row, const float* far_q, const AttentionShape& shape);

  struct NearAngles {  // of positions [range.begin, range.end)
    TurnedWindow::Range range;
    RopeAngles angles;
  };

  CpuContext context_;
  RopeTable turn_table_;
  QueryTurner far_;
  std::vector<QueryTurner::Row> far_rows_;
  std::vector<const float*> far_q_;  // by row: [n_heads, D]; null: everything is seen from the query's own position
  std::vector<NearAngles> near_angles_;
  LayerChooser chooser_;
  std::vector<std::int32_t> before_;
  std::vector<std::int64_t> replaced_;   // by row, where it decides by layer: units that are new
  std::vector<std::size_t> first_item_;  // by row
  std::vector<float> lse_;               // [items, G]
  std::vector<std::vector<KvRun>> near_runs_;
  std::vector<std::span<const KvRun>> near_spans_;
  std::int32_t audit_every_ = 0;
  DecodeTap* tap_ = nullptr;
  std::vector<Item> items_;
  std::vector<std::uint8_t> select_now_;  // [rows, KV heads]: the gate's answer
  std::vector<Worker> workers_;
  std::vector<std::vector<KvRun>> runs_;  // by item
  std::vector<DecodePart> parts_;
  std::vector<DecodeHead> heads_;
};

}  // namespace mneme
