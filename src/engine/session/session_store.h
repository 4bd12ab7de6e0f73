// A kept sequence to a session file and back (src/engine/session/session_file.h has the format).
#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "src/engine/session/running_model.h"
#include "src/engine/session/session_file.h"
#include "src/engine/session/session_parts.h"

namespace mneme {

// Writes the sequence of `id`. Of `content` the conversation's fields are taken; identity, tokens and n_computed are
// the sequence's own. Ranks write a file each (session_parts.h).
//
// Errors  kFile.
void save_sequence(const RunningModel& model, RequestId id, SessionContent content, const std::filesystem::path& path,
                   Links links = Links::kFollowed);
// Of this rank's heads alone.
void write_part(const RunningModel& model, RequestId id, SessionContent content, const std::filesystem::path& path,
                Links links);

// The parts of that, for those who cannot let the engine wait for a file: what the file says beside keys and values,
SessionContent content_of(const RunningModel& model, RequestId id, SessionContent content);
// and the pairs [K | V] of one head that are stored of positions [begin, end), appended to `out`.
void append_kv(const SequenceCache& cache, std::int32_t layer, std::int32_t kv_head, TokenRange positions,
               std::vector<std::byte>& out);

struct RestoredSequence {
  RequestId id;  // kept
  SessionContent content;
};
// Errors  as Session::restore().
RestoredSequence restore_sequence(const RunningModel& model, const std::filesystem::path& path,
                                  Links links = Links::kFollowed);
// The same of what was read already, on this rank alone; `name` is for messages.
RestoredSequence adopt_saved(const RunningModel& model, const SavedSequence& file, std::string_view name);

}  // namespace mneme
