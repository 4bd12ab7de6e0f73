#include <cuda_runtime.h>

#include <fstream>

#include "src/base/backend.h"
#include "src/base/error.h"
#include "src/cuda/check.h"
#include "src/cuda/device_runtime.h"
#include "src/cuda/loaded_code_cuda.h"

namespace mneme {
namespace {

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

int numa_node_of(const std::string& pci_bus) {
  std::string bus = pci_bus;
  for (char& c : bus) c = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + bus + "/numa_node") >> node;
  return node;
}

// Queried once per process: the set of devices does not change.
struct Devices {
  int count = 0;
  cudaError_t error = cudaSuccess;
};
const Devices& devices() {
  static const Devices d = [] {
    Devices found;
    found.error = cudaGetDeviceCount(&found.count);
    if (found.error != cudaSuccess) found.count = 0;
    static_cast<void>(cudaGetLastError());
    return found;
  }();
  return d;
}

int cuda_device_count() {
  return devices().count;
}

std::string no_cuda_device_reason() {
  if (devices().error == cudaSuccess) return "the driver sees no device";
  int driver = 0;  // stays 0 where there is no driver; the runtime then reports it as too old
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "no NVIDIA driver is loaded";
  return fmt::format("{} ({})", cudaGetErrorString(devices().error), cudaGetErrorName(devices().error));
}

void use_cuda_device(int device) {
  cuda_check(cudaSetDevice(device), "selecting the device");
}

DeviceInfo cuda_device_info(int device) {
  cudaDeviceProp p{};
  cuda_check(cudaGetDeviceProperties(&p, device), "reading the device's properties");
  int driver = 0, runtime = 0;
  cuda_check(cudaDriverGetVersion(&driver), "reading the driver's version");
  cuda_check(cudaRuntimeGetVersion(&runtime), "reading the runtime's version");
  char bus[32] = {};
  cuda_check(cudaDeviceGetPCIBusId(bus, sizeof(bus), device), "reading the device's address");
  DeviceInfo info{.name = p.name,
                  .compute_major = p.major,
                  .compute_minor = p.minor,
                  .sm_count = p.multiProcessorCount,
                  .memory_bytes = p.totalGlobalMem,
                  .free_bytes = 0,
                  .l2_bytes = static_cast<std::size_t>(p.l2CacheSize),
                  .shared_bytes = p.sharedMemPerBlockOptin,
                  .driver = version_text(driver),
                  .runtime = version_text(runtime),
                  .pci_bus = bus,
                  .numa_node = numa_node_of(bus)};
  use_cuda_device(device);
  info.code_version = loaded_code_version();
  std::size_t total = 0;
  cuda_check(cudaMemGetInfo(&info.free_bytes, &total), "asking for free device memory");
  return info;
}

}  // namespace

void cuda_failed(cudaError_t error, const char* what) {
  const ErrorKind kind = error == cudaErrorMemoryAllocation ? ErrorKind::kResource : ErrorKind::kDevice;
  fail(kind, "{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

MNEME_REGISTER_BACKEND(device_cuda, DeviceRuntime,
                       {.count = &cuda_device_count,
                        .no_device_reason = &no_cuda_device_reason,
                        .info = &cuda_device_info,
                        .use = &use_cuda_device});

}  // namespace mneme
