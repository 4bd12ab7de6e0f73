// Audit of a head, computed by hand.
#include <gtest/gtest.h>

#include <array>

#include "src/methods/stats/audit.h"

namespace mneme {
namespace {

TEST(Audit, CountsTheMostAttendedTokensAndTheirShare) {
  // Two query heads over five tokens; tokens 0, 2 and 4 were attended. Summed: .625, .25, .5, .375, .25.
  const std::array<float, 10> p = {0.5f, 0.125f, 0.25f, 0.0f, 0.125f, 0.125f, 0.125f, 0.25f, 0.375f, 0.125f};
  const std::array<std::uint8_t, 5> attended = {1, 0, 1, 0, 1};
  AuditScratch scratch;
  const AuditedHead both = audit_head(p, 2, attended, 3, scratch);
  EXPECT_DOUBLE_EQ(both.mass, (0.875 + 0.5) / 2);
  EXPECT_DOUBLE_EQ(both.recall, 2.0 / 3);  // the three most attended are 0, 2 and 3
  const AuditedHead first = audit_head(std::span(p).first(5), 1, attended, 3, scratch);
  EXPECT_DOUBLE_EQ(first.mass, 0.875);
  EXPECT_DOUBLE_EQ(first.recall, 1.0);  // of tokens 1 and 4, which are equal, the later one
  const std::array<std::uint8_t, 5> all = {1, 1, 1, 1, 1};
  EXPECT_DOUBLE_EQ(audit_head(p, 2, all, 5, scratch).recall, 1.0);
  EXPECT_DOUBLE_EQ(audit_head(p, 2, all, 5, scratch).mass, 1.0);
}

}  // namespace
}  // namespace mneme
