#include "src/text/chat/marked_span.h"

#include <gtest/gtest.h>

#include <vector>

namespace mneme {
namespace {

using Tokens = std::vector<std::int32_t>;
using Span = std::pair<std::int32_t, std::int32_t>;

TEST(DifferingSpan, IsWhatStandsBetweenWhatIsAlike) {
  EXPECT_EQ(differing_span(Tokens{1, 2, 3, 4, 5}, Tokens{1, 2, 9, 5}), Span(2, 4));
  EXPECT_EQ(differing_span(Tokens{3, 4, 5}, Tokens{9, 5}), Span(0, 2)) << "at the beginning";
  EXPECT_EQ(differing_span(Tokens{1, 3, 4}, Tokens{1, 9}), Span(1, 3)) << "at the end";
  EXPECT_EQ(differing_span(Tokens{1, 2}, Tokens{3, 4}), Span(0, 2));
}

// What is equal at both ends is counted once.
TEST(DifferingSpan, EndsDoNotOverlap) {
  EXPECT_EQ(differing_span(Tokens{7, 7, 7, 7}, Tokens{7, 7}), Span(2, 4));
  EXPECT_EQ(differing_span(Tokens{7, 7}, Tokens{7, 7, 7}), Span(2, 2));
  EXPECT_EQ(differing_span(Tokens{1, 2, 3}, Tokens{1, 2, 3}), Span(3, 3));
  EXPECT_EQ(differing_span(Tokens{}, Tokens{1}), Span(0, 0));
}

}  // namespace
}  // namespace mneme
