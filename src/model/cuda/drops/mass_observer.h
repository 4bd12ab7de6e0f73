// Measures attention mass on the device for methods that drop tokens: the mass that query rows give to the stored
// tokens, at the end of prefills (with all rows: in every chunk) and in decode steps. When a prefill ends the host
// decides what to keep (drop_decider.h) after the step; for the norm rule's suffix only its first token is copied to the
// host. Decode steps drop on the device (device_drops.h), except where CudaDrops::takes() says no.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/thread_pool.h"
#include "src/cuda/mirrored_buffer.h"
#include "src/methods/drop_decider.h"
#include "src/model/cuda/drops/device_drops.h"
#include "src/selection/mass/attention_mass_cuda.h"

namespace mneme {

class CudaMassObserver {
 public:
  CudaMassObserver(const KvShape& shape, std::int32_t n_heads, float scale);

  // ---- a step: its rows, by the index of their span
  struct Observed {
    std::size_t span = 0;
    const SequenceCache* cache = nullptr;  // the rows' own tokens are its last
    MethodState* method = nullptr;
    std::int32_t n_rows = 0, prefill_left = 0;
    bool decodes = false;
  };
  void clear();
  // Returns whether the rows are observed.
  bool add(const Observed& rows);
  // Allocates memory for the added rows, for steps of n_spans spans; enqueues on `stream`. Errors  kResource.
  void prepare(std::int32_t n_spans, const Stream& stream);
  // Changes when earlier graphs must not be replayed any more.
  std::int32_t generation() const { return generation_; }
  std::size_t bytes() const;

  // ---- decode rows
  bool decodes() const { return !decode_.rows.empty() || drops_.any(); }
  bool decodes(std::int32_t layer) const { return decodes() && decode_.layers[static_cast<std::size_t>(layer)]; }
  // After the tables were assigned: the last step's drops. slots: by span.
  void start(std::span<const std::int32_t> slots, CudaTables& tables, const Stream& stream);
  // Destination of their attention's log-sum-exp, [spans, heads].
  float* decode_lse() const { return decode_.lse.as<float>(); }
  // n spans starting at `first`, with attention computed. q, slots and lengths are theirs; length 0: not observed.
  struct Decoded {
    const void* q = nullptr;
    const std::int32_t *slots = nullptr, *lengths = nullptr;
    std::int32_t first = 0, n = 0;
  };
  void take_decoded(std::int32_t layer, const Decoded& rows, const KvTables& pages, const CudaContext& context);

  // ---- prompt rows; before and after their attention
  float* chunk_lse(std::size_t span, std::int32_t layer) const;  // null: not needed
  struct Prompt {
    const void* q = nullptr;  // of the chunk's first row
    const std::int32_t *slot = nullptr, *length = nullptr;
  };
  // The rows' keys are in layer `pages_layer` of `pages`.
  void take_chunk(std::size_t span, std::int32_t layer, const Prompt& rows, const KvTables& pages,
                  std::int32_t pages_layer, const Stream& stream);

  // fetch: after the last layer. decide: after the stream was synchronised.
  void fetch(const Stream& stream);
  void decide();

 private:
  struct Layer {                           // of a chunk; not observed: stride 0
    std::int32_t stride = 0;               // of a row of mass: entries of a head's table
    bool mass = false, suffix = false;     // that is copied to the host
    std::size_t rows_at = 0, mass_at = 0;  // offsets in host_: queries, and their mass
    Event begin, end;
  };
  struct Chunk {
    Observed rows;
    bool all_rows = false, ends = false;
    std::int32_t observed = 0, earlier = 0;  // rows of this chunk, and of earlier chunks
    std::vector<Layer> layers;
  };
  // What decode rows give.
  struct Decode {
    explicit Decode(const KvShape& shape)
        : layers(static_cast<std::size_t>(shape.n_layers)), next(layers), mass(shape) {}
    std::vector<Observed> rows;      // that the host decides for; drops_ has the others
    std::vector<bool> layers, next;  // observed in the last step, and in this one
    std::int32_t tokens = 0;         // maximum of slots of a head in this step
    CudaDecodeMass mass;             // a row for each span, and
    MirroredBuffer mass_rows;        // by span: its row
    DeviceBuffer lse;
    PinnedBuffer host;  // [rows][layers][KV heads][tokens]
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
  std::size_t arrays_of_mass(const Chunk& chunk) const;
  void measure_moments(AttentionMassCuda a, const KvTables& pages, std::int32_t pages_layer,
                       const Stream& stream) const;
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
  std::int32_t generation_ = 0;

  std::vector<Chunk> chunks_;
  CudaDrops drops_;
  Decode decode_;

  DeviceBuffer q_, mass_, lse_, scratch_, results_;
  PinnedBuffer host_;
  std::unique_ptr<ThreadPool> threads_;
  std::vector<Worker> workers_;
};

}  // namespace mneme
