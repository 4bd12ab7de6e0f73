// One layer of a prompt's sequence on the device, while its pages lie in host memory: attention of a chunk reads all
// tokens up to there in one piece, and the chunk's own keys and values are written there first.
//
// Two buffers. What a turn (one sequence, one layer) needs of earlier chunks comes while the turn before it computes;
// what it wrote goes to the pages while the next one does. Events order both directions: nothing is written to a buffer
// before it was read, nothing read before it was written.
#pragma once

#include <array>
#include <cstdint>

#include "src/cache/page_pool.h"
#include "src/device/memory.h"
#include "src/kernels/kv_tables_cuda.h"

namespace mneme {

class CudaStaging {
 public:
  static std::int64_t bytes(const KvShape& shape, std::int64_t max_context);
  // Errors  kResource.
  CudaStaging(const KvShape& shape, std::int64_t max_context);

  // What a turn needs of a sequence and layer before it begins: tokens [0, head) and [from, first), in whole pages.
  struct Earlier {
    std::int32_t layer = 0, slot = 0;
    std::int32_t head = 0, from = 0, first = 0;
  };
  // That, of `pages`, into the buffer of the turn after the one that is under way.
  void fetch(const KvTables& pages, const Earlier& earlier, const Stream& stream);
  // The turn that fetch() was called for last: from here on `stream` may read what was fetched and write the rest.
  void begin(const Stream& stream);
  // Its buffer as tables of one sequence and one layer, block after block.
  const KvTables& tables() const { return buffers_[turn_ % 2].tables; }
  const std::byte* data() const { return tables().base; }
  std::int64_t tokens_a_head() const { return std::int64_t{tables().max_pages} * kKvPageTokens; }
  // It is over in `stream`: its tokens from `first` on, up to n_tokens, go to `pages`.
  void end(const KvTables& pages, std::int32_t layer, std::int32_t slot, std::int32_t first, std::int32_t n_tokens,
           const Stream& stream);
  // What comes next in `stream` sees the pages.
  void join(const Stream& stream);
  std::size_t bytes() const { return 2 * buffers_[0].memory.size(); }

 private:
  struct OneBuffer {
    DeviceBuffer memory;
    KvTables tables;
    Event fetched, used;
  };
  std::array<OneBuffer, 2> buffers_;
  DeviceBuffer blocks_;
  Stream side_ = Stream::make(Stream::Priority::kHigh);
  Event done_ = Event::make(), started_ = Event::make();
  std::uint32_t turn_ = 1, fetched_ = 1;  // begun, and fetched for
};

}  // namespace mneme
