#include "apps/eval/runs/long_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

using Cells = std::vector<std::string>;

constexpr std::size_t kParts = 8;

// Means of the lines of each part of the answers of one (task, length, method).
struct LineParts {
  std::string task, method;
  std::int64_t length = 0;
  std::array<double, kParts> sums{}, counts{};

  double percent(std::size_t part) const { return 100 * ratio(sums[part], counts[part]); }
};

std::vector<LineParts> line_parts(const std::vector<SuiteRecord>& records) {
  std::vector<LineParts> all;
  for (const SuiteRecord& r : records) {
    std::vector<double> lines;  // of all turns
    for (const SuiteAnswer& a : r.answers) lines.insert(lines.end(), a.lines.begin(), a.lines.end());
    if (lines.empty()) continue;
    auto at = std::find_if(all.begin(), all.end(), [&](const LineParts& p) {
      return p.task == r.task && p.method == r.method && p.length == r.length;
    });
    if (at == all.end()) at = all.insert(all.end(), {.task = r.task, .method = r.method, .length = r.length});
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::size_t part = i * kParts / lines.size();
      at->sums[part] += lines[i];
      ++at->counts[part];
    }
  }
  return all;
}

}  // namespace

std::string along_markdown(const std::vector<SuiteRecord>& records) {
  const Cells head = {"task",
                      "length",
                      "method",
                      "answer tokens",
                      "budget",
                      "corrected %",
                      "reselected %",
                      "turnover %",
                      "KV MiB",
                      "method MiB",
                      "segments, all heads",
                      "segments attended %"};
  std::vector<Cells> rows;
  for (const SuiteRecord& r : records) {
    AlongPoint before;
    for (const AlongPoint& p : r.along) {
      // Shares of what happened since the point before.
      const auto share = [&](std::int64_t AlongPoint::*part, std::int64_t whole) {
        return whole == 0 ? std::string("-") : fmt::format("{:.1f}", 100 * ratio(p.*part - before.*part, whole));
      };
      const auto since = [&](std::int64_t AlongPoint::*field) { return p.*field - before.*field; };
      const std::int64_t heads = since(&AlongPoint::attended_heads);
      rows.push_back({r.task, std::to_string(r.length), r.method, std::to_string(p.tokens),
                      heads == 0 ? "-" : fmt::format("{:.0f}", ratio(since(&AlongPoint::attended), heads)),
                      share(&AlongPoint::corrections, since(&AlongPoint::checks)),
                      share(&AlongPoint::selections, since(&AlongPoint::selections) + since(&AlongPoint::reused)),
                      share(&AlongPoint::replaced, since(&AlongPoint::selected)),
                      fmt::format("{:.1f}", ratio(p.kv_bytes, 1 << 20)),
                      fmt::format("{:.1f}", ratio(p.method_bytes, 1 << 20)),
                      p.segments == 0 ? "-" : std::to_string(p.segments),
                      p.segments == 0 || p.units_attended == 0
                          ? "-"
                          : fmt::format("{:.1f}", 100 * ratio(p.segments_attended, p.units_attended))});
      before = p;
    }
  }
  return rows.empty() ? "" : markdown_table(head, rows, 4);
}

std::string lines_markdown(const std::vector<SuiteRecord>& records) {
  Cells head = {"task", "length", "method"};
  for (std::size_t part = 1; part <= kParts; ++part) head.push_back(fmt::format("lines to {}/{}", part, kParts));
  std::vector<Cells> rows;
  for (const LineParts& p : line_parts(records)) {
    rows.push_back({p.task, std::to_string(p.length), p.method});
    for (std::size_t part = 0; part < kParts; ++part)
      rows.back().push_back(p.counts[part] == 0 ? "-" : fmt::format("{:.1f}", p.percent(part)));
  }
  return rows.empty() ? "" : markdown_table(head, rows, 3);
}

nlohmann::json lines_json(const std::vector<SuiteRecord>& records) {
  nlohmann::json all = nlohmann::json::array();
  for (const LineParts& p : line_parts(records)) {
    nlohmann::json parts = nlohmann::json::array();
    for (std::size_t part = 0; part < kParts; ++part) parts.push_back(p.percent(part));
    all.push_back({{"task", p.task}, {"length", p.length}, {"method", p.method}, {"percent_by_eighth", parts}});
  }
  return all;
}

nlohmann::json along_json(const std::vector<SuiteRecord>& records) {
  nlohmann::json all = nlohmann::json::array();
  for (const SuiteRecord& r : records)
    for (const AlongPoint& p : r.along)
      all.push_back({{"task", r.task},
                     {"length", r.length},
                     {"context", r.context},
                     {"method", r.method},
                     {"answer_tokens", p.tokens},
                     {"checks", p.checks},
                     {"corrections", p.corrections},
                     {"selections", p.selections},
                     {"reused", p.reused},
                     {"selected_units", p.selected},
                     {"replaced_units", p.replaced},
                     {"attended_tokens", p.attended},
                     {"attended_heads", p.attended_heads},
                     {"kv_bytes", p.kv_bytes},
                     {"method_bytes", p.method_bytes},
                     {"segments", p.segments},
                     {"units_attended", p.units_attended},
                     {"segments_attended", p.segments_attended}});
  return all;
}

}  // namespace mneme::eval
