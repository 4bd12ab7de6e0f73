#include "apps/eval/slot_hits.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "apps/eval/figures/chart.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"
#include "src/methods/decode_attention.h"

namespace mneme::eval {

SlotHitsObserver::SlotHitsObserver(const std::vector<double>& slots) {
  for (const double s : slots) hits_.push_back({.slots = s});
}

void SlotHitsObserver::see(std::int32_t layer, const DecodeRow& row, const AttentionShape& /*shape*/) {
  if (row.method == nullptr) return;
  const std::int32_t length = row.cache->length();
  const auto& attended = row.method->layer(layer).attended;
  for (std::int32_t s = 0; s < size32(attended); ++s) {
    const std::vector<std::int32_t>& units = attended[s];
    if (units.empty()) continue;
    Head& head = heads_[{row.cache, (std::int64_t{layer} << 32) | s}];
    if (head.length > 0 && head.length + 1 == length)
      count(head, units);
    else
      head.last_used.clear();
    head.last_used.resize(std::max<std::size_t>(head.last_used.size(), units.back() + 1), 0);
    for (const std::int32_t u : units) head.last_used[u] = length;
    head.length = length;
  }
}

void SlotHitsObserver::count(const Head& head, const std::vector<std::int32_t>& units) {
  order_.clear();
  for (std::int32_t u = 0; u < size32(head.last_used); ++u)
    if (head.last_used[u] > 0) order_.push_back(u);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](std::int32_t a, std::int32_t b) { return head.last_used[a] > head.last_used[b]; });
  for (SlotHits& h : hits_) {
    const auto n = std::min(order_.size(), part_of(units.size(), h.slots));
    h.selected += std::ssize(units);
    h.hits += std::count_if(order_.begin(), order_.begin() + n,
                            [&](std::int32_t u) { return std::binary_search(units.begin(), units.end(), u); });
  }
}

std::string slot_hits_table(const std::vector<MethodHits>& methods) {
  std::string text = "| method |", line = "|---|";
  if (methods.empty()) return "";
  for (const SlotHits& h : methods.front().hits) {
    text += fmt::format(" {:g} selection{} |", h.slots, h.slots == 1 ? "" : "s");
    line += "---|";
  }
  text += "\n" + line + "\n";
  for (const MethodHits& m : methods) {
    text += fmt::format("| {} |", m.method);
    for (const SlotHits& h : m.hits) text += fmt::format(" {:.1f} % |", 100 * ratio(h.hits, h.selected));
    text += "\n";
  }
  return text;
}

nlohmann::json slot_hits_json(const std::vector<MethodHits>& methods) {
  nlohmann::json all = nlohmann::json::array();
  for (const MethodHits& m : methods)
    for (const SlotHits& h : m.hits)
      all.push_back({{"method", m.method}, {"slots", h.slots}, {"selected", h.selected}, {"hits", h.hits}});
  return all;
}

std::string slot_hits_svg(const std::vector<MethodHits>& methods) {
  LineChart chart{.title = "Hits in the device cache",
                  .x_title = "cache slots, in selections",
                  .y_title = "hits, % of selected units"};
  for (const MethodHits& m : methods) {
    Series series{.name = m.method};
    for (const SlotHits& h : m.hits) series.points.emplace_back(h.slots, 100 * ratio(h.hits, h.selected));
    chart.series.push_back(std::move(series));
  }
  return line_chart_svg({chart});
}

}  // namespace mneme::eval
