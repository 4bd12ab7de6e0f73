// Atomic replacement of a file: written without a name in the same folder, synced, named on commit().
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace mneme {

// What a symbolic link at a path means: its target, or an error.
enum class Links : std::uint8_t { kFollowed, kRefused };

// Writes a file that only its owner may read. Until commit() the file at `path` is unchanged; without commit()
// nothing remains.
//
// Errors  kFile (all functions): the folder is missing or not writable, `path` is something other than a regular file,
//         the disk is full, ...
class AtomicFile {
 public:
  explicit AtomicFile(const std::filesystem::path& path, Links links = Links::kFollowed);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void append(std::span<const std::byte> bytes);
  // Overwrites bytes that were appended. Requires  offset + bytes.size() <= size().
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  std::uint64_t size() const { return written_ + buffer_.size(); }
  // Syncs the file, gives it the name `path`, and syncs the folder.
  void commit();

 private:
  void flush();
  void give_name();
  void write_all(std::uint64_t offset, std::span<const std::byte> bytes);
  [[noreturn]] void fail_io(const char* doing) const;

  std::filesystem::path path_;
  std::string temporary_;  // the name before the last, where it has one
  bool named_ = false;
  int fd_ = -1;
  std::uint64_t written_ = 0;  // without buffer_
  std::vector<std::byte> buffer_;
};

// Checks, as far as possible without writing, that an AtomicFile can be created at `path`. Errors  kFile: it cannot.
void expect_writable(const std::filesystem::path& path, Links links = Links::kFollowed);

}  // namespace mneme
