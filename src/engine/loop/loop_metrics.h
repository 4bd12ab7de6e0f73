// What the engine loop counts, for whoever publishes it: the server as Prometheus metrics.
//
// Threads  called on the one that steps the engine; implementations that others read have to lock.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "mneme/stats.h"
#include "src/kv/disk/page_store.h"
#include "src/kv/disk/spill_memory.h"
#include "src/kv/host_store.h"
#include "src/methods/stats/method_stats.h"

namespace mneme {

class LoopMetrics {
 public:
  virtual ~LoopMetrics() = default;

  struct Gauges {
    std::int64_t running = 0, waiting = 0;
    std::int64_t waiting_for_prefix = 0;                 // of these, or of those that run
    std::int64_t preemptions = 0, preempted_tokens = 0;  // so far
    std::int64_t returned_tokens = 0;                    // of these, tokens that a lower tier had
    std::int64_t prefill_chunk = 0;                      // prompt tokens of a step with answers, at most
    std::int64_t kv_blocks_used = 0, kv_blocks_total = 0, kv_block_bytes = 0;
    std::string_view kv_tier = "host";  // where they lie
    bool kv_offloaded = false;          // there, while a device computes
    MethodMemory method_memory;
    std::optional<HostStore::Stats> host;  // the tier under the pool
    std::optional<PageStore::Stats> disk;
    std::int64_t disk_page_bytes = 0;
    std::optional<SpillMemory::Stats> spill;
    std::int64_t cached_sequences = 0;  // whose pages wait for a next request with their prefix
  };
  struct Answer {
    std::string_view finished;  // "stop", "length", "abort"
    std::int64_t prompt_tokens = 0, answer_tokens = 0;
    // Negative: it did not come so far. From submission, but for prefill and decode, which are times of their own.
    double queued = -1, first_token = -1, prefill = -1, decode = -1, whole = -1;
    std::span<const double> between_tokens;
  };

  virtual void set(const Gauges& gauges) = 0;
  virtual void count_step(std::int64_t tokens, double seconds) = 0;
  virtual void count_prefix(std::int64_t queried, std::int64_t hit) = 0;
  virtual void count_answer(const Answer& answer) = 0;
  virtual void count_method(std::string_view method, const KvMethodStats& stats) = 0;
};

// Metrics that are not read.
class NoLoopMetrics final : public LoopMetrics {
 public:
  void set(const Gauges&) override {}
  void count_step(std::int64_t, double) override {}
  void count_prefix(std::int64_t, std::int64_t) override {}
  void count_answer(const Answer&) override {}
  void count_method(std::string_view, const KvMethodStats&) override {}
};

}  // namespace mneme
