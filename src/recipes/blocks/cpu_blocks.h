// Blocks that run on the CPU alone.
#pragma once

#include "src/recipes/compile.h"

namespace mneme {

// The first such block of a plan, as a reason; null: none.
const char* cpu_block(const Plan& plan);

}  // namespace mneme
