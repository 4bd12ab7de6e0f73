#include "src/formats/safetensors/hf_checkpoint.h"

#include <fmt/format.h>

#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/formats/family.h"
#include "src/formats/model_name.h"
#include "src/formats/safetensors/changed_weight.h"
#include "src/formats/safetensors/fused_experts.h"
#include "src/formats/safetensors/hf_gemma.h"
#include "src/formats/safetensors/hf_model.h"
#include "src/formats/safetensors/quantised.h"
#include "src/formats/safetensors/safetensors.h"
#include "src/formats/tensor_table.h"
#include "src/formats/tokenizer_check.h"
#include "src/formats/weight_names.h"
#include "src/formats/wrong_file.h"
#include "src/text/unicode/utf8.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxIndexBytes = std::size_t{64} << 20;
constexpr std::size_t kMaxTemplateBytes = std::size_t{1} << 20;
constexpr std::size_t kShownBytes = 160;

bool file_exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// A JSON file and its name for errors.
struct JsonFile {
  std::string file;
  Json json;
  JsonRef ref() const { return JsonRef(json, file); }
};

JsonFile read_json(const fs::path& path, std::size_t max_bytes) {
  const MappedFile mapping(path);
  refuse_lfs_pointer(mapping.bytes(), path.string());
  JsonFile out{path.string(), Json()};
  out.json = parse_json(text_of(mapping), out.file, max_bytes);
  if (!out.json.is_object()) out.ref().wrong("an object");
  return out;
}

std::optional<JsonFile> read_json_if_exists(const fs::path& path, std::size_t max_bytes) {
  if (!file_exists(path)) return std::nullopt;
  return read_json(path, max_bytes);
}

std::string read_template(const fs::path& path) {
  if (!file_exists(path)) return {};
  const MappedFile mapping(path);
  const std::string_view text = text_of(mapping);
  if (text.size() > kMaxTemplateBytes)
    fail(ErrorKind::kFormat, "{}: {} bytes; expected at most {}", path.string(), text.size(), kMaxTemplateBytes);
  if (const std::size_t bad = find_invalid_utf8(text); bad != kValidUtf8)
    fail(ErrorKind::kFormat, "{}: invalid UTF-8 at byte {}", path.string(), bad);
  return std::string(text);
}

// additional_chat_templates/NAME.jinja, by name.
std::vector<std::pair<std::string, std::string>> read_named_templates(const fs::path& folder) {
  std::error_code absent;
  std::map<std::string, std::string> named;
  for (const auto& entry : fs::directory_iterator(folder / "additional_chat_templates", absent)) {
    if (entry.path().extension() != ".jinja" || entry.path().stem() == "default") continue;
    if (named.size() == kMaxTemplates)
      fail(ErrorKind::kFormat, "{}: expected at most {} templates", entry.path().parent_path().string(), kMaxTemplates);
    const std::string name = entry.path().stem().string();
    if (find_invalid_utf8(name) != kValidUtf8)
      fail(ErrorKind::kFormat, "{}: a template's name is not UTF-8", entry.path().parent_path().string());
    named[name] = read_template(entry.path());
  }
  return {named.begin(), named.end()};
}

// Weight files of the folder, sorted by name, and for a sharded model the file of each tensor.
struct WeightFiles {
  std::vector<std::string> names;
  std::unordered_map<std::string, std::string> place;
};

WeightFiles find_weight_files(const fs::path& folder) {
  WeightFiles out;
  if (file_exists(folder / "model.safetensors")) {
    out.names = {"model.safetensors"};
    return out;
  }
  const fs::path index_path = folder / "model.safetensors.index.json";
  if (!file_exists(index_path)) {
    for (const char* pickle : {"pytorch_model.bin", "pytorch_model.bin.index.json"})
      if (file_exists(folder / pickle))
        fail(ErrorKind::kUnsupported, "{}: weights are in {}; expected model.safetensors", folder.string(), pickle);
    fail(ErrorKind::kFile, "{}: has neither model.safetensors nor model.safetensors.index.json", folder.string());
  }
  const JsonFile index = read_json(index_path, kMaxIndexBytes);
  std::set<std::string> names;
  for (const JsonRef& entry : index.ref().at("weight_map").elements()) {
    const std::string& name = entry.string();
    if (name.empty() || name.find('/') != std::string::npos || name.find('\0') != std::string::npos || name == "." ||
        name == "..")
      entry.wrong("the plain name of a file in the same folder");
    names.insert(name);
    out.place.emplace(entry.path().substr(std::string_view("weight_map.").size()), name);
  }
  out.names.assign(names.begin(), names.end());
  if (out.names.empty()) fail(ErrorKind::kFormat, "{}: weight_map is empty", index.file);
  return out;
}

// Names of the vision parts and of blocks that draft tokens (MTP), which are left out: the text's layers are read.
bool is_beside_text(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  for (const std::string_view part : {"visual.", "vision_tower.", "multi_modal_projector.", "mtp."})
    if (name.starts_with(part)) return true;
  return false;
}

// The name that a tensor of the text part has in a model of text alone.
std::string name_in_text(const std::string& name) {
  const std::pair<std::string_view, std::string_view> prefixes[] = {{"model.language_model.", "model."},
                                                                    {"language_model.model.", "model."},
                                                                    {"language_model.lm_head.", "lm_head."}};
  for (const auto& [theirs, ours] : prefixes)
    if (name.starts_with(theirs)) return std::string(ours) + name.substr(theirs.size());
  return name;
}

class HfCheckpoint final : public Checkpoint {
 public:
  explicit HfCheckpoint(const fs::path& folder) {
    if (!file_exists(folder / "config.json")) refuse_folder_without_config(folder);
    const JsonFile config = read_json(folder / "config.json", kMaxConfigBytes);
    config_ = read_hf_config(config.ref());
    quantisation_ = read_quant_config(config.ref());
    if (quantisation_.method == QuantMethod::kNone && file_exists(folder / "hf_quant_config.json"))
      quantisation_ = read_modelopt_config(read_json(folder / "hf_quant_config.json", kMaxConfigBytes).ref());
    config_.name = config.ref().string("_name_or_path", "");
    if (config_.name.empty()) config_.name = model_name(folder);
    for (const auto& [key, value] : config.json.items()) {
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      const std::string_view shown = utf8_prefix(text, kShownBytes);
      metadata_.push_back({key, value.type_name(), shown.size() < text.size() ? std::string(shown) + "..." : text});
    }
    reads_pictures_ = text_part(config.ref()).has_value();
    leaves_out_ = reads_pictures_ || config_.delta.n_k_heads > 0;
    read_tensors(folder);
    if (n_beside_text_ > 0)
      metadata_.push_back(
          {"left out", "string", fmt::format("{} tensors beside the text (pictures, MTP)", n_beside_text_)});
    check_weights(config_, *this, folder.string());
    tokenizer_ = read_hf_tokenizer(folder);
    pad_tokens(tokenizer_, config_.vocab, folder.string());
  }

  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  const std::vector<CheckpointTensor>& tensors() const override { return tensors_; }
  const std::vector<MetadataEntry>& metadata() const override { return metadata_; }
  std::string_view format() const override { return "Hugging Face (safetensors)"; }

 private:
  void read_tensors(const fs::path& folder) {
    const WeightFiles files = find_weight_files(folder);
    for (const std::string& name : files.names) {
      const fs::path path = folder / name;
      if (!file_exists(path))
        fail(ErrorKind::kFile, "{}: is missing; model.safetensors.index.json names it", path.string());
      mappings_.emplace_back(path);
      refuse_lfs_pointer(mappings_.back().bytes(), path.string());
      for (SafetensorsTensor& t : parse_safetensors(mappings_.back().bytes(), path.string())) {
        if (!files.place.empty()) {
          const auto place = files.place.find(t.name);
          if (place == files.place.end() || place->second != name)
            fail(ErrorKind::kFormat, "{}: tensor '{}' is not where model.safetensors.index.json has it", path.string(),
                 t.name);
        }
        if (leaves_out_ && is_beside_text(t.name)) {
          ++n_beside_text_;
          continue;
        }
        if (reads_pictures_) t.name = name_in_text(t.name);
        if (!is_aligned(t)) align(t);
        add_split(std::move(t));
      }
    }
    for (const auto& [name, file] : files.place)
      if (!found_.contains(reads_pictures_ ? name_in_text(name) : name) && !(leaves_out_ && is_beside_text(name)))
        fail(ErrorKind::kFormat, "{}: tensor '{}' is missing; the index names it", (folder / file).string(), name);
    settle_head();
    settle_embedding_scale();
    settle_zero_points();
    rename_tensors(folder);
  }

  // A tensor that fuses several is added as its parts, and found by its own name too.
  void add_split(SafetensorsTensor t) {
    const std::vector<FusedPart> parts = parts_of_fused(config_, t.name);
    found_.emplace(t.name, file_tensors_.size());
    const bool fused = !parts.empty() && t.rank <= 2 && t.dims[0] == parts.back().first + parts.back().n;
    if (!fused) return file_tensors_.push_back(std::move(t));
    const std::size_t row = t.data.size() / static_cast<std::size_t>(t.dims[0]);
    for (const FusedPart& part : parts) {
      SafetensorsTensor& one = file_tensors_.emplace_back(t);
      one.name = part.name;
      one.dims[0] = part.n;
      one.data = t.data.subspan(part.first * row, part.n * row);
      found_.emplace(one.name, file_tensors_.size() - 1);
    }
  }

  // Files may have tensors anywhere; kernels and the parts of quantised weights are read as numbers.
  void align(SafetensorsTensor& t) {
    const Buffer& copy = aligned_.emplace_back(t.data.size());
    std::memcpy(copy.data(), t.data.data(), t.data.size());
    t.data = {copy.data(), t.data.size()};
  }

  const SafetensorsTensor* find(const std::string& name) const {
    const auto it = found_.find(name);
    return it == found_.end() ? nullptr : &file_tensors_[it->second];
  }

  // config.json may tie a head that the folder stores too: the stored values count, as in transformers 5.24. A head
  // that is the embedding bit for bit is read once.
  void settle_head() {
    if (!config_.tied_embeddings) return;
    const SafetensorsTensor *head = find("lm_head.weight"), *embedding = find("model.embed_tokens.weight");
    const bool quantised = find("lm_head.weight_packed") != nullptr || find("lm_head.qweight") != nullptr;
    if (head == nullptr && !quantised) return;
    const bool same = !quantised && embedding != nullptr && head->type == embedding->type &&
                      head->rank == embedding->rank && head->dims == embedding->dims &&
                      std::memcmp(head->data.data(), embedding->data.data(), head->data.size()) == 0;
    config_.tied_embeddings = same;
    repeats_embedding_ = same ? head : nullptr;
  }

  // transformers multiplies embeddings by sqrt(hidden) in the type of the weights: 25.25 in bf16 for 25.298.
  void settle_embedding_scale() {
    const SafetensorsTensor* embedding = find("model.embed_tokens.weight");
    const auto dtype = embedding == nullptr ? std::nullopt : float_dtype(embedding->type);
    const bool scales = family_of(config_.architecture).scales_embeddings && dtype;
    if (scales) config_.embedding_scale = rounded_to(*dtype, config_.embedding_scale);
  }

  // Which of two ways the zero points of a gptq folder were packed, by all of its matrices.
  void settle_zero_points() {
    if (quantisation_.zeros_are_known) return;
    GptqEvidence all;
    for_each_weight(config_, [&](const WeightSpec& w) {
      const auto add = [&](const WeightSpec& one) {
        const GptqEvidence e = gptq_evidence(one, [this](const std::string& name) { return find(name); });
        all.by_nibble += e.by_nibble;
        all.by_word += e.by_word;
      };
      if (w.n_in == 0 || (w.fused != FusedSplit::kNone && w.hf_expert.empty())) return;
      if (w.n_experts == 0) return add(w);
      for (std::int64_t e = 0; e < w.n_experts; ++e) add(w.expert(e));
    });
    quantisation_.zeros = all.verdict();
  }

  // Renames tensors from Hugging Face's names. A tensor that the model does not use is an error, not silently dropped.
  void rename_tensors(const fs::path& folder) {
    std::unordered_map<std::size_t, std::string> ours;
    std::unordered_set<std::size_t> parts;  // of quantised weights
    ThreadPool pool(available_cpus());
    const auto add = [&](const WeightSpec& w) {
      if (repack(w, folder.string(), parts, pool)) return;
      const auto it = found_.find(w.hf_name);
      if (it == found_.end()) fail(ErrorKind::kFormat, "{}: tensor '{}' is missing", folder.string(), w.hf_name);
      if (w.change == WeightChange::kNone) {
        ours.emplace(it->second, w.name);
        return;
      }
      parts.insert(it->second);
      ChangedWeight& changed = changed_.emplace_back(change_weight(w, file_tensors_[it->second], folder.string()));
      tensors_.push_back({w.name, changed.view});
    };
    for_each_weight(config_, [&](const WeightSpec& w) {
      const bool stacked = w.hf_expert.empty() || found_.contains(w.hf_name);
      if (w.fused != FusedSplit::kNone && stacked) return add_fused(w, folder.string(), parts, pool);
      if (w.n_experts == 0) return add(w);
      for (std::int64_t e = 0; e < w.n_experts; ++e) add(w.expert(e));
    });
    for (std::size_t i = 0; i < file_tensors_.size(); ++i) {
      const SafetensorsTensor& t = file_tensors_[i];
      // Frequencies stored by old files follow from the configuration; transformers does not read them either.
      if (t.name.ends_with(".rotary_emb.inv_freq") || &t == repeats_embedding_) continue;
      if (parts.contains(i) || (quantisation_.method != QuantMethod::kNone && is_unread_scale(t.name))) continue;
      const auto it = ours.find(i);
      if (it == ours.end())
        fail(ErrorKind::kUnsupported, "{}: tensor '{}' is not part of a {} model as this build knows it",
             folder.string(), t.name, architecture_name(config_.architecture));
      const auto dtype = float_dtype(t.type);
      if (!dtype)
        fail(ErrorKind::kUnsupported, "{}: tensor '{}': expected BF16, F16 or F32, found {}", folder.string(), t.name,
             t.shape());
      if (t.rank > 4)
        fail(ErrorKind::kFormat, "{}: tensor '{}': expected a vector or a matrix, found {}", folder.string(), t.name,
             t.shape());
      tensors_.push_back({it->second, view_of_dims(t.data.data(), *dtype, t.dims, t.rank)});
    }
  }

  void add_fused(const WeightSpec& w, const std::string& folder, std::unordered_set<std::size_t>& parts,
                 ThreadPool& pool) {
    const auto find = [&](const std::string& name) -> const SafetensorsTensor* {
      const auto it = found_.find(name);
      if (it == found_.end()) return nullptr;
      parts.insert(it->second);
      return &file_tensors_[it->second];
    };
    if (!w.hf_expert.empty()) return add_expert_views(w, find, folder, tensors_);
    const bool by_key_head = w.fused == FusedSplit::kQkv || w.fused == FusedSplit::kZ;
    repacked_.push_back(by_key_head ? gather_rows(quantisation_, config_.delta, w, find, folder, pool)
                                    : repack_fused(w, find, folder, pool));
    const RepackedMatrix& m = repacked_.back();
    const ConstTensorView view = w.n_experts > 0
                                     ? ConstTensorView(m.blocks.data(), m.dtype, {w.n_experts, w.n_out, w.n_in})
                                     : ConstTensorView(m.blocks.data(), m.dtype, {w.n_out, w.n_in});
    tensors_.push_back({w.name, view});
  }

  // Repacks a matrix that the folder stores quantised; false where it does not.
  bool repack(const WeightSpec& w, const std::string& folder, std::unordered_set<std::size_t>& parts,
              ThreadPool& pool) {
    if (w.n_in == 0) return false;
    std::vector<std::size_t> looked_up;
    const auto find = [&](const std::string& name) -> const SafetensorsTensor* {
      const auto it = found_.find(name);
      if (it == found_.end()) return nullptr;
      looked_up.push_back(it->second);
      return &file_tensors_[it->second];
    };
    std::optional<RepackedMatrix> matrix = repack_quantised(quantisation_, w, find, folder, pool);
    if (!matrix) return false;
    parts.insert(looked_up.begin(), looked_up.end());
    repacked_.push_back(std::move(*matrix));
    const RepackedMatrix& m = repacked_.back();
    tensors_.push_back({w.name, ConstTensorView(m.blocks.data(), m.dtype, {w.n_out, w.n_in}), m.columns});
    return true;
  }

  std::vector<MappedFile> mappings_;
  std::vector<SafetensorsTensor> file_tensors_;
  std::unordered_map<std::string, std::size_t> found_;  // index in file_tensors_, by Hugging Face name
  ModelConfig config_;
  QuantConfig quantisation_;
  bool reads_pictures_ = false;
  bool leaves_out_ = false;                               // there may be tensors that are not read
  std::int64_t n_beside_text_ = 0;                        // tensors left out
  const SafetensorsTensor* repeats_embedding_ = nullptr;  // a tied head, in file_tensors_
  std::deque<Buffer> aligned_;                            // copies of tensors at odd addresses
  std::deque<ChangedWeight> changed_;                     // vectors that tensors_ views
  std::deque<RepackedMatrix> repacked_;                   // matrices that tensors_ views
  TokenizerData tokenizer_;
  std::vector<CheckpointTensor> tensors_;
  std::vector<MetadataEntry> metadata_;
};

}  // namespace

std::unique_ptr<Checkpoint> open_hf(const fs::path& folder) {
  return std::make_unique<HfCheckpoint>(folder);
}

TokenizerData read_hf_tokenizer(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return read_tokenizer_json(read_json(path, kMaxTokenizerBytes).ref());
  if (!file_exists(path / "tokenizer.json") && file_exists(path / "tokenizer.model"))
    fail(ErrorKind::kUnsupported, "{}: the tokenizer is in tokenizer.model; expected tokenizer.json", path.string());
  const JsonFile tokenizer = read_json(path / "tokenizer.json", kMaxTokenizerBytes);
  TokenizerData data = read_tokenizer_json(tokenizer.ref());
  const auto tokenizer_config = read_json_if_exists(path / "tokenizer_config.json", kMaxConfigBytes);
  const auto generation = read_json_if_exists(path / "generation_config.json", kMaxConfigBytes);
  const auto config = read_json_if_exists(path / "config.json", kMaxConfigBytes);
  const std::string chat_template = read_template(path / "chat_template.jinja");
  std::optional<JsonRef> refs[3];
  if (tokenizer_config) refs[0] = tokenizer_config->ref();
  if (generation) refs[1] = generation->ref();
  if (config) refs[2] = config->ref();
  const auto pointer = [&](int i) { return refs[i] ? &*refs[i] : nullptr; };
  apply_side_files({pointer(0), pointer(1), pointer(2), chat_template, read_named_templates(path)}, data);
  return data;
}

}  // namespace mneme
