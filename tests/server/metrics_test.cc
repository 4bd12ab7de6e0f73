#include "src/server/metrics.h"

#include <gtest/gtest.h>

#include <regex>
#include <sstream>

namespace mneme::server {
namespace {

TEST(Metrics, CountByBucketsAsPrometheusReadsThem) {
  Histogram h({1, 2, 5});
  for (double v : {0.5, 1.0, 1.5, 7.0}) h.observe(v);
  std::string out;
  h.append_to(out, "n", "a=\"b\"");
  EXPECT_EQ(out,
            "n_bucket{a=\"b\",le=\"1\"} 2\nn_bucket{a=\"b\",le=\"2\"} 3\nn_bucket{a=\"b\",le=\"5\"} 3\n"
            "n_bucket{a=\"b\",le=\"+Inf\"} 4\nn_sum{a=\"b\"} 10\nn_count{a=\"b\"} 4\n");
}

TEST(Metrics, EveryLineIsInPrometheusForm) {
  Metrics metrics("a \"model\"\n\\");
  metrics.set({.running = 2, .waiting = 3, .kv_blocks_used = 5, .kv_blocks_total = 20, .kv_block_bytes = 4096});
  metrics.count_request("/v1/completions", 200);
  metrics.count_step(12, 0.01);
  const std::vector<double> between = {0.01, 0.03};
  metrics.count_answer({.finished = "length",
                        .prompt_tokens = 7,
                        .answer_tokens = 3,
                        .verify_steps = 2,
                        .drafted_tokens = 9,
                        .accepted_tokens = 5,
                        .queued = 0.1,
                        .first_token = 0.2,
                        .prefill = 0.1,
                        .decode = 0.04,
                        .whole = 0.24,
                        .between_tokens = between});
  KvMethodStats stats;
  stats.units.selected = 10;
  stats.units.replaced = 4;
  stats.units.missing = 3;
  stats.units.host_to_device_bytes = 3 * 16384;
  stats.kv_bytes_read = 1 << 20;
  stats.selections.corrections = 1;
  stats.selections.checks = 2;
  metrics.count_method("freekv", stats);
  const std::string text = metrics.text();
  const std::regex sample("mneme:[a-z_0-9]+(\\{([a-z_]+=\"(\\\\.|[^\"\\\\])*\",?)+\\}) -?[0-9.e+-]+");
  const std::regex comment("# (HELP|TYPE) mneme:[a-z_0-9]+ .+");
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(std::regex_match(line, sample) || std::regex_match(line, comment)) << line;
  const std::string label = "{model_name=\"a \\\"model\\\"\\n\\\\\"";
  for (const char* expected :
       {"mneme:num_requests_running%} 2\n", "mneme:num_requests_waiting%} 3\n", "mneme:kv_cache_usage_perc%} 0.25\n",
        "mneme:kv_cache_used_bytes%,tier=\"host\"} 20480\n", "mneme:prompt_tokens_total%} 7\n",
        "mneme:spec_decode_num_drafts_total%} 2\n", "mneme:spec_decode_num_draft_tokens_total%} 9\n",
        "mneme:spec_decode_num_accepted_tokens_total%} 5\n",
        "mneme:request_success_total%,finished_reason=\"length\"} 1\n",
        "mneme:kv_retrieval_pages_queried_total%,method=\"freekv\"} 10\n",
        "mneme:kv_retrieval_pages_hit_total%,method=\"freekv\"} 7\n",
        "mneme:kv_retrieval_pages_recalled_total%,method=\"freekv\"} 3\n",
        "mneme:kv_retrieval_pages_replaced_total%,method=\"freekv\"} 4\n",
        "mneme:kv_retrieval_host_to_device_bytes_total%,method=\"freekv\"} 49152\n",
        "mneme:kv_retrieval_kv_read_bytes_total%,method=\"freekv\"} 1048576\n",
        "mneme:http_requests_total%,path=\"/v1/completions\",status=\"200\"} 1\n",
        "mneme:inter_token_latency_seconds_count%} 2\n"}) {
    std::string line = expected;
    line.replace(line.find('%'), 1, label);
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

}  // namespace
}  // namespace mneme::server
