// What the programs were built from.
#pragma once

#include <string>

namespace mneme {

// The revision, as git describes it; "unknown" outside of a checkout.
std::string build_commit();

}  // namespace mneme
