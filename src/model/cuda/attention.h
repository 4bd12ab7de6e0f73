// Attention of the forward pass on a CUDA device: row metadata, the store of keys and values to pages, attention.
//
//   pages on the device      read and written in place
//   pages in host memory     decode rows read them over the link (full attention), or attend units in cache slots
//                            (retrieval.h); prompts use a staged copy of one layer on the device (staging.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/kv/append/append_cuda.h"
#include "src/model/cuda/attention_streams.h"
#include "src/model/cuda/audit.h"
#include "src/model/cuda/blocks.h"
#include "src/model/cuda/drops/mass_observer.h"
#include "src/model/cuda/forward.h"
#include "src/model/cuda/host_attention.h"
#include "src/model/cuda/retrieval/retrieval_set.h"
#include "src/model/cuda/staging.h"
#include "src/model/cuda/step_phases.h"
#include "src/model/cuda/tables.h"
#include "src/model/cuda/wide_layer.h"
#include "src/model/cuda/windows.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/ops/attention/prefill/prefill_attention_cuda.h"

namespace mneme {

// Metadata of a step's rows in one allocation: `capacity` entries per array.
struct StepArrays {
  std::int32_t *tokens, *positions, *slots, *lengths, *seq_slots, *reset, *attended;
  // For methods with two-part attention: remapped positions of the queries, and CudaRetrieval::TwoParts.
  std::int32_t *remote_positions, *local_from, *local_to, *remote_to, *local_from_dense, *remote_to_dense;
  std::int32_t* tickets;      // see SlotRows
  std::int32_t* state_slots;  // CudaStates::slot_of()
  std::int32_t* wanted_rows;
  static constexpr std::int32_t kArrays = 16, kGraphArrays = 15;  // all rows of a graph are wanted
  static StepArrays at(std::int32_t* base, std::int32_t capacity) {
    const auto array = [&](std::int32_t i) { return base + std::int64_t{i} * capacity; };
    return {array(0), array(1), array(2),  array(3),  array(4),  array(5),  array(6),  array(7),
            array(8), array(9), array(10), array(11), array(12), array(13), array(14), array(15)};
  }
};

class CudaAttention {
 public:
  // Inputs and outputs of a layer's attention, on the device.
  struct Memory {
    const void* qkv = nullptr;  // [n, (heads + 2 KV heads) * D]
    bool qkv_bf16 = false;
    const float* bias = nullptr;                       // not yet added, or null
    const float *q_norm = nullptr, *k_norm = nullptr;  // or null
    bool norm_behind = false;                          // QkNorm::kHeadsBehindRope
    float query_scale = 1;
    const float *angles = nullptr, *remote_angles = nullptr;      // [n, D / 2] of (cos, sin)
    std::byte *q = nullptr, *remote_q = nullptr, *out = nullptr;  // [n, heads * D] bf16
    std::byte* scratch = nullptr;                                 // decode_attention_scratch_bytes()
    const float* sinks = nullptr;                                 // [heads], or null
    float* lse = nullptr;                                         // [n, heads], where there are sinks
    PhaseClock* phases = nullptr;                                 // null: the step is not timed by phase
    void lap(StepPhase phase, const Stream& stream) const {
      if (phases != nullptr) phases->lap(phase, stream);
    }
  };

  // Errors  kUnsupported: a head size or group that the kernels do not support.
  CudaAttention(const Model& model, const CudaForwardOptions& options);

  // Allocates memory other than the pages. Errors  kResource.
  void prepare(const KvShape& shape, const CudaBlocks& blocks);
  // Bytes that prepare() allocates, and the maximum that sequences may need in addition.
  std::int64_t reserved_device_bytes(const KvShape& shape) const;
  void set_store(KvStore store) { options_.store = store; }
  void observe(StepObserver* observer);  // see CudaForward
  // Whether a step can be captured as a graph: no part of it waits for the host.
  bool in_graph() const;
  bool ready() const { return tables_.has_value(); }

  // Sets the rows of the next calls and fills the arrays of `host` except tokens and wanted_rows. Returns whether all
  // sequences have one row and are of one kind, so that a graph can run them; graph_kind() is that kind.
  bool begin(std::span<const SequenceRows> sequences, const StepArrays& host, const Stream& stream);
  std::int32_t graph_kind() const { return step_.kind; }
  // Whether any row has remapped positions; remote_angles are then required.
  bool has_remapped() const { return step_.has_remapped; }
  // Changes when earlier graphs must not be replayed any more.
  std::int32_t generation() const { return generation_ + (mass_observer_ ? mass_observer_->generation() : 0); }

  // Rows of a graph: one per sequence, n rows including padding.
  void layer_of_graph(std::int32_t layer, std::int32_t n, const StepArrays& rows, const Memory& m,
                      const CudaContext& context, const Stream& stream);
  // The rows passed to begin().
  void layer_of_spans(std::int32_t layer, const StepArrays& rows, const Memory& m, const CudaContext& context,
                      const Stream& stream);
  // After the last layer, with the same rows: remaining work runs concurrently with later work of `stream`, until
  // join().
  void finish_graph(std::int32_t n, const StepArrays& rows, const Stream& stream);
  void finish_spans(const StepArrays& rows, const Stream& stream);
  void join(const Stream& stream);
  // Before and after the host waits for the step: statistics, audits, and decisions of methods to drop.
  void fetch_counts(const Stream& stream);
  void count(const Stream& stream);

  const CudaRetrievalSet& retrievals() const { return retrievals_; }
  std::size_t bytes() const;

 private:
  struct Span {  // rows of one sequence
    std::int32_t first_row, n_rows, first_position, slot, prefill_left;
    const SequenceCache* cache;
    MethodState* method;
    CudaRetrieval* retrieval;  // state of its method, or null
    bool decodes;              // with a method that reads less than all stored tokens
    bool observed;             // decodes, and its attention is observed
    bool single;               // a single row; else part of a prompt
    bool by_host;              // the host attends it
    std::int32_t prompt;       // index in windows_, with windowed prefill; else -1
    bool pre_rope_keys() const { return cache->key_basis() == KeyBasis::kPreRope; }
  };

  // Outputs of decode rows for each of two parts.
  struct TwoParts {
    DeviceBuffer out[2], lse[2];
  };
  struct Step {
    std::vector<Span> spans;
    std::vector<std::size_t> chunks;  // spans of more than one row
    std::vector<const SequenceCache*> caches;
    std::vector<std::int32_t> slots;
    // Decode rows with a method that reads less than all stored tokens, by index in retrievals_.active(); without.
    std::vector<std::vector<CudaRetrieval::DecodeStep>> method_rows;
    std::vector<CudaRetrieval::DecodeStep> full_rows;
    const CudaRetrieval* audited = nullptr;  // state of the rows that this step audits
    std::int32_t kind = 0, ticket = 0;
    bool has_remapped = false, ragged = false;  // a sequence has remapped positions; has dropped tokens
  };

  CudaFit fit() const { return {.spare = options_.spare}; }
  bool host_pages() const { return options_.store == KvStore::kHost; }
  // The sequences' page tables for single rows.
  const KvTables& pages() const { return step_.ragged ? tables_->ragged_tables() : tables_->tables(); }
  KvTables staged(const Span& s, std::int32_t layer) const;
  LayerPages readable(const Span& s, const LayerPages& stored, const CudaContext& context) const;
  static void settle(std::span<const SequenceRows> sequences);
  void add_span(const SequenceRows& s, std::int32_t first_row, CudaRetrieval* retrieval);
  std::size_t number_of(const CudaRetrieval& retrieval) const;  // in retrievals_.active()
  std::int32_t kind_of_step() const;
  void fill_rows(const Span& s, const CudaRetrieval::DecodeStep& method, const StepArrays& host) const;
  void prepare_rows(const StepArrays& host, const Stream& stream);
  void count_stored(const CudaRetrieval::DecodeStep& row) const;
  void take_methods(std::span<const SequenceRows> sequences, std::vector<std::size_t>& of_sequences,
                    const Stream& stream);
  // State of the methods of a graph's rows; null: they attend all stored tokens.
  CudaRetrieval* retrieval_of_graph() const {
    return step_.spans.front().decodes ? step_.spans.front().retrieval : nullptr;
  }
  QkvRows qkv_rows(std::int32_t first, std::int32_t n, const StepArrays& rows, const Memory& m) const;
  void before_launch(const CudaContext& context) const;
  // Consecutive rows of one sequence each.   span: of the first
  struct DecodeSpan {
    std::int32_t span = 0, first = 0, n = 0;
    CudaRetrieval* retrieval = nullptr;  // state of their methods; null: they attend all stored tokens
  };
  // Of n rows of one kind those of a launch. Batch-invariant: how selections cut what they sum follows the number of
  // rows, so that a row that selects has launches of its own.
  std::int32_t rows_at_once(const CudaRetrieval* retrieval, std::int32_t n) const {
    return options_.batch_invariant && retrieval != nullptr ? 1 : n;
  }
  void single_rows(std::int32_t layer, const DecodeSpan& who, const StepArrays& rows, const Memory& m,
                   const CudaContext& context, const Stream& stream);
  // Where a model has attention sinks they are added behind the merge of all parts, to `out` and its lse.
  void add_sinks(const Memory& m, void* out, float* lse, std::int32_t n, const CudaContext& context) const;
  std::int32_t window_of(std::int32_t layer) const;
  void host_rows(std::int32_t layer, const StepArrays& rows, const Memory& m, const CudaContext& context,
                 const Stream& stream);
  void stored_rows(std::int32_t layer, const DecodeSpan& who, QkvRows qkv, DecodeAttentionCuda a,
                   const StepArrays& rows, const Memory& m, const CudaContext& context, const Stream& stream);
  void remapped_rows(std::int32_t layer, const DecodeSpan& who, const DecodeAttentionCuda& a, const StepArrays& rows,
                     const Memory& m, const CudaContext& context, const Stream& stream);
  void selected_rows(std::int32_t layer, const DecodeSpan& who, DecodeAttentionCuda a, const StepArrays& rows,
                     const Memory& m, const CudaContext& context, const Stream& stream);
  void attend_early(std::int32_t layer, const DecodeAttentionCuda& a, const CudaRetrieval& r, const Stream& stream);
  void select_next(std::int32_t layer, const SlotRows& slots, CudaRetrieval& r, const Stream& stream);
  void take_audit(std::int32_t layer, const DecodeSpan& who, const StepArrays& rows, const Memory& m,
                  const Stream& stream);
  // remote_device: signals that the remote part is complete; null: it already is.
  void attend_two_parts(std::int32_t layer, const DecodeSpan& who, DecodeAttentionCuda local, const StepArrays& rows,
                        const Memory& m, const CudaContext& context, const Event* remote_device, const Stream& stream);
  void attend_prompt(std::int32_t layer, const Span& s, const LayerPages& from, const Memory& m,
                     const CudaContext& context);
  CudaStaging::Earlier earlier(const Span& s, std::int32_t layer) const;
  static std::int64_t free_device_bytes();
  void select_kept_prompt();
  bool in_windows(const Span& s, std::int32_t layer) const;
  std::int32_t add_prompt(const SequenceRows& s);
  void finish(const DecodeSpan& who, const StepArrays& rows, const Stream& stream);
  PrefillAttentionCuda prefill_of(std::int32_t layer, std::size_t span, std::int32_t slot, const Memory& m);
  void chunk(std::int32_t layer, std::size_t span, const StepArrays& rows, const Memory& m, const CudaContext& context,
             const Stream& stream);
  CudaRetrieval::Prompt prompt_of(const Span& s) const;
  void chunk_in_host_pages(std::int32_t layer, std::size_t span, const StepArrays& rows, const Memory& m,
                           const CudaContext& context, const Stream& stream);

  const Model& model_;
  CudaForwardOptions options_;
  float scale_;
  std::int32_t q_width_, qkv_width_;
  KvShape shape_;
  std::optional<CudaTables> tables_;
  PrefillAttention prefill_;
  std::optional<CudaStaging> staging_;
  std::optional<CudaWideLayer> wide_;  // for keys and values in 8 bits
  CudaRetrievalSet retrievals_;
  std::optional<CudaWindows> windows_;
  std::optional<CudaMassObserver> mass_observer_;
  std::optional<CudaAudit> audit_;
  std::optional<CudaHostAttention> host_;
  bool reads_pages_ = false;  // the host reads pages at their device addresses
  TwoParts parts_;
  std::int32_t generation_ = 0;
  StepObserver* observer_ = nullptr;

  AttentionStreams streams_;
  Step step_;
};

}  // namespace mneme
