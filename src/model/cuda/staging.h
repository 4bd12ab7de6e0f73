// Staging of one layer of a prompt's sequence on the device while its pages are in host memory: attention of a chunk
// reads all earlier tokens from one contiguous buffer, and the chunk's own keys and values are written there first.
//
// Kept layers: while device memory is free, one prompt at a time keeps its tokens of the first layers, all where they
// fit, so that a chunk fetches none of them again. Without it a prompt of 100,000 tokens of an 8B Llama in chunks of 512
// crosses the link 98 times on average, 1.3 TB.
//
// Double buffering, in the other layers: the earlier chunks of a round (one sequence, one layer) are fetched while the
// previous round computes, and its new tokens are written back while the next round computes. Events order both
// directions: a buffer is not overwritten before it was read, nor read before it was written.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "src/model/cuda/retrieval/own_pages.h"

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
    std::uint64_t revision = 0;  // of a sequence that needs all and dropped nothing; else 0
  };
  // A step's prompts, before its rounds: of those with earlier tokens and a revision, one keeps its layers. The first
  // such prompt allocates as many layers as fit a quarter of the free device memory; null: none.
  void select_prompt(std::span<const Earlier> prompts, std::int64_t (*free_bytes)());
  // Frees the kept layers for good, if there are any. Requires  no round is open. Returns whether memory was freed.
  bool release();
  // Fetches them from `pages` into the buffer of the next round.
  void fetch(const KvTables& pages, const Earlier& earlier, const Stream& stream);
  // Starts the round of the last fetch(): from here on `stream` may read the fetched tokens and write the rest.
  void begin(const Stream& stream);
  // The round's buffer as page tables of one sequence and one layer, blocks in order.
  const KvTables& tables() const { return rounds_[round_ % 2].tables; }
  const std::byte* data() const { return tables().base; }
  std::int64_t tokens_a_head() const { return std::int64_t{tables().max_pages} * kKvPageTokens; }
  // Ends the round in `stream`: copies its tokens [first, n_tokens) to `pages`.
  void end(const KvTables& pages, std::int32_t layer, std::int32_t slot, std::int32_t first, std::int32_t n_tokens,
           const Stream& stream);
  // Later work in `stream` sees the pages.
  void join(const Stream& stream);
  std::size_t bytes() const { return buffers_[0].bytes() * (2 + kept_.size()); }
  std::int64_t fetched_tokens() const { return fetched_tokens_; }  // of one layer, summed over rounds

 private:
  struct Round {
    KvTables tables;
    Event fetched, used;
    std::int32_t kept_layer = -1;  // -1: none
  };
  bool keeps(const Earlier& e) const {
    return e.revision != 0 && e.revision == kept_revision_ && e.layer < std::ssize(kept_tokens_);
  }
  void allocate_kept(std::int64_t free_bytes);

  KvShape shape_;
  std::array<OwnPages, 2> buffers_;
  std::array<Round, 2> rounds_;
  std::vector<OwnPages> kept_;             // by layer, from the first on
  std::vector<std::int32_t> kept_tokens_;  // by kept layer: tokens of the sequence, from the first on
  std::uint64_t kept_revision_ = 0;        // of that sequence; 0: none
  bool may_keep_ = true;                   // kept layers were neither found too large nor released
  std::int64_t fetched_tokens_ = 0;
  Stream side_ = Stream::make(Stream::Priority::kHigh);
  Event done_ = Event::make(), started_ = Event::make();
  std::uint32_t round_ = 1, fetched_ = 1;  // rounds started; rounds fetched for
};

}  // namespace mneme
