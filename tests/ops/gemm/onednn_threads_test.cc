// A second OpenMP in the process, loaded before or after oneDNN, does not let oneDNN start threads of its own.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <system_error>

namespace mneme {
namespace {

namespace fs = std::filesystem;

enum class Second { kNone, kBefore, kAfter };

constexpr int kCannotLoad = 100, kNoGemm = 101, kNoOpenMp = 102;

// In a process of its own: what is loaded stays loaded.
int threads_added(Second second, const std::string& other) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (second == Second::kBefore && ::dlopen(other.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) ::_exit(kNoOpenMp);
    void* const module = ::dlopen(MNEME_ONEDNN_MODULE, RTLD_NOW | RTLD_LOCAL);
    if (module == nullptr) ::_exit(kCannotLoad);
    if (second == Second::kAfter && ::dlopen(other.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) ::_exit(kNoOpenMp);
    const auto gemm = reinterpret_cast<int (*)()>(::dlsym(module, "threads_added_by_onednn"));
    const int added = gemm == nullptr ? -2 : gemm();
    ::_exit(added == -1 ? kNoGemm : added == -2 ? kCannotLoad : added);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// Copies the system's OpenMP to `copy`, in a process of its own: loading it leaves memory allocated (8 bytes of libgomp 12).
void copy_openmp(const std::string& copy) {
  const pid_t child = ::fork();
  if (child == 0) {
    void* const openmp = ::dlopen("libgomp.so.1", RTLD_NOW | RTLD_LOCAL);
    Dl_info info{};
    std::error_code failed;
    if (openmp != nullptr && ::dladdr(::dlsym(openmp, "omp_get_max_threads"), &info) != 0)
      fs::copy_file(info.dli_fname, copy, failed);
    ::_exit(0);
  }
  ::waitpid(child, nullptr, 0);
}

class OneDnnThreads : public testing::TestWithParam<Second> {};

TEST_P(OneDnnThreads, StayOursBesideASecondOpenMp) {
  ::setenv("OMP_NUM_THREADS", "4", 1);
  // A copy is another library to the dynamic linker.
  char folder[] = "/tmp/mneme_openmp_XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  const std::string copy = std::string(folder) + "/libother.so";
  copy_openmp(copy);
  const int added = threads_added(GetParam(), copy);
  fs::remove_all(folder);
  if (added == kNoOpenMp) GTEST_SKIP() << "no libgomp.so.1 on this machine";
  if (added == kNoGemm) GTEST_SKIP() << "no oneDNN in this build, or no bf16 GEMM in this CPU";
  EXPECT_EQ(added, 0);
}

std::string order_name(const testing::TestParamInfo<Second>& order) {
  if (order.param == Second::kNone) return "Alone";
  return order.param == Second::kBefore ? "LoadedBefore" : "LoadedAfter";
}

INSTANTIATE_TEST_SUITE_P(Order, OneDnnThreads, testing::Values(Second::kNone, Second::kBefore, Second::kAfter),
                         order_name);

}  // namespace
}  // namespace mneme
