// Cuts text into the pieces within which byte pairs are merged.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/function_ref.h"
#include "src/tokenizer/regex.h"

namespace mneme {

class Pretokenizer {
 public:
  // Patterns applied one after the other: matches are pieces, and so is what lies between them; the next pattern cuts
  // each piece again, as a text of its own. No pattern leaves the text whole.
  explicit Pretokenizer(const std::vector<std::string>& patterns);

  // By the name that a GGUF file gives.  Errors  kUnsupported: unknown; the message names those that are known.
  static const struct PretokenizerPreset& preset(std::string_view name);

  class Scratch {
   public:
    explicit Scratch(const Pretokenizer& pretokenizer);

   private:
    friend class Pretokenizer;
    std::vector<Regex::Scratch> levels_;
  };

  // Calls `on_piece` with every piece in order; none is empty, and together they are the text. Thread-safe.
  //
  // Requires  text is valid UTF-8.
  // Errors    as Regex::search.
  void split(std::string_view text, Scratch& scratch, FunctionRef<void(std::string_view)> on_piece) const;

 private:
  void split_level(std::size_t level, std::string_view text, Scratch& scratch,
                   FunctionRef<void(std::string_view)> on_piece) const;

  std::vector<Regex> levels_;
};

struct PretokenizerPreset {
  std::vector<std::string_view> names;
  std::vector<std::string> patterns;
  bool ignore_merges = false;  // the models with this pattern take a piece that is a token whole
};

}  // namespace mneme
