// Measured bandwidth of a GPU's memory and of its link.
#pragma once

namespace mneme {

struct DeviceRates {                              // bytes a second
  double read = 0;                                // device memory, read alone
  double host_to_device = 0, device_to_host = 0;  // large copies from and to page-locked memory
};

}  // namespace mneme
