// Staging of one layer of a prompt's sequence on the device while its pages are in host memory: attention of a chunk
// reads all earlier tokens from one contiguous buffer, and the chunk's own keys and values are written there first.
//
// Double buffering: the earlier chunks of a round (one sequence, one layer) are fetched while the previous round
// computes, and its new tokens are written back while the next round computes. Events order both directions: a buffer
// is not overwritten before it was read, nor read before it was written.
#pragma once

#include <array>
#include <cstdint>

#include "src/cuda/memory.h"
#include "src/kv/kv_tables_cuda.h"
#include "src/kv/page_pool.h"

namespace mneme {

class CudaStaging {
 public:
  static std::int64_t bytes(const KvShape& shape, std::int64_t max_context);
  // Errors  kResource.
  CudaStaging(const KvShape& shape, std::int64_t max_context);

  // Earlier tokens that a round needs: [0, head) and [from, first), in whole pages.
  struct Earlier {
    std::int32_t layer = 0, slot = 0;
    std::int32_t head = 0, from = 0, first = 0;
  };
  // Fetches them from `pages` into the buffer of the next round.
  void fetch(const KvTables& pages, const Earlier& earlier, const Stream& stream);
  // Starts the round of the last fetch(): from here on `stream` may read the fetched tokens and write the rest.
  void begin(const Stream& stream);
  // The round's buffer as page tables of one sequence and one layer, blocks in order.
  const KvTables& tables() const { return buffers_[round_ % 2].tables; }
  const std::byte* data() const { return tables().base; }
  std::int64_t tokens_a_head() const { return std::int64_t{tables().max_pages} * kKvPageTokens; }
  // Ends the round in `stream`: copies its tokens [first, n_tokens) to `pages`.
  void end(const KvTables& pages, std::int32_t layer, std::int32_t slot, std::int32_t first, std::int32_t n_tokens,
           const Stream& stream);
  // Later work in `stream` sees the pages.
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
  std::uint32_t round_ = 1, fetched_ = 1;  // rounds started; rounds fetched for
};

}  // namespace mneme
