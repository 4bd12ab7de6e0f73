#include "src/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "src/base/ascii.h"
#include "src/base/size32.h"
#include "src/text/unicode/unicode_case.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme {

std::int32_t AddedTokens::child(std::int32_t node, unsigned char byte) const {
  const auto& children = nodes_[node].children;
  const auto it = std::lower_bound(children.begin(), children.end(), std::pair{byte, std::int32_t{0}});
  return it != children.end() && it->first == byte ? it->second : -1;
}

void AddedTokens::add(std::string_view text, TokenId id) {
  if (text.empty()) return;
  starts_[byte_of(text[0])] = true;
  std::int32_t node = 0;
  for (const char c : text) {
    const unsigned char byte = c;
    std::int32_t next = child(node, byte);
    if (next < 0) {
      next = size32(nodes_);
      nodes_.emplace_back();
      auto& children = nodes_[node].children;
      children.insert(std::lower_bound(children.begin(), children.end(), std::pair{byte, std::int32_t{0}}),
                      {byte, next});
    }
    node = next;
  }
  Node& last = nodes_[node];
  if (last.id < 0) last.id = id;
}

std::optional<AddedTokens::Hit> AddedTokens::find(std::string_view text, std::size_t from) const {
  if (nodes_.size() == 1) return std::nullopt;
  for (std::size_t at = from; at < text.size(); ++at) {
    if (!starts_[byte_of(text[at])]) continue;
    std::optional<Hit> longest;
    std::int32_t node = 0;
    for (std::size_t i = at; i < text.size(); ++i) {
      node = child(node, text[i]);
      if (node < 0) break;
      const TokenId id = nodes_[node].id;
      if (id >= 0) longest = Hit{at, i + 1 - at, id};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

namespace {

// Bytes of the white space character that starts `text`; 0: none.
std::size_t white_length(std::string_view text) {
  if (text.empty()) return 0;
  const Utf8Step step = utf8_step(text);
  return step.kind == Utf8Kind::kCharacter && unicode::is_white_space(step.code_point) ? step.length : 0;
}

}  // namespace

std::pair<std::size_t, std::size_t> with_white_space(std::string_view text, const AddedTokens::Hit& hit,
                                                     std::uint8_t flags, std::size_t from) {
  std::size_t begin = hit.at, end = hit.at + hit.length;
  while ((flags & kAddedLstrip) != 0 && begin > from) {
    std::size_t character = begin - 1;
    while (character > from && (byte_of(text[character]) & 0xc0u) == 0x80u) --character;
    if (white_length(text.substr(character)) != begin - character) break;
    begin = character;
  }
  if ((flags & kAddedRstrip) != 0)
    while (const std::size_t n = white_length(text.substr(end))) end += n;
  return {begin, end};
}

void TextSections::for_each(std::string_view text, FunctionRef<void(const TextSection&)> on_text,
                            FunctionRef<void(TokenId)> on_token) const {
  bool after_control = true;
  std::size_t from = 0, search = 0;  // what is emitted; where the next token is searched
  const auto emit = [&](std::size_t end) {
    if (end > from) on_text({text.substr(from, end - from), from == 0, after_control});
  };
  while (const auto hit = tokens.find(text, search)) {
    const auto [begin, end] = with_white_space(text, *hit, tokenizer.added_flags(hit->id), from);
    emit(begin);
    on_token(hit->id);
    after_control = tokenizer.is_control(hit->id);
    from = end;
    // Not `end`: a token that begins with white space which this one takes is found all the same, as in `tokenizers`.
    search = hit->at + hit->length;
  }
  emit(text.size());
}

}  // namespace mneme
