// What a repository holds at one commit. Untrusted input: names become paths, sizes are compared with what arrives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::hub {

constexpr std::size_t kMaxListingBytes = std::size_t{64} << 20;

struct RepoFile {
  std::string path;                  // with / between folders
  std::optional<std::int64_t> size;  // bytes
  std::string sha256;                // of large files; lower-case hex, or empty
  std::string git_sha1;              // of the git object, as `git hash-object` prints it; hex, or empty
};

struct Listing {
  std::string commit;  // 40 hex digits
  std::vector<RepoFile> files;

  const RepoFile* find(std::string_view path) const;
};

// The answer of /api/models/OWNER/NAME/revision/main?blobs=true; `from` names it in errors.
//
// Errors  kFormat: not JSON, a commit that is none, a file twice, and paths that leave the repository's folder or
//         cannot be written (absolute, "..", "\", control characters): the whole listing is refused.
Listing parse_listing(std::string_view json, std::string_view from);

// Whether a path is relative and stays in its folder on any system.
bool is_safe_path(std::string_view path);

// Lower-case hex digits, as many as `digits`.
bool is_hex(std::string_view text, std::size_t digits);

}  // namespace mneme::hub
