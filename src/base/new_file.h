// A file that appears whole or not at all: written under another name in the same folder, synced, renamed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace mneme {

// Only its owner may read it. Until commit() a file that stands at `path` stays as it is; without commit() nothing is
// left behind.
class NewFile {
 public:
  // Errors  kFile (all functions): the folder is missing or not writable, something other than a plain file stands at
  // `path`, the disk is full, ...
  explicit NewFile(const std::filesystem::path& path);
  ~NewFile();
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;

  void append(std::span<const std::byte> bytes);
  // Overwrites what is there already. Requires  offset + bytes.size() <= size().
  void write_at(std::uint64_t offset, std::span<const std::byte> bytes);
  std::uint64_t size() const { return written_ + buffer_.size(); }
  // File and folder are on the disk when it returns.
  void commit();

 private:
  void flush();
  void write_all(std::uint64_t offset, std::span<const std::byte> bytes);
  [[noreturn]] void fail_io(const char* doing) const;

  std::filesystem::path path_;
  std::string temporary_;
  int fd_ = -1;
  std::uint64_t written_ = 0;  // buffer_ apart
  std::vector<std::byte> buffer_;
};

// Whether a NewFile could be made at `path`, as far as can be told without writing. Errors  kFile: it could not.
void expect_writable(const std::filesystem::path& path);

}  // namespace mneme
