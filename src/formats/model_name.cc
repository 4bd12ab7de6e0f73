#include "src/formats/model_name.h"

namespace mneme {

std::string model_name(const std::filesystem::path& given) {
  std::filesystem::path path = given.lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (path.extension() == ".gguf") return path.stem().string();
  const std::string repository = path.parent_path().parent_path().filename().string();
  if (path.parent_path().filename() != "snapshots" || !repository.starts_with("models--"))
    return path.filename().string();
  return repository.substr(repository.rfind("--") + 2);
}

}  // namespace mneme
