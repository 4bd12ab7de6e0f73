// Which models the device runs. It multiplies weights of every type.
#pragma once

#include "src/model/model.h"

namespace mneme {

// Errors  kUnsupported: an architecture that the device does not run, or an expert whose columns are in another
//         order; names it and what works instead.
void expect_device_types(const Model& model);

}  // namespace mneme
