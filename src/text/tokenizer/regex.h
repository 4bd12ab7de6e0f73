// Regular expression with Unicode properties (PCRE2, JIT-compiled where the machine allows it).
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;

namespace mneme {

class Regex {
 public:
  // Errors  kUnsupported: PCRE2 rejects the pattern, or it is too large.
  explicit Regex(std::string pattern);

  const std::string& pattern() const { return pattern_; }

  struct Span {
    std::size_t begin = 0, end = 0;
  };

  // Working memory of one search at a time; one per thread.
  class Scratch {
   public:
    explicit Scratch(const Regex& regex);

   private:
    friend class Regex;
    struct FreeData {
      void operator()(pcre2_real_match_data_8* p) const;
    };
    struct FreeContext {
      void operator()(pcre2_real_match_context_8* p) const;
    };
    std::unique_ptr<pcre2_real_match_data_8, FreeData> data_;
    std::unique_ptr<pcre2_real_match_context_8, FreeContext> limits_;
  };

  // The first match that starts at or after `from`; may be empty. Look-behind sees the text before `from`. Thread-safe.
  //
  // Requires  text is valid UTF-8; from <= text.size().
  // Errors    kUnsupported: the match exceeds the limits of steps or memory.
  std::optional<Span> search(std::string_view text, std::size_t from, Scratch& scratch) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* p) const;
  };
  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  bool jit_ = false;
};

}  // namespace mneme
