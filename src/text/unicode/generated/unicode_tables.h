// Tables of character properties (tools/make_unicode_tables.py makes them); src/tokenizer/unicode_case.h reads them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mneme::unicode {

struct CodeRange {
  char32_t first, last;
};
// Every `stride`-th character from `first` to `last` becomes the one `delta` further.
struct CaseRun {
  char32_t first, last;
  std::int32_t stride, delta;
};
struct CaseSpecial {
  char32_t code;
  std::u32string_view to;
};

// All ascending.
extern const std::vector<CaseRun> kUpperRuns, kLowerRuns, kTitleRuns;
extern const std::vector<CaseSpecial> kUpperSpecial, kLowerSpecial, kTitleSpecial;
extern const std::vector<CodeRange> kCased, kCaseIgnorable, kCasedIgnorable, kUnprintable;

}  // namespace mneme::unicode
