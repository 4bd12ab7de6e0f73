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
      n_slots_(options.bytes / static_cast<std::int64_t>(slot_bytes_)),
      journal_(folder_of(options) / "pages.journal", {.slot_bytes = slot_bytes_, .identity = options.identity}),
      file_(std::move(file)),
      memory_(nullptr, free_bytes) {
  if (n_slots_ < 1)
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
    if (e.slot >= n_slots_) continue;  // the folder got less room
    (e.op == JournalEntry::Op::kStored) ? void(in_slot[e.slot] = &e) : void(in_slot.erase(e.slot));
  }
  std::vector<const JournalEntry*> pages;
  for (const auto& [slot, entry] : in_slot) {
    pages.push_back(entry);
    next_slot_ = std::max(next_slot_, slot + 1);
  }
  // Pages that others follow come first; the order of the journal, which is that of time, is kept among equals.
  std::sort(pages.begin(), pages.end(), [](const JournalEntry* a, const JournalEntry* b) {
    return std::pair(a->key.number, a) < std::pair(b->key.number, b);
  });
  std::vector<bool> taken(next_slot_);
  for (const JournalEntry* e : pages) {
    if (pages_.contains(e->key.hash)) continue;
    insert(e->key, e->slot, e->checksum).written = true;
    taken[e->slot] = true;
  }
  for (std::int64_t slot = 0; slot < next_slot_; ++slot)
    if (!taken[slot]) free_slots_.push_back(slot);
  compact_journal();
}

// Behind the page before it, so that the ends of sequences are evicted first.
PageStore::Page& PageStore::insert(const PageKey& key, std::int64_t slot, std::uint64_t checksum) {
  const auto parent = key.number > 0 ? pages_.find(key.parent) : pages_.end();
  const auto before = parent == pages_.end() ? used_.begin() : std::next(parent->second.used);
  const auto used = used_.insert(before, key.hash);
  return pages_.emplace(key.hash, Page{.key = key, .slot = slot, .checksum = checksum, .used = used}).first->second;
}

void PageStore::forget(std::uint64_t hash) {
  const auto it = pages_.find(hash);
  if (it == pages_.end()) return;
  used_.erase(it->second.used);
  free_slots_.push_back(it->second.slot);
  pages_.erase(it);
}

// From the journal as well, before anything else is written to its slot. False: the journal cannot be written.
bool PageStore::erase(std::uint64_t hash) {
  const Page& page = pages_.at(hash);
  if (!journal_.append({.op = JournalEntry::Op::kErased, .slot = page.slot, .key = page.key, .checksum = 0}))
    return false;
  forget(hash);
  return true;
}

bool PageStore::contains(const PageKey& key) const {
  const auto it = pages_.find(key.hash);
  return it != pages_.end() && it->second.key == key;
}

std::int32_t PageStore::find(std::span<const PageKey> sequence) {
  std::int32_t n = 0;
  while (n < size32(sequence) && contains(sequence[n])) ++n;
  for (std::int32_t i = n - 1; i >= 0; --i) used_.splice(used_.begin(), used_, pages_.at(sequence[i].hash).used);
  return n;
}

std::optional<std::int64_t> PageStore::free_slot() {
  if (free_slots_.empty() && next_slot_ < n_slots_) return next_slot_++;
  if (free_slots_.empty()) {
    const auto oldest =
        std::find_if(used_.rbegin(), used_.rend(), [&](std::uint64_t hash) { return pages_.at(hash).transfers == 0; });
    if (oldest == used_.rend() || !erase(*oldest)) return std::nullopt;
    ++stats_.evicted;
  }
  const std::int64_t slot = free_slots_.back();
  free_slots_.pop_back();
  return slot;
}

PageStore::Begun PageStore::store(const PageKey& key, FunctionRef<void(std::span<std::byte>)> fill) {
  if (pages_.contains(key.hash)) return Begun::kNot;
  if (free_buffers_.empty()) return Begun::kBusy;
  const auto slot = free_slot();
  if (!slot) return Begun::kNot;
  const std::size_t i = free_buffers_.back();
  free_buffers_.pop_back();
  Buffer& buffer = buffers_[i];
  fill(std::span(buffer.bytes, page_bytes_));
  buffer.writes = true;
  buffer.hash = key.hash;
  buffer.checksum = XXH3_64bits(buffer.bytes, page_bytes_);
  Page& page = insert(key, *slot, buffer.checksum);
  page.transfers = 1;
  page.writer = i;
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
  Page& page = pages_.at(key.hash);
  Buffer& buffer = buffers_[i];
  buffer.writes = false;
  buffer.hash = key.hash;
  buffer.checksum = page.checksum;
  buffer.tag = tag;
  ++in_flight_;
  if (!page.written) {
    std::memcpy(buffer.bytes, buffers_[page.writer].bytes, page_bytes_);
    ready_.push_back(i);
    return Begun::kYes;
  }
  ++page.transfers;
  file_->read(i, page.slot, buffer.bytes);
  return Begun::kYes;
}

void PageStore::drop(const PageKey& key) {
  const auto it = pages_.find(key.hash);
  if (it != pages_.end() && it->second.key == key && it->second.transfers == 0) erase(key.hash);
}

void PageStore::end_write(const Buffer& buffer, int error) {
  Page& page = pages_.at(buffer.hash);
  page.transfers = 0;  // it is read from the buffer until now
  --n_unwritten_;
  const JournalEntry entry{
      .op = JournalEntry::Op::kStored, .slot = page.slot, .key = page.key, .checksum = page.checksum};
  if (error != 0 || !journal_.append(entry)) {
    ++stats_.failed_writes;
    return forget(buffer.hash);
  }
  page.written = true;
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
      const bool last = --pages_.at(buffer.hash).transfers == 0;
      ++(good ? stats_.loaded : stats_.failed_reads);
      if (!good && last) erase(buffer.hash);
      take(buffer.tag, good ? std::span<const std::byte>(buffer.bytes, page_bytes_) : std::span<const std::byte>());
    }
    free_buffers_.push_back(done.tag);
  }
}

void PageStore::flush() {
  while (in_flight_ > 0)
    poll(true, [](std::uint64_t tag, std::span<const std::byte>) { MNEME_CHECK(false, "load {} in flight", tag); });
}

// Entries of pages that are gone are more than those of pages that are there.
void PageStore::compact_journal() {
  constexpr std::int64_t kSpare = 1024;
  if (journal_.n_entries() <= 2 * std::ssize(pages_) + kSpare) return;
  // Parents before those that follow them, the longest unused sequences first: as replay() puts them in order.
  std::vector<JournalEntry> entries;
  std::unordered_map<std::uint64_t, bool> written;
  for (auto hash = used_.rbegin(); hash != used_.rend(); ++hash) {
    std::vector<const Page*> path;
    for (auto at = pages_.find(*hash); at != pages_.end() && !written[at->first];
         at = at->second.key.number > 0 ? pages_.find(at->second.key.parent) : pages_.end()) {
      written[at->first] = true;
      path.push_back(&at->second);
    }
    for (auto page = path.rbegin(); page != path.rend(); ++page)
      if ((*page)->written)
        entries.push_back({.op = JournalEntry::Op::kStored,
                           .slot = (*page)->slot,
                           .key = (*page)->key,
                           .checksum = (*page)->checksum});
  }
  journal_.rewrite(entries);
}

PageStore::Stats PageStore::stats() const {
  Stats s = stats_;
  s.pages = std::ssize(pages_) - n_unwritten_;
  s.slots = n_slots_;
  return s;
}

void PageStore::check_invariants() const {
  std::unordered_map<std::int64_t, int> slots;
  for (const auto& [hash, page] : pages_) {
    ++slots[page.slot];
    MNEME_CHECK(hash == page.key.hash && *page.used == hash && (page.written || page.transfers > 0), "page {:x}", hash);
  }
  for (const std::int64_t slot : free_slots_) ++slots[slot];
  for (const auto& [slot, n] : slots)
    MNEME_CHECK(n == 1 && slot >= 0 && slot < next_slot_, "slot {} of {} has {} owners", slot, next_slot_, n);
  MNEME_CHECK(std::ssize(slots) == next_slot_, "{} of {} slots have an owner", slots.size(), next_slot_);
  MNEME_CHECK(used_.size() == pages_.size(), "{} pages in order, {} in all", used_.size(), pages_.size());
  MNEME_CHECK(in_flight_ + std::ssize(free_buffers_) == std::ssize(buffers_), "{} transfers, {} of {} buffers free",
              in_flight_, free_buffers_.size(), buffers_.size());
}

}  // namespace mneme
