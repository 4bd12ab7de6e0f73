#include "src/base/underlying.h"
#include "src/text/jinja/run/method.h"
#include "src/text/unicode/unicode_case.h"
#include "src/text/unicode/utf8_step.h"

namespace mneme::jinja {

using unicode::Case;

void add_case(Run& run, const Text& text, std::size_t begin, std::size_t end, unsigned char to, TextBuilder& out) {
  const std::string_view bytes = text.view();
  run.spend_work((end - begin) / 16);
  std::string converted;
  std::size_t from = begin;  // start of the text not yet added, all of one origin
  const auto flush = [&](std::size_t at) {
    out.add(converted, text.origin(from));
    converted.clear();
    from = at;
  };
  for (std::size_t at = begin; at < end;) {
    if (text.origin(at) != text.origin(from)) flush(at);
    const unsigned char byte = bytes[at];
    if (byte < 0x80) {
      const bool is_lower = byte >= 'a' && byte <= 'z', is_upper = byte >= 'A' && byte <= 'Z';
      const bool flips = static_cast<Case>(to) == Case::kLower ? is_upper : is_lower;
      converted += static_cast<char>(flips ? byte ^ 0x20 : byte);
      ++at;
      continue;
    }
    const char32_t c = character_at(bytes, at);
    if (c == 0x3a3 && static_cast<Case>(to) == Case::kLower) {
      append_utf8(converted, unicode::ends_word(bytes, at) ? U'\u03c2' : U'\u03c3');
    } else {
      for (const char32_t x : unicode::convert(c, static_cast<Case>(to))) append_utf8(converted, x);
    }
    at += character_length(bytes.substr(at));
  }
  if (begin < end) flush(end);
}

namespace {

constexpr auto kUpper = underlying(Case::kUpper);
constexpr auto kLower = underlying(Case::kLower);
constexpr auto kTitle = underlying(Case::kTitle);

Text in_case(Run& run, const Text& text, unsigned char to) {
  TextBuilder out(run);
  add_case(run, text, 0, text.size(), to, out);
  return out.finish();
}

}  // namespace

Text upper(Run& run, const Text& text) {
  return in_case(run, text, kUpper);
}
Text lower(Run& run, const Text& text) {
  return in_case(run, text, kLower);
}

Text capitalize(Run& run, const Text& text) {
  if (text.empty()) return text;
  TextBuilder out(run);
  const std::size_t first = character_length(text.view());
  add_case(run, text, 0, first, kTitle, out);
  add_case(run, text, first, text.size(), kLower, out);
  return out.finish();
}

}  // namespace mneme::jinja
