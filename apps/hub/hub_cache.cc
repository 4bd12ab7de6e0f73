#include "apps/hub/hub_cache.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "src/base/error.h"

namespace mneme::hub {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_at(const fs::path& path, const char* doing, const std::string& why) {
  fail(ErrorKind::kFile, "{}: {} failed: {}", path.string(), doing, why);
}

// A lock file that is removed while others wait for it leaves them a lock that no new process sees.
bool still_names(const fs::path& path, int fd) {
  struct stat by_name {
  }, by_fd{};
  return ::stat(path.c_str(), &by_name) == 0 && ::fstat(fd, &by_fd) == 0 && by_name.st_ino == by_fd.st_ino &&
         by_name.st_dev == by_fd.st_dev;
}

// A hidden name beside `path` that no other thread or process uses.
fs::path unique_name(const fs::path& path) {
  static std::atomic<unsigned> made = 0;
  return path.parent_path() / fmt::format(".{}.{}.{}", path.filename().string(), ::getpid(), ++made);
}

}  // namespace

void make_folders(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) fail_at(path, "making the folder", error.message());
}

void expect_room(const fs::path& folder, std::int64_t bytes, const std::string& what) {
  std::error_code error;
  const fs::space_info space = fs::space(folder, error);
  if (error || bytes <= 0 || std::cmp_less_equal(bytes, space.available)) return;
  fail(ErrorKind::kFile, "{}: the disk is too full: {} needs {} bytes more, {} are free", folder.string(), what, bytes,
       space.available);
}

FileLock::FileLock(const fs::path& path, const std::function<void()>& on_wait) {
  make_folders(path.parent_path());
  bool told = false;
  for (;;) {
    fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd_ < 0) fail_at(path, "opening the lock", std::strerror(errno));
    if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK && on_wait && !std::exchange(told, true)) on_wait();
      while (::flock(fd_, LOCK_EX) != 0)
        if (errno != EINTR) fail_at(path, "locking", std::strerror(errno));
    }
    if (still_names(path, fd_)) return;
    ::close(fd_);
  }
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

HubCache::HubCache(const fs::path& root, const RepoId& repo) {
  const std::string name = "models--" + repo.owner + "--" + repo.name;
  locks_ = root / ".locks" / name;
  folder_ = root / name;
}

std::optional<std::string> HubCache::commit() const {
  std::ifstream in(folder_ / "refs" / "main", std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(in), {});
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (!is_hex(text, 40)) return std::nullopt;
  return text;
}

void HubCache::set_commit(const std::string& commit) const {
  if (this->commit() == commit) return;
  const fs::path path = folder_ / "refs" / "main";
  make_folders(path.parent_path());
  // Renamed, so that a reader finds the old commit or the new one.
  const fs::path written = unique_name(path);
  std::ofstream out(written, std::ios::binary);
  out << commit << std::flush;
  std::error_code error;
  if (out) fs::rename(written, path, error);
  if (!out || error) fail_at(path, "writing", error ? error.message() : std::strerror(errno));
}

Listing HubCache::cached_listing(const std::string& commit) const {
  Listing out{.commit = commit};
  const fs::path root = snapshot(commit);
  std::error_code ignored;
  for (fs::recursive_directory_iterator it(root, ignored), end; it != end; it.increment(ignored)) {
    if (ignored || !fs::is_regular_file(it->path(), ignored)) continue;  // a link without its blob is no file
    const std::string path = it->path().lexically_relative(root).generic_string();
    if (is_safe_path(path))
      out.files.push_back({.path = path, .size = static_cast<std::int64_t>(fs::file_size(it->path(), ignored))});
  }
  std::sort(out.files.begin(), out.files.end(), [](const auto& a, const auto& b) { return a.path < b.path; });
  return out;
}

void HubCache::link(const std::string& commit, const std::string& path, const std::string& hash) const {
  const fs::path pointer = snapshot(commit) / path;
  make_folders(pointer.parent_path());
  const fs::path target = blob(hash).lexically_relative(pointer.parent_path());
  // Made beside and renamed: a link that another process has just made, or an old one, is replaced in one step.
  const fs::path made = unique_name(pointer);
  std::error_code error;
  fs::create_symlink(target, made, error);
  if (error) {
    // A file system without links: the snapshot has the file itself, as huggingface_hub does there.
    fs::rename(blob(hash), pointer, error);
    if (error) fail_at(pointer, "linking the file", error.message());
    return;
  }
  fs::rename(made, pointer, error);
  if (error) fail_at(pointer, "linking the file", error.message());
}

}  // namespace mneme::hub
