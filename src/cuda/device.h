// CUDA devices: count, properties, selection of the current one.
//
// Only host code of this room calls the CUDA runtime; kernels of other rooms launch on its streams. In a build without
// CUDA device_count() is 0 and the other calls throw kDevice.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mneme {

// Device memory reserved for graphs, modules and libraries.
inline constexpr std::int64_t kReservedDeviceBytes = std::int64_t{768} << 20;

struct DeviceInfo {
  std::string name;
  int compute_major = 0, compute_minor = 0;
  // Compute capability that the loaded kernels were compiled for, 10 * major + minor; 0: the build has none for the
  // device. From 90 on kernels use bulk copies, clusters and PDL, below their portable forms.
  int code_version = 0;
  int sm_count = 0;
  std::size_t memory_bytes = 0, free_bytes = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_bytes = 0;  // limit of dynamic shared memory of a thread block
  std::string driver, runtime;   // "13.0"
  std::string pci_bus;           // "0000:3b:00.0"
  int numa_node = -1;            // -1: unknown
};

// 0 also where there is no driver.
int device_count();
// Why device_count() is 0; empty when it is not.
std::string no_device_reason();

// Errors  kDevice: no such device; the message lists what exists.
DeviceInfo device_info(int device);
// Makes `device` current for the calling thread. Errors  kDevice.
void use_device(int device);

}  // namespace mneme
