// Reference-counted pool of KV pages.
//
// A page is kPageTokens consecutive tokens of one layer and one KV head, stored in one contiguous block of kPageTokens
// x [K: D | V: D] (kv_run.h). Sequences share blocks of common prefixes.
//
// Memory   One reservation of address space; the kernel commits a page on first write. A freed block keeps its memory
// for the next owner.
// Threads  One thread allocates, retains and releases. Any thread may read and write the bytes of blocks it holds.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/base/strong_id.h"
#include "src/kv/block_copy.h"
#include "src/kv/disk/spill_memory.h"
#include "src/kv/kv_run.h"
#include "src/kv/token_copy.h"
#include "src/tensor/dtype.h"

namespace mneme {

inline constexpr std::int32_t kPageTokens = 32;
// Pages that hold so many tokens.
inline std::int32_t pages_of(std::int64_t n_tokens) {
  return static_cast<std::int32_t>((n_tokens + kPageTokens - 1) / kPageTokens);
}

using BlockId = StrongId<struct BlockIdTag>;

// Whether a page's keys are rotated by RoPE to their own positions, or stored before RoPE, for methods that attend them
// at remapped positions. Part of a page's identity: a reader of one must never get the other.
enum class KeyBasis : std::uint8_t { kPostRope, kPreRope };

struct KvShape {
  std::int32_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  DType dtype = DType::kBF16;   // or kF16, kInt8, kFp8
  std::size_t state_bytes = 0;  // of a sequence in layers with a state in place of keys and values (recurrent_state.h)

  std::size_t token_bytes() const { return kv_token_bytes(dtype, head_dim); }  // K and V of one head
  std::size_t page_bytes() const { return token_bytes() * kPageTokens; }
  // Blocks of one page of tokens over all layers and KV heads.
  std::int64_t blocks_per_page() const { return std::int64_t{n_layers} * n_kv_heads; }
  // Bytes of one token, and of one page of tokens, over all layers and KV heads.
  std::size_t bytes_per_token() const { return token_bytes() * blocks_per_page(); }
  std::size_t whole_page_bytes() const { return page_bytes() * blocks_per_page(); }
  // Blocks that a state counts as.
  std::int64_t state_blocks() const {
    return state_bytes == 0 ? 0 : static_cast<std::int64_t>((state_bytes + page_bytes() - 1) / page_bytes());
  }
  bool operator==(const KvShape&) const = default;
};

// Layers that attend a window of the last tokens alone: of those, sequences hold what a window reads.
struct KvWindows {
  std::int32_t tokens = 0;       // of the window; 0: all layers keep everything
  std::vector<bool> layers;      // which have it; those behind its end do not
  std::int32_t step_tokens = 1;  // the most that a sequence gets in a step

  // A sequence can be cut by so many tokens without computing any.
  static constexpr std::int32_t kSlack = 64;

  bool has(std::int32_t layer) const {
    return tokens > 0 && layer < std::ssize(layers) && layers[static_cast<std::size_t>(layer)];
  }
  std::int32_t n_layers() const {
    return tokens > 0 ? static_cast<std::int32_t>(std::count(layers.begin(), layers.end(), true)) : 0;
  }
  std::int32_t first_layer() const {  // Requires  n_layers() > 0
    return static_cast<std::int32_t>(std::find(layers.begin(), layers.end(), true) - layers.begin());
  }
  // The first page that the token at position `length` attends.
  std::int32_t first_page(std::int32_t length) const {
    return length < tokens ? 0 : (length - tokens + 1) / kPageTokens;
  }
  // Pages of a layer that a sequence holds at most in a step of n_new tokens.
  std::int64_t most_pages(std::int64_t n_new) const { return pages_of(tokens + kSlack + n_new) + 1; }
};

// Host memory that blocks of a pool are copied to and from. The pool's device, where it has one, accesses it in place.
struct HostMemory {
  std::byte *data = nullptr, *device_data = nullptr;  // addresses on the host and on the device
  std::shared_ptr<void> owner;                        // frees it
};

// A state of one sequence (recurrent_state.h): KvShape::state_bytes, in host memory or where a device has them.
class StateValues {
 public:
  virtual ~StateValues() = default;
  // Requires  in host memory.
  virtual std::byte* host() = 0;
};

// Block storage outside of this process's pageable memory: device memory, or host memory that the device maps. Block i
// is at base() + i * page_bytes().
class BlockMemory {
 public:
  virtual ~BlockMemory() = default;
  virtual std::byte* base() const = 0;
  virtual bool in_host_memory() const = 0;  // pinned host memory, read by the device over its link
  // Copies within the storage. Async: ordered before later reads of `to`.
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Many small copies, ordered within each list (token_copy.h). Async, as copy().
  virtual void move(std::span<const TokenMove> moves, std::span<const std::int32_t> ends, std::size_t token_bytes) = 0;
  // Synchronous copies to and from host memory.
  virtual void read(std::byte* to_host, const std::byte* from, std::size_t bytes) = 0;
  virtual void write(std::byte* to, const std::byte* from_host, std::size_t bytes) = 0;
  // Errors  kResource.
  virtual HostMemory host_memory(std::size_t bytes) = 0;
  // Blocks to and from such memory. Async, as copy(): before the host looks at what was copied, or overwrites what is
  // copied from, wait().
  virtual void copy_blocks(const HostMemory& host, std::span<const BlockPlace> places, std::size_t block_bytes,
                           BlocksGo go) = 0;
  virtual void wait() = 0;
  // A copy of a state; null: zeros. Async, as copy().   Errors  kResource.
  virtual std::shared_ptr<StateValues> make_state(std::size_t bytes, const StateValues* from) = 0;
};

class PagePool {
 public:
  // Requires  n_blocks >= 0; a valid shape; `memory` (null: this process's own) has room for the blocks.
  // Errors  kResource: no address space for n_blocks.
  PagePool(const KvShape& shape, std::int64_t n_blocks, std::unique_ptr<BlockMemory> memory = nullptr);
  // More blocks than fit into memory: the coldest lie in a file. Errors  as SpillMemory.
  PagePool(const KvShape& shape, std::int64_t n_blocks, const SpillOptions& spill);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  const KvShape& shape() const { return shape_; }
  std::int64_t n_blocks() const { return refs_.size(); }
  std::int64_t n_free() const { return n_free_; }
  std::int64_t n_used() const { return n_blocks() - n_free_; }

  // Allocates a block with one reference; content undefined. Requires  n_free() > 0: admission control reserves blocks.
  BlockId allocate();
  void retain(BlockId id);
  void release(BlockId id);  // the last release frees it
  std::int32_t references(BlockId id) const;

  // Layers of `windows` keep no more than their window. Requires  no block was allocated yet.
  void set_windows(const KvWindows& windows);
  const KvWindows& windows() const { return windows_; }
  // As release(), but the block's content can be taken back until it is allocated again: those released longest ago are
  // allocated first, after all others. Requires  windows.
  void release_weakly(BlockId id);
  // Changes when a block's content may have changed, or can no longer be taken back.
  std::uint32_t content(BlockId id) const { return content_[id.value]; }
  void change_content(BlockId id) { ++content_[id.value]; }
  // One more reference to a block that may be free. Requires  content(id) is what it was when it was released weakly.
  void take_back(BlockId id);
  // Free blocks that were released weakly, the one that is allocated first in front.
  std::vector<std::int32_t> released_weakly() const;

  // Free blocks that were in use before, but for released_weakly(), in no order. All other free blocks are at
  // touched_blocks() and above.
  std::span<const std::int32_t> given_back() const { return free_; }
  std::int64_t touched_blocks() const { return next_unused_; }

  // Before a block is read or written, where some lie in a file: which ones that are follows from it. Any thread.
  void touch(BlockId id) const {
    if (spill_ != nullptr) spill_->touch(id.value);
  }
  // After a layer's, and a whole step's, blocks were read and written.
  void end_layer() const {
    if (spill_ != nullptr) spill_->end_layer();
  }
  void end_step() const {
    if (spill_ != nullptr) spill_->end_step();
  }
  std::optional<SpillMemory::Stats> spill_stats() const;

  // Address of a block. Where on_device(), the host does not dereference it: use copy(), move(), read() and write().
  std::byte* data(BlockId id) const { return base_ + id.value * block_bytes_; }
  bool on_device() const { return memory_ != nullptr; }
  // A copy of a state of KvShape::state_bytes; null: zeros.
  std::shared_ptr<StateValues> make_state(const StateValues* from) const;
  // Whether blocks occupy host memory: always, except for a device's own.
  bool in_host_memory() const { return memory_ == nullptr || memory_->in_host_memory(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes);
  void move(std::span<const TokenMove> moves, std::span<const std::int32_t> ends);  // token_copy.h
  // Reusable lists for move(), filled by the pool's thread.
  struct MoveLists {
    std::vector<TokenMove> moves;
    std::vector<std::int32_t> ends;
  };
  MoveLists& move_lists() { return move_lists_; }
  void read(std::byte* to_host, const std::byte* from, std::size_t bytes) const;
  void write(std::byte* to, const std::byte* from_host, std::size_t bytes);
  // Memory for copy_blocks(), not initialised. Errors  kResource.
  HostMemory host_memory(std::size_t bytes) const;
  // Copies blocks to places of `host`, or back, of page_bytes() each, and ends with end_layer(). Where on_device(), async:
  // ordered before whatever this pool's copies and kernels do later; before the host looks at what was copied, or
  // overwrites what is copied from, wait().
  void copy_blocks(const HostMemory& host, std::span<const BlockPlace> places, BlocksGo go) const;
  void wait() const {
    if (memory_ != nullptr) memory_->wait();
  }

 private:
  std::size_t count_blocks(std::int64_t n_blocks);
  void unlink(std::int32_t block);
  void reserve(std::size_t bytes);

  KvShape shape_;
  std::unique_ptr<BlockMemory> memory_;
  std::unique_ptr<SpillMemory> spill_;
  std::size_t block_bytes_;
  std::size_t reserved_bytes_ = 0;
  void* reservation_ = nullptr;
  std::byte* base_ = nullptr;       // aligned to a huge page where the pool is large
  std::vector<std::int32_t> refs_;  // by block
  std::vector<std::int32_t> free_;  // stack of freed blocks
  std::int64_t next_unused_ = 0;    // blocks from here on were never allocated
  std::int64_t n_free_ = 0;
  KvWindows windows_;
  std::vector<std::uint32_t> content_;  // by block; empty without windows, as are the links
  // Weakly released blocks, a ring through its head: entry n_blocks().
  struct Link {
    std::int32_t before = 0, after = 0;
  };
  std::vector<Link> links_;
  MoveLists move_lists_;
};

}  // namespace mneme
