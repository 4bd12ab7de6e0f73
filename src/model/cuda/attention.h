// Attention of the forward pass on a CUDA device: where the rows of a step stand, their keys and values into pages, and
// what they attend.
//
//   pages on the device      everything reads and writes them where they are
//   pages in host memory     rows that decode read them through the link (full attention), or copies of some of them
//                            (cuda_retrieval.h); prompts work in one layer's copy on the device (cuda_staging.h)
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/kernels/attention_cuda.h"
#include "src/kernels/attention_library_cuda.h"
#include "src/kernels/pointwise_cuda.h"
#include "src/model/cuda_audit.h"
#include "src/model/cuda_blocks.h"
#include "src/model/cuda_forward.h"
#include "src/model/cuda_retrieval.h"
#include "src/model/cuda_staging.h"
#include "src/model/cuda_tables.h"
#include "src/model/cuda_taps.h"
#include "src/model/cuda_windows.h"

namespace mneme {

// What a step says of its rows, in one piece of memory: `capacity` of each.
struct CudaRowArrays {
  std::int32_t *tokens, *positions, *slots, *lengths, *places, *anew, *attended;
  // Of rows whose method sees in two parts: where they stand for what is far, and CudaRetrieval::TwoParts.
  std::int32_t *far_positions, *near_from, *near_to, *far_to, *near_from_dense, *far_to_dense;
  std::int32_t* tickets;  // SlotRows'
  std::int32_t* wanted_rows;
  static constexpr std::int32_t kArrays = 15, kGraphArrays = 14;  // a graph's rows are all wanted
  static CudaRowArrays at(std::int32_t* base, std::int32_t capacity) {
    const auto array = [&](std::int32_t i) { return base + std::int64_t{i} * capacity; };
    return {array(0), array(1), array(2),  array(3),  array(4),  array(5),  array(6), array(7),
            array(8), array(9), array(10), array(11), array(12), array(13), array(14)};
  }
};

class CudaAttention {
 public:
  // The projections of a step's rows on their way in, and where what attention gives goes; all on the device.
  struct Memory {
    const void* qkv = nullptr;  // [n, (heads + 2 KV heads) * D]
    bool qkv_bf16 = false;
    const float* bias = nullptr;                               // still to be added, or null
    const float *q_norm = nullptr, *k_norm = nullptr;          // or null
    const float *angles = nullptr, *far_angles = nullptr;      // [n, D / 2] of (cos, sin)
    std::byte *q = nullptr, *far_q = nullptr, *out = nullptr;  // [n, heads * D] bf16
    std::byte* scratch = nullptr;                              // decode_attention_scratch_bytes()
  };

  // Errors  kUnsupported: a head size or group that the kernels do not take.
  CudaAttention(const Model& model, const CudaForwardOptions& options);

  // Memory beside the pages. Errors  kResource.
  void prepare(const KvShape& shape, const CudaBlocks& blocks);
  // What prepare() will take, and what sequences may need besides.
  std::int64_t aside_bytes(const KvShape& shape) const;
  void set_store(KvStore store) { options_.store = store; }
  void draw_outcomes(float turnover, float correction, RecallBy recall_by);
  // Whether a step may be captured: nothing of it waits for the host.
  bool in_graph() const { return !(retrieval_ && retrieval_->recalls_by_host()) && !audit_->any(); }
  bool ready() const { return tables_.has_value(); }

  // Which rows the next calls are about; fills the arrays of `host` but for tokens and wanted_rows. Returns whether all
  // sequences have one row and are of one kind, so that a graph can run them; graph_kind() then says which one.
  bool begin(std::span<const SequenceRows> sequences, const CudaRowArrays& host, const Stream& stream);
  std::int32_t graph_kind() const { return kind_; }
  // Whether rows see something from elsewhere: then there must be far_angles.
  bool has_far() const { return has_far_; }
  // Changes when graphs that were made before must not run any more.
  std::int32_t generation() const { return generation_; }

  // Rows of a graph: one of each sequence, n of them with those that only fill it up.
  void layer_of_graph(std::int32_t layer, std::int32_t n, const CudaRowArrays& rows, const Memory& m,
                      const CudaContext& context, const Stream& stream);
  // The rows that begin() was told of.
  void layer_of_spans(std::int32_t layer, const CudaRowArrays& rows, const Memory& m, const CudaContext& context,
                      const Stream& stream);
  // After the last layer, with rows as there: what is left to do runs beside what comes next in `stream`, until join().
  void finish_graph(std::int32_t n, const CudaRowArrays& rows, const Stream& stream);
  void finish_spans(const CudaRowArrays& rows, const Stream& stream);
  void join(const Stream& stream);
  // Around the host's waiting for the step: what is counted and audited, and what methods decide to drop.
  void fetch_counts(const Stream& stream);
  void count(const Stream& stream);

  const CudaRetrieval* retrieval() const { return retrieval_ ? &*retrieval_ : nullptr; }
  std::size_t bytes() const;

 private:
  struct Span {  // rows of one sequence
    std::int32_t first_row, n_rows, first_position, slot, prefill_left;
    const SequenceCache* cache;
    MethodState* method;
    bool decodes;         // with its method, which reads less than what is stored
    bool tapped;          // decodes, and is looked at
    bool single;          // a row that stands alone; else a prompt's
    std::int32_t prompt;  // number in windows_, where it is read in windows; else -1
    bool raw_keys() const { return cache->key_basis() == KeyBasis::kRaw; }
  };

  bool host_pages() const { return options_.store == KvStore::kHost; }
  // The sequences' tables as single rows read them.
  const KvTables& pages() const { return ragged_ ? tables_->ragged_tables() : tables_->tables(); }
  KvTables staged(const Span& s, std::int32_t layer) const;
  void add_span(const SequenceRows& s, std::int32_t first_row);
  void fill_rows(const Span& s, const CudaRetrieval::Row& method, const CudaRowArrays& host) const;
  void count_stored(const CudaRetrieval::Row& row) const;
  void take_methods(std::span<const SequenceRows> sequences, const Stream& stream);
  QkvRows qkv_rows(std::int32_t first, std::int32_t n, const CudaRowArrays& rows, const Memory& m) const;
  void delay(const CudaContext& context);
  void single_rows(std::int32_t layer, std::int32_t span, std::int32_t first, std::int32_t n, bool with_method,
                   const CudaRowArrays& rows, const Memory& m, const CudaContext& context, const Stream& stream);
  // What comes in `then` from here on waits for what `first` has had so far.
  static void follow(const Stream& then, Event& had, const Stream& first);
  void take_audit(std::int32_t layer, std::int32_t first, std::int32_t n, const CudaRowArrays& rows, const Memory& m,
                  const Stream& stream);
  // far_there: of what is far to be there; null: it is.
  void attend_two_parts(std::int32_t layer, std::int32_t first, DecodeAttentionCuda near, const CudaRowArrays& rows,
                        const Memory& m, const CudaContext& context, const Event* far_there, const Stream& stream);
  void attend_prompt(std::int32_t layer, const Span& s, const KvTables& tables, std::int32_t tables_layer,
                     std::int32_t tables_slot, const Memory& m, const CudaContext& context);
  CudaStaging::Earlier earlier(const Span& s, std::int32_t layer) const;
  bool in_windows(const Span& s, std::int32_t layer) const;
  std::int32_t add_prompt(const SequenceRows& s);
  void finish(std::int32_t first, std::int32_t n, const CudaRowArrays& rows, const Stream& stream);
  PrefillAttentionCuda prefill_of(const Span& s, std::int32_t slot, const Memory& m) const;
  void chunk(std::int32_t layer, std::size_t span, const CudaRowArrays& rows, const Memory& m,
             const CudaContext& context, const Stream& stream);
  CudaRetrieval::Prompt prompt_of(const Span& s) const;
  void chunk_in_host_pages(std::int32_t layer, std::size_t span, const CudaRowArrays& rows, const Memory& m,
                           const CudaContext& context, const Stream& stream);

  const Model& model_;
  CudaForwardOptions options_;
  float scale_;
  std::int32_t q_width_, qkv_width_;
  KvShape shape_;
  std::optional<CudaTables> tables_;
  LibraryAttention library_;
  std::optional<CudaStaging> staging_;
  std::optional<CudaRetrieval> retrieval_;
  std::optional<CudaWindows> windows_;
  std::optional<CudaTaps> taps_;
  std::optional<CudaAudit> audit_;
  DeviceBuffer part_out_[2], part_lse_[2];  // what rows that decode saw in each of two parts
  std::int32_t generation_ = 0;

  // ---- a step
  std::vector<Span> spans_;
  std::vector<std::size_t> chunks_;  // spans of more than one row
  std::vector<const SequenceCache*> caches_;
  std::vector<std::int32_t> slots_;
  std::vector<CudaRetrieval::Row> method_rows_, full_rows_;  // that decode, by a method that selects or not
  std::int32_t kind_ = 0;
  bool has_far_ = false, ragged_ = false;  // a sequence sees something from elsewhere, or has dropped tokens
  std::int32_t taps_generation_ = 0;
  std::uint32_t delays_ = 1;
  std::int32_t ticket_ = 0;  // of the step
  bool beside_ = false;      // something runs in side_
  bool brings_ = false;      // something runs in bringing_
  Stream side_, bringing_;
  Event stored_, chosen_, attended_, made_, side_done_, brought_;
  Event scores_free_[2];  // by CudaRetrieval::next_scores(), where
  bool scores_read_[2] = {};
};

}  // namespace mneme
