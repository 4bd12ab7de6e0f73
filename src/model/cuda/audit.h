// Audit on the device (`--audit`): compares the true attention of decode rows with what their method attended.
//
// A step with audited rows is launched kernel by kernel. After the attention of every layer that selects, its queries,
// output and list are copied. Once the step is over and its tokens are in their pages, the device computes full
// attention of each (row, layer) over the pages, and the share of every token, from which the host counts as the CPU's
// audit does (src/methods/stats/audit.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/cuda/mirrored_buffer.h"
#include "src/methods/stats/audit.h"
#include "src/model/cuda/retrieval/retrieval.h"
#include "src/tensor/half.h"

namespace mneme {

class CudaAudit {
 public:
  // every: audits every n-th decode step of a sequence; 0: none.
  CudaAudit(const KvShape& shape, std::int32_t n_heads, float scale, std::int32_t every);

  // ---- a step: its decode rows with a method that reads less than all stored tokens
  struct Audited {
    CudaRetrieval::DecodeStep method;
    std::int32_t row = 0;  // index among the step's rows
  };
  void clear() { rows_.clear(); }
  // Skips rows that are not due.
  void add(const Audited& row);
  bool any() const { return !rows_.empty(); }
  // Allocates memory for the added rows. Errors  kResource.
  void prepare(const CudaRetrieval& retrieval);

  // Call after attention of rows [first, first + n) in a layer that selects was enqueued on `stream`; pointers are
  // those of the step's first row.   remote_to: [rows], CudaRetrieval::TwoParts
  struct Attended {
    const std::byte *q = nullptr, *remote_q = nullptr, *out = nullptr;
    const std::int32_t* remote_to = nullptr;
  };
  void take(std::int32_t layer, std::int32_t first, std::int32_t n, const Attended& a, const CudaRetrieval& retrieval,
            const Stream& stream);
  // After the step: measures, and adds to the methods' statistics. Waits for `stream`.
  void count(const KvTables& pages, const CudaRetrieval& retrieval, const Stream& stream);

  std::size_t bytes() const;

 private:
  // Host copies of a (row, layer).
  struct Copies {
    bf16* out;                // [n_heads, D]
    std::int32_t* listed;     // [KV heads, max_listed]
    std::int32_t* unit_of;    // [KV heads, n_slots]
    std::int32_t* remote_to;  // [1]
    float* log_weights;       // [KV heads, CudaRetrieval::Weights::stride]; empty where nothing is pruned
  };
  // Tokens that a row sees from one position of its query.
  struct Part {
    const std::byte* q = nullptr;
    KvTables tables;
    std::int32_t layer = 0, slot = 0;
    std::int32_t begin = 0, end = 0;  // token range of the tables
    std::int32_t position = 0;        // of their first token
  };
  // Full attention of one (row, layer).
  struct Measured {
    std::int32_t stride = 0;  // capacity in tokens
    MirroredBuffer numbers, ring_blocks;
    DeviceBuffer out, lse, mass, scratch;
    PinnedBuffer host_out, host_lse, host_mass;  // for up to two parts
    std::vector<float> probabilities;            // [n_heads, n]
    std::vector<double> truth;                   // [n_heads, D]
    std::vector<std::uint8_t> attended;
    AuditScratch counting;
  };
  Copies copies_of(std::size_t row, std::int32_t layer) const;
  std::byte* query(std::size_t row, std::int32_t layer, bool remote) const;
  std::int64_t mark(const Audited& row, std::int32_t layer, std::int32_t kv_head, const Copies& c,
                    const CudaRetrieval& retrieval);
  Part local_part(const Audited& row, std::int32_t layer, const CudaRetrieval& retrieval, const Stream& stream);
  void measure(std::span<const Part> parts, std::int32_t n_tokens, const Stream& stream);
  void measure_part(const Part& part, std::size_t number, const Stream& stream);
  void count_layer(std::size_t r, std::int32_t layer, const KvTables& pages, const CudaRetrieval& retrieval,
                   const Stream& stream);
  std::size_t q_bytes() const { return static_cast<std::size_t>(n_heads_ * shape_.head_dim) * 2; }

  KvShape shape_;
  std::int32_t n_heads_;
  float scale_;
  std::int32_t every_;
  std::vector<Audited> rows_;
  std::int32_t max_listed_ = 0, n_slots_ = 0, slot_heads_ = 0;  // of this step
  std::size_t copy_bytes_ = 0;                                  // of a (row, layer) on the host
  DeviceBuffer queries_;                                        // [rows][layers][2][n_heads, D] bf16: local, remote
  PinnedBuffer copies_;
  Measured one_;
};

}  // namespace mneme
