#include "src/methods/stats/method_stats.h"

namespace mneme {

void add_audits(AuditSums& a, const AuditSums& b) {
  a.samples += b.samples;
  a.recall += b.recall;
  a.mass += b.mass;
  a.error += b.error;
  a.windows += b.windows;
  a.rank += b.rank;
}

}  // namespace mneme
