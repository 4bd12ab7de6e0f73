// Strings of a template that record the origin of each byte, template or input. Only bytes of the template may name
// special tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/text/jinja/run/run.h"

namespace mneme::jinja {

// Origin of a byte. Zero is the template's own text; other values are up to the caller.
using Origin = std::uint8_t;
inline constexpr Origin kTemplate = 0;

// Immutable; a copy costs a reference.
class Text {
 public:
  Text() = default;
  // Requires  valid UTF-8.
  explicit Text(std::string bytes, Origin origin = kTemplate);

  std::string_view view() const { return rep_ ? std::string_view(rep_->bytes) : std::string_view(); }
  std::size_t size() const { return rep_ ? rep_->bytes.size() : 0; }
  bool empty() const { return size() == 0; }
  Origin origin(std::size_t byte) const { return rep_->origins.empty() ? rep_->origin : origin_at(byte); }
  // All bytes have one origin.
  bool uniform() const { return !rep_ || rep_->origins.empty(); }

 private:
  friend class TextBuilder;
  struct Rep {
    std::string bytes;
    std::string origins;  // one per byte; empty where all are `origin`
    Origin origin = kTemplate;
  };
  Origin origin_at(std::size_t byte) const { return rep_->origins[byte]; }
  std::shared_ptr<const Rep> rep_;
};

// Builds a text; every byte keeps its origin. The memory counts against the run's limits.
class TextBuilder {
 public:
  explicit TextBuilder(Run& run) : run_(&run) {}
  void add(const Text& text) { add(text, 0, text.size()); }
  void add(const Text& text, std::size_t begin, std::size_t end);
  void add(std::string_view bytes, Origin origin = kTemplate);
  std::size_t size() const { return rep_.bytes.size(); }
  Text finish();

 private:
  void spend(std::size_t bytes);
  // Announces `n` bytes of one origin.
  void mark(Origin origin, std::size_t n);

  Run* run_;
  Text::Rep rep_;
};

Text slice(Run& run, const Text& text, std::size_t begin, std::size_t end);

// Characters are code points, as in Python.
std::size_t count_characters(std::string_view text);
// Byte offset of character `n`; text.size() where there are fewer.
std::size_t byte_of_character(std::string_view text, std::size_t n);
// Length of the first character of `text`. Requires  text is not empty and is valid UTF-8.
std::size_t character_length(std::string_view text);
char32_t character_at(std::string_view text, std::size_t byte);

}  // namespace mneme::jinja
