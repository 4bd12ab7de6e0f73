#include "src/text/constraint/token_trie.h"

#include <algorithm>

#include "src/base/ascii.h"
#include "src/base/size32.h"
#include "src/text/unicode/utf8.h"

namespace mneme {
namespace {

bool is_plain(std::string_view bytes) {
  const bool escaped =
      std::any_of(bytes.begin(), bytes.end(), [](unsigned char c) { return c == '"' || c == '\\' || c < 0x20; });
  return !escaped && find_invalid_utf8(bytes) == kValidUtf8;
}

std::size_t characters(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

}  // namespace

TokenTrie::TokenTrie(const Tokenizer& tokenizer) : bytes_(tokenizer.vocab_size()), next_(bytes_.size(), -1) {
  std::vector<TokenId> sorted;
  any_.resize((bytes_.size() + 63) / 64);
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.is_end(id)) ends_.push_back(id);
    if (tokenizer.is_token(id) && !tokenizer.is_end(id)) any_[id / 64] |= std::uint64_t{1} << (id % 64);
    if (tokenizer.is_control(id) || tokenizer.is_end(id)) continue;
    std::string bytes = tokenizer.token_bytes(id);
    if (bytes.empty() || bytes.size() > kLongest) continue;
    bytes_[id] = std::move(bytes);
    sorted.push_back(id);
  }
  std::sort(sorted.begin(), sorted.end(), [&](TokenId a, TokenId b) {
    const int order = bytes(a).compare(bytes(b));
    return order < 0 || (order == 0 && a < b);
  });
  for (std::size_t i = 1; i < sorted.size(); ++i)
    if (bytes(sorted[i - 1]) == bytes(sorted[i])) next_[sorted[i - 1]] = sorted[i];
  all_ = build(sorted);
  std::vector<TokenId> odd;
  std::vector<std::pair<std::size_t, TokenId>> plain;  // by characters
  for (const TokenId id : sorted) {
    if (is_plain(bytes(id))) {
      plain.emplace_back(characters(bytes(id)), id);
    } else {
      odd.push_back(id);
    }
  }
  std::sort(plain.begin(), plain.end());
  plain_.assign(1, std::vector<std::uint64_t>((bytes_.size() + 63) / 64));
  for (const auto& [n, id] : plain) {
    while (plain_.size() <= n) plain_.push_back(plain_.back());
    plain_[n][id / 64] |= std::uint64_t{1} << (id % 64);
  }
  longest_plain_ = plain_.size() - 1;
  odd_ = build(odd);
}

std::span<const TokenId> TokenTrie::with_byte(std::uint8_t byte) const {
  std::call_once(counted_[byte], [&] {
    for (TokenId id = 0; id < vocab_size(); ++id)
      if (bytes(id).find(static_cast<char>(byte)) != std::string_view::npos) with_byte_[byte].push_back(id);
  });
  return with_byte_[byte];
}

TokenTrie::Range TokenTrie::beginning_with(std::uint8_t byte) const {
  for (std::size_t i = 0; i < all_.size(); i = all_[i].end)
    if (all_[i].byte == byte) return {i, all_[i].end};
  return {};
}

std::vector<TokenTrie::Node> TokenTrie::build(const std::vector<TokenId>& sorted) {
  std::vector<Node> nodes;
  std::vector<std::uint32_t> open;  // nodes on the path to the last token
  std::string_view last;
  for (const TokenId id : sorted) {
    const std::string_view text = bytes(id);
    if (text == last) continue;
    std::size_t same = 0;
    while (same < last.size() && same < text.size() && last[same] == text[same]) ++same;
    const auto close = [&](std::size_t to) {
      for (; open.size() > to; open.pop_back()) nodes[open.back()].end = size32(nodes);
    };
    close(same);
    for (std::size_t i = same; i < text.size(); ++i) {
      open.push_back(size32(nodes));
      nodes.push_back({.byte = byte_of(text[i]), .depth = static_cast<std::uint8_t>(i)});
    }
    nodes.back().token = id;
    last = text;
  }
  for (const std::uint32_t n : open) nodes[n].end = size32(nodes);
  return nodes;
}

}  // namespace mneme
