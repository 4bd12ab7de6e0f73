#include "apps/hub/listing.h"

#include <algorithm>
#include <limits>
#include <set>

#include "src/base/error.h"
#include "src/formats/json.h"

namespace mneme::hub {
namespace {

constexpr std::size_t kMaxFiles = 100'000;
constexpr std::size_t kMaxPath = 1024, kMaxComponent = 255;

std::int64_t size_of(const JsonRef& value) {
  const std::int64_t size = value.integer();
  if (size < 0) value.wrong("a size in bytes");
  return size;
}

RepoFile file_of(const JsonRef& entry) {
  const JsonRef name = entry.at("rfilename");
  if (!is_safe_path(name.string()))
    name.wrong("a path inside the repository, without \"..\", empty parts, backslashes and control characters");
  RepoFile file{.path = name.string()};
  if (const auto size = entry.find("size")) file.size = size_of(*size);
  if (const auto blob = entry.find("blobId"); blob && is_hex(blob->string(), 40)) file.git_sha1 = blob->string();
  const auto lfs = entry.find("lfs");
  if (!lfs) return file;
  file.git_sha1.clear();  // of the pointer that git keeps in place of a large file
  if (const auto sum = lfs->find("sha256"); sum && is_hex(sum->string(), 64)) file.sha256 = sum->string();
  if (const auto size = lfs->find("size")) {
    if (file.size && *file.size != size_of(*size)) size->wrong("the size of its entry");
    file.size = size_of(*size);
  }
  return file;
}

}  // namespace

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

bool is_safe_path(std::string_view path) {
  if (path.empty() || path.size() > kMaxPath) return false;
  const auto strange = [](unsigned char c) { return c < 0x20 || c == 0x7f || c == '\\'; };
  if (std::any_of(path.begin(), path.end(), strange)) return false;
  for (;;) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part.size() > kMaxComponent || part == "." || part == "..") return false;
    if (slash == path.npos) return true;
    path.remove_prefix(slash + 1);
  }
}

const RepoFile* Listing::find(std::string_view path) const {
  const auto it = std::find_if(files.begin(), files.end(), [path](const RepoFile& f) { return f.path == path; });
  return it == files.end() ? nullptr : &*it;
}

Listing parse_listing(std::string_view text, std::string_view from) {
  const Json json = parse_json(text, from, kMaxListingBytes);
  const JsonRef root(json, from);
  const JsonRef commit = root.at("sha");
  if (!is_hex(commit.string(), 40)) commit.wrong("a commit of 40 hex digits");
  Listing out{.commit = commit.string()};
  const auto entries = root.at("siblings").elements();
  if (entries.size() > kMaxFiles)
    fail(ErrorKind::kFormat, "{}: lists {} files; expected at most {}", from, entries.size(), kMaxFiles);
  std::set<std::string> seen;
  for (const JsonRef& entry : entries) {
    out.files.push_back(file_of(entry));
    if (!seen.insert(out.files.back().path).second)
      fail(ErrorKind::kFormat, "{}: lists \"{}\" twice", from, out.files.back().path);
  }
  return out;
}

}  // namespace mneme::hub
