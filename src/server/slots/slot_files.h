// Saves slots to session files and restores them while others are answered: slow work is done here, and the engine is
// asked for a piece at a time, between two steps.
//
// Threads  any that may wait, one at a time; never the engine's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "src/engine/loop/engine_loop.h"

namespace mneme::server {

class SlotFiles {
 public:
  // `folder`: where they lie; empty: slots cannot be saved. Requires  the loop outlives the object.
  SlotFiles(EngineLoop& loop, const std::filesystem::path& folder)
      : loop_(loop), folder_(folder.empty() ? folder : std::filesystem::absolute(folder / "").lexically_normal()) {}

  // Tokens written, or read. `name` is a plain file's in the folder: a symbolic link is refused, and
  // its target stays untouched. Messages name the file, not the folder.
  //
  // Errors  kRequest: no such slot, empty slot, a name that is none. kOption: there is no folder. kResource: the slot
  // got another sequence, or lost pages, while it was written. kFile. As restore_sequence().
  std::int64_t save(std::int32_t slot, const std::string& name);
  std::int64_t restore(std::int32_t slot, const std::string& name);
  // Tokens evicted. Errors  kRequest: no such slot.
  std::int64_t erase(std::int32_t slot);

 private:
  std::filesystem::path file(const std::string& name) const;
  template <typename Act>
  auto on_file(const std::string& name, Act act) const;
  std::int64_t save_to(const std::filesystem::path& path, std::int32_t slot);
  std::int64_t save_by_ranks(const std::filesystem::path& path, std::int32_t slot);

  EngineLoop& loop_;
  std::filesystem::path folder_;
};

}  // namespace mneme::server
