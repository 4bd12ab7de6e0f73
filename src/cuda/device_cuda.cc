#include <cuda_runtime.h>

#include <fstream>

#include "src/base/error.h"
#include "src/device/cuda_check.h"
#include "src/device/device.h"

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

// One count and one error for the whole run: devices do not come and go.
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

void expect_device(int device) {
  if (device_count() == 0) fail(ErrorKind::kDevice, "CUDA device {}: {}", device, no_device_reason());
  if (device < 0 || device >= device_count())
    fail(ErrorKind::kDevice, "CUDA device {}: there are {}, numbered from 0", device, device_count());
}

}  // namespace

void cuda_failed(cudaError_t error, const char* what) {
  const ErrorKind kind = error == cudaErrorMemoryAllocation ? ErrorKind::kResource : ErrorKind::kDevice;
  fail(kind, "{}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error));
}

bool built_with_cuda() {
  return true;
}

int device_count() {
  return devices().count;
}

std::string no_device_reason() {
  if (device_count() > 0) return "";
  if (devices().error == cudaSuccess) return "the driver sees no device";
  int driver = 0;  // 0: the runtime calls it too old where there is none
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "no NVIDIA driver is loaded";
  return fmt::format("{} ({})", cudaGetErrorString(devices().error), cudaGetErrorName(devices().error));
}

DeviceInfo device_info(int device) {
  expect_device(device);
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
                  .multiprocessors = p.multiProcessorCount,
                  .memory_bytes = p.totalGlobalMem,
                  .free_bytes = 0,
                  .l2_bytes = static_cast<std::size_t>(p.l2CacheSize),
                  .shared_bytes = p.sharedMemPerBlockOptin,
                  .driver = version_text(driver),
                  .runtime = version_text(runtime),
                  .pci_bus = bus,
                  .numa_node = numa_node_of(bus)};
  use_device(device);
  std::size_t total = 0;
  cuda_check(cudaMemGetInfo(&info.free_bytes, &total), "asking for free device memory");
  return info;
}

void use_device(int device) {
  expect_device(device);
  cuda_check(cudaSetDevice(device), "choosing the device");
}

}  // namespace mneme
