#include "src/engine/loop/read_counter.h"

#include <algorithm>
#include <variant>

#include "src/methods/decode_attention.h"
#include "src/methods/method_state.h"

namespace mneme {

const PageReads* ReadCounter::reads_of(const MethodStats* method) const {
  const auto it = reads_.find(method);
  return it == reads_.end() ? nullptr : &it->second;
}

void ReadCounter::see(std::int32_t layer, const DecodeRow& row, const AttentionShape&) {
  if (row.method == nullptr) return;
  const auto it = reads_.find(&row.method->stats());
  if (it == reads_.end()) return;
  PageReads& reads = it->second;
  const Plan& plan = row.method->plan();
  if (layer == 0) ++reads.steps;
  reads.pages.resize(row.cache->n_pages());
  if (!plan.selects() || plan.dense_layer(layer) || region_at(plan.rules, row.cache->length()).everything) return;
  const std::int32_t unit = plan.rules.unit_tokens;
  reads.sink = plan.rules.sink;
  reads.recent = plan.rules.recent;
  reads.most += std::ssize(row.method->layer(layer).attended) * kPageTokens;
  for (const std::vector<std::int32_t>& units : row.method->layer(layer).attended) {
    for (const std::int32_t u : units) {
      for (std::int32_t at = u * unit; at < std::min((u + 1) * unit, row.cache->length());) {
        const std::int32_t end = std::min({(at / kPageTokens + 1) * kPageTokens, (u + 1) * unit, row.cache->length()});
        reads.pages[at / kPageTokens] += end - at;
        at = end;
      }
    }
  }
}

}  // namespace mneme
