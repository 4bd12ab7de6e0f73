// libnccl.so.2, opened at run time: the system's, or that of the PyPI packages nvidia-nccl-cu12 and nvidia-nccl-cu13.
//
// Source  NCCL's API documentation, 2.28: types and values of its stable ABI.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace mneme {

// What NCCL's functions take. Streams are cudaStream_t.
struct NcclId {
  std::array<char, 128> bytes{};
};
using NcclComm = void*;
using NcclStream = void*;
inline constexpr int kNcclSuccess = 0, kNcclInProgress = 7;
inline constexpr int kNcclInt8 = 0, kNcclFloat32 = 7, kNcclSum = 0;

class NcclLibrary {
 public:
  static constexpr int kLeastVersion = 21800;  // 2.18: communicators with a configuration, splits

  // Opens `path`, or, where it is empty, the first of candidates() that is there.
  //
  // Errors  kDevice: none is there (the message says how to get one), one without a function that is needed, one older
  //         than kLeastVersion.
  explicit NcclLibrary(const std::filesystem::path& path = {});
  ~NcclLibrary();
  NcclLibrary(const NcclLibrary&) = delete;
  NcclLibrary& operator=(const NcclLibrary&) = delete;

  // "libnccl.so.2", by the loader's paths; then those of Python environments that the variables VIRTUAL_ENV and
  // CONDA_PREFIX name.
  static std::vector<std::filesystem::path> candidates();

  int version() const { return version_; }  // 22809 of 2.28.9
  std::string version_text() const;
  // Errors  kDevice, with NCCL's words and `what`: the result is neither success nor in progress.
  void expect(int result, const char* what) const;

  // NCCL's functions of these names.
  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*comm_init_rank)(NcclComm* comm, int size, NcclId id, int rank) = nullptr;
  int (*comm_destroy)(NcclComm comm) = nullptr;
  int (*comm_abort)(NcclComm comm) = nullptr;
  int (*comm_get_async_error)(NcclComm comm, int* error) = nullptr;
  int (*all_reduce)(const void* from, void* to, std::size_t n, int type, int op, NcclComm comm, NcclStream) = nullptr;
  int (*all_gather)(const void* from, void* to, std::size_t n, int type, NcclComm comm, NcclStream) = nullptr;
  int (*broadcast)(const void* from, void* to, std::size_t n, int type, int root, NcclComm comm, NcclStream) = nullptr;
  int (*send)(const void* from, std::size_t n, int type, int to, NcclComm comm, NcclStream) = nullptr;
  int (*recv)(void* to, std::size_t n, int type, int from, NcclComm comm, NcclStream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  int (*get_version)(int* version) = nullptr;

 private:
  template <typename F>
  void find(F*& function, const char* name);
  void* handle_ = nullptr;
  std::string path_;
  int version_ = 0;
};

}  // namespace mneme
