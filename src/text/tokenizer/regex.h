// A regular expression with Unicode properties (PCRE2, JIT-compiled where the machine allows it).
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
  // Errors  kUnsupported: the pattern is not one that PCRE2 understands, or is too large.
  explicit Regex(std::string pattern);

  const std::string& pattern() const { return pattern_; }

  struct Span {
    std::size_t begin = 0, end = 0;
  };

  // Room for one search at a time; a thread has its own.
  class Scratch {
   public:
    explicit Scratch(const Regex& regex);

   private:
    friend class Regex;
    struct Free {
      void operator()(pcre2_real_match_data_8* p) const;
    };
    std::unique_ptr<pcre2_real_match_data_8, Free> data_;
  };

  // The first match that begins at or after `from`; may be empty. What is before `from` is visible to look-behind.
  // Thread-safe.
  //
  // Requires  text is valid UTF-8; from <= text.size().
  // Errors    kUnsupported: the pattern needs more steps or memory than is sensible for this text.
  std::optional<Span> search(std::string_view text, std::size_t from, Scratch& scratch) const;

 private:
  struct FreeCode {
    void operator()(pcre2_real_code_8* p) const;
  };
  struct FreeContext {
    void operator()(pcre2_real_match_context_8* p) const;
  };
  std::string pattern_;
  std::unique_ptr<pcre2_real_code_8, FreeCode> code_;
  std::unique_ptr<pcre2_real_match_context_8, FreeContext> limits_;
  bool jit_ = false;
};

}  // namespace mneme
