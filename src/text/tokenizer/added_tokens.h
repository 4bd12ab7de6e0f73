// Tokens that are recognised in raw text before merging: user-defined ones always, control tokens on request.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "src/base/function_ref.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

class AddedTokens {
 public:
  struct Hit {
    std::size_t at = 0, length = 0;
    TokenId id = 0;
  };

  // Ignores the empty string. Of two tokens with the same text the first wins.
  void add(std::string_view text, TokenId id);

  // The next token at or after `from`: the leftmost; among those with the same start, the longest.
  std::optional<Hit> find(std::string_view text, std::size_t from) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, std::int32_t>> children;  // ascending bytes
    TokenId id = -1;
  };
  std::int32_t child(std::int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> starts_{};  // first bytes of tokens
};

// The bytes [begin, end) of `text` that a hit takes with the white space of its flags (kAddedLstrip, kAddedRstrip), none
// of it before `from`.
std::pair<std::size_t, std::size_t> with_white_space(std::string_view text, const AddedTokens::Hit& hit,
                                                     std::uint8_t flags, std::size_t from);

struct TextSection {
  std::string_view text;
  bool at_start = true;       // it starts the text
  bool after_control = true;  // it starts the text or follows a control token: where llama.cpp inserts a space
};

// Calls `on_text(section)` and `on_token(id)` in order.
struct TextSections {
  const AddedTokens& tokens;
  const Tokenizer& tokenizer;
  void for_each(std::string_view text, FunctionRef<void(const TextSection&)> on_text,
                FunctionRef<void(TokenId)> on_token) const;
};

}  // namespace mneme
