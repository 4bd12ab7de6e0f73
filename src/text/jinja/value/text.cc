#include "src/text/jinja/value/text.h"

#include <algorithm>
#include <utility>

namespace mneme::jinja {

Text::Text(std::string bytes, Origin origin) {
  if (bytes.empty()) return;
  rep_ = std::make_shared<const Rep>(Rep{.bytes = std::move(bytes), .origins = {}, .origin = origin});
}

void TextBuilder::spend(std::size_t bytes) {
  run_->spend_work(1 + bytes / 64);
  run_->spend_memory(bytes);
}

void TextBuilder::mark(Origin origin, std::size_t n) {
  if (rep_.bytes.empty()) {
    rep_.origin = origin;
  } else if (!rep_.origins.empty()) {
    rep_.origins.append(n, origin);
  } else if (origin != rep_.origin) {
    spend(rep_.bytes.size());
    rep_.origins.assign(rep_.bytes.size(), rep_.origin);
    rep_.origins.append(n, origin);
  }
}

void TextBuilder::add(std::string_view bytes, Origin origin) {
  if (bytes.empty()) return;
  spend(bytes.size());
  mark(origin, bytes.size());
  rep_.bytes.append(bytes);
}

void TextBuilder::add(const Text& text, std::size_t begin, std::size_t end) {
  if (begin >= end) return;
  if (text.uniform()) return add(text.view().substr(begin, end - begin), text.rep_->origin);
  const std::string& origins = text.rep_->origins;
  while (begin < end) {
    const std::size_t other = origins.find_first_not_of(origins[begin], begin);
    const std::size_t to = std::min(other, end);
    add(text.view().substr(begin, to - begin), static_cast<Origin>(origins[begin]));
    begin = to;
  }
}

Text TextBuilder::finish() {
  Text text;
  if (!rep_.bytes.empty()) text.rep_ = std::make_shared<const Text::Rep>(std::move(rep_));
  rep_ = {};
  return text;
}

Text slice(Run& run, const Text& text, std::size_t begin, std::size_t end) {
  if (begin == 0 && end == text.size()) return text;
  TextBuilder out(run);
  out.add(text, begin, end);
  return out.finish();
}

std::size_t count_characters(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

std::size_t character_length(std::string_view text) {
  const unsigned char lead = text[0];
  const std::size_t n = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return std::min(n, text.size());
}

std::size_t byte_of_character(std::string_view text, std::size_t n) {
  std::size_t at = 0;
  for (; n > 0 && at < text.size(); --n) at += character_length(text.substr(at));
  return at;
}

char32_t character_at(std::string_view text, std::size_t byte) {
  const std::size_t n = character_length(text.substr(byte));
  const unsigned char lead = text[byte];
  char32_t code = n == 1 ? lead : lead & (0x7Fu >> n);
  for (std::size_t i = 1; i < n; ++i) code = (code << 6) | (text[byte + i] & 0x3Fu);
  return code;
}

}  // namespace mneme::jinja
