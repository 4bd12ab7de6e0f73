#include "apps/eval/runs/suite_record.h"

#include "src/base/error.h"

namespace mneme::eval {

void add_layers(SuiteRecord& record, const MethodStats& stats) {
  record.layers.resize(stats.layers.size());
  for (std::size_t l = 0; l < stats.layers.size(); ++l) {
    const LayerStats& s = stats.layers[l];
    LayerCost& c = record.layers[l];
    c.attended += s.attended_tokens;
    c.attended_heads += s.attended_heads;
    add_selections(c, s);
  }
}

nlohmann::json to_json(const SuiteRecord& r) {
  nlohmann::json answers = nlohmann::json::array(), along = nlohmann::json::array(), layers = nlohmann::json::array();
  for (const LayerCost& c : r.layers)
    layers.push_back({c.attended, c.attended_heads, c.checks, c.corrections, c.selected, c.replaced});
  for (const SuiteAnswer& a : r.answers)
    answers.push_back({{"id", a.id},
                       {"groups", a.groups},
                       {"texts", a.texts},
                       {"scores", a.scores},
                       {"lines", a.lines},
                       {"tokens", a.tokens},
                       {"depth", a.depth},
                       {"truncated", a.truncated}});
  for (const AlongPoint& p : r.along)
    along.push_back({p.tokens, p.checks, p.corrections, p.selections, p.reused, p.selected, p.replaced, p.attended,
                     p.attended_heads, p.kv_bytes, p.method_bytes, p.segments, p.units_attended, p.segments_attended});
  return {{"context", r.context},
          {"task", r.task},
          {"length", r.length},
          {"context_id", r.context_id},
          {"method", r.method},
          {"prompt_tokens", r.prompt_tokens},
          {"answers", answers},
          {"log_likelihood", r.log_likelihood},
          {"scored_tokens", r.scored_tokens},
          {"prefill_seconds", r.prefill_seconds},
          {"seconds", r.seconds},
          {"cost", cost_json(r.cost)},
          {"along", along},
          {"layers", layers}};
}

SuiteRecord suite_record_from_json(const nlohmann::json& j, const std::string& where) {
  try {
    SuiteRecord r{.context = j.at("context"),
                  .task = j.at("task"),
                  .length = j.at("length"),
                  .context_id = j.at("context_id"),
                  .method = j.at("method"),
                  .prompt_tokens = j.at("prompt_tokens")};
    for (const auto& a : j.at("answers"))
      r.answers.push_back({.id = a.at("id"),
                           .groups = a.at("groups").get<std::vector<std::string>>(),
                           .texts = a.at("texts").get<std::vector<std::string>>(),
                           .scores = a.at("scores").get<std::vector<double>>(),
                           .lines = a.at("lines").get<std::vector<double>>(),
                           .tokens = a.at("tokens"),
                           .depth = a.at("depth"),
                           .truncated = a.at("truncated")});
    r.log_likelihood = j.at("log_likelihood");
    r.scored_tokens = j.at("scored_tokens");
    r.prefill_seconds = j.at("prefill_seconds");
    r.seconds = j.at("seconds");
    r.cost = cost_from_json(j.at("cost"));
    for (const auto& p : j.at("along"))
      r.along.push_back({.tokens = p.at(0),
                         .checks = p.at(1),
                         .corrections = p.at(2),
                         .selections = p.at(3),
                         .reused = p.at(4),
                         .selected = p.at(5),
                         .replaced = p.at(6),
                         .attended = p.at(7),
                         .attended_heads = p.at(8),
                         .kv_bytes = p.at(9),
                         .method_bytes = p.at(10),
                         .segments = p.at(11),
                         .units_attended = p.at(12),
                         .segments_attended = p.at(13)});
    for (const auto& c : j.at("layers"))
      r.layers.push_back({.attended = c.at(0),
                          .attended_heads = c.at(1),
                          .checks = c.at(2),
                          .corrections = c.at(3),
                          .selected = c.at(4),
                          .replaced = c.at(5)});
    return r;
  } catch (const nlohmann::json::exception& e) {
    fail(ErrorKind::kFormat, "{}: expected a record of a run, found another line ({})", where, e.what());
  }
}

}  // namespace mneme::eval
