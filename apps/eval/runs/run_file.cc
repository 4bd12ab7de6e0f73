#include "apps/eval/runs/run_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <span>

#include "src/base/atomic_file.h"
#include "src/base/error.h"

namespace mneme::eval {
namespace {

constexpr const char* kSettings = "settings";
constexpr const char* kShard = "shard";

// Answers are bytes of tokens: what is no UTF-8 becomes U+FFFD.
std::string line_of(const nlohmann::json& j) {
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

struct ParsedRun {
  nlohmann::json head;
  std::vector<SuiteRecord> records;
};

ParsedRun parse_run(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorKind::kFile, "{}: cannot be read", path);
  ParsedRun run;
  std::string line;
  for (std::int64_t number = 1; std::getline(in, line); ++number) {
    const bool whole = !in.eof();  // the last line ends with a line end, unless a kill cut it off
    nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_discarded() || !whole) {
      if (in.peek() == std::ifstream::traits_type::eof() && number > 1) break;
      fail(ErrorKind::kFormat, "{}:{}: expected a line of JSON, found '{}'", path, number, line.substr(0, 40));
    }
    if (number == 1 && !(j.is_object() && j.contains(kSettings) && j.contains(kShard)))
      fail(ErrorKind::kFormat, "{}: expected a run of mneme eval --suite, found another file", path);
    if (number == 1)
      run.head = std::move(j);
    else
      run.records.push_back(suite_record_from_json(j, fmt::format("{}:{}", path, number)));
  }
  if (run.head.is_null())
    fail(ErrorKind::kFormat, "{}: expected a run of mneme eval --suite, found an empty file", path);
  return run;
}

// The first key whose values differ.
std::string differing_key(const nlohmann::json& a, const nlohmann::json& b) {
  for (const auto& [key, value] : a.items())
    if (!b.contains(key) || b.at(key) != value) return key;
  for (const auto& [key, value] : b.items())
    if (!a.contains(key)) return key;
  return "";
}

std::vector<std::string> method_order(const nlohmann::json& settings) {
  std::vector<std::string> labels;
  for (const auto& m : settings.value("methods", nlohmann::json::array())) labels.push_back(m.value("label", ""));
  return labels;
}

}  // namespace

Shard parse_shard(std::string_view text) {
  const std::size_t slash = text.find('/');
  Shard s{0, 0};
  const auto number = [](std::string_view t, std::int64_t& out) {
    const auto [end, error] = std::from_chars(t.data(), t.data() + t.size(), out);
    return error == std::errc() && end == t.data() + t.size();
  };
  if (slash == std::string_view::npos || !number(text.substr(0, slash), s.k) || !number(text.substr(slash + 1), s.n) ||
      s.n < 1 || s.k < 1 || s.k > s.n)
    fail(ErrorKind::kOption, "--shard {}: expected K/N with 1 <= K <= N, as in 3/8", text);
  return s;
}

void sort_records(std::vector<SuiteRecord>& records, const nlohmann::json& settings) {
  const auto labels = method_order(settings);
  const auto rank = [&](const SuiteRecord& r) {
    return std::pair(r.context, std::find(labels.begin(), labels.end(), r.method) - labels.begin());
  };
  std::stable_sort(records.begin(), records.end(),
                   [&](const SuiteRecord& a, const SuiteRecord& b) { return rank(a) < rank(b); });
}

RunFile::RunFile(std::string path, nlohmann::json settings, const Shard& shard) : path_(std::move(path)) {
  if (path_.empty()) return;
  const nlohmann::json head = {{kSettings, std::move(settings)}, {kShard, fmt::format("{}/{}", shard.k, shard.n)}};
  std::error_code error;
  if (std::filesystem::exists(path_, error) && std::filesystem::file_size(path_, error) > 0) {
    ParsedRun run = parse_run(path_);
    if (run.head != head) {
      const std::string key = differing_key(run.head.at(kSettings), head.at(kSettings));
      fail(ErrorKind::kOption, "--run {}: was made with other settings ({}); give another file, or remove it", path_,
           key.empty() ? kShard : key);
    }
    records_ = std::move(run.records);
    for (const SuiteRecord& r : records_) known_.insert({r.context, r.method});
  }
  // Rewritten whole, so that no cut line stays before the next record; the old file is there until the new one is.
  std::string text = line_of(head);
  for (const SuiteRecord& r : records_) text += line_of(to_json(r));
  AtomicFile file(path_);
  file.append(std::as_bytes(std::span(text)));
  file.commit();
}

bool RunFile::has(std::int64_t context, std::string_view method) const {
  return known_.contains({context, std::string(method)});
}

void RunFile::append(SuiteRecord record) {
  if (!path_.empty()) {
    std::ofstream out(path_, std::ios::app | std::ios::binary);
    out << line_of(to_json(record));
    if (!out.flush()) fail(ErrorKind::kFile, "--run {}: cannot be written", path_);
  }
  known_.insert({record.context, record.method});
  records_.push_back(std::move(record));
}

MergedRun merge_runs(const std::vector<std::string>& paths) {
  MergedRun merged;
  std::set<std::pair<std::int64_t, std::string>> known;
  for (const std::string& path : paths) {
    ParsedRun run = parse_run(path);
    if (merged.settings.is_null()) merged.settings = run.head.at(kSettings);
    if (run.head.at(kSettings) != merged.settings)
      fail(ErrorKind::kOption, "{}: its settings differ from those of {} ({})", path, paths.front(),
           differing_key(merged.settings, run.head.at(kSettings)));
    for (SuiteRecord& r : run.records)
      if (known.insert({r.context, r.method}).second) merged.records.push_back(std::move(r));
  }
  sort_records(merged.records, merged.settings);
  const auto wanted = merged.settings.value("n_contexts", std::int64_t{0}) * std::ssize(method_order(merged.settings));
  merged.missing = wanted - std::ssize(known);
  return merged;
}

}  // namespace mneme::eval
