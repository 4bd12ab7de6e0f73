// What methods that drop tokens look at, measured on the device: attention that rows of queries gave to the stored
// tokens, at the end of prefills (with all rows: in every chunk) and in steps of answers. Who stays is decided on the
// host (drop_decider.h), once the step is over; of the norm rule's suffix only its first token comes there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/attention/drop_decider.h"
#include "src/base/thread_pool.h"
#include "src/device/memory.h"
#include "src/kernels/attention_mass_cuda.h"

namespace mneme {

class CudaTaps {
 public:
  CudaTaps(const KvShape& shape, std::int32_t n_heads, float scale);

  // ---- a step: its rows, by the number of their span
  struct Rows {
    std::size_t span = 0;
    const SequenceCache* cache = nullptr;  // the rows' own tokens are its last
    MethodState* method = nullptr;
    std::int32_t n_rows = 0, prefill_left = 0;
    bool decodes = false;
  };
  void clear();
  // Whether anything is to be looked at.
  bool add(const Rows& rows);
  // Memory for what was added, for steps of so many spans; enqueues on `stream`. Errors  kResource.
  void prepare(std::int32_t n_spans, const Stream& stream);
  // Changes when graphs that were made before must not run any more.
  std::int32_t generation() const { return generation_; }
  std::size_t bytes() const;

  // ---- rows that decode
  bool decodes() const { return !decoding_.empty(); }
  bool decodes(std::int32_t layer) const { return decodes() && decode_layers_[static_cast<std::size_t>(layer)]; }
  // Where their attention writes its log-sum-exp, [spans, heads].
  float* decode_lse() const { return decode_lse_.as<float>(); }
  // n spans from number `first` on, whose attention was computed. q, slots and lengths are theirs; a length of 0:
  // nothing is looked at.
  struct Decoded {
    const void* q = nullptr;
    const std::int32_t *slots = nullptr, *lengths = nullptr;
    std::int32_t first = 0, n = 0;
  };
  void take_decoded(std::int32_t layer, const Decoded& rows, const KvTables& pages, const CudaContext& context);

  // ---- rows of prompts; before and after their attention
  float* chunk_lse(std::size_t span, std::int32_t layer) const;  // null: nobody wants it
  struct Prompt {
    const void* q = nullptr;  // of the chunk's first row
    const std::int32_t *slot = nullptr, *length = nullptr;
  };
  // The rows' keys are in layer `pages_layer` of `pages`.
  void take_chunk(std::size_t span, std::int32_t layer, const Prompt& rows, const KvTables& pages,
                  std::int32_t pages_layer, const Stream& stream);

  // After the last layer; then, once the stream has come to its end, what it means.
  void fetch(const Stream& stream);
  void decide();

 private:
  struct Layer {                           // of a chunk; not looked at: stride 0
    std::int32_t stride = 0;               // of a row of mass: slots of a head
    bool mass = false, suffix = false;     // that comes to the host
    std::size_t rows_at = 0, mass_at = 0;  // in host_: queries, and what they gave
    Event begin, end;
  };
  struct Chunk {
    Rows rows;
    bool all_rows = false, ends = false;
    std::int32_t tapped = 0, earlier = 0;  // rows of the chunk, and of chunks before
    std::vector<Layer> layers;
  };
  struct Job {
    Chunk* chunk;
    std::int32_t layer;
  };
  struct Worker {
    DropDecider decider;
    LayerMass mass;
  };

  void plan_chunk(Chunk& chunk) const;
  void prepare_decode(std::int32_t n_spans, const Stream& stream);
  void prepare_chunks();
  void put_earlier_rows(const Chunk& chunk) const;
  void measure(const Chunk& chunk, std::int32_t layer, const void* q, const Prompt& rows, const KvTables& pages,
               std::int32_t pages_layer, const Stream& stream) const;
  const Chunk* chunk_of(std::size_t span) const;
  std::int32_t rows_of_mass(const Chunk& chunk) const;
  void save_rows(const Chunk& chunk, std::int32_t layer) const;
  void decide_chunk(const Job& job, Worker& worker) const;
  template <typename F>
  void for_each_job(std::size_t n, std::size_t floats, F&& f);
  void decide_chunks();
  void decide_decoded(std::size_t row, std::int32_t layer, Worker& worker) const;
  std::size_t row_bytes() const { return static_cast<std::size_t>(n_heads_ * shape_.head_dim) * 2; }

  KvShape shape_;
  std::int32_t n_heads_;
  float scale_;
  LaunchOrder order_;
  std::int32_t generation_ = 0;

  std::vector<Chunk> chunks_;
  std::vector<Rows> decoding_;
  std::vector<bool> decode_layers_;
  std::int32_t decode_stride_ = 0, decode_spans_ = 0;  // what there is room for
  std::int32_t decode_tokens_ = 0;                     // slots of a head of this step, at most
  DeviceBuffer decode_mass_, decode_lse_;              // [spans][layers][KV heads][stride]
  PinnedBuffer decode_host_;                           // [spans][layers][KV heads][tokens]

  DeviceBuffer q_, mass_, lse_, scratch_, results_;
  PinnedBuffer host_;
  std::unique_ptr<ThreadPool> threads_;
  std::vector<Worker> workers_;
};

}  // namespace mneme
