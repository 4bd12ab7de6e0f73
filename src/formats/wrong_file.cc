#include "src/formats/wrong_file.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <system_error>
#include <vector>

#include "src/base/error.h"
#include "src/formats/part_name.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

// Split models count once, by their first part; projectors of images are no models.
std::vector<std::string> gguf_models_of(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    const std::string name = it->path().filename().string();
    if (it->path().extension() != ".gguf" || name.find("mmproj") != std::string::npos) continue;
    const auto part = gguf_part_name(it->path().stem().string());
    if (part && part->number > 1) continue;
    names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

bool is_embedding_model(std::string_view architecture) {
  constexpr std::array<std::string_view, 19> kNames = {
      "bert",         "modern-bert",    "neo-bert",        "nomic-bert", "nomic-bert-moe",
      "jina-bert-v2", "jina-bert-v3",   "gemma-embedding", "t5encoder",  "roberta",
      "xlm-roberta",  "modernbert",     "mpnet",           "distilbert", "nomic_bert",
      "neobert",      "xlm-roberta-xl", "electra",         "deberta-v2"};
  return std::find(kNames.begin(), kNames.end(), architecture) != kNames.end();
}

void refuse_embedding_model(std::string_view file, std::string_view key, std::string_view name) {
  fail(
      ErrorKind::kUnsupported,
      "{}: {} '{}' is an embedding model: expected one that generates text, such as llama or qwen3. Embeddings are not "
      "served",
      file, key, name);
}

void refuse_lfs_pointer(std::span<const std::byte> bytes, std::string_view file) {
  constexpr std::string_view kBegin = "version https://git-lfs";
  if (bytes.size() >= kBegin.size() && std::memcmp(bytes.data(), kBegin.data(), kBegin.size()) == 0)
    fail(ErrorKind::kFile,
         "{}: a Git LFS pointer of {} bytes in place of the file; `git lfs pull` in its folder fetches it", file,
         bytes.size());
}

void refuse_folder_without_config(const fs::path& folder) {
  std::error_code ignored;
  if (fs::exists(folder / "adapter_config.json", ignored))
    fail(
        ErrorKind::kUnsupported,
        "{}: a LoRA adapter (adapter_config.json): expected a model. Adapters are not applied; merge it into its model "
        "and open the result",
        folder.string());
  const std::vector<std::string> models = gguf_models_of(folder);
  constexpr std::string_view kExpected = "expected the folder of a Hugging Face model, found no config.json in it";
  if (models.empty()) fail(ErrorKind::kFile, "{}: {}", folder.string(), kExpected);
  const std::string first = (folder / models.front()).string();
  if (models.size() == 1)
    fail(ErrorKind::kFile, "{}: {}, but one GGUF file: name that, {}", folder.string(), kExpected, first);
  fail(ErrorKind::kFile, "{}: {}, but {} GGUF files: name one of them, such as {}", folder.string(), kExpected,
       models.size(), first);
}

bool names_hub_model(const fs::path& path) {
  std::error_code ignored;
  if (fs::exists(path, ignored)) return false;
  const std::string text = path.string();
  const std::size_t slash = text.find('/');
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '/';
  };
  const bool one_slash = slash != std::string::npos && slash > 0 && slash + 1 < text.size() && slash == text.rfind('/');
  return one_slash && text.front() != '.' && std::all_of(text.begin(), text.end(), plain) &&
         path.extension() != ".gguf" && !fs::exists(path.parent_path(), ignored);
}

void refuse_name_of_hub(const fs::path& path) {
  if (!names_hub_model(path)) return;
  fail(ErrorKind::kFile, "{}: no such file or folder; `-hf {}` fetches the model of that name from Hugging Face",
       path.string(), path.string());
}

}  // namespace mneme
