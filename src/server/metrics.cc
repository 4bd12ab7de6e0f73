#include "src/server/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "src/base/ratio.h"
#include "src/kv/page_pool.h"

namespace mneme::server {
namespace {

const std::vector<double> kSeconds = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                                      1,     2.5,    5,     10,   25,    50,   100, 250,  1000};
const std::vector<double> kTokenSeconds = {0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                                           0.075,  0.1,   0.15,   0.25,  0.5,  1,     2.5};
const std::vector<double> kTokens = {1,    2,    5,    10,    20,    50,    100,    200,   500,
                                     1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000};
const std::vector<double> kShares = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1};

// A label's value, escaped for its quotes.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

// Prometheus' text format, written metric by metric.
class Metrics::Page {
 public:
  Page(std::string_view prefix, std::string_view labels) : prefix_(prefix), labels_(labels) {}

  void help(std::string_view name, std::string_view type, std::string_view words) {
    fmt::format_to(std::back_inserter(out_), "# HELP {0}:{1} {2}\n# TYPE {0}:{1} {3}\n", prefix_, name, words, type);
  }
  template <typename T>
  void value(std::string_view name, T v, std::string_view more = "") {
    fmt::format_to(std::back_inserter(out_), "{}:{}{{{}{}}} {}\n", prefix_, name, labels_, more, v);
  }
  template <typename T>
  void one(std::string_view name, std::string_view type, std::string_view words, T v) {
    help(name, type, words);
    value(name, v);
  }
  void histogram(std::string_view name, std::string_view words, const Histogram& h) {
    help(name, "histogram", words);
    h.append_to(out_, fmt::format("{}:{}", prefix_, name), labels_);
  }
  std::string take() { return std::move(out_); }

 private:
  std::string_view prefix_, labels_;
  std::string out_;
};

void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[bucket];
  sum_ += value;
}

std::uint64_t Histogram::count() const {
  std::uint64_t n = 0;
  for (const std::uint64_t c : counts_) n += c;
  return n;
}

void Histogram::append_to(std::string& out, std::string_view name, std::string_view labels) const {
  auto to = std::back_inserter(out);
  std::uint64_t n = 0;
  for (std::size_t i = 0; i < bounds_.size(); ++i) {
    n += counts_[i];
    fmt::format_to(to, "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bounds_[i], n);
  }
  fmt::format_to(to, "{}_bucket{{{},le=\"+Inf\"}} {}\n", name, labels, count());
  fmt::format_to(to, "{}_sum{{{}}} {}\n{}_count{{{}}} {}\n", name, labels, sum_, name, labels, count());
}

Metrics::Metrics(std::string model_name, std::string prefix)
    : prefix_(std::move(prefix)),
      labels_(fmt::format("model_name=\"{}\"", escaped(model_name))),
      steps_{.tokens = Histogram(kTokens), .seconds = Histogram(kSeconds)},
      answers_{.prompt_tokens = Histogram(kTokens), .answer_tokens = Histogram(kTokens)},
      latencies_{.queue = Histogram(kSeconds),
                 .first_token = Histogram(kSeconds),
                 .between_tokens = Histogram(kTokenSeconds),
                 .per_token = Histogram(kTokenSeconds),
                 .prefill = Histogram(kSeconds),
                 .decode = Histogram(kSeconds),
                 .whole = Histogram(kSeconds)},
      audit_recall_(kShares) {}

void Metrics::set(const Gauges& gauges) {
  const std::lock_guard lock(mutex_);
  gauges_ = gauges;
}
Metrics::Gauges Metrics::gauges() const {
  const std::lock_guard lock(mutex_);
  return gauges_;
}

void Metrics::count_step(std::int64_t tokens, double seconds) {
  const std::lock_guard lock(mutex_);
  ++steps_.n;
  steps_.tokens.observe(real(tokens));
  steps_.seconds.observe(seconds);
}

void Metrics::count_prefix(std::int64_t queried, std::int64_t hit) {
  const std::lock_guard lock(mutex_);
  tokens_.prefix_queries += queried;
  tokens_.prefix_hits += hit;
}

void Metrics::count_answer(const Answer& a) {
  const std::lock_guard lock(mutex_);
  ++answers_.finished[std::string(a.finished)];
  tokens_.prompt += a.prompt_tokens;
  tokens_.answer += a.answer_tokens;
  tokens_.verify_steps += a.verify_steps;
  tokens_.drafted += a.drafted_tokens;
  tokens_.accepted += a.accepted_tokens;
  answers_.prompt_tokens.observe(real(a.prompt_tokens));
  answers_.answer_tokens.observe(real(a.answer_tokens));
  const auto observe = [](Histogram& h, double seconds) {
    if (seconds >= 0) h.observe(seconds);
  };
  observe(latencies_.queue, a.queued);
  observe(latencies_.first_token, a.first_token);
  observe(latencies_.prefill, a.prefill);
  observe(latencies_.decode, a.decode);
  observe(latencies_.whole, a.whole);
  double sum = 0;
  for (const double s : a.between_tokens) {
    latencies_.between_tokens.observe(s);
    sum += s;
  }
  if (!a.between_tokens.empty()) latencies_.per_token.observe(ratio(sum, a.between_tokens.size()));
}

void Metrics::count_method(std::string_view method, const KvMethodStats& s) {
  const std::lock_guard lock(mutex_);
  MethodCounts& m = methods_[std::string(method)];
  m.queried += s.units.selected;
  m.hit += s.units.selected - s.units.missing;
  m.recalled += s.units.missing;
  m.replaced += s.units.replaced;
  m.host_to_device_bytes += s.units.host_to_device_bytes;
  m.kv_bytes += s.kv_bytes_read;
  m.corrections += s.selections.corrections;
  m.checks += s.selections.checks;
  m.selections += s.selections.made;
  m.reused += s.selections.reused;
  if (s.audit.samples > 0) audit_recall_.observe(s.audit.recall);
}

void Metrics::count_request(std::string_view path, int status) {
  const std::lock_guard lock(mutex_);
  ++http_.requests[{std::string(path), status}];
}
void Metrics::count_connection(int change) {
  const std::lock_guard lock(mutex_);
  http_.connections += change;
  if (change > 0) http_.connections_total += change;
}
std::int64_t Metrics::connections() const {
  const std::lock_guard lock(mutex_);
  return http_.connections;
}
double Metrics::mean_answer_seconds() const {
  const std::lock_guard lock(mutex_);
  return latencies_.whole.count() == 0 ? 0 : ratio(latencies_.whole.sum(), latencies_.whole.count());
}

void Metrics::append_load(Page& page) const {
  page.one("num_requests_running", "gauge", "Answers that are being computed.", gauges_.running);
  page.one("num_requests_waiting", "gauge", "Answers that wait for room.", gauges_.waiting);
  page.one("num_requests_waiting_for_prefix", "gauge", "Answers that wait for another one to read their document.",
           gauges_.waiting_for_prefix);
  page.one("prefill_chunk_tokens", "gauge", "Prompt tokens of a pass that has tokens of answers, at most.",
           gauges_.prefill_chunk);
  const double used = gauges_.kv_blocks_total == 0 ? 0.0 : ratio(gauges_.kv_blocks_used, gauges_.kv_blocks_total);
  page.one("kv_cache_usage_perc", "gauge", "Share of the KV cache in use, 0 to 1.", used);
  page.one("kv_cache_blocks_used", "gauge", "Pool blocks in use.", gauges_.kv_blocks_used);
  page.one("kv_cache_blocks_total", "gauge", "Pool blocks.", gauges_.kv_blocks_total);
  page.help("cache_config_info", "gauge", "Properties of the KV cache; always 1.");
  page.value("cache_config_info", 1,
             fmt::format(",block_size=\"{}\",num_gpu_blocks=\"{}\"", kPageTokens, gauges_.kv_blocks_total));
  const std::string tier = fmt::format(",tier=\"{}\"", gauges_.kv_tier);
  page.help("kv_cache_used_bytes", "gauge", "Bytes of the KV cache in use, by tier.");
  page.value("kv_cache_used_bytes", gauges_.kv_blocks_used * gauges_.kv_block_bytes, tier);
  page.help("kv_cache_total_bytes", "gauge", "Room for them.");
  page.value("kv_cache_total_bytes", gauges_.kv_blocks_total * gauges_.kv_block_bytes, tier);
  if (gauges_.kv_offloaded)
    page.one("kv_offload_cpu_cache_usage_perc", "gauge", "Share of the host's room for them in use, 0 to 1.", used);
  page.help("kv_retrieval_device_bytes", "gauge", "Device memory of methods beside them, by what is in it.");
  for (const auto& [of, bytes] : {std::pair("slots", gauges_.method_memory.slots),
                                  {"index", gauges_.method_memory.index},
                                  {"dense_layers", gauges_.method_memory.dense_layers}})
    if (gauges_.method_memory.slots > 0) page.value("kv_retrieval_device_bytes", bytes, fmt::format(",of=\"{}\"", of));
  page.one("cached_sequences", "gauge", "Sequences kept for others with the same prefix.", gauges_.cached_sequences);
}

void Metrics::append_spill(Page& page) const {
  if (!gauges_.spill) return;
  const SpillMemory::Stats& s = *gauges_.spill;
  page.one("kv_spill_total_bytes", "gauge", "KV cache in memory and in the spill file.", s.file_bytes);
  page.one("kv_spill_resident_bytes", "gauge", "Of these, in memory.", s.resident_bytes);
  page.one("kv_spill_evicted_bytes_total", "counter", "Bytes that left memory for the file.", s.evicted_bytes);
  page.one("kv_spill_fetched_bytes_total", "counter", "Bytes that came back.", s.fetched_bytes);
  page.one("kv_spill_failed", "gauge", "1: the file cannot be written any more, and memory is not bounded.",
           s.failed ? 1 : 0);
}

void Metrics::append_host(Page& page) const {
  if (!gauges_.host) return;
  const HostStore::Stats& h = *gauges_.host;
  page.one("kv_host_used_bytes", "gauge", "KV cache in the host tier.", h.pages * h.page_bytes);
  page.one("kv_host_total_bytes", "gauge", "Room for them.", h.slots * h.page_bytes);
  page.one("kv_host_pages_written_total", "counter", "Pages of 32 tokens that went there.", h.stored);
  page.one("kv_host_pages_read_total", "counter", "Pages that came back.", h.loaded);
  page.one("kv_host_pages_evicted_total", "counter", "Pages that made room for others.", h.evicted);
}

void Metrics::append_disk(Page& page) const {
  if (!gauges_.disk) return;
  const PageStore::Stats& d = *gauges_.disk;
  page.one("kv_disk_used_bytes", "gauge", "KV cache on the disk.", d.pages * gauges_.disk_page_bytes);
  page.one("kv_disk_total_bytes", "gauge", "Room for them.", d.slots * gauges_.disk_page_bytes);
  page.one("kv_disk_pages_written_total", "counter", "Pages of 32 tokens that were written.", d.stored);
  page.one("kv_disk_pages_read_total", "counter", "Pages that came back.", d.loaded);
  page.one("kv_disk_pages_evicted_total", "counter", "Pages that made room for others.", d.evicted);
  page.one("kv_disk_failed_writes_total", "counter", "Pages that could not be written.", d.failed_writes);
  page.one("kv_disk_failed_reads_total", "counter", "Pages that could not be read, or were damaged: computed again.",
           d.failed_reads);
}

void Metrics::append_totals(Page& page) const {
  page.one("http_connections", "gauge", "Open connections.", http_.connections);
  page.one("http_connections_total", "counter", "Connections so far.", http_.connections_total);
  page.one("engine_steps_total", "counter", "Forward passes.", steps_.n);
  page.one("num_preemptions_total", "counter", "Running answers that gave memory up and waited for it again.",
           gauges_.preemptions);
  page.one("preempted_tokens_total", "counter", "Tokens that these had computed, and lost.", gauges_.preempted_tokens);
  page.one("preempted_tokens_returned_total", "counter", "Of these, tokens that came back from the host tier.",
           gauges_.returned_tokens);
  page.one("prompt_tokens_total", "counter", "Tokens of prompts, cached ones included.", tokens_.prompt);
  page.one("generation_tokens_total", "counter", "Tokens of answers.", tokens_.answer);
  page.one("prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
           tokens_.prefix_queries);
  page.one("prefix_cache_hits_total", "counter", "Of these, tokens found.", tokens_.prefix_hits);
  page.one("spec_decode_num_drafts_total", "counter", "Steps of an answer that verified drafts.", tokens_.verify_steps);
  page.one("spec_decode_num_draft_tokens_total", "counter", "Drafts that these verified.", tokens_.drafted);
  page.one("spec_decode_num_accepted_tokens_total", "counter", "Tokens of answers that came of accepted drafts.",
           tokens_.accepted);
}

void Metrics::append_requests(Page& page) const {
  page.help("request_success_total", "counter", "Answers, by how they ended.");
  for (const char* reason : {"stop", "length", "abort"}) {
    const auto it = answers_.finished.find(reason);
    page.value("request_success_total", it == answers_.finished.end() ? 0 : it->second,
               fmt::format(",finished_reason=\"{}\"", reason));
  }
  page.help("http_requests_total", "counter", "Requests, by path and status.");
  for (const auto& [key, n] : http_.requests)
    page.value("http_requests_total", n, fmt::format(",path=\"{}\",status=\"{}\"", escaped(key.first), key.second));
}

void Metrics::append_histograms(Page& page) const {
  page.histogram("iteration_tokens_total", "Tokens of a forward pass.", steps_.tokens);
  page.histogram("iteration_seconds", "Seconds of a forward pass.", steps_.seconds);
  page.histogram("request_prompt_tokens", "Tokens of a prompt.", answers_.prompt_tokens);
  page.histogram("request_generation_tokens", "Tokens of an answer.", answers_.answer_tokens);
  page.histogram("request_queue_time_seconds", "Seconds until the first forward pass.", latencies_.queue);
  page.histogram("time_to_first_token_seconds", "Seconds until the first token.", latencies_.first_token);
  page.histogram("inter_token_latency_seconds", "Seconds between tokens.", latencies_.between_tokens);
  page.histogram("request_time_per_output_token_seconds", "Mean seconds between tokens of an answer.",
                 latencies_.per_token);
  page.histogram("request_prefill_time_seconds", "Seconds of passes up to the first token.", latencies_.prefill);
  page.histogram("request_decode_time_seconds", "Seconds of passes from then on.", latencies_.decode);
  page.histogram("e2e_request_latency_seconds", "Seconds from submission to the end.", latencies_.whole);
}

void Metrics::append_methods(Page& page) const {
  const auto method_counter = [&](std::string_view name, std::string_view words, std::int64_t MethodCounts::*field) {
    page.help(name, "counter", words);
    for (const auto& [method, counts] : methods_)
      page.value(name, counts.*field, fmt::format(",method=\"{}\"", escaped(method)));
  };
  method_counter("kv_retrieval_pages_queried_total", "Units that steps selected.", &MethodCounts::queried);
  method_counter("kv_retrieval_pages_hit_total", "Of these, found where attention reads them.", &MethodCounts::hit);
  method_counter("kv_retrieval_pages_recalled_total", "Of these, copied there first.", &MethodCounts::recalled);
  method_counter("kv_retrieval_pages_replaced_total", "Of these, not selected by the step before.",
                 &MethodCounts::replaced);
  method_counter("kv_retrieval_host_to_device_bytes_total", "Bytes of what was copied from the host's memory.",
                 &MethodCounts::host_to_device_bytes);
  method_counter("kv_retrieval_kv_read_bytes_total", "Keys and values that attention read in steps with a method.",
                 &MethodCounts::kv_bytes);
  method_counter("kv_retrieval_selections_total", "Selections with a step's own query.", &MethodCounts::selections);
  method_counter("kv_retrieval_reused_total", "Selections made one step ahead.", &MethodCounts::reused);
  method_counter("kv_retrieval_correction_checks_total", "Speculative selections that a gate looked at.",
                 &MethodCounts::checks);
  method_counter("kv_retrieval_corrections_total", "Of these, made again.", &MethodCounts::corrections);
  page.histogram("kv_retrieval_audit_recall", "Recall of audited answers against full attention.", audit_recall_);
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  Page page(prefix_, labels_);
  append_load(page);
  append_host(page);
  append_disk(page);
  append_spill(page);
  append_totals(page);
  append_requests(page);
  append_histograms(page);
  append_methods(page);
  return page.take();
}

}  // namespace mneme::server
