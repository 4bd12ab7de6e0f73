// Drops at every decode step, decided on the device (drop_least_cuda.h): h2o, tova, and methods that count the attention
// of decode rows for the end of the next prompt.
//
//   step t      begin ── drop(t - 1) ── layers: attention, and the mass that it gave
//   host        commit(t): drop(t) runs when step t + 1 begins. A step that is taken back drops nothing.
//
// The device clears bits of the page tables' masks; new tokens go behind the last one, as everywhere. The host learns of
// it (late_drops.h) when it is asked for, and after kSteps steps, so that pages without tokens are freed and others
// compacted: it then copies masks and sums, and drops all at once what the device has dropped one by one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/cuda/memory.h"
#include "src/methods/method_state.h"
#include "src/model/cuda/drops/decode_mass.h"
#include "src/model/cuda/tables.h"
#include "src/selection/mass/drop_least_cuda.h"

namespace mneme {

class CudaDrops {
 public:
  // Until the host learns: 32 steps cost 1.6 % more tokens to read at a budget of 2,048, and a page a head.
  static constexpr std::int32_t kSteps = 32;

  explicit CudaDrops(const KvShape& shape) : shape_(shape) {}
  ~CudaDrops();
  CudaDrops(const CudaDrops&) = delete;
  CudaDrops& operator=(const CudaDrops&) = delete;

  // Whether the drops of such a decode row are decided here. Those of the host: by pooled mass, with shares of heads or
  // layers, by the norm rule; a sequence that is far over its budget; heads that decide together and differ.
  static bool takes(const MethodState& method, const SequenceCache& cache);

  // ---- a step
  void clear() { rows_.clear(); }
  void add(std::size_t span, const SequenceCache& cache, MethodState& method);
  bool any() const { return !rows_.empty(); }
  bool sums() const;  // whether any row needs CudaDecodeMass::received
  // Rows of CudaDecodeMass that sequences keep between steps. own_rows: by span, filled for the added ones.
  void take_rows(std::span<std::int32_t> own_rows);
  std::int32_t n_kept_rows() const;  // of sequences that are not in this step
  // After the tables were assigned, before anything reads them: makes the drops of the last step.
  void start(std::span<const std::int32_t> slots, CudaTables& tables, CudaDecodeMass& mass, const Stream& stream);
  std::size_t bytes() const { return first_slots_.size() + device_rows_.size(); }

 private:
  class Sequence;
  struct Dropping {
    std::size_t span;
    Sequence* sequence;
    const SequenceCache* cache;
    MethodState* method;
  };
  std::int32_t n_heads() const { return static_cast<std::int32_t>(shape_.blocks_per_page()); }
  void attach(const Dropping& row, std::byte* staging);
  void launch(std::span<const DropTask> rows);

  KvShape shape_;
  std::vector<Sequence*> sequences_;  // that refer to this
  std::vector<Dropping> rows_;
  CudaTables* tables_ = nullptr;
  CudaDecodeMass* mass_ = nullptr;
  const Stream* stream_ = nullptr;
  DeviceBuffer first_slots_, device_rows_;  // [rows of mass][heads]; [rows of a step]
  PinnedBuffer staging_, row_staging_, learned_;
};

}  // namespace mneme
