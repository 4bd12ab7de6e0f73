#include "src/kv/page_pool.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/tensor/buffer.h"

namespace mneme {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

// Returns their bytes.
std::size_t PagePool::count_blocks(std::int64_t n_blocks) {
  const KvShape& shape = shape_;
  MNEME_CHECK(shape.n_layers > 0 && shape.n_kv_heads > 0 && shape.head_dim > 0, "{} layers, {} KV heads, head size {}",
              shape.n_layers, shape.n_kv_heads, shape.head_dim);
  MNEME_CHECK(shape.dtype == DType::kBF16 || shape.dtype == DType::kF16 || is_eight_bit(shape.dtype),
              "keys and values in {}", dtype_name(shape.dtype));
  MNEME_CHECK(n_blocks >= 0, "{} blocks", n_blocks);
  // One huge page is reserved on top, to align the start.
  const std::size_t most = (std::numeric_limits<std::size_t>::max() / 2 - kHugePage) / block_bytes_;
  if (n_blocks > std::numeric_limits<std::int32_t>::max() || std::cmp_greater(n_blocks, most)) {
    fail(ErrorKind::kResource, "KV memory of {} blocks of {} bytes: more than can be addressed (at most {} blocks)",
         n_blocks, block_bytes_, std::numeric_limits<std::int32_t>::max());
  }
  n_free_ = n_blocks;
  refs_.assign(n_blocks, 0);
  return n_blocks * block_bytes_;
}

PagePool::PagePool(const KvShape& shape, std::int64_t n_blocks, const SpillOptions& spill)
    : shape_(shape), block_bytes_(shape.page_bytes()) {
  count_blocks(n_blocks);
  spill_ = std::make_unique<SpillMemory>(block_bytes_, n_blocks, spill);
  base_ = spill_->base();
}

PagePool::PagePool(const KvShape& shape, std::int64_t n_blocks, std::unique_ptr<BlockMemory> memory)
    : shape_(shape), memory_(std::move(memory)), block_bytes_(shape.page_bytes()) {
  const std::size_t bytes = count_blocks(n_blocks);
  if (memory_ != nullptr) {
    base_ = memory_->base();
  } else if (bytes > 0) {
    reserve(bytes);
  }
}

void PagePool::reserve(std::size_t bytes) {
  const bool huge = bytes >= kHugePage;
  reserved_bytes_ = huge ? bytes + kHugePage : bytes;
  void* p = mmap(nullptr, reserved_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    fail(ErrorKind::kResource, "cannot reserve {} bytes for the KV cache ({} blocks of {} bytes): {}", reserved_bytes_,
         n_blocks(), block_bytes_, std::strerror(errno));
  }
  reservation_ = p;
  base_ = static_cast<std::byte*>(p);
  if (huge) {
    const auto address = reinterpret_cast<std::uintptr_t>(p);
    base_ += (kHugePage - address % kHugePage) % kHugePage;
    madvise(base_, bytes, MADV_HUGEPAGE);  // a hint: without huge pages only speed is lost
  }
}

PagePool::~PagePool() {
  if (reservation_ != nullptr) munmap(reservation_, reserved_bytes_);
}

void PagePool::copy(std::byte* to, const std::byte* from, std::size_t bytes) {
  memory_ != nullptr ? memory_->copy(to, from, bytes) : static_cast<void>(std::memcpy(to, from, bytes));
}
void PagePool::move(std::span<const TokenMove> moves, std::span<const std::int32_t> ends) {
  if (moves.empty()) return;
  const std::size_t bytes = shape_.token_bytes();
  if (memory_ != nullptr) return memory_->move(moves, ends, bytes);
  for (const TokenMove& m : moves) std::memmove(base_ + m.to * bytes, base_ + m.from * bytes, m.n * bytes);
}
void PagePool::read(std::byte* to_host, const std::byte* from, std::size_t bytes) const {
  memory_ != nullptr ? memory_->read(to_host, from, bytes) : static_cast<void>(std::memcpy(to_host, from, bytes));
}
void PagePool::write(std::byte* to, const std::byte* from_host, std::size_t bytes) {
  memory_ != nullptr ? memory_->write(to, from_host, bytes) : static_cast<void>(std::memcpy(to, from_host, bytes));
}

HostMemory PagePool::host_memory(std::size_t bytes) const {
  if (memory_ != nullptr) return memory_->host_memory(bytes);
  const auto buffer = std::make_shared<Buffer>(bytes);
  return {.data = buffer->data(), .device_data = buffer->data(), .owner = buffer};
}
void PagePool::copy_blocks(const HostMemory& host, std::span<const BlockPlace> places, BlocksGo go) const {
  if (memory_ != nullptr) return memory_->copy_blocks(host, places, block_bytes_, go);
  for (const BlockPlace& p : places) touch(BlockId(p.block));
  mneme::copy_blocks(base_, host.data, places, block_bytes_, go);
  end_layer();
}

std::optional<SpillMemory::Stats> PagePool::spill_stats() const {
  return spill_ == nullptr ? std::nullopt : std::optional(spill_->stats());
}

BlockId PagePool::allocate() {
  MNEME_CHECK(n_free_ > 0, "none of {} blocks is free: admission did not count right", n_blocks());
  BlockId id;
  if (!free_.empty()) {  // reuse committed memory first
    id = BlockId(free_.back());
    free_.pop_back();
  } else if (next_unused_ < n_blocks()) {
    id = BlockId(count32(next_unused_++));
  } else {
    id = BlockId(links_.back().after);
    unlink(id.value);
  }
  if (!content_.empty()) change_content(id);
  refs_[id.value] = 1;
  --n_free_;
  return id;
}

void PagePool::retain(BlockId id) {
  MNEME_CHECK(references(id) > 0, "block {} is free", id.value);
  ++refs_[id.value];
}

void PagePool::release(BlockId id) {
  MNEME_CHECK(references(id) > 0, "block {} is free", id.value);
  if (--refs_[id.value] > 0) return;
  if (!content_.empty()) change_content(id);
  free_.push_back(id.value);
  ++n_free_;
}

void PagePool::set_windows(const KvWindows& windows) {
  MNEME_CHECK(next_unused_ == 0, "{} blocks were allocated before", next_unused_);
  windows_ = windows;
  if (windows.n_layers() == 0) return;
  content_.assign(refs_.size(), 0);
  links_.assign(refs_.size() + 1, {});
  links_.back() = {count32(n_blocks()), count32(n_blocks())};
}

void PagePool::unlink(std::int32_t block) {
  const Link link = links_[block];
  links_[link.before].after = link.after;
  links_[link.after].before = link.before;
}

void PagePool::release_weakly(BlockId id) {
  MNEME_CHECK(references(id) > 0 && !links_.empty(), "block {} is free, or no layer has a window", id.value);
  if (--refs_[id.value] > 0) return;
  const std::int32_t head = count32(n_blocks()), last = links_[head].before;
  links_[id.value] = {last, head};
  links_[last].after = links_[head].before = id.value;
  ++n_free_;
}

void PagePool::take_back(BlockId id) {
  if (references(id) == 0) {
    unlink(id.value);
    --n_free_;
  }
  ++refs_[id.value];
}

std::vector<std::int32_t> PagePool::released_weakly() const {
  std::vector<std::int32_t> blocks;
  if (links_.empty()) return blocks;
  const std::int32_t head = count32(n_blocks());
  for (std::int32_t at = links_[head].after; at != head; at = links_[at].after) blocks.push_back(at);
  return blocks;
}

std::int32_t PagePool::references(BlockId id) const {
  MNEME_CHECK(id.value >= 0 && id.value < n_blocks(), "block {} of {}", id.value, n_blocks());
  return refs_[id.value];
}

}  // namespace mneme
