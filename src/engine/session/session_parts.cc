#include "src/engine/session/session_parts.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "src/base/error.h"

namespace mneme {
namespace {

constexpr std::string_view kTitle = "mneme session of ranks, version 1\n";
constexpr std::size_t kStampBytes = 4096, kDigits = 16, kMaxParts = 64;

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) { return c == '/' || static_cast<unsigned char>(c) < ' '; });
}

std::optional<SessionManifest::Part> part_of(std::string_view line) {
  SessionManifest::Part part;
  if (line.size() < kDigits + 2 || line[kDigits] != ' ' || !is_plain_name(line.substr(kDigits + 1)))
    return std::nullopt;
  const auto [end, error] = std::from_chars(line.data(), line.data() + kDigits, part.stamp, 16);
  if (error != std::errc() || end != line.data() + kDigits) return std::nullopt;
  part.file = line.substr(kDigits + 1);
  return part;
}

}  // namespace

bool is_manifest(std::span<const std::byte> bytes) {
  return text_of(bytes).starts_with(kTitle);
}

SessionManifest parse_manifest(std::span<const std::byte> bytes, std::string_view name) {
  if (!is_manifest(bytes)) fail(ErrorKind::kFormat, "{}: not a session of several ranks", name);
  std::string_view rest = text_of(bytes).substr(kTitle.size());
  SessionManifest manifest;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\n');
    const auto part = end == rest.npos ? std::nullopt : part_of(rest.substr(0, end));
    if (!part || manifest.parts.size() == kMaxParts)
      fail(ErrorKind::kFormat, "{}: line {} names no part: the file is damaged", name, manifest.parts.size() + 2);
    manifest.parts.push_back(*part);
    rest.remove_prefix(end + 1);
  }
  if (manifest.parts.empty()) fail(ErrorKind::kFormat, "{}: it names no part: the file is damaged", name);
  return manifest;
}

std::string manifest_text(const SessionManifest& manifest) {
  std::string text(kTitle);
  for (const SessionManifest::Part& part : manifest.parts) text += fmt::format("{:016x} {}\n", part.stamp, part.file);
  return text;
}

std::uint64_t session_stamp(std::span<const std::byte> file) {
  return session_checksum(file.first(std::min(file.size(), kStampBytes)));
}

SavedSequence::SavedSequence(const SessionFile& file)
    : parts_{&file}, content_(file.content()), heads_a_part_(file.content().identity.kv.n_kv_heads) {}

SavedSequence::SavedSequence(const std::filesystem::path& path, int rank, int size, Links links) {
  files_.emplace_back(path, links);
  if (is_manifest(files_[0].bytes())) {
    const SessionManifest manifest = parse_manifest(files_[0].bytes(), path.string());
    files_.clear();
    read_parts(manifest, path, links);
  } else {
    own_.push_back(SessionFile::parse(files_[0].bytes(), path.string()));
  }
  for (const SessionFile& file : own_) parts_.push_back(&file);
  take_share(rank, size, path.string());
}

void SavedSequence::read_parts(const SessionManifest& manifest, const std::filesystem::path& path, Links links) {
  for (const SessionManifest::Part& part : manifest.parts) {
    const std::filesystem::path at = path.parent_path() / part.file;
    const MappedFile& file = files_.emplace_back(at, links);
    if (session_stamp(file.bytes()) != part.stamp)
      fail(ErrorKind::kFormat, "{}: it is not the part that {} names", at.string(), path.string());
    own_.push_back(SessionFile::parse(file.bytes(), at.string()));
    const SessionContent &first = own_.front().content(), &here = own_.back().content();
    if (here.tokens != first.tokens || here.n_computed != first.n_computed || here.identity.kv != first.identity.kv ||
        here.method.has_value() != first.method.has_value())
      fail(ErrorKind::kFormat, "{}: it is not of the same session as {}", at.string(), manifest.parts[0].file);
  }
}

// The content of all parts together, cut to the heads of one rank.
void SavedSequence::take_share(int rank, int size, std::string_view name) {
  content_ = parts_.front()->content();
  heads_a_part_ = content_.identity.kv.n_kv_heads;
  const std::int32_t all = heads_a_part_ * static_cast<std::int32_t>(parts_.size());
  if (size == 1 && parts_.size() == 1) return;
  if (content_.reading)
    fail(ErrorKind::kUnsupported, "{}: '{}' read its prompts its own way, which ranks do not share out", name,
         content_.reading->recipe);
  if (all % size != 0)
    fail(ErrorKind::kUnsupported, "{}: {} KV heads cannot be shared out to {} ranks", name, all, size);
  const std::int32_t n = all / size;
  first_head_ = n * rank;
  content_.identity.kv.n_kv_heads = n;
  if (!content_.method) return;
  std::vector<SavedHead> heads;
  for (std::int32_t layer = 0; layer < content_.identity.kv.n_layers; ++layer)
    for (std::int32_t head = first_head_; head < first_head_ + n; ++head)
      heads.push_back(
          parts_[head / heads_a_part_]->content().method->heads[layer * heads_a_part_ + head % heads_a_part_]);
  content_.method->heads = std::move(heads);
}

std::span<const std::byte> SavedSequence::kv(std::int32_t layer, std::int32_t head) const {
  const std::int32_t at = first_head_ + head;
  return parts_[at / heads_a_part_]->kv(layer, at % heads_a_part_);
}

}  // namespace mneme
