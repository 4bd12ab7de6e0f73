// What the server counts, as Prometheus reads it. Names and meanings are vLLM's where it has them, with the prefix
// "mneme:", or another one. docs/reference/metrics.md lists them.
//
// Threads  any.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mneme/mneme.h"
#include "src/engine/loop/loop_metrics.h"

namespace mneme::server {

// Cumulative counts by upper bound, as Prometheus has them.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1, 0) {}
  void observe(double value);
  // "name_bucket{labels,le="0.1"} 3" and so on.
  void append_to(std::string& out, std::string_view name, std::string_view labels) const;
  std::uint64_t count() const;
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<std::uint64_t> counts_;
  double sum_ = 0;
};

class Metrics final : public LoopMetrics {
 public:
  explicit Metrics(std::string model_name, std::string prefix = "mneme");

  // ---- by the engine loop
  void set(const Gauges& gauges) override;
  void count_step(std::int64_t tokens, double seconds) override;
  void count_prefix(std::int64_t queried, std::int64_t hit) override;
  void count_answer(const Answer& answer) override;
  void count_method(std::string_view method, const KvMethodStats& stats) override;

  // ---- by the HTTP side
  void count_request(std::string_view path, int status);
  void count_connection(int change);
  std::int64_t connections() const;

  std::string text() const;
  Gauges gauges() const;
  // Mean seconds of the answers so far; 0: none yet.
  double mean_answer_seconds() const;

 private:
  struct HttpCounts {
    std::int64_t connections = 0, connections_total = 0;
    std::map<std::pair<std::string, int>, std::int64_t> requests;  // by path and status
  };
  struct StepCounts {
    std::int64_t n = 0;
    Histogram tokens, seconds;
  };
  struct TokenCounts {
    std::int64_t prompt = 0, answer = 0;
    std::int64_t prefix_queries = 0, prefix_hits = 0;
    std::int64_t verify_steps = 0, drafted = 0, accepted = 0;
  };
  struct AnswerCounts {
    std::map<std::string, std::int64_t> finished;  // by reason
    Histogram prompt_tokens, answer_tokens;
  };
  struct Latencies {  // seconds, as those of Answer
    Histogram queue, first_token, between_tokens, per_token, prefill, decode, whole;
  };
  struct MethodCounts {
    std::int64_t queried = 0, hit = 0, recalled = 0, replaced = 0, host_to_device_bytes = 0, kv_bytes = 0;
    std::int64_t corrections = 0, checks = 0, selections = 0, reused = 0;
  };

  // Parts of text(), in its order. Requires  the mutex.
  class Page;
  void append_load(Page& page) const;
  void append_host(Page& page) const;
  void append_disk(Page& page) const;
  void append_spill(Page& page) const;
  void append_totals(Page& page) const;
  void append_requests(Page& page) const;
  void append_histograms(Page& page) const;
  void append_methods(Page& page) const;

  mutable std::mutex mutex_;
  std::string prefix_, labels_;
  Gauges gauges_;
  HttpCounts http_;
  StepCounts steps_;
  TokenCounts tokens_;
  AnswerCounts answers_;
  Latencies latencies_;
  std::map<std::string, MethodCounts> methods_;
  Histogram audit_recall_;
};

}  // namespace mneme::server
