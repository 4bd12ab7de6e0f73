#include "src/cli/run_report.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/cli/progress_bar.h"

namespace mneme::cli {
namespace {

double rate(std::int64_t n, double seconds) {
  return seconds > 0 ? static_cast<double>(n) / seconds : 0.0;
}

std::string mebibytes(std::int64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
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

std::string stats_text(const RunReport& r) {
  const AnswerStats& s = r.answer.stats;
  std::string text;
  text += fmt::format("prompt  {:>8} tokens  {:8.2f} s  {:>8.0f} tokens/s\n", grouped(s.prompt_tokens),
                      s.prefill_seconds, rate(s.prompt_tokens, s.prefill_seconds));
  text += fmt::format("answer  {:>8} tokens  {:8.2f} s  {:>8.0f} tokens/s  {}\n", grouped(s.answer_tokens),
                      s.decode_seconds, rate(s.decode_steps, s.decode_seconds), ending(r.answer.stopped));
  text += fmt::format("memory  {} at the peak, of it {} keys and values ({})\n", mebibytes(r.peak_memory_bytes),
                      mebibytes(s.kv_bytes), r.engine.kv_cache_dtype);
  text += fmt::format("loaded in {:.2f} s; {} thread{}; context {} tokens\n", r.load_seconds, r.engine.threads,
                      r.engine.threads == 1 ? "" : "s", grouped(r.engine.context));
  return text;
}

std::string report_json(const RunReport& r) {
  const AnswerStats& s = r.answer.stats;
  const nlohmann::ordered_json json = {
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
      {"kv_cache_dtype", r.engine.kv_cache_dtype},
      {"context", r.engine.context},
      {"threads", r.engine.threads},
  };
  return json.dump();
}

}  // namespace mneme::cli
