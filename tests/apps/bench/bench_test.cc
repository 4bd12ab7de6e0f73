#include "apps/bench/timed/bench.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/bench/shapes.h"
#include "apps/bench/timed/trace.h"
#include "mneme/error.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

struct BenchTest : testing::Test {
  ThreadPool pool{2};
  CpuContext context{.pool = &pool};
  Machine machine = read_machine();
  std::unique_ptr<Model> model;

  BenchTest() {
    ModelConfig c = bench_shape("tiny-16l");
    c.n_layers = 3;
    c.vocab = 512;
    model = Model::random(c, DType::kQ8_0, {.context = 4096}, 1, context);
    machine.l3_bytes = std::min<std::int64_t>(machine.l3_bytes, 16 << 20);  // small probes
    machine.memory_limit = std::min<std::int64_t>(machine.memory_limit, std::int64_t{1} << 30);
  }
  MethodShape method_shape() const {
    const ModelConfig& c = model->config();
    return {.n_layers = static_cast<std::int32_t>(c.n_layers),
            .n_heads = static_cast<std::int32_t>(c.n_heads),
            .n_kv_heads = static_cast<std::int32_t>(c.n_kv_heads),
            .head_dim = static_cast<std::int32_t>(c.head_dim)};
  }
};

double sum(const std::array<double, kOps.size()>& times) {
  double total = 0;
  for (const double t : times) total += t;
  return total;
}

TEST_F(BenchTest, FillsCachesWithNormalNumbersThatTheSeedDecides) {
  PagePool pages(model->kv_shape(DType::kBF16), 3 * 2 * 4 * 3);
  std::vector<SequenceCache> caches;
  for (int i = 0; i < 3; ++i) caches.emplace_back(pages);
  fill_random(caches[0], 100, 1, pool);
  fill_random(caches[1], 100, 1, pool);
  fill_random(caches[2], 100, 2, pool);
  double n = 0, mean = 0, square = 0;
  for (std::int32_t layer = 0; layer < 3; ++layer)
    for (std::int32_t head = 0; head < 2; ++head)
      for (std::int32_t p = 0; p < 100; ++p) {
        const std::byte* token = caches[0].token(layer, head, p);
        const std::size_t bytes = caches[0].shape().token_bytes();
        EXPECT_EQ(std::memcmp(token, caches[1].token(layer, head, p), bytes), 0);
        EXPECT_NE(std::memcmp(token, caches[2].token(layer, head, p), bytes), 0);
        if (p > 0) {
          EXPECT_NE(std::memcmp(token, caches[0].token(layer, head, p - 1), bytes), 0);
        }
        for (std::size_t i = 0; i < bytes / 2; ++i) {
          const double v = static_cast<float>(reinterpret_cast<const bf16*>(token)[i]);
          n += 1;
          mean += v;
          square += v * v;
        }
      }
  EXPECT_LE(std::abs(mean / n), 0.03);
  EXPECT_LE(std::abs(square / n - 1), 0.05);
}

TEST_F(BenchTest, DecodesAtADepth) {
  Bench bench(*model, context, machine, {.steps = 5, .warmup = 2});
  for (const std::int32_t batch : {1, 3}) {
    const BenchResult r = bench.decode({.depth = 300, .batch = batch});
    EXPECT_GT(r.step.median, 0);
    EXPECT_LE(r.step.p10, r.step.median);
    EXPECT_LE(r.step.median, r.step.p99);
    EXPECT_DOUBLE_EQ(r.tokens_per_second, batch / r.step.median);
    // The median of the steps that see 303 to 307 tokens.
    EXPECT_DOUBLE_EQ(r.attended_tokens, 305);
    EXPECT_DOUBLE_EQ(r.cost.kv_read,
                     batch * 305.0 * static_cast<double>(model->kv_shape(DType::kBF16).bytes_per_token()));
    EXPECT_DOUBLE_EQ(r.share, r.cost.bytes() / r.bandwidth / r.step.median);
    EXPECT_LE(sum(r.operations), r.step.p99 * 1.001);
    EXPECT_GE(sum(r.operations), r.step.p10 * 0.9);
    for (const Op op : {Op::kProducts, Op::kAttention, Op::kPointwise, Op::kHead})
      EXPECT_GT(r.operations[static_cast<std::size_t>(op)], 0) << op_name(op);
    EXPECT_TRUE(r.trace.empty());
  }
}

TEST_F(BenchTest, MethodsReadWhatTheyAttend) {
  Bench bench(*model, context, machine, {.steps = 4, .warmup = 1});
  const BenchResult full = bench.decode({.depth = 1000, .batch = 2});
  const auto window = compile(make_recipe("window", {.budget = 128, .sink = 32}), method_shape());
  const BenchResult r = bench.decode({.depth = 1000, .batch = 2, .plan = window});
  EXPECT_DOUBLE_EQ(r.attended_tokens, 128);
  EXPECT_DOUBLE_EQ(r.cost.kv_read, 2 * 128.0 * static_cast<double>(model->kv_shape(DType::kBF16).bytes_per_token()));
  EXPECT_EQ(r.cost.index_read, 0);
  EXPECT_EQ(r.cost.weights, full.cost.weights);

  const auto quest =
      compile(make_recipe("quest", {.budget = 256, .dense_layers = std::vector<std::int32_t>{}}), method_shape());
  const BenchResult q = bench.decode({.depth = 1000, .batch = 2, .plan = quest});
  EXPECT_LE(q.attended_tokens, 256);
  EXPECT_GT(q.cost.index_read, 0);
  EXPECT_GT(q.memory.method, 0);
  EXPECT_LT(q.cost.kv_read, full.cost.kv_read);
}

TEST_F(BenchTest, ReadsPromptsInChunks) {
  Bench bench(*model, context, machine, {.steps = 2, .chunk_tokens = 64, .keep_spans = true});
  const BenchResult r = bench.prefill({.depth = 150, .batch = 2});  // chunks of 32 of each: 32, 32, 32, 32, 22
  EXPECT_EQ(r.trace.size(), 10u);
  EXPECT_DOUBLE_EQ(r.tokens_per_second, 300 / r.prompt.median);
  EXPECT_GE(r.prompt.least, 5 * r.step.least);
  EXPECT_GT(r.gemm_rate, 0);
  const auto token = static_cast<double>(model->kv_shape(DType::kBF16).bytes_per_token());
  EXPECT_DOUBLE_EQ(r.cost.kv_written, 300 * token);
  EXPECT_DOUBLE_EQ(r.cost.kv_read, 2 * (32 + 64 + 96 + 128 + 150) * token);
}

TEST_F(BenchTest, RefusesCachesThatTheMemoryHasNoRoomFor) {
  Bench bench(*model, context, machine, {.steps = 1});
  try {
    bench.decode({.depth = 4000, .batch = 4096});
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kResource);
    EXPECT_NE(std::string(e.what()).find("4096 sequences"), std::string::npos) << e.what();
  }
}

TEST_F(BenchTest, TracesAreWhatBrowsersOpen) {
  Bench bench(*model, context, machine, {.steps = 2, .warmup = 0, .keep_spans = true});
  const BenchResult r = bench.decode({.depth = 10});
  ASSERT_EQ(r.trace.size(), 2u);
  const std::filesystem::path path = std::filesystem::temp_directory_path() / "mneme_bench_trace.json";
  const NamedTrace named{.name = "decode @ d10", .steps = r.trace};
  write_chrome_trace(path, std::span(&named, 1));
  std::ifstream file(path);
  const auto json = nlohmann::json::parse(file);
  std::map<std::string, int> count;
  for (const auto& e : json.at("traceEvents")) {
    EXPECT_EQ(e.at("ph"), "X");
    EXPECT_GE(e.at("ts").get<double>(), 0);
    EXPECT_GE(e.at("dur").get<double>(), 0);
    ++count[e.at("name").get<std::string>()];
  }
  EXPECT_EQ(count["decode @ d10"], 2);
  EXPECT_EQ(count["attention"], 2 * 3);
  EXPECT_EQ(count["head"], 2);
  EXPECT_THROW(write_chrome_trace("/nowhere/at/all", std::span(&named, 1)), Error);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace mneme
