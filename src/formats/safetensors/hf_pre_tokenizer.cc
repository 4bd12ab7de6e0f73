#include "src/formats/safetensors/hf_pre_tokenizer.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/formats/safetensors/ruby_pattern.h"
#include "src/formats/tokenizer_check.h"

namespace mneme {
namespace {

constexpr std::string_view kSpaceMark = "▁";
constexpr std::size_t kMaxPatternBytes = 1 << 16;

// ByteLevel's default pattern: GPT-2's.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// The members of a Sequence, or the node itself.
std::vector<JsonRef> parts(const JsonRef& node, std::string_view list) {
  if (node.at("type").string() != "Sequence") return {node};
  std::vector<JsonRef> out;
  for (const JsonRef& part : node.at(list).elements())
    for (const JsonRef& inner : parts(part, list)) out.push_back(inner);
  return out;
}

[[noreturn]] void unsupported(const JsonRef& node, std::string_view why) {
  fail(ErrorKind::kUnsupported, "{}: {}: {}", node.file(), node.path(), why);
}

std::string escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (std::string_view(R"(\^$.[]|()?*+{}-#)").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

void add_pattern(const JsonRef& node, std::string pattern, TokenizerData& t) {
  if (pattern.empty() || pattern.size() > kMaxPatternBytes)
    fail(ErrorKind::kFormat, "{}: {}: a pattern of {} bytes; expected 1 to {}", node.file(), node.path(),
         pattern.size(), kMaxPatternBytes);
  t.pre_patterns.push_back(std::move(pattern));
}

std::string ruby_pattern(const JsonRef& node, const std::string& pattern) {
  std::string why;
  if (auto out = pcre_of_ruby(pattern, why)) return *out;
  unsupported(node, fmt::format("a pattern with {}, which this build cannot express; write it without", why));
}

void read_split(const JsonRef& node, TokenizerData& t) {
  const std::string behaviour = node.at("behavior").string();
  const bool invert = node.boolean("invert", false);
  // Removed with invert keeps the matches; the patterns in use match everything.
  if (behaviour != "Isolated" && !(behaviour == "Removed" && invert))
    unsupported(node,
                fmt::format("Split with behavior '{}'{}; expected Isolated", behaviour, invert ? ", inverted" : ""));
  const JsonRef pattern = node.at("pattern");
  if (const auto regex = pattern.find("Regex"))
    add_pattern(node, ruby_pattern(node, regex->string()), t);
  else
    add_pattern(node, escaped(pattern.at("String").string()), t);
}

// Returns true for a ByteLevel.
bool read_pre_part(const JsonRef& node, TokenizerData& t) {
  const std::string type = node.at("type").string();
  if (type == "Split") {
    read_split(node, t);
  } else if (type == "Digits") {
    add_pattern(node, node.boolean("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)", t);
  } else if (type == "ByteLevel") {
    t.pre_add_prefix_space = node.boolean("add_prefix_space", true);
    // The library would put a space before every piece of the patterns before.
    if (t.pre_add_prefix_space && !t.pre_patterns.empty())
      unsupported(node, "ByteLevel with add_prefix_space behind other pre-tokenizers; expected it alone");
    if (node.boolean("use_regex", true)) add_pattern(node, std::string(kGpt2Pattern), t);
    return true;
  } else {
    unsupported(
        node, fmt::format("pre-tokenizer '{}'; this build knows ByteLevel, Split, Digits, and Metaspace alone", type));
  }
  return false;
}

void read_metaspace(const JsonRef& node, TokenizerData& t) {
  if (const std::string mark = node.string("replacement", kSpaceMark); mark != kSpaceMark)
    unsupported(node, fmt::format("Metaspace with '{}'; expected '{}'", mark, kSpaceMark));
  t.split_at_marks = node.boolean("split", true);
  const std::string scheme = node.string("prepend_scheme", node.boolean("add_prefix_space", true) ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never")
    node.at("prepend_scheme").wrong("always, first or never");
  t.add_space_prefix = scheme != "never";
  t.space_rule = scheme == "always" ? SpaceRule::kAlways : scheme == "first" ? SpaceRule::kFirst : SpaceRule::kNever;
}

// SentencePiece expressed as normalisers: a mark before the text, marks for spaces.
void read_marks(const JsonRef& node, TokenizerData& t, bool& replaces) {
  const std::string type = node.at("type").string();
  if (type == "Prepend" && node.at("prepend").string() == kSpaceMark && !t.add_space_prefix) {
    t.add_space_prefix = true;
  } else if (type == "Replace" && node.at("content").string() == kSpaceMark &&
             node.at("pattern").string("String", "") == " ") {
    replaces = true;
  } else {
    unsupported(node, fmt::format("normalizer '{}'; with byte_fallback expected Prepend and Replace of '{}'", type,
                                  kSpaceMark));
  }
}

// gemma: the normaliser leaves no space to split at.
bool splits_at_spaces(const JsonRef& pre) {
  const auto pattern = pre.find("pattern");
  return pre.at("type").string() == "Split" && pattern && pattern->string("String", "") == " " &&
         pre.string("behavior", "") == "MergedWithPrevious" && !pre.boolean("invert", false);
}

void read_sentencepiece(const JsonRef& root, TokenizerData& t) {
  t.kind = TokenizerKind::kSentencePiece;
  t.add_space_prefix = false;
  const auto pre = root.find("pre_tokenizer");
  const auto normalizer = root.find("normalizer");
  bool replaces = false;
  if (normalizer)
    for (const JsonRef& part : parts(*normalizer, "normalizers")) read_marks(part, t, replaces);
  if (pre && !(replaces && splits_at_spaces(*pre))) {
    if (pre->at("type").string() != "Metaspace" || replaces || t.add_space_prefix)
      unsupported(*pre,
                  fmt::format("pre-tokenizer '{}' with byte_fallback; expected Metaspace", pre->at("type").string()));
    read_metaspace(*pre, t);
  } else if (!replaces) {
    fail(ErrorKind::kUnsupported, "{}: byte_fallback without Metaspace or a normalizer that marks spaces with '{}'",
         root.file(), kSpaceMark);
  } else {
    t.space_rule = t.add_space_prefix ? SpaceRule::kPrepend : SpaceRule::kReplace;
  }
}

}  // namespace

void read_pre_tokenizer(const JsonRef& root, bool byte_fallback, TokenizerData& t) {
  if (byte_fallback) return read_sentencepiece(root, t);
  t.kind = TokenizerKind::kByteBpe;
  // NFC does not change ordinary text, and this build does not normalise.
  if (const auto normalizer = root.find("normalizer"))
    for (const JsonRef& part : parts(*normalizer, "normalizers"))
      if (const std::string type = part.at("type").string(); type != "NFC")
        unsupported(part, fmt::format("normalizer '{}'; expected none or NFC", type));
  const auto pre = root.find("pre_tokenizer");
  if (!pre)
    fail(ErrorKind::kUnsupported, "{}: BPE without byte_fallback and without a ByteLevel pre-tokenizer", root.file());
  const auto all = parts(*pre, "pretokenizers");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool last = i + 1 == all.size();
    if (read_pre_part(all[i], t) != last) unsupported(last ? *pre : all[i], "expected ByteLevel, once and at the end");
  }
}

namespace {

std::int32_t special_id(const JsonRef& post, const JsonRef& item, const TokenizerData& t) {
  const std::string& name = item.at("id").string();
  const auto ids = post.at("special_tokens").at(name).at("ids").elements();
  if (ids.size() != 1) unsupported(post, fmt::format("special token '{}' stands for {} tokens", name, ids.size()));
  return *check_token_id(ids[0].integer(), t, fmt::format("special token '{}'", name), post.file());
}

void read_template(const JsonRef& post, TokenizerData& t) {
  bool text = false;
  for (const JsonRef& item : post.at("single").elements()) {
    if (item.find("Sequence")) {
      text = true;
      continue;
    }
    const std::int32_t id = special_id(post, item.at("SpecialToken"), t);
    bool& add = text ? t.add_eos : t.add_bos;
    if (add) unsupported(post, "more than one token before or behind the text");
    add = true;
    (text ? t.eos : t.bos) = id;
  }
}

}  // namespace

void read_post_processor(const JsonRef& root, TokenizerData& t) {
  const auto post = root.find("post_processor");
  if (!post) return;
  for (const JsonRef& part : parts(*post, "processors")) {
    const std::string type = part.at("type").string();
    if (type == "TemplateProcessing")
      read_template(part, t);
    else if (type != "ByteLevel")
      unsupported(part, fmt::format("post-processor '{}'; this build knows TemplateProcessing and ByteLevel", type));
  }
}

}  // namespace mneme
