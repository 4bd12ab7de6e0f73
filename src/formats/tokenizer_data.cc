#include "src/formats/tokenizer_data.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/formats/tokenizer_check.h"

namespace mneme {

std::optional<std::int32_t> check_token_id(std::optional<std::int64_t> id, const TokenizerData& data,
                                           std::string_view what, std::string_view file) {
  if (!id) return std::nullopt;
  if (*id < 0 || std::cmp_greater_equal(*id, data.tokens.size()))
    fail(ErrorKind::kFormat, "{}: {} is {}, the vocabulary has {} tokens", file, what, *id, data.tokens.size());
  return count32(*id);
}

void pad_tokens(TokenizerData& data, std::int64_t n, std::string_view file) {
  if (std::ssize(data.tokens) > n)
    fail(ErrorKind::kFormat, "{}: the tokenizer has {} tokens, the embedding {} rows", file, data.tokens.size(), n);
  while (std::ssize(data.tokens) < n) {
    data.tokens.push_back(fmt::format("[PAD{}]", data.tokens.size()));
    data.types.push_back(TokenType::kUnused);
    if (data.kind == TokenizerKind::kSentencePiece) data.scores.push_back(-1e9f);
  }
}

bool ends_by_return(const std::vector<std::string>& tokens) {
  const auto has = [&](const char* token) { return std::find(tokens.begin(), tokens.end(), token) != tokens.end(); };
  return has("<|return|>") && has("<|call|>");
}

}  // namespace mneme
