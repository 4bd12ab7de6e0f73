#include "src/text/tokenizer/added_tokens.h"

#include <algorithm>

#include "src/base/ascii.h"
#include "src/base/size32.h"

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

void TextSections::for_each(std::string_view text, FunctionRef<void(std::string_view, bool)> on_text,
                            FunctionRef<void(TokenId)> on_token) const {
  bool after_control = true;
  std::size_t from = 0;
  while (from < text.size()) {
    const auto hit = tokens.find(text, from);
    const std::size_t end = hit ? hit->at : text.size();
    if (end > from) on_text(text.substr(from, end - from), after_control);
    if (!hit) return;
    on_token(hit->id);
    after_control = tokenizer.is_control(hit->id);
    from = hit->at + hit->length;
  }
}

}  // namespace mneme
