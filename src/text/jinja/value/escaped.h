// Text with some of its characters escaped.
#pragma once

#include <string>
#include <string_view>

#include "src/text/jinja/value/text.h"

namespace mneme::jinja {

// Copies runs that need no escape. `escape` returns the escape of a character, or nothing.
template <typename Escape>
void print_escaped(const Text& text, TextBuilder& out, const Escape& escape) {
  const std::string_view bytes = text.view();
  std::size_t from = 0;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = character_length(bytes.substr(at));
    const std::string escaped = escape(n == 1 ? static_cast<unsigned char>(bytes[at]) : character_at(bytes, at));
    if (!escaped.empty()) {
      out.add(text, from, at);
      out.add(escaped, text.origin(at));
      from = at + n;
    }
    at += n;
  }
  out.add(text, from, bytes.size());
}

}  // namespace mneme::jinja
