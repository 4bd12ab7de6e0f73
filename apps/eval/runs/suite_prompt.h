// A question as tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/eval/generated/token_counter.h"
#include "apps/eval/suites/suite.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme::eval {

class TokenizerCounter final : public TokenCounter {
 public:
  explicit TokenizerCounter(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}
  std::int64_t count(std::string_view text) const override { return std::ssize(tokenizer_.encode(text, {})); }

 private:
  const Tokenizer& tokenizer_;
};

// What the chat format adds to a user's first turn.
std::int64_t frame_tokens(const ChatFormat& chat);

struct SuitePrompt {
  std::vector<std::int32_t> document, question;  // together the prompt
  bool truncated = false;
};

// The prompt's middle is left out where it has more than `longest` tokens: the first and the last longest / 2 of them
// are decoded, joined as text and encoded again, as the suites do. The chat format comes after that. Where document and
// question meet, the tokens are those of the whole prompt: a token that spans the boundary belongs to the question.
//
// Requires  longest >= 2.
SuitePrompt suite_prompt(const SuiteItem& item, const Tokenizer& tokenizer, const ChatFormat& chat,
                         std::int64_t longest);

// The middle of a text left out, in tokens. The same text where it is short enough.
std::string without_middle(const std::string& text, const Tokenizer& tokenizer, std::int64_t longest);

}  // namespace mneme::eval
