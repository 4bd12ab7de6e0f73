#include <cuda_runtime.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <vector>

#include "src/base/error.h"
#include "src/cuda/check.h"
#include "src/cuda/memory.h"

namespace mneme {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kLarge = std::size_t{64} << 20;
constexpr std::size_t kMiB = std::size_t{1} << 20;

// Touches every page so that the kernel allocates it. Multi-threaded: one thread clears 3 GB/s.
void touch(std::byte* data, std::size_t bytes, const ProgressFn& progress) {
  const unsigned n = std::clamp(std::thread::hardware_concurrency(), 1u, 16u);
  constexpr std::size_t kPiece = 32 * kHugePage;
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t at; (at = next.fetch_add(kPiece)) < bytes;)
      for (std::size_t i = at; i < std::min(at + kPiece, bytes); i += 4096) data[i] = std::byte{0};
  };
  std::vector<std::thread> threads;
  for (unsigned i = 1; i < n; ++i) threads.emplace_back(work);
  for (std::size_t at; (at = next.fetch_add(kPiece)) < bytes;) {
    for (std::size_t i = at; i < std::min(at + kPiece, bytes); i += 4096) data[i] = std::byte{0};
    if (progress)
      progress("host memory for the KV cache, MiB", static_cast<std::int64_t>(at / kMiB),
               static_cast<std::int64_t>(bytes / kMiB));
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace

DeviceBuffer::DeviceBuffer(std::size_t bytes, const char* what) : OwnedMemory(bytes) {
  if (bytes == 0) return;
  const cudaError_t error = cudaMalloc(&data_, bytes);
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  std::size_t available = 0, total = 0;
  if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&available, &total) == cudaSuccess)
    fail(ErrorKind::kResource, "{} take {} bytes of device memory; {} of {} are free", what, bytes, available, total);
  cuda_failed(error, what);
}

void DeviceBuffer::free() {
  if (data_ != nullptr) cudaFree(data_);
  data_ = nullptr;
}

PinnedBuffer::PinnedBuffer(std::size_t bytes, const ProgressFn& progress) : OwnedMemory(bytes) {
  if (bytes == 0) return;
  if (bytes < kLarge) {
    cuda_check(cudaHostAlloc(&data_, bytes, cudaHostAllocMapped | cudaHostAllocPortable), "page-locked host memory");
  } else {
    reserved_ = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* p = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
      reserved_ = 0;
      fail(ErrorKind::kResource, "cannot take {} bytes of host memory: {}", bytes, std::strerror(errno));
    }
    data_ = p;
    madvise(p, reserved_, MADV_HUGEPAGE);  // a hint: without huge pages registration is slower, nothing else
    touch(static_cast<std::byte*>(p), reserved_, progress);
    const cudaError_t error = cudaHostRegister(p, reserved_, cudaHostRegisterMapped | cudaHostRegisterPortable);
    if (error != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      munmap(std::exchange(data_, nullptr), std::exchange(reserved_, 0));
      fail(ErrorKind::kResource, "cannot lock {} bytes of host memory for the device: {}", bytes,
           cudaGetErrorString(error));
    }
  }
  cuda_check(cudaHostGetDevicePointer(&mapped_, data_, 0), "mapping host memory for the device");
}

PinnedBuffer PinnedBuffer::for_kernels(std::size_t bytes, const ProgressFn& progress) {
  // Where the device walks the host's page tables itself, registered memory has the host's huge pages.
  PinnedBuffer out;
  if (bytes < kLarge || device_attribute(cudaDevAttrConcurrentManagedAccess) == 0 ||
      device_attribute(cudaDevAttrPageableMemoryAccessUsesHostPageTables) != 0 || !out.manage(bytes))
    return PinnedBuffer(bytes, progress);
  touch(out.data(), bytes, progress);
  return out;
}

// Whether there is managed memory that stays on the host and is mapped for the calling thread's device.
bool PinnedBuffer::manage(std::size_t bytes) {
  int device = 0;
  cuda_check(cudaGetDevice(&device), "asking for the device");
#if CUDART_VERSION >= 13000
  const cudaMemLocation host{cudaMemLocationTypeHost, 0}, reader{cudaMemLocationTypeDevice, device};
#else
  const int host = cudaCpuDeviceId, reader = device;
#endif
  if (cudaMallocManaged(&data_, bytes) == cudaSuccess) {
    size_ = bytes, mapped_ = data_, managed_ = true;
    if (cudaMemAdvise(data_, bytes, cudaMemAdviseSetPreferredLocation, host) == cudaSuccess &&
        cudaMemAdvise(data_, bytes, cudaMemAdviseSetAccessedBy, reader) == cudaSuccess)
      return true;
  }
  static_cast<void>(cudaGetLastError());
  return false;
}

void PinnedBuffer::free() {
  if (data_ == nullptr) return;
  if (std::exchange(managed_, false)) {
    cudaFree(data_);
  } else if (reserved_ > 0) {
    cudaHostUnregister(data_);
    munmap(data_, reserved_);
  } else {
    cudaFreeHost(data_);
  }
  data_ = nullptr;
}

void copy_bytes(void* to, const void* from, std::size_t bytes, const Stream& stream) {
  if (bytes > 0) cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream.get()), "copying");
}

void copy_rows(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch, std::size_t bytes,
               std::size_t n_rows, const Stream& stream) {
  cuda_check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, n_rows, cudaMemcpyDefault, stream.get()),
             "copying rows");
}

void set_bytes(void* to, int value, std::size_t bytes, const Stream& stream) {
  if (bytes > 0) cuda_check(cudaMemsetAsync(to, value, bytes, stream.get()), "clearing device memory");
}

}  // namespace mneme
