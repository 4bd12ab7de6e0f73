#include "src/text/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"

namespace mneme {
namespace {

// Patterns may come from a downloaded tokenizer.json. The largest of a published model is about 1 KB.
constexpr std::size_t kLongestPattern = 1 << 16;
// PCRE2's default limit of steps; patterns of published models need a few per match. A run of white space costs
// `\s*[\r\n]+` and `\s+(?!\S)` a few steps per byte, so longer texts are allowed more; a pattern that is quadratic on
// such a text still ends.
constexpr std::size_t kMatchLimit = 10'000'000, kStepsPerByte = 16;
constexpr std::uint32_t kHeapLimitKiB = 256 * 1024;

std::string message_of(int code) {
  std::array<PCRE2_UCHAR, 256> buffer{};
  pcre2_get_error_message(code, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

PCRE2_SPTR bytes_of(std::string_view text) {
  return reinterpret_cast<PCRE2_SPTR>(text.data());
}

// string_view::data() may be null when empty, and older PCRE2 rejects a null subject.
std::string_view non_null(std::string_view text) {
  return text.data() == nullptr ? std::string_view("") : text;
}

}  // namespace

void Regex::FreeCode::operator()(pcre2_real_code_8* p) const {
  pcre2_code_free(p);
}
void Regex::Scratch::FreeContext::operator()(pcre2_real_match_context_8* p) const {
  pcre2_match_context_free(p);
}
void Regex::Scratch::FreeData::operator()(pcre2_real_match_data_8* p) const {
  pcre2_match_data_free(p);
}

Regex::Regex(std::string pattern) : pattern_(std::move(pattern)) {
  if (pattern_.size() > kLongestPattern) {
    fail(ErrorKind::kUnsupported, "a pre-tokenizer pattern of {} bytes; at most {} are sensible", pattern_.size(),
         kLongestPattern);
  }
  int error = 0;
  std::size_t where = 0;
  // \C would match part of a character.
  code_.reset(pcre2_compile(bytes_of(pattern_), pattern_.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C,
                            &error, &where, nullptr));
  if (!code_) {
    fail(ErrorKind::kUnsupported, "the pre-tokenizer pattern \"{}\" is not understood: {} at byte {}",
         pattern_.substr(0, 200), message_of(error), where);
  }
  jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

Regex::Scratch::Scratch(const Regex& regex)
    : data_(pcre2_match_data_create_from_pattern(regex.code_.get(), nullptr)),
      limits_(pcre2_match_context_create(nullptr)) {
  if (!data_ || !limits_) fail(ErrorKind::kResource, "no memory for a pre-tokenizer pattern");
  pcre2_set_heap_limit(limits_.get(), kHeapLimitKiB);
}

std::optional<Regex::Span> Regex::search(std::string_view text, std::size_t from, Scratch& scratch) const {
  text = non_null(text);
  pcre2_match_data* data = scratch.data_.get();
  pcre2_match_context* limits = scratch.limits_.get();
  const std::size_t steps = std::max(kMatchLimit, (text.size() - from) * kStepsPerByte);
  pcre2_set_match_limit(limits, static_cast<std::uint32_t>(std::min<std::size_t>(steps, UINT32_MAX)));
  int rc = PCRE2_ERROR_JIT_STACKLIMIT;
  if (jit_) rc = pcre2_jit_match(code_.get(), bytes_of(text), text.size(), from, 0, data, limits);
  // The JIT runs on 32 KiB of stack; for a rare deep match the interpreter uses the heap.
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
    rc = pcre2_match(code_.get(), bytes_of(text), text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, limits);
  }
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) {
    fail(ErrorKind::kUnsupported,
         "the text cannot be split into words: the pre-tokenizer's pattern fails at byte {}: {}", from, message_of(rc));
  }
  const std::size_t* span = pcre2_get_ovector_pointer(data);
  return Span{span[0], span[1]};
}

}  // namespace mneme
