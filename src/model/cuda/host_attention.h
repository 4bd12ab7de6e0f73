// Attention on the host, for sequences whose recipe has a block that no kernel has (host_reason(), device_form.h). The
// device multiplies, rotates and stores; the CPU's own attention (attention_step.h) selects and attends. So a device
// runs every recipe that the CPU runs, these at the host's speed and with a wait for the device in every layer.
//
//   main   store q, k, v ── q to the host ─┐          ┌─ attended rows to the device ── ...
//   host                                   └─ attend ─┘
//
// Prompts that attend everything are attended on the device. The host builds their index entries once the step is done.
//
// The host reads pages in host memory in place. Of pages in device memory it keeps copies: of the sequences of a step,
// built when a sequence is new to it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/thread_pool.h"
#include "src/cuda/memory.h"
#include "src/model/attention_step.h"

namespace mneme {

class CudaHostAttention {
 public:
  // A step has at most max_sequences of max_context tokens.
  //   reads_pages  the host reads the sequences' pages at their device addresses
  //   audit_every  as AttentionStep::set_audit()
  struct Options {
    std::int32_t max_sequences = 1;
    std::int64_t max_context = 0;
    bool reads_pages = false;
    std::int32_t audit_every = 0;
  };
  CudaHostAttention(const Model& model, const Options& options);

  // Whether the host attends for a sequence with this method.
  static bool takes(const MethodState& method);
  // Whether it attends these rows of such a sequence: all but prompts that attend everything.
  static bool attends(const SequenceRows& s);

  // ---- a step: begin(), add() for each sequence, start(), attend() for each layer, end() once the device is done
  void begin();
  // first_row: of the step's rows.
  void add(const SequenceRows& s, std::int32_t first_row);
  bool any() const { return !taken_.empty(); }
  void start();
  // Requires  keys and values of the rows are enqueued to be stored in the sequences' pages.
  //   q, out  [rows of the step, heads * D] bf16 on the device
  void attend(std::int32_t layer, const std::byte* q, std::byte* out, const Stream& stream);
  void end();

 private:
  // A copy in host memory of a sequence whose pages are in device memory.
  struct Copy {
    std::uint64_t revision = 0;  // of the sequence
    SequenceCache cache;
  };
  struct Taken {
    SequenceRows rows;                    // with the cache that the host reads
    const SequenceCache* from = nullptr;  // the sequence's own, where that is a copy
    std::int32_t first_row = 0;
    bool attends = false;

    std::int32_t first() const { return rows.cache->length() - rows.n_rows; }
  };
  void take_copies();
  void follow(Taken& t, Copy& copy) const;
  static void copy_tokens(const Taken& t, std::int32_t layer, std::int32_t first);
  std::int64_t width() const { return model_.config().n_heads * model_.config().head_dim; }

  const Model& model_;
  Options options_;
  ThreadPool threads_;
  AttentionStep attention_;
  std::unique_ptr<PagePool> pool_;             // of the copies
  std::vector<std::unique_ptr<Copy>> copies_;  // of the last step
  PinnedBuffer host_q_, host_out_;
  Buffer wide_q_;
  std::vector<Taken> taken_;
};

}  // namespace mneme
