#include "src/kv/disk/page_store.h"

#include <xxhash.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxBuffers = 32, kMinBuffers = 2;

std::size_t whole_blocks(std::size_t bytes) {
  return (bytes + SlotFile::kAlignment - 1) / SlotFile::kAlignment * SlotFile::kAlignment;
}

std::filesystem::path folder_of(const PageStore::Options& o) {
  std::error_code error;
  std::filesystem::create_directories(o.folder, error);
  if (error) fail(ErrorKind::kFile, "{}: cannot be made: {}", o.folder.string(), error.message());
  return o.folder;
}

void free_bytes(std::byte* p) {
  std::free(p);
}

}  // namespace

PageStore::PageStore(std::size_t page_bytes, const Options& options)
    : PageStore(page_bytes, options, [&] {
        auto file = open_slot_file(folder_of(options) / "pages.kv", whole_blocks(page_bytes), options.io);
        return options.wrap ? options.wrap(std::move(file)) : std::move(file);
      }()) {}

PageStore::PageStore(std::size_t page_bytes, const Options& options, std::unique_ptr<SlotFile> file)
    : page_bytes_(page_bytes),
      slot_bytes_(whole_blocks(page_bytes)),
      index_(options.bytes / static_cast<std::int64_t>(slot_bytes_)),
      journal_(folder_of(options) / "pages.journal", {.slot_bytes = slot_bytes_, .identity = options.identity}),
      file_(std::move(file)),
      memory_(nullptr, free_bytes) {
  if (index_.n_slots() < 1)
    fail(ErrorKind::kOption, "{}: {} bytes have no room for a page, which takes {}", options.folder.string(),
         options.bytes, slot_bytes_);
  const std::size_t depth = file_->depth();
  const std::size_t n = std::min(std::clamp(kBufferBytes / slot_bytes_, kMinBuffers, kMaxBuffers), depth);
  memory_.reset(static_cast<std::byte*>(std::aligned_alloc(SlotFile::kAlignment, n * slot_bytes_)));
  if (memory_ == nullptr) fail(ErrorKind::kResource, "no {} bytes for transfers to the disk", n * slot_bytes_);
  std::memset(memory_.get(), 0, n * slot_bytes_);
  buffers_.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    buffers_[i].bytes = memory_.get() + i * slot_bytes_;
    free_buffers_.push_back(i);
  }
  replay(journal_.take_entries());
}

PageStore::~PageStore() {
  while (in_flight_ > 0) poll(true, [](std::uint64_t, std::span<const std::byte>) {});
}

// What the last entries say of each slot; one may contradict those before it only where a crash came between two files.
void PageStore::replay(const std::vector<JournalEntry>& entries) {
  std::unordered_map<std::int64_t, const JournalEntry*> in_slot;
  for (const JournalEntry& e : entries) {
    if (e.slot >= index_.n_slots()) continue;  // the folder got less room
    (e.op == JournalEntry::Op::kStored) ? void(in_slot[e.slot] = &e) : void(in_slot.erase(e.slot));
  }
  std::vector<const JournalEntry*> pages;
  for (const auto& [slot, entry] : in_slot) pages.push_back(entry);
  // Pages that others follow come first; among equals the journal's order, which is that of time, is kept.
  std::sort(pages.begin(), pages.end(), [](const JournalEntry* a, const JournalEntry* b) {
    return std::pair(a->key.number, a) < std::pair(b->key.number, b);
  });
  for (const JournalEntry* e : pages)
    if (!index_.has_hash(e->key.hash)) insert(e->key, e->slot, {.checksum = e->checksum, .written = true});
  index_.free_others();
  compact_journal();
}

PageIndex::Page& PageStore::insert(const PageKey& key, std::int64_t slot, const Content& content) {
  if (std::cmp_greater_equal(slot, content_.size())) content_.resize(slot + 1);
  content_[slot] = content;
  return index_.insert(key, slot);
}

// Erases a page from index and journal, before its slot is written again. False: the journal cannot be written.
bool PageStore::erase(const PageIndex::Page& page) {
  if (!journal_.append({.op = JournalEntry::Op::kErased, .slot = page.slot, .key = page.key, .checksum = 0}))
    return false;
  index_.erase(page.key.hash);
  return true;
}

PageStore::Begun PageStore::store(const PageKey& key, FunctionRef<void(std::span<std::byte>)> fill) {
  if (index_.has_hash(key.hash)) return Begun::kNot;
  if (free_buffers_.empty()) return Begun::kBusy;
  const auto slot = index_.take_slot([&](const PageIndex::Page& oldest) {
    const bool gone =
        journal_.append({.op = JournalEntry::Op::kErased, .slot = oldest.slot, .key = oldest.key, .checksum = 0});
    stats_.evicted += gone ? 1 : 0;
    return gone;
  });
  if (!slot) return Begun::kNot;
  const std::size_t i = free_buffers_.back();
  free_buffers_.pop_back();
  Buffer& buffer = buffers_[i];
  fill(std::span(buffer.bytes, page_bytes_));
  buffer.writes = true;
  buffer.hash = key.hash;
  buffer.checksum = XXH3_64bits(buffer.bytes, page_bytes_);
  insert(key, *slot, {.checksum = buffer.checksum, .written = false, .writer = i}).users = 1;
  ++n_unwritten_;
  ++in_flight_;
  file_->write(i, *slot, buffer.bytes);
  return Begun::kYes;
}

PageStore::Begun PageStore::load(const PageKey& key, std::uint64_t tag) {
  if (!contains(key)) return Begun::kNot;
  if (free_buffers_.empty()) return Begun::kBusy;
  const std::size_t i = free_buffers_.back();
  free_buffers_.pop_back();
  PageIndex::Page& page = index_.at(key.hash);
  const Content& content = content_[page.slot];
  Buffer& buffer = buffers_[i];
  buffer.writes = false;
  buffer.hash = key.hash;
  buffer.checksum = content.checksum;
  buffer.tag = tag;
  ++in_flight_;
  if (!content.written) {
    std::memcpy(buffer.bytes, buffers_[content.writer].bytes, page_bytes_);
    ready_.push_back(i);
    return Begun::kYes;
  }
  ++page.users;
  file_->read(i, page.slot, buffer.bytes);
  return Begun::kYes;
}

void PageStore::drop(const PageKey& key) {
  const PageIndex::Page* page = index_.find(key);
  if (page != nullptr && page->users == 0) erase(*page);
}

void PageStore::end_write(const Buffer& buffer, int error) {
  PageIndex::Page& page = index_.at(buffer.hash);
  page.users = 0;  // it is read from the buffer until now
  --n_unwritten_;
  const JournalEntry entry{
      .op = JournalEntry::Op::kStored, .slot = page.slot, .key = page.key, .checksum = buffer.checksum};
  if (error != 0 || !journal_.append(entry)) {
    ++stats_.failed_writes;
    return index_.erase(buffer.hash);
  }
  content_[page.slot].written = true;
  ++stats_.stored;
  compact_journal();
}

void PageStore::poll(bool wait, FunctionRef<void(std::uint64_t, std::span<const std::byte>)> take) {
  for (const std::size_t i : std::exchange(ready_, {})) {
    --in_flight_;
    ++stats_.loaded;
    wait = false;
    take(buffers_[i].tag, std::span<const std::byte>(buffers_[i].bytes, page_bytes_));
    free_buffers_.push_back(i);
  }
  for (const SlotFile::Done& done : file_->done(wait)) {
    Buffer& buffer = buffers_[done.tag];
    --in_flight_;
    if (buffer.writes) {
      end_write(buffer, done.error);
    } else {
      const bool good = done.error == 0 && XXH3_64bits(buffer.bytes, page_bytes_) == buffer.checksum;
      PageIndex::Page& page = index_.at(buffer.hash);
      const bool last = --page.users == 0;
      ++(good ? stats_.loaded : stats_.failed_reads);
      if (!good && last) erase(page);
      take(buffer.tag, good ? std::span<const std::byte>(buffer.bytes, page_bytes_) : std::span<const std::byte>());
    }
    free_buffers_.push_back(done.tag);
  }
}

void PageStore::flush() {
  while (in_flight_ > 0)
    poll(true, [](std::uint64_t tag, std::span<const std::byte>) { MNEME_CHECK(false, "load {} in flight", tag); });
}

// Whether entries of erased pages outnumber those of stored ones.
void PageStore::compact_journal() {
  constexpr std::int64_t kSpare = 1024;
  if (journal_.n_entries() <= 2 * index_.size() + kSpare) return;
  // In the order in which replay() uses them.
  std::vector<JournalEntry> entries;
  index_.for_each_by_use([&](const PageIndex::Page& page) {
    const Content& content = content_[page.slot];
    if (content.written)
      entries.push_back(
          {.op = JournalEntry::Op::kStored, .slot = page.slot, .key = page.key, .checksum = content.checksum});
  });
  journal_.rewrite(entries);
}

PageStore::Stats PageStore::stats() const {
  Stats s = stats_;
  s.pages = index_.size() - n_unwritten_;
  s.slots = index_.n_slots();
  return s;
}

void PageStore::check_invariants() const {
  index_.check_invariants();
  index_.for_each_by_use([&](const PageIndex::Page& page) {
    MNEME_CHECK(content_[page.slot].written || page.users > 0, "page {:x} is not written, and not being written",
                page.key.hash);
  });
  MNEME_CHECK(in_flight_ + std::ssize(free_buffers_) == std::ssize(buffers_), "{} transfers, {} of {} buffers free",
              in_flight_, free_buffers_.size(), buffers_.size());
}

}  // namespace mneme
