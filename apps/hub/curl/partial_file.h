// HASH.incomplete: bytes that have arrived, and the hash so far.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>

#include "apps/hub/curl/digest.h"

namespace mneme::hub {

class PartialFile {
 public:
  // Opens or creates the file; existing bytes are kept and hashed. `size`: bytes of the whole content.
  // Errors  kFile (all functions): cannot be written; the message of a full disk has the sizes.
  PartialFile(std::filesystem::path path, DigestKind kind, std::int64_t size);
  ~PartialFile();
  PartialFile(const PartialFile&) = delete;
  PartialFile& operator=(const PartialFile&) = delete;

  std::int64_t offset() const { return offset_; }  // bytes that are there
  std::int64_t size() const { return size_; }
  // Requires  offset() + bytes.size() <= size().
  void append(std::span<const std::byte> bytes);
  // Truncates the file to 0 bytes and resets the digest.
  void restart();
  // Hash of the bytes written. Ends the digest: only restart(), commit() and discard() may follow.
  std::string hex() { return digest_->hex(); }
  // Syncs the file and gives it its name.
  void commit(const std::filesystem::path& name);
  void discard();

 private:
  void take_up();
  [[noreturn]] void fail_io(const char* doing) const;

  std::filesystem::path path_;
  DigestKind kind_;
  std::int64_t size_, offset_ = 0;
  std::unique_ptr<Digest> digest_;
  int fd_ = -1;
};

}  // namespace mneme::hub
