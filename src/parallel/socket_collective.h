// Collectives over ZeroMQ, for ranks that share no memory: on several hosts, or started by a launcher. Values go to rank
// 0 and back, so it is for what ranks tell each other (kilobytes a step) and for tests; GPUs have NCCL.
//
// Nothing is encrypted and peers are not authenticated: use a private network, or 127.0.0.1.
#pragma once

#include <memory>
#include <string>

#include "src/parallel/collective.h"

namespace mneme {

// `address`: HOST:PORT where rank 0 listens.
//
// Errors  kOption: no such address, one that is in use. kUnsupported: a build without ZeroMQ. Later kDevice, as
//         Collective's: ranks that did not come within `seconds` included.
std::unique_ptr<Collective> socket_collective(const std::string& address, int rank, int size, double seconds = 20);

}  // namespace mneme
