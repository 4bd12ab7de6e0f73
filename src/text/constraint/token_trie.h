// Byte trie of a vocabulary's tokens in depth-first order: a byte that is not allowed skips its whole subtree.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "src/base/size32.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

class TokenTrie {
 public:
  struct Node {
    std::uint32_t end = 0;    // index after the subtree of this node
    std::int32_t token = -1;  // the first token with these bytes; -1: none
    std::uint8_t byte = 0;
    std::uint8_t depth = 0;  // bytes before this one
  };
  static constexpr std::size_t kLongest = 200;  // bytes; longer tokens are left out

  // Control tokens are left out: they are not text.
  explicit TokenTrie(const Tokenizer& tokenizer);

  std::span<const Node> all() const { return all_; }
  // Only the tokens that are not plain.
  std::span<const Node> odd() const { return odd_; }
  // The next token with equal bytes; -1: none.
  std::int32_t next_equal(std::int32_t token) const { return next_[token]; }
  // Mask (as in TokenConstraint) of the plain tokens: at most this many complete characters, none of which a JSON
  // string must escape. 128 characters and 128,000 tokens take 2 MiB of masks.
  std::span<const std::uint64_t> plain(std::size_t characters) const {
    return plain_[std::min(characters, longest_plain_)];
  }
  std::size_t longest_plain() const { return longest_plain_; }  // characters
  std::span<const TokenId> ends() const { return ends_; }       // tokens that end an answer
  // Tokens whose bytes have this one somewhere. Threads: any; counted at the first call.
  std::span<const TokenId> with_byte(std::uint8_t byte) const;
  // Nodes of all(), from `begin` to before `end`, of the tokens that begin with this byte.
  struct Range {
    std::size_t begin = 0, end = 0;
  };
  Range beginning_with(std::uint8_t byte) const;
  // Mask of all tokens but those that end an answer: what an answer may have anywhere.
  std::span<const std::uint64_t> any() const { return any_; }
  std::string_view bytes(TokenId id) const { return bytes_[id]; }
  std::int32_t vocab_size() const { return size32(bytes_); }

 private:
  std::vector<Node> build(const std::vector<TokenId>& sorted);

  std::vector<std::string> bytes_;  // by id; empty: left out
  std::vector<Node> all_, odd_;
  std::vector<std::int32_t> next_;
  std::vector<std::vector<std::uint64_t>> plain_;  // by characters
  std::size_t longest_plain_ = 0;
  std::vector<TokenId> ends_;
  std::vector<std::uint64_t> any_;
  mutable std::array<std::once_flag, 256> counted_;
  mutable std::array<std::vector<TokenId>, 256> with_byte_;
};

}  // namespace mneme
