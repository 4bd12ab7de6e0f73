#include "src/formats/tokenizer_data.h"

#include <algorithm>
#include <array>
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

namespace {

constexpr std::array<std::pair<std::string_view, SpaceRule>, 5> kSpaceRules = {{{"always", SpaceRule::kAlways},
                                                                                {"first", SpaceRule::kFirst},
                                                                                {"never", SpaceRule::kNever},
                                                                                {"prepend", SpaceRule::kPrepend},
                                                                                {"replace", SpaceRule::kReplace}}};

}  // namespace

std::string_view space_rule_name(SpaceRule rule) {
  for (const auto& [name, r] : kSpaceRules)
    if (r == rule) return name;
  return {};
}

std::optional<SpaceRule> space_rule_of(std::string_view name) {
  for (const auto& [n, rule] : kSpaceRules)
    if (n == name) return rule;
  return std::nullopt;
}

void pad_tokens(TokenizerData& data, std::int64_t n, std::string_view file) {
  if (std::ssize(data.tokens) > n)
    fail(ErrorKind::kFormat, "{}: the tokenizer has {} tokens, the embedding {} rows", file, data.tokens.size(), n);
  while (std::ssize(data.tokens) < n) {
    data.tokens.push_back(fmt::format("[PAD{}]", data.tokens.size()));
    data.types.push_back(TokenType::kAbsent);
    if (data.kind == TokenizerKind::kSentencePiece) data.scores.push_back(-1e9f);
  }
}

std::vector<std::int32_t> absent_tokens(const TokenizerData& data) {
  std::vector<std::int32_t> ids;
  for (std::size_t i = 0; i < data.types.size(); ++i)
    if (data.types[i] == TokenType::kAbsent) ids.push_back(count32(i));
  return ids;
}

bool ends_by_return(const std::vector<std::string>& tokens) {
  const auto has = [&](const char* token) { return std::find(tokens.begin(), tokens.end(), token) != tokens.end(); };
  return has("<|return|>") && has("<|call|>");
}

}  // namespace mneme
