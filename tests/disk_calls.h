// What this process flushed before it gave a file its name. A program that links disk_calls.cc has its fsync(),
// fdatasync() and rename() counted here and then made.
#pragma once

#include <string>
#include <vector>

namespace mneme {

struct NamedFile {
  std::string name;      // the new one
  bool flushed = false;  // its content, before that
};
// Files renamed since the last call, in order.
std::vector<NamedFile> take_named_files();

}  // namespace mneme
