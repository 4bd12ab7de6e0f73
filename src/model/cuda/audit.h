// The true attention of rows that decode beside what their method attended, on the device: what `--audit` counts.
//
// A step in which rows are audited is launched kernel by kernel. Behind the attention of every layer that selects, its
// queries, what came out and the list of what was attended are copied; once the step is over, and its tokens are in
// their pages, the device computes full attention of each (row, layer) over these, and the shares of all tokens, from
// which the host counts as the CPU's audit does (src/attention/audit.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/attention/audit.h"
#include "src/device/memory.h"
#include "src/model/cuda_retrieval.h"
#include "src/tensor/half.h"

namespace mneme {

class CudaAudit {
 public:
  // every: which decode steps of a sequence are audited, each n-th; 0: none.
  CudaAudit(const KvShape& shape, std::int32_t n_heads, float scale, std::int32_t every);

  // ---- a step: its rows that decode with a method that reads less than what is stored
  struct Row {
    CudaRetrieval::Row method;
    std::int32_t row = 0;  // among those of the step
  };
  void clear() { rows_.clear(); }
  // Leaves out those that are not to be audited now.
  void add(const Row& row);
  bool any() const { return !rows_.empty(); }
  // Memory for what was added. Errors  kResource.
  void prepare(const CudaRetrieval& retrieval);

  // Attention of rows [first, first + n) in a layer that selects is enqueued on `stream`: what it used and gave, of the
  // step's first row on.   far_to: [rows], CudaRetrieval::TwoParts
  struct Attended {
    const std::byte *q = nullptr, *far_q = nullptr, *out = nullptr;
    const std::int32_t* far_to = nullptr;
  };
  void take(std::int32_t layer, std::int32_t first, std::int32_t n, const Attended& a, const CudaRetrieval& retrieval,
            const Stream& stream);
  // The step is over: measures, and adds to the methods' statistics. Waits for `stream`.
  void count(const KvTables& pages, const CudaRetrieval& retrieval, const Stream& stream);

  std::size_t bytes() const;

 private:
  // What is copied of a (row, layer) to the host.
  struct Copies {
    bf16* out;              // [n_heads, D]
    std::int32_t* listed;   // [KV heads, max_listed]
    std::int32_t* unit_of;  // [KV heads, n_slots]
    std::int32_t* far_to;   // [1]
  };
  // Tokens that a row sees from one position.
  struct Part {
    const std::byte* q = nullptr;
    KvTables tables;
    std::int32_t layer = 0, slot = 0;
    std::int32_t begin = 0, end = 0;  // of the tables' tokens
    std::int32_t position = 0;        // of their first one
  };
  Copies copies_of(std::size_t row, std::int32_t layer) const;
  std::byte* query(std::size_t row, std::int32_t layer, bool far) const;
  std::int64_t mark(const Row& row, std::int32_t layer, std::int32_t kv_head, const Copies& c,
                    const CudaRetrieval& retrieval);
  Part near_part(const Row& row, std::int32_t layer, const CudaRetrieval& retrieval, const Stream& stream);
  void measure(std::span<const Part> parts, std::int32_t n_tokens, const Stream& stream);
  void measure_part(const Part& part, std::size_t number, const Stream& stream);
  void count_layer(std::size_t r, std::int32_t layer, const KvTables& pages, const CudaRetrieval& retrieval,
                   const Stream& stream);
  std::size_t q_bytes() const { return static_cast<std::size_t>(n_heads_ * shape_.head_dim) * 2; }

  KvShape shape_;
  std::int32_t n_heads_;
  float scale_;
  std::int32_t every_;
  std::vector<Row> rows_;
  std::int32_t max_listed_ = 0, n_slots_ = 0;  // of the step
  std::size_t copy_bytes_ = 0;                 // of a (row, layer) on the host
  DeviceBuffer queries_;                       // [rows][layers][2][n_heads, D] bf16: near, far
  PinnedBuffer copies_;

  // ---- of one (row, layer)
  std::int32_t stride_ = 0;  // tokens that there is room for
  DeviceBuffer numbers_, ring_blocks_, out_, lse_, mass_, scratch_;
  PinnedBuffer host_numbers_, host_blocks_, host_out_, host_lse_, host_mass_;  // of up to two parts
  std::vector<float> probabilities_;                                           // [n_heads, n]
  std::vector<double> truth_;                                                  // [n_heads, D]
  std::vector<std::uint8_t> attended_;
  AuditScratch scratch_here_;
};

}  // namespace mneme
