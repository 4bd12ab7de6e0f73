// Measured bandwidth of a GPU's memory and of its link: the backend that a build with CUDA registers.
#pragma once

namespace mneme {

struct DeviceRates {                              // bytes a second
  double read = 0;                                // device memory, read alone
  double host_to_device = 0, device_to_host = 0;  // large copies from and to page-locked memory
};

struct DeviceMeter {
  DeviceRates (*rates)(int device);
};

// Errors  kDevice: no device, or a build without CUDA.
DeviceRates measure_device(int device);

}  // namespace mneme
