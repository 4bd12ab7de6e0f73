#include "apps/hub/file_selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/formats/json.h"
#include "src/formats/part_name.h"

namespace mneme::hub {
namespace {

constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;
constexpr std::size_t kShownNames = 12;
constexpr std::array<std::string_view, 12> kFolderFiles = {"config.json",
                                                           "generation_config.json",
                                                           "tokenizer.json",
                                                           "tokenizer.model",
                                                           "tokenizer_config.json",
                                                           "special_tokens_map.json",
                                                           "added_tokens.json",
                                                           "vocab.json",
                                                           "merges.txt",
                                                           "chat_template.jinja",
                                                           "chat_template.json",
                                                           "preprocessor_config.json"};
constexpr std::string_view kWeights = "model.safetensors", kIndex = "model.safetensors.index.json";

std::string_view base_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

// One GGUF model: a file, or its parts by number.
struct GgufModel {
  std::string stem;  // the path without the extension and the part's number
  int count = 1;
  std::map<int, std::string> parts;
};

std::vector<GgufModel> gguf_models(const Listing& listing) {
  std::map<std::pair<std::string, int>, GgufModel> found;
  for (const RepoFile& file : listing.files) {
    const std::string path = ascii_lower(file.path);
    const std::string_view name = base_name(path);
    if (!path.ends_with(".gguf") || name.starts_with("mmproj") || name.find("imatrix") != name.npos) continue;
    const std::string stem = file.path.substr(0, file.path.size() - std::string_view(".gguf").size());
    const GgufPartName part = gguf_part_name(stem).value_or(GgufPartName{stem, 1, 1});
    GgufModel& model = found[{part.stem, part.count}];
    model.stem = part.stem;
    model.count = part.count;
    model.parts.emplace(part.number, file.path);
  }
  std::vector<GgufModel> out;
  for (auto& [key, model] : found) out.push_back(std::move(model));
  return out;
}

// `tag` in `text` with a separator or an end on both sides. _ separates before it only: Q4_K is not Q4_K_M.
bool has_tag(std::string_view text, std::string_view tag) {
  const auto before = [](char c) { return c == '-' || c == '.' || c == '_' || c == '/'; };
  const auto after = [](char c) { return c == '-' || c == '.' || c == '/'; };
  for (std::size_t at = text.find(tag); at != text.npos; at = text.find(tag, at + 1)) {
    const std::size_t end = at + tag.size();
    if ((at == 0 || before(text[at - 1])) && (end == text.size() || after(text[end]))) return true;
  }
  return false;
}

// Names first: a folder "Q4_K_M" counts where no name has the tag.
std::vector<const GgufModel*> with_tag(const std::vector<GgufModel>& models, std::string_view quant) {
  const std::string tag = ascii_lower(quant);
  std::vector<const GgufModel*> exact, named, inside;
  for (const GgufModel& model : models) {
    const std::string stem = ascii_lower(model.stem), first = ascii_lower(model.parts.begin()->second);
    if (first == tag || base_name(first) == tag || stem == tag || base_name(stem) == tag) exact.push_back(&model);
    if (has_tag(base_name(stem), tag)) named.push_back(&model);
    if (has_tag(stem, tag)) inside.push_back(&model);
  }
  return !exact.empty() ? exact : !named.empty() ? named : inside;
}

std::string names_of(const std::vector<const GgufModel*>& models) {
  std::vector<std::string> names;
  for (const GgufModel* model : models) names.push_back(model->parts.begin()->second);
  const std::size_t more = names.size() > kShownNames ? names.size() - kShownNames : 0;
  names.resize(names.size() - more);
  return fmt::format("{}{}", fmt::join(names, ", "), more > 0 ? fmt::format(" and {} more", more) : "");
}

FileSelection selection_of(const GgufModel& model, const RepoId& repo) {
  FileSelection out;
  for (int number = 1; number <= model.count; ++number) {
    const auto part = model.parts.find(number);
    if (part == model.parts.end())
      fail(ErrorKind::kFormat, "{}: part {} of {} of {} is missing", repo.id(), number, model.count, model.stem);
    out.files.push_back(part->second);
  }
  out.gguf = out.files.front();
  return out;
}

std::optional<FileSelection> select_folder(const Listing& listing) {
  if (listing.find("config.json") == nullptr) return std::nullopt;
  FileSelection out;
  for (const std::string_view name : kFolderFiles)
    if (listing.find(name) != nullptr) out.files.emplace_back(name);
  for (const RepoFile& file : listing.files)
    if (file.path.starts_with("additional_chat_templates/") && file.path.ends_with(".jinja"))
      out.files.push_back(file.path);
  if (listing.find(kWeights) != nullptr) {
    out.files.emplace_back(kWeights);
  } else if (listing.find(kIndex) != nullptr) {
    out.files.emplace_back(kIndex);
    out.index = kIndex;
  } else {
    return std::nullopt;
  }
  return out;
}

}  // namespace

FileSelection select_files(const Listing& listing, const RepoId& repo) {
  const std::vector<GgufModel> models = gguf_models(listing);
  std::vector<const GgufModel*> all, fitting;
  for (const GgufModel& model : models) all.push_back(&model);
  if (!repo.quant.empty()) {
    fitting = with_tag(models, repo.quant);
    if (fitting.empty())
      fail(ErrorKind::kRequest, "{}: no GGUF file is called {}; there are: {}", repo.id(), repo.quant,
           all.empty() ? "none" : names_of(all));
  } else {
    for (const std::string_view quant : {"Q4_K_M", "Q8_0"})
      if (fitting.empty()) fitting = with_tag(models, quant);
    if (fitting.empty()) {
      if (auto folder = models.size() == 1 ? std::nullopt : select_folder(listing)) return *folder;
      fitting = all;
    }
  }
  if (fitting.empty())
    fail(ErrorKind::kRequest, "{}: holds neither a GGUF file nor config.json with model.safetensors", repo.id());
  if (fitting.size() > 1)
    fail(ErrorKind::kRequest, "{}: several GGUF files fit; name one after the colon, as in -hf {}:{} (there are: {})",
         repo.id(), repo.id(), fitting.front()->parts.begin()->second, names_of(fitting));
  return selection_of(*fitting.front(), repo);
}

std::vector<std::string> files_of_index(std::string_view index, std::string_view from, const Listing& listing) {
  const Json json = parse_json(index, from, kMaxIndexBytes);
  std::set<std::string> names;
  for (const JsonRef& entry : JsonRef(json, from).at("weight_map").elements()) {
    if (!is_safe_path(entry.string())) entry.wrong("a file of the repository");
    if (names.insert(entry.string()).second && listing.find(entry.string()) == nullptr)
      fail(ErrorKind::kFormat, "{}: names {}, which is not there", from, entry.string());
  }
  return {names.begin(), names.end()};
}

}  // namespace mneme::hub
