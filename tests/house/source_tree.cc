#include "tests/house/source_tree.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace mneme::house {

namespace fs = std::filesystem;

fs::path root() {
  return MNEME_SOURCE_DIR;
}

std::vector<fs::path> files(const std::string& folder, const std::vector<std::string>& extensions) {
  std::vector<fs::path> found;
  const fs::path start = root() / folder;
  if (!fs::exists(start)) return found;
  for (fs::recursive_directory_iterator it(start), end; it != end; ++it) {
    const std::string name = it->path().filename().string();
    // Build folders, .git, caches: not ours to check.
    if (it->is_directory() &&
        (name.starts_with("build") || name.starts_with(".") || name == "__pycache__" || name == "third_party")) {
      it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file()) continue;
    const std::string extension = it->path().extension().string();
    if (std::find(extensions.begin(), extensions.end(), extension) != extensions.end())
      found.push_back(fs::relative(it->path(), root()));
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string read(const fs::path& relative) {
  std::ifstream in(root() / relative, std::ios::binary);
  std::ostringstream content;
  content << in.rdbuf();
  return content.str();
}

std::vector<std::string> lines(const fs::path& relative) {
  std::vector<std::string> out;
  std::istringstream in(read(relative));
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

}  // namespace mneme::house
