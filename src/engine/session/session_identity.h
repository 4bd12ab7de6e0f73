// What makes a model the same one: hashes over what a checkpoint says and holds.
#pragma once

#include "src/engine/session/session_file.h"
#include "src/formats/checkpoint.h"

namespace mneme {

// All of a SessionIdentity but the shape and type of keys and values, which the engine knows.
//
//   context  the longest sequence that is run: the dynamic scaling of RoPE depends on it
//
// Of every tensor a few pieces are read, not all: enough to tell one training from another, and no gigabytes.
SessionIdentity identity_of(const Checkpoint& checkpoint, std::int64_t context);

}  // namespace mneme
