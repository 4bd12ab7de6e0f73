// A kept sequence to a session file and back (src/engine/session_file.h has the format).
#pragma once

#include <filesystem>

#include "src/engine/running_model.h"
#include "src/engine/session_file.h"

namespace mneme {

// Writes the sequence of `id`. Of `content` the conversation's fields are taken; identity, tokens and n_computed are
// the sequence's own.
//
// Errors  kFile.
void save_sequence(const RunningModel& model, RequestId id, SessionContent content, const std::filesystem::path& path);

struct RestoredSequence {
  RequestId id;  // kept
  SessionContent content;
};
// Errors  as Session::restore().
RestoredSequence restore_sequence(const RunningModel& model, const std::filesystem::path& path);

}  // namespace mneme
