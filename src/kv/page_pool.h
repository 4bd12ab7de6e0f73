// Where pages live, and who uses them.
//
// A page is kPageTokens consecutive tokens of one layer and one KV head: one contiguous block of kPageTokens x [K: D |
// V: D]. Blocks are reference-counted, so that sequences share what they have in common.
//
// Memory   one reservation of address space; the kernel gives pages of it when they are first written. A block that is
// given back
//          keeps its memory for the next user.
// Threads  one thread allocates, retains and releases; any may read and write the bytes of blocks it holds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/base/strong_id.h"
#include "src/kernels/token_move.h"
#include "src/tensor/dtype.h"

namespace mneme {

inline constexpr std::int32_t kPageTokens = 32;

using BlockId = StrongId<struct BlockIdTag>;

// What a page's keys are: turned by RoPE to their own position, or as they were before it, for methods whose attention
// gives tokens other positions. Part of a page's identity: neither may be read as the other.
enum class KeyBasis : std::uint8_t { kTurned, kRaw };

struct KvShape {
  std::int32_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kBF16;  // or kF16

  std::size_t token_bytes() const { return 4 * static_cast<std::size_t>(head_dim); }  // K and V, two bytes each
  std::size_t page_bytes() const { return token_bytes() * kPageTokens; }
  // Blocks that one page of tokens takes over all layers and KV heads.
  std::int64_t blocks_per_page() const { return std::int64_t{n_layers} * n_kv_heads; }
  // Bytes that one token takes over all layers and KV heads.
  std::size_t bytes_per_token() const { return token_bytes() * static_cast<std::size_t>(blocks_per_page()); }
  bool operator==(const KvShape&) const = default;
};

// Blocks that do not lie in this process's own memory (a device's): block i from base() + i * page_bytes() on.
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  virtual std::byte* base() const = 0;
  virtual bool in_host_memory() const = 0;  // which the device reads through its link
  // Between two places in it; ordered before whatever later reads `to`.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Many small ones, within their lists in order (token_move.h); ordered as copy().
  virtual void move(std::span<const TokenMove> moves, std::span<const std::int32_t> ends, std::size_t token_bytes) = 0;
  // Done when they return.
  virtual void read(std::byte* to_host, const std::byte* from, std::size_t bytes) = 0;
  virtual void write(std::byte* to, const std::byte* from_host, std::size_t bytes) = 0;
};

class PagePool {
 public:
  // Requires  n_blocks >= 0; a complete shape; `memory` (null: this process's own) has room for the blocks.
  // Errors    kResource: not even address space for n_blocks.
  PagePool(const KvShape& shape, std::int64_t n_blocks, std::unique_ptr<BlockMemory> memory = nullptr);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvShape& shape() const { return shape_; }
  std::int64_t n_blocks() const { return static_cast<std::int64_t>(refs_.size()); }
  std::int64_t n_free() const { return n_free_; }
  std::int64_t n_used() const { return n_blocks() - n_free_; }
  // Bytes of blocks that were ever in use: what the pool really occupies.
  std::size_t touched_bytes() const;

  // A block with one reference, content undefined. Requires  n_free() > 0: admission counted before.
  BlockId allocate();
  void retain(BlockId id);
  void release(BlockId id);  // the last one frees it
  std::int32_t references(BlockId id) const;

  // Blocks that were in use and are free again, in no order. The others that are free are those from touched_blocks()
  // on.
  std::span<const std::int32_t> given_back() const { return free_; }
  std::int64_t touched_blocks() const { return next_unused_; }

  // Where a block lies. Of a device's blocks only its address can be used here, with the three calls below.
  std::byte* data(BlockId id) const { return base_ + static_cast<std::size_t>(id.value) * block_bytes_; }
  bool on_device() const { return memory_ != nullptr; }
  // Whether they take room in the host's memory: all but a device's own.
  bool in_host_memory() const { return memory_ == nullptr || memory_->in_host_memory(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes);
  void move(std::span<const TokenMove> moves, std::span<const std::int32_t> ends);  // token_move.h
  // Memory for such lists, which its one thread fills before move().
  struct MoveLists {
    std::vector<TokenMove> moves;
    std::vector<std::int32_t> ends;
  };
  MoveLists& move_lists() { return move_lists_; }
  void read(std::byte* to_host, const std::byte* from, std::size_t bytes) const;
  void write(std::byte* to, const std::byte* from_host, std::size_t bytes);

 private:
  void reserve(std::size_t bytes);

  KvShape shape_;
  std::unique_ptr<BlockMemory> memory_;
  std::size_t block_bytes_;
  std::size_t reserved_bytes_ = 0;
  void* reservation_ = nullptr;
  std::byte* base_ = nullptr;       // in it, on the boundary of a huge page where the pool is large
  std::vector<std::int32_t> refs_;  // by block
  std::vector<std::int32_t> free_;  // stack of blocks given back
  std::int64_t next_unused_ = 0;    // blocks from here on were never touched
  std::int64_t n_free_ = 0;
  MoveLists move_lists_;
};

}  // namespace mneme
