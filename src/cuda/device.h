// Which CUDA devices there are, and what they can do. The only room whose host code calls the CUDA runtime; the kernels
// launch on its streams. A build without CUDA has no devices, and every call that needs one says so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace mneme {

// Of a device's memory, what stays for graphs, modules and libraries.
inline constexpr std::int64_t kDeviceBytesAside = std::int64_t{768} << 20;

struct DeviceInfo {
  std::string name;
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  std::size_t memory_bytes = 0, free_bytes = 0;
  std::size_t l2_bytes = 0;
  std::size_t shared_bytes = 0;  // that one block may ask for
  std::string driver, runtime;   // "13.0"
  std::string pci_bus;           // "0000:3b:00.0"
  int numa_node = -1;            // -1: not known
};

bool built_with_cuda();
// 0 also where there is no driver.
int device_count();
// Why device_count() is 0, in words; empty when it is not.
std::string no_device_reason();

// Errors  kDevice: no such device; the message names what there is.
DeviceInfo device_info(int device);
// Makes `device` the one that this thread's calls are about. Errors  kDevice.
void use_device(int device);

}  // namespace mneme
