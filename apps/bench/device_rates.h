// What a GPU's memory and its link give, measured.
#pragma once

namespace mneme {

struct DeviceRates {                              // bytes a second
  double read = 0;                                // device memory, read alone
  double host_to_device = 0, device_to_host = 0;  // large copies from and to page-locked memory
};

// Takes half a second, and 1 GiB of the device's memory (less where less is free). Errors  kDevice, kResource.
DeviceRates measure_device(int device);

}  // namespace mneme
