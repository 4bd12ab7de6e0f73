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
std::size_t bytes_of_page(const KvShape& shape);

// Layer after layer, KV head after KV head: their blocks.
void copy_page_out(const SequenceCache& cache, std::int32_t page, std::span<std::byte> to);
void copy_page_in(const SequenceCache& cache, std::int32_t page, std::span<const std::byte> from);

// Of the first whole pages of a sequence.
std::vector<PageKey> page_keys(std::span<const TokenId> tokens, const std::string& salt);

void write_page_key(const PageKey& key, ByteWriter& out);
PageKey read_page_key(ByteReader& in);

}  // namespace mneme
