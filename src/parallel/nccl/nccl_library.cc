#include "src/parallel/nccl/nccl_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <system_error>

#include "src/base/error.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

// What NCCL says (NCCL_DEBUG) would go to standard output, into answers and JSON. NCCL empties the file that it is given:
// never one that holds what was said before.
void keep_off_stdout() {
  struct stat info {};
  if (fstat(STDERR_FILENO, &info) == 0 && (S_ISCHR(info.st_mode) || S_ISFIFO(info.st_mode)))
    setenv("NCCL_DEBUG_FILE", "/dev/stderr", 0);
}

// lib/pythonX.Y/site-packages/nvidia/nccl/lib of an environment.
void add_python_paths(const char* variable, std::vector<fs::path>& paths) {
  const char* environment = std::getenv(variable);
  if (environment == nullptr || *environment == '\0') return;
  std::error_code ignored;
  for (const auto& python : fs::directory_iterator(fs::path(environment) / "lib", ignored))
    if (python.path().filename().string().starts_with("python"))
      paths.push_back(python.path() / "site-packages/nvidia/nccl/lib/libnccl.so.2");
}

}  // namespace

std::vector<fs::path> NcclLibrary::candidates() {
  std::vector<fs::path> paths = {"libnccl.so.2"};
  add_python_paths("VIRTUAL_ENV", paths);
  add_python_paths("CONDA_PREFIX", paths);
  return paths;
}

template <typename F>
void NcclLibrary::find(F*& function, const char* name) {
  function = reinterpret_cast<F*>(dlsym(handle_, name));
  if (function == nullptr) fail(ErrorKind::kDevice, "{} is no NCCL that runs here: it has no {}", path_, name);
}

NcclLibrary::NcclLibrary(const fs::path& path) {
  keep_off_stdout();
  const std::vector<fs::path> paths = path.empty() ? candidates() : std::vector{path};
  for (const fs::path& candidate : paths) {
    handle_ = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    path_ = candidate.string();
    if (handle_ != nullptr) break;
  }
  if (handle_ == nullptr) {
    const char* why = dlerror();
    fail(ErrorKind::kDevice,
         "several GPUs need NCCL, and {} cannot be opened ({}): pip install nvidia-nccl-cu13, or the system's libnccl2",
         path.empty() ? "libnccl.so.2" : path_, why == nullptr ? "no reason given" : why);
  }
  try {
    find(get_version, "ncclGetVersion");
    find(get_unique_id, "ncclGetUniqueId");
    find(comm_init_rank, "ncclCommInitRank");
    find(comm_destroy, "ncclCommDestroy");
    find(comm_abort, "ncclCommAbort");
    find(comm_get_async_error, "ncclCommGetAsyncError");
    find(all_reduce, "ncclAllReduce");
    find(all_gather, "ncclAllGather");
    find(broadcast, "ncclBroadcast");
    find(send, "ncclSend");
    find(recv, "ncclRecv");
    find(get_error_string, "ncclGetErrorString");
    expect(get_version(&version_), "ncclGetVersion");
    if (version_ < kLeastVersion)
      fail(ErrorKind::kDevice, "{} is NCCL {}: expected 2.18 or newer", path_, version_text());
  } catch (const Error&) {
    dlclose(handle_);
    throw;
  }
}

NcclLibrary::~NcclLibrary() {
  dlclose(handle_);
}

std::string NcclLibrary::version_text() const {
  return fmt::format("{}.{}.{}", version_ / 10000, version_ / 100 % 100, version_ % 100);
}

void NcclLibrary::expect(int result, const char* what) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  fail(ErrorKind::kDevice, "{}: {} (NCCL {})", what, get_error_string(result), version_text());
}

}  // namespace mneme
