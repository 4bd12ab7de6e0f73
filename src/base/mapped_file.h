// Read-only memory map of a whole file.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

#include "src/base/atomic_file.h"

namespace mneme {

class MappedFile {
 public:
  MappedFile() = default;
  // Errors  kFile: missing, a folder, not readable, not a regular file, a link that is refused.
  explicit MappedFile(const std::filesystem::path& path, Links links = Links::kFollowed);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace mneme
