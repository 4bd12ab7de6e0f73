// Strings of a template that remember where each byte came from: from the template, or from what it was given. Only
// the former may name special tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "src/tokenizer/jinja_run.h"

namespace mneme::jinja {

// Whose words a byte is. Zero is the template's own text; the rest are up to the caller.
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
    std::string origins;  // one for each byte; empty where all are `origin`
    Origin origin = kTemplate;
  };
  Origin origin_at(std::size_t byte) const { return static_cast<Origin>(rep_->origins[byte]); }
  std::shared_ptr<const Rep> rep_;
};

// Puts a text together; every byte keeps its origin. What it makes counts against the run's limits.
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
  // `n` bytes of one origin are about to follow.
  void mark(Origin origin, std::size_t n);

  Run* run_;
  Text::Rep rep_;
};

Text slice(Run& run, const Text& text, std::size_t begin, std::size_t end);

// Characters are code points, as in Python.
std::size_t count_characters(std::string_view text);
// The byte at which character `n` begins; text.size() where there are not so many.
std::size_t byte_of_character(std::string_view text, std::size_t n);
// Length of the character that `text` begins with. Requires  text is not empty and is valid UTF-8.
std::size_t character_length(std::string_view text);
char32_t character_at(std::string_view text, std::size_t byte);

}  // namespace mneme::jinja
