// Pages of all layers and KV heads together, as the disk has them: shared by the disk tier and by the ranks that follow it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/engine/session/running_model.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"
#include "src/kv/disk/page_store.h"

namespace mneme {

struct DiskOptions {
  std::filesystem::path folder;
  std::int64_t bytes = 0;
  DiskIo io = DiskIo::kAuto;
  // Stands before the file: for tests of what disks do.
  std::function<std::unique_ptr<SlotFile>(std::unique_ptr<SlotFile>)> wrap;
};

// Tags of loads are its number times this, and the page.
inline constexpr std::uint64_t kPagesOfLoad = std::uint64_t{1} << 32;

// A store for this rank's pages of the model. Errors  as PageStore.
PageStore::Options store_options(const RunningModel& model, const DiskOptions& options);

// Pages between a pool and the disk: each is its blocks, layer after layer, KV head after KV head.
class PageStaging {
 public:
  // Errors  kResource.
  PageStaging(const PagePool& pool, std::int32_t n_pages);

  std::int32_t n_pages() const { return n_pages_; }
  std::span<std::byte> page(std::int32_t i) const { return {memory_.data + i * page_bytes_, page_bytes_}; }
  // Copies these pages of a sequence to the first ones here, and waits for them.
  void take(const SequenceCache& cache, std::int32_t first_page, std::int32_t n);
  // Copies pages here to those of a sequence from first_page on. They are the pool's until it has waited.
  void put(SequenceCache& cache, std::int32_t first_page, std::span<const std::int32_t> pages);

 private:
  const PagePool& pool_;
  std::size_t page_bytes_;
  std::int32_t n_pages_;
  HostMemory memory_;
  std::vector<BlockPlace> places_;
};

// Pages that a prompt which comes back takes from `from`, a sequence that has n_shared of its tokens (or nothing): none
// where layers keep windows, because a sequence whose layers do has no others of its pages.
std::int32_t pages_to_share(const PagePool& pool, RequestId from, std::int32_t n_shared);

// Of the first whole pages of a sequence.
std::vector<PageKey> page_keys(std::span<const TokenId> tokens, const std::string& salt);

// All pages of a preempted request, which no other request shares; the last one may be open.
std::vector<PageKey> parked_keys(std::span<const TokenId> tokens, RequestId id);

void write_page_key(const PageKey& key, ByteWriter& out);
PageKey read_page_key(ByteReader& in);

}  // namespace mneme
