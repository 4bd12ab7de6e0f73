// Hashes of what arrives, as the hub names its blobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace mneme::hub {

// kSha256: of the content (large files). kGitSha1: of git's object, "blob SIZE\0" and the content (all others).
enum class DigestKind : std::uint8_t { kSha256, kGitSha1 };

class Digest {
 public:
  // `size`: of the whole content.
  Digest(DigestKind kind, std::int64_t size);
  ~Digest();
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;

  void update(std::span<const std::byte> bytes);
  // Lower-case hex. Ends the digest.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mneme::hub
