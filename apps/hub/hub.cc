#include "apps/hub/hub.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>

#include "apps/hub/file_selection.h"
#include "src/base/backend.h"
#include "src/base/error.h"

namespace mneme::hub {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

fs::path opened(const HubCache& cache, const std::string& commit, const FileSelection& selection) {
  const fs::path folder = cache.snapshot(commit);
  return selection.gguf.empty() ? folder : folder / selection.gguf;
}

// The model as far as it is in the cache; without it, why: refs/main or one of its files is missing.
struct Cached {
  fs::path path;  // empty: not there
  std::string why = "nothing was fetched";
};

Cached find_cached(const HubCache& cache, const RepoId& repo) {
  const std::optional<std::string> commit = cache.commit();
  if (!commit) return {};
  const Listing listing = cache.cached_listing(*commit);
  try {
    const FileSelection selection = select_files(listing, repo);
    if (!selection.index.empty()) {
      const fs::path index = cache.snapshot(*commit) / selection.index;
      files_of_index(read_file(index), index.string(), listing);
    }
    return {.path = opened(cache, *commit, selection)};
  } catch (const Error& e) {
    return {.why = e.what()};
  }
}

// Bytes that the files still need; those whose size is not listed count nothing.
std::int64_t missing_bytes(const FetchContext& c, const Listing& listing, const std::vector<std::string>& files) {
  std::int64_t bytes = 0;
  for (const std::string& path : files) {
    const RepoFile& file = *listing.find(path);
    std::error_code absent;
    if (!file.size || fs::exists(c.cache.snapshot(listing.commit) / path, absent)) continue;
    const std::string& hash = file.sha256.empty() ? file.git_sha1 : file.sha256;
    const auto begun = hash.empty() ? 0 : fs::file_size(c.cache.blob(hash + ".incomplete"), absent);
    // A sum beyond the type is beyond every disk.
    const std::int64_t left = *file.size - (absent ? 0 : begun);
    if (left > 0 && __builtin_add_overflow(bytes, left, &bytes)) return std::numeric_limits<std::int64_t>::max();
  }
  return bytes;
}

void fetch_files(const Downloader& downloader, const FetchContext& c, const Listing& listing,
                 const std::vector<std::string>& files) {
  make_folders(c.cache.folder() / "blobs");
  expect_room(c.cache.folder() / "blobs", missing_bytes(c, listing, files), c.repo.id());
  for (const std::string& path : files) downloader.fetch(c, listing.commit, *listing.find(path));
}

fs::path fetch(const Downloader& downloader, const FetchContext& c, const Listing& listing) {
  const FileSelection selection = select_files(listing, c.repo);
  fetch_files(downloader, c, listing, selection.files);
  if (!selection.index.empty()) {
    const fs::path index = c.cache.snapshot(listing.commit) / selection.index;
    fetch_files(downloader, c, listing, files_of_index(read_file(index), index.string(), listing));
  }
  // Last, so that without a network the former commit is used until this one is complete.
  c.cache.set_commit(listing.commit);
  return opened(c.cache, listing.commit, selection);
}

}  // namespace

fs::path fetch_model(const std::string& name, const HubSettings& settings, const FetchEvents& events) {
  const RepoId repo = parse_repo_id(name);
  const HubCache cache(settings.cache, repo);
  const FetchContext context{repo, settings, cache, events};
  const Downloader* downloader = Backend<Downloader>::find();
  if (settings.offline || downloader == nullptr) {
    const Cached cached = find_cached(cache, repo);
    if (!cached.path.empty()) return cached.path;
    if (settings.offline)
      fail(ErrorKind::kFile, "{}: HF_HUB_OFFLINE is set, and the cache has no complete copy of it in {}: {}", name,
           cache.folder().string(), cached.why);
    fail(ErrorKind::kUnsupported,
         "-hf: this build cannot download, it was configured without libcurl and OpenSSL; fetch the model with another "
         "tool (hf download {}) and name it with -m",
         repo.id());
  }
  Listing listing;
  try {
    listing = downloader->list(context);
  } catch (const Unreachable& e) {
    const Cached cached = find_cached(cache, repo);
    if (cached.path.empty()) throw;
    if (events.on_note) events.on_note(fmt::format("{}; taking the copy in {}", e.what(), cache.folder().string()));
    return cached.path;
  }
  return fetch(*downloader, context, listing);
}

}  // namespace mneme::hub
