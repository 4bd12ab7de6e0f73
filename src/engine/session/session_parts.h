// A saved session as one rank needs it: its heads, of one file or of several.
//
// Several ranks save a file each, of their heads, NAME.STAMP.rank0of2, and rank 0 a manifest NAME that lists them:
//
//   mneme session of ranks, version 1
//   STAMP NAME.STAMP.rank0of2          a line for each rank, in their order; STAMP: 16 hexadecimal digits, a checksum of
//   STAMP NAME.STAMP.rank1of2          the file's first 4 KiB, which hold the checksums of all the rest
//
// Files of a session that is saved again have other names: until the manifest is replaced the earlier one stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/mapped_file.h"
#include "src/engine/session/session_file.h"

namespace mneme {

struct SessionManifest {
  struct Part {
    std::uint64_t stamp = 0;
    std::string file;  // in the manifest's folder
    bool operator==(const Part&) const = default;
  };
  std::vector<Part> parts;  // by rank
};

bool is_manifest(std::span<const std::byte> bytes);
// Errors  kFormat: not a manifest, or one that names files elsewhere.
SessionManifest parse_manifest(std::span<const std::byte> bytes, std::string_view name);
std::string manifest_text(const SessionManifest& manifest);
std::uint64_t session_stamp(std::span<const std::byte> file);

class SavedSequence {
 public:
  // Rank `rank` of `size` needs its share of the session's KV heads, from whatever number of ranks saved it.
  //
  // Errors  kFile, kFormat, kUnsupported: as SessionFile::parse(); parts that do not belong together; heads that `size`
  //         does not divide; a method that reads prompts its own way, where there is more than one rank or part.
  SavedSequence(const std::filesystem::path& path, int rank, int size, Links links = Links::kFollowed);
  // Of one file, all heads. Requires  `file` outlives the object.
  explicit SavedSequence(const SessionFile& file);

  const SessionContent& content() const { return content_; }
  // n_stored pairs [K | V] of one of this rank's heads.
  std::span<const std::byte> kv(std::int32_t layer, std::int32_t head) const;

 private:
  void read_parts(const SessionManifest& manifest, const std::filesystem::path& path, Links links);
  void take_share(int rank, int size, std::string_view name);

  std::vector<MappedFile> files_;
  std::vector<SessionFile> own_;
  std::vector<const SessionFile*> parts_;
  SessionContent content_;
  std::int32_t first_head_ = 0, heads_a_part_ = 1;
};

}  // namespace mneme
