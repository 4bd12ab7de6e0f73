#include "apps/mneme/eval/eval_measure.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <tuple>

#include "apps/mneme/progress_bar.h"
#include "src/base/error.h"
#include "src/recipes/fields.h"
#include "src/recipes/override.h"

namespace mneme::cli {
namespace {

// Records of an earlier run with the same settings.
std::vector<eval::CellRecord> earlier_records(const std::string& file, const nlohmann::json& settings) {
  std::vector<eval::CellRecord> records;
  std::ifstream in(file);
  std::string line;
  bool first = true;
  while (std::getline(in, line)) {
    const nlohmann::json j = nlohmann::json::parse(line, nullptr, false);
    if (j.is_discarded()) break;  // the line that an interruption cut off
    if (first && j.value("settings", nlohmann::json()) != settings)
      fail(ErrorKind::kOption, "--run {}: was made with other settings; give another file, or remove it", file);
    if (!first) records.push_back(eval::record_from_json(j));
    first = false;
  }
  return records;
}

// Answers are bytes of tokens: what is no UTF-8 becomes U+FFFD.
std::string line_of(const nlohmann::json& j) {
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

void write_run(const std::string& file, const nlohmann::json& settings, const std::vector<eval::CellRecord>& records) {
  std::string text = line_of({{"settings", settings}});
  for (const eval::CellRecord& r : records) text += line_of(eval::to_json(r));
  write_text("--run", file, text);
}

void append_run(const std::string& file, const eval::CellRecord& record) {
  std::ofstream out(file, std::ios::app);
  out << line_of(eval::to_json(record));
  if (!out.flush()) fail(ErrorKind::kFile, "--run {}: cannot be written", file);
}

using Key = std::tuple<std::string, std::int64_t, std::int64_t, std::string>;

}  // namespace

nlohmann::json methods_json(const std::vector<eval::MethodSpec>& specs) {
  nlohmann::json methods = nlohmann::json::array();
  for (const eval::MethodSpec& s : specs) {
    nlohmann::json m = {{"label", s.label}, {"method", s.recipe.name}};
    for (const RecipeField& key : recipe_fields()) {
      const std::string value = override_value(s.recipe, key.name);
      if (!value.empty()) m[key.name] = value;
    }
    methods.push_back(m);
  }
  return methods;
}

std::vector<eval::CellRecord> measure(EvalBench& bench, const EvalSetup& o, const std::vector<eval::MethodSpec>& specs,
                                      const std::string& run_file) {
  for (const eval::MethodSpec& s : specs)
    compile(s.recipe, bench.engine().method_shape());  // refuse what cannot be before anything runs
  nlohmann::json settings = eval_settings(o);
  settings["audit"] = o.engine.audit_every;
  settings["methods"] = methods_json(specs);
  std::vector<eval::CellRecord> records;
  if (!run_file.empty()) {
    records = earlier_records(run_file, settings);
    write_run(run_file, settings, records);
  }
  std::set<Key> done;
  for (const eval::CellRecord& r : records) done.insert({r.task, r.length, r.sample, r.method});
  ProgressBar bar(ProgressBar::mode_for_stderr(!o.no_progress));
  const auto total = std::ssize(o.tasks) * std::ssize(o.lengths) * std::ssize(specs) * o.contexts;
  std::int64_t n = 0;
  for (std::int64_t sample = 0; sample < o.contexts; ++sample)
    for (std::int64_t length : o.lengths)
      for (const std::string& task : o.tasks) {
        std::vector<eval::MethodSpec> left;
        for (const eval::MethodSpec& s : specs)
          if (!done.contains({task, length, sample, s.label})) left.push_back(s);
        n += specs.size() - left.size();
        if (left.empty()) continue;
        bench.runner().run(task, length, sample, bench.prose(), left, [&](const eval::CellRecord& r) {
          records.push_back(r);
          if (!run_file.empty()) append_run(run_file, r);
          bar.show("eval, method and context", ++n, total);
        });
      }
  return records;
}

}  // namespace mneme::cli
