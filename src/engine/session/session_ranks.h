// Sessions of a model that several ranks share, and a follower's whole life.
#pragma once

#include "src/engine/session/running_model.h"

namespace mneme {

// A follower: repeats the leader's calls until the leader ends.
//
// Errors  kDevice.
void follow(const RunningModel& model);

}  // namespace mneme
