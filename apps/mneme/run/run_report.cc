#include "apps/mneme/run/run_report.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/mneme/progress_bar.h"
#include "src/base/ratio.h"

namespace mneme::cli {
namespace {

double rate(std::int64_t n, double seconds) {
  return ratio(n, seconds);
}

std::string size_text(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", mebibytes(bytes));
}

std::string_view ending(StopReason reason) {
  switch (reason) {
    case StopReason::kEnd:
      return "ended by the model";
    case StopReason::kLength:
      return "ended by --max-tokens";
    case StopReason::kStopString:
      return "ended by a stop string";
    case StopReason::kCancelled:
      return "interrupted";
  }
  return "";
}

}  // namespace

std::int64_t peak_memory_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    std::int64_t kibibytes = 0;
    status >> kibibytes;
    return kibibytes * 1024;
  }
  return 0;
}

namespace {

// What was reused and what a gate flagged, of a method that reuses selections; of others "".
std::string reuse_text(const KvMethodStats::Selections& s) {
  if (s.reused == 0 && s.checks == 0) return "";
  std::string text = fmt::format(" ({:.1f} %), {} reused", percent(s.made, s.made + s.reused), grouped(s.reused));
  if (s.checks > 0) text += fmt::format("; the gate flagged {:.1f} %", 100 * s.correction_rate);
  return text;
}

// What the KV method did; nothing without an answer.
std::string method_text(const KvMethodOptions& options, const KvMethodStats& m) {
  if (m.layers.empty()) return "";
  double achieved = 0;
  int compressed = 0;
  for (const KvMethodStats::Layer& layer : m.layers) {
    if (layer.dense) continue;
    achieved += layer.achieved_budget;
    ++compressed;
  }
  const KvMethodStats::Selections& s = m.selections;
  if (compressed == 0)
    return fmt::format("method  {}: {} layers; a step reads {} of KV cache\n", options.method, m.layers.size(),
                       size_text(static_cast<std::int64_t>(m.kv_bytes_per_step)));
  std::string text = fmt::format(
      "method  {}: {:.0f} tokens a KV head and step in {} of {} layers; a step reads {} of KV cache, {} of "
      "index "
      "({} held)\n",
      options.method, achieved / compressed, compressed, m.layers.size(),
      size_text(static_cast<std::int64_t>(m.kv_bytes_per_step)),
      size_text(static_cast<std::int64_t>(m.index_bytes_per_step)), size_text(m.index_bytes));
  if (s.made + s.reused > 0)
    text += fmt::format("        {} selections made{}; {:.1f} % of the units new a step\n", grouped(s.made),
                        reuse_text(s), 100 * m.units.turnover);
  if (m.units.recalled > 0)
    text += fmt::format(
        "        {:.1f} % of the units were not in the device's slots; {} of it came from the host's memory\n",
        percent(m.units.missing, m.units.selected), size_text(m.units.host_to_device_bytes));
  if (m.prefill_end_seconds > 0) {
    text +=
        fmt::format("        {} tokens of KV heads dropped, {:.1f} ms at the ends of prefills; kept, layer by layer:",
                    grouped(m.dropped_tokens), 1000 * m.prefill_end_seconds);
    for (const KvMethodStats::Layer& layer : m.layers) text += fmt::format(" {:.1f} %", 100 * layer.kept_share);
    text += "\n";
  }
  if (m.audit.samples > 0)
    text +=
        fmt::format("audit   {:.1f} % of the most attended tokens read, {:.1f} % of the attention, error {:.1f} %\n",
                    100 * m.audit.recall, 100 * m.audit.mass, 100 * m.audit.error);
  return text;
}

nlohmann::ordered_json method_json(const KvMethodOptions& options, const KvMethodStats& m) {
  nlohmann::ordered_json layers = nlohmann::ordered_json::array();
  for (const KvMethodStats::Layer& layer : m.layers)
    layers.push_back({{"dense", layer.dense},
                      {"achieved_budget", layer.achieved_budget},
                      {"correction_rate", layer.correction_rate},
                      {"kept_share", layer.kept_share}});
  nlohmann::ordered_json json = {{"name", options.method},
                                 {"layers", layers},
                                 {"kv_bytes_per_step", m.kv_bytes_per_step},
                                 {"index_bytes_per_step", m.index_bytes_per_step},
                                 {"index_bytes", m.index_bytes},
                                 {"selections", m.selections.made},
                                 {"reused", m.selections.reused},
                                 {"correction_rate", m.selections.correction_rate},
                                 {"dropped_tokens", m.dropped_tokens},
                                 {"prefill_end_seconds", m.prefill_end_seconds},
                                 {"turnover", m.units.turnover},
                                 {"selected_units", m.units.selected},
                                 {"missing_units", m.units.missing},
                                 {"recalled_units", m.units.recalled},
                                 {"host_to_device_bytes", m.units.host_to_device_bytes}};
  if (m.audit.samples > 0)
    json["audit"] = {
        {"samples", m.audit.samples}, {"recall", m.audit.recall}, {"mass", m.audit.mass}, {"error", m.audit.error}};
  return json;
}

}  // namespace

std::string stats_text(const RunReport& r) {
  const AnswerStats& s = r.answer.stats;
  std::string text;
  text += fmt::format("prompt  {:>8} tokens  {:8.2f} s  {:>8.0f} tokens/s\n", grouped(s.prompt_tokens),
                      s.prefill_seconds, rate(s.prompt_tokens, s.prefill_seconds));
  text += fmt::format("answer  {:>8} tokens  {:8.2f} s  {:>8.0f} tokens/s  {}\n", grouped(s.answer_tokens),
                      s.decode_seconds, rate(s.decode_steps, s.decode_seconds), ending(r.answer.stopped));
  text += fmt::format("memory  {} at the peak, of it {} KV cache ({})\n", size_text(r.peak_memory_bytes),
                      size_text(s.kv_bytes), name_of(r.engine.kv_cache_dtype));
  text += method_text(r.engine.kv, s.method);
  text += fmt::format("loaded in {:.2f} s; {} thread{}; context {} tokens\n", r.load_seconds, r.engine.threads,
                      r.engine.threads == 1 ? "" : "s", grouped(r.engine.context));
  return text;
}

std::string report_json(const RunReport& r) {
  const AnswerStats& s = r.answer.stats;
  nlohmann::ordered_json json = {
      {"answer", r.answer.text},
      {"stopped", stop_reason_name(r.answer.stopped)},
      {"tokens", r.answer.tokens},
      {"model", r.model_path},
      {"architecture", r.model.architecture},
      {"chat_family", r.model.chat_family},
      {"prompt_tokens", s.prompt_tokens},
      {"shared_tokens", s.shared_tokens},
      {"answer_tokens", s.answer_tokens},
      {"load_seconds", r.load_seconds},
      {"prefill_seconds", s.prefill_seconds},
      {"prefill_tokens_per_second", rate(s.prompt_tokens, s.prefill_seconds)},
      {"decode_seconds", s.decode_seconds},
      {"decode_tokens_per_second", rate(s.decode_steps, s.decode_seconds)},
      {"peak_memory_bytes", r.peak_memory_bytes},
      {"kv_bytes", s.kv_bytes},
      {"kv_cache_dtype", name_of(r.engine.kv_cache_dtype)},
      {"context", r.engine.context},
      {"threads", r.engine.threads},
  };
  if (!s.method.layers.empty()) json["kv_method"] = method_json(r.engine.kv, s.method);
  return json.dump();
}

}  // namespace mneme::cli
