#include "src/kv/disk/page_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "src/base/error.h"
#include "src/formats/bytes/byte_reader.h"
#include "src/formats/bytes/byte_writer.h"

namespace mneme {
namespace {

constexpr std::string_view kMagic = "MNEMEKVJ";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 40, kEntryBytes = 184;

std::uint64_t checksum_of(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::vector<std::byte> with_checksum(ByteWriter out) {
  out.put(checksum_of(out.get()));
  return std::move(out).take();
}

// The bytes before a checksum that is right; none: it is not.
std::optional<std::span<const std::byte>> checked(std::span<const std::byte> bytes) {
  std::uint64_t expected = 0;
  const auto body = bytes.first(bytes.size() - sizeof(expected));
  std::memcpy(&expected, bytes.data() + body.size(), sizeof(expected));
  return checksum_of(body) == expected ? std::optional(body) : std::nullopt;
}

std::vector<std::byte> bytes_of(const PageJournal::Header& header) {
  ByteWriter out;
  out.put(std::as_bytes(std::span(kMagic)));
  out.put(kVersion);
  out.put(std::uint32_t{0});
  out.put(header.slot_bytes);
  out.put(header.identity);
  return with_checksum(std::move(out));
}

std::vector<std::byte> bytes_of(const JournalEntry& e) {
  ByteWriter out;
  out.put(static_cast<std::uint32_t>(e.op));
  out.put(e.key.number);
  out.put(e.slot);
  out.put(e.key.hash);
  out.put(e.key.parent);
  out.put(e.checksum);
  out.put(std::as_bytes(std::span(e.key.tokens)));
  out.put(std::uint64_t{0});
  return with_checksum(std::move(out));
}

std::optional<JournalEntry> entry_of(std::span<const std::byte> bytes) {
  const auto body = checked(bytes);
  if (!body) return std::nullopt;
  ByteReader in(*body, "journal");
  JournalEntry e;
  const auto op = in.read<std::uint32_t>("operation");
  if (op != 1 && op != 2) return std::nullopt;
  e.op = op == 1 ? JournalEntry::Op::kStored : JournalEntry::Op::kErased;
  e.key.number = in.read<std::int32_t>("number");
  e.slot = in.read<std::int64_t>("slot");
  e.key.hash = in.read<std::uint64_t>("hash");
  e.key.parent = in.read<std::uint64_t>("parent");
  e.checksum = in.read<std::uint64_t>("checksum");
  in.fill(std::span<std::int32_t>(e.key.tokens), "tokens");
  if (e.slot < 0 || e.key.number < 0) return std::nullopt;
  return e;
}

int open_or_fail(const std::filesystem::path& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) fail(ErrorKind::kFile, "{}: cannot be opened: {}", path.string(), std::strerror(errno));
  return fd;
}

std::vector<std::byte> read_file(int fd) {
  std::vector<std::byte> bytes;
  struct stat info {};
  if (::fstat(fd, &info) != 0) return bytes;
  bytes.resize(info.st_size);
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += n;
  }
  bytes.resize(done);
  return bytes;
}

}  // namespace

PageJournal::PageJournal(const std::filesystem::path& path, const Header& header) : path_(path), header_(header) {
  // A file of its own: the journal is replaced when it is rewritten.
  lock_ = open_or_fail(path.string() + ".lock");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    fail(ErrorKind::kResource, "{}: another process keeps its pages there", path.parent_path().string());
  }
  try {
    fd_ = open_or_fail(path);
    read_all();
  } catch (...) {
    if (fd_ >= 0) ::close(fd_);
    ::close(lock_);
    throw;
  }
}

PageJournal::~PageJournal() {
  ::close(fd_);
  ::close(lock_);
}

void PageJournal::read_all() {
  const std::vector<std::byte> all = read_file(fd_);
  const std::vector<std::byte> head = bytes_of(header_);
  if (all.size() < head.size() || !std::equal(head.begin(), head.end(), all.begin())) return begin_again();
  std::span<const std::byte> rest = std::span(all).subspan(head.size());
  while (rest.size() >= kEntryBytes) {
    const auto entry = entry_of(rest.first(kEntryBytes));
    if (!entry) break;
    entries_.push_back(*entry);
    rest = rest.subspan(kEntryBytes);
  }
  n_entries_ = std::ssize(entries_);
  if (!rest.empty() && ::ftruncate(fd_, static_cast<off_t>(all.size() - rest.size())) != 0)
    fail(ErrorKind::kFile, "{}: cannot be cut to its whole entries: {}", path_.string(), std::strerror(errno));
}

void PageJournal::begin_again() {
  if (::ftruncate(fd_, 0) != 0 || !write_at(0, bytes_of(header_)))
    fail(ErrorKind::kFile, "{}: cannot be written: {}", path_.string(), std::strerror(errno));
}

bool PageJournal::write_at(std::uint64_t offset, const std::vector<std::byte>& bytes) const {
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t n = ::pwrite(fd_, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    done += n;
  }
  return true;
}

bool PageJournal::append(const JournalEntry& entry) {
  if (broken_) return false;
  const std::uint64_t end = kHeaderBytes + n_entries_ * kEntryBytes;
  if (write_at(end, bytes_of(entry))) {
    ++n_entries_;
    return true;
  }
  broken_ = ::ftruncate(fd_, static_cast<off_t>(end)) != 0;
  return false;
}

bool PageJournal::rewrite(const std::vector<JournalEntry>& entries) {
  if (broken_) return false;
  const std::filesystem::path next = path_.string() + ".new";
  std::error_code ignored;
  std::filesystem::remove(next, ignored);
  const int fd = ::open(next.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return false;
  ByteWriter out;
  out.put(std::span<const std::byte>(bytes_of(header_)));
  for (const JournalEntry& e : entries) out.put(std::span<const std::byte>(bytes_of(e)));
  const int before = std::exchange(fd_, fd);
  if (!write_at(0, std::move(out).take()) || ::fdatasync(fd) != 0 || ::rename(next.c_str(), path_.c_str()) != 0) {
    ::close(std::exchange(fd_, before));
    std::filesystem::remove(next, ignored);
    return false;
  }
  ::close(before);
  n_entries_ = std::ssize(entries);
  return true;
}

}  // namespace mneme
