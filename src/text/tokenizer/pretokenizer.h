// Splits text into the pieces within which byte pairs merge.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "src/base/function_ref.h"
#include "src/text/tokenizer/regex.h"

namespace mneme {

class Pretokenizer {
 public:
  // Applies patterns in sequence: matches are pieces, and so is the text between them; the next pattern splits each
  // piece again, as a text of its own. No pattern: the text is one piece.
  explicit Pretokenizer(const std::vector<std::string>& patterns);

  // By the name in a GGUF file.  Errors  kUnsupported: unknown; the message lists the known names.
  static const struct PretokenizerPreset& preset(std::string_view name);

  class Scratch {
   public:
    explicit Scratch(const Pretokenizer& pretokenizer);

   private:
    friend class Pretokenizer;
    std::vector<Regex::Scratch> levels_;
  };

  // Calls `on_piece` with every piece in order; pieces are not empty, and concatenated they are the text. Thread-safe.
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
  bool ignore_merges = false;  // pieces that are tokens are not merged
};

}  // namespace mneme
