// One repository in the cache, laid out as huggingface_hub does, so that its users find what was fetched here and the
// other way round:
//
//   models--OWNER--NAME/blobs/HASH                    content; HASH.incomplete while it arrives
//   models--OWNER--NAME/snapshots/COMMIT/path/file    a relative link to its blob
//   models--OWNER--NAME/refs/main                     the commit
//   .locks/models--OWNER--NAME/HASH.lock              held (flock) by who fetches the blob
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "apps/hub/listing.h"
#include "apps/hub/repo_id.h"

namespace mneme::hub {

// Holds a lock of other threads and processes until its end. Waits for whoever has it; calls `on_wait` once before.
//
// Errors  kFile.
class FileLock {
 public:
  FileLock(const std::filesystem::path& path, const std::function<void()>& on_wait);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_ = -1;
};

class HubCache {
 public:
  HubCache(const std::filesystem::path& root, const RepoId& repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path blob(const std::string& hash) const { return folder_ / "blobs" / hash; }
  std::filesystem::path lock(const std::string& hash) const { return locks_ / (hash + ".lock"); }
  std::filesystem::path snapshot(const std::string& commit) const { return folder_ / "snapshots" / commit; }

  // The commit of refs/main; none where nothing was fetched. What is no commit counts as none.
  std::optional<std::string> commit() const;
  // Makes a commit that of refs/main. Errors  kFile.
  void set_commit(const std::string& commit) const;
  // The files of a snapshot whose blobs are there, sorted by path.
  Listing cached_listing(const std::string& commit) const;
  // Makes the snapshot's `path` a link to the blob. Errors  kFile.
  void link(const std::string& commit, const std::string& path, const std::string& hash) const;

 private:
  std::filesystem::path folder_, locks_;
};

// Errors  kFile: with the path and the reason.
void make_folders(const std::filesystem::path& path);

// Errors  kFile: fewer than `bytes` are free on the disk of `folder`; the message has both and `what` they are for.
void expect_room(const std::filesystem::path& folder, std::int64_t bytes, const std::string& what);

}  // namespace mneme::hub
