#include "apps/eval/runs/suite_prompt.h"

#include <algorithm>
#include <span>

namespace mneme::eval {
namespace {

// Incomplete characters at the cut become U+FFFD, as in Python's decoders.
std::string decoded(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  StreamDecoder decoder(tokenizer);
  std::string text;
  for (TokenId id : ids) text += decoder.push(id);
  return text + decoder.finish();
}

std::vector<TokenId> framed(const SuiteItem& item, std::string_view text, const Tokenizer& tokenizer,
                            const ChatFormat& chat) {
  if (item.framing == Framing::kPlain) return tokenizer.encode(text, {.add_bos = true});
  return chat.user_turn({.document = {}, .question = text, .system = item.system}, true);
}

}  // namespace

std::int64_t frame_tokens(const ChatFormat& chat) {
  return std::ssize(chat.user_turn({.document = {}, .question = "?", .system = {}}, true)) + 2;
}

std::string without_middle(const std::string& text, const Tokenizer& tokenizer, std::int64_t longest) {
  const std::vector<TokenId> ids = tokenizer.encode(text, {});
  if (std::ssize(ids) <= longest) return text;
  const std::size_t half = longest / 2;
  return decoded(tokenizer, std::span(ids).first(half)) + decoded(tokenizer, std::span(ids).last(half));
}

SuitePrompt suite_prompt(const SuiteItem& item, const Tokenizer& tokenizer, const ChatFormat& chat,
                         std::int64_t longest) {
  SuitePrompt out;
  const std::string text = without_middle(item.prompt, tokenizer, longest);
  out.truncated = text.size() != item.prompt.size();
  const std::size_t question = std::min(item.question_bytes, text.size());
  const std::string document = text.substr(0, text.size() - question);
  if (item.framing == Framing::kDocument) {
    auto split = chat.user_turn_split(
        {.document = document, .question = std::string_view(text).substr(document.size()), .system = item.system},
        true);
    out.document = std::move(split.document);
    out.question = std::move(split.question);
  } else {
    std::vector<TokenId> all = framed(item, text, tokenizer, chat);
    const std::vector<TokenId> first = framed(item, document, tokenizer, chat);
    const std::size_t most = std::min(first.size(), all.size() - 1);
    const auto cut = std::mismatch(all.begin(), all.begin() + most, first.begin()).first;
    out.document.assign(all.begin(), cut);
    out.question.assign(cut, all.end());
  }
  const auto prefix = tokenizer.encode(item.answer_prefix, {.continues = true});
  out.question.insert(out.question.end(), prefix.begin(), prefix.end());
  return out;
}

}  // namespace mneme::eval
