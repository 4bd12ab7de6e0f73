#include "src/text/tokenizer/tokenizer.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Moves complete text to the result; the start of a character stays in `pending`.
std::string take_certain(std::string& pending) {
  std::string out;
  std::string_view rest = pending;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.kind == Utf8Kind::kIncomplete) break;
    out += step.kind == Utf8Kind::kCharacter ? rest.substr(0, step.length) : kReplacement;
    rest.remove_prefix(step.length);
  }
  pending.erase(0, pending.size() - rest.size());
  return out;
}

}  // namespace

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool show_special)
    : tokenizer_(&tokenizer), show_special_(show_special) {}

std::string StreamDecoder::push(TokenId id) {
  append_token_text(*tokenizer_, id, show_special_, at_start_, pending_);
  return take_certain(pending_);
}

std::string StreamDecoder::end_character() {
  std::string out = take_certain(pending_);
  if (!pending_.empty()) out += kReplacement;
  pending_.clear();
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = end_character();
  at_start_ = true;
  return out;
}

}  // namespace mneme
