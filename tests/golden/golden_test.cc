// Logits of tiny models of every architecture against transformers, prefill in every chunking and decode.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <tuple>

#include "src/formats/checkpoint.h"
#include "src/formats/open/convert.h"
#include "src/methods/method_state.h"
#include "src/model/shapes.h"
#include "src/recipes/compile.h"
#include "src/recipes/recipes.h"
#include "tests/formats/files.h"
#include "tests/golden/golden_case.h"
#include "tests/model/sequence_runner.h"

namespace mneme {
namespace {

constexpr std::size_t kFewRows = 8;  // of a GEMM with quantised weights: f32 activations, on every machine

struct Difference {
  double max = 0.0, rms = 0.0;  // NaN when any value is
};

// Rows `rows` of all_logits against the stored rows from `first_stored` on.
Difference difference(std::span<const float> all_logits, std::span<const std::int64_t> rows,
                      std::span<const float> stored, std::size_t vocab) {
  Difference d;
  for (std::size_t i = 0; i < rows.size(); ++i)
    for (std::size_t j = 0; j < vocab; ++j) {
      const double error = std::fabs(all_logits[rows[i] * vocab + j] - double{stored[i * vocab + j]});
      if (!(error <= d.max)) d.max = error;
      d.rms += error * error;
    }
  d.rms = std::sqrt(d.rms / static_cast<double>(rows.size() * vocab));
  return d;
}

void expect_within_twice(const Difference& d, const ErrorLevel& level, const std::string& what) {
  EXPECT_LE(d.max, 2 * level.max) << what;
  EXPECT_LE(d.rms, 2 * level.rms) << what;
}

class Golden : public testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  ThreadPool threads{2};
  CpuContext context{.pool = &threads};
  GoldenCase golden = read_golden(std::get<0>(GetParam()));
  DType kv_dtype = std::get<1>(GetParam());
  std::string kv = std::string(dtype_name(kv_dtype));
  std::unique_ptr<Model> model = Model::load(Checkpoint::open(golden.folder), {.context = golden.context}, context);
  std::size_t vocab = static_cast<std::size_t>(model->config().vocab);
};

TEST_P(Golden, PrefillInEveryChunking) {
  const std::vector<float> truth = golden.logits("truth.f32");
  ASSERT_EQ(truth.size(), golden.rows.size() * vocab);
  SequenceRunner runner(*model, kv_dtype, context);
  for (const std::size_t chunk :
       {golden.tokens.size(), std::size_t{1}, std::size_t{7}, std::size_t{32}, std::size_t{33}}) {
    SequenceCache cache(runner.pool);
    const std::vector<float> logits = runner.feed(cache, golden.tokens, chunk);
    const std::string what = "chunks of " + std::to_string(chunk);
    // GEMMs of many rows with quantised weights may round activations to bf16.
    const bool rounds = golden.rounded.contains(kv) && chunk > kFewRows;
    expect_within_twice(difference(logits, golden.rows, truth, vocab),
                        rounds ? golden.rounded.at(kv) : golden.plain.at(kv), what);
    // With keys in bf16, the blocked kernel for many rows may round queries and probabilities to bf16 too, as plain.
    const bool exact_products = kv_dtype != DType::kBF16 || chunk == 1;
    if (!golden.sharp.contains(kv) || !exact_products) continue;
    const std::vector<float> truth_kv = golden.logits("truth_kv_" + kv + ".f32");
    ASSERT_EQ(truth_kv.size(), truth.size());
    expect_within_twice(difference(logits, golden.rows, truth_kv, vocab), golden.sharp.at(kv), "sharp, " + what);
  }
}

TEST_P(Golden, DecodeAfterPrefill) {
  const std::vector<float> truth = golden.logits("truth.f32");
  const auto n_decode = static_cast<std::size_t>(golden.n_decode), split = golden.tokens.size() - n_decode;
  SequenceRunner runner(*model, kv_dtype, context);
  SequenceCache cache(runner.pool);
  const std::span<const std::int32_t> tokens(golden.tokens);
  runner.step(cache, tokens.first(split));
  std::vector<float> logits;
  std::vector<std::int64_t> rows;
  for (std::size_t i = 0; i < n_decode; ++i) {
    const std::vector<float> row = runner.step(cache, tokens.subspan(split + i, 1));
    logits.insert(logits.end(), row.begin(), row.end());
    rows.push_back(static_cast<std::int64_t>(i));
  }
  const std::span<const float> stored = std::span(truth).last(n_decode * vocab);
  EXPECT_LE(difference(logits, rows, stored, vocab).max, 2 * golden.plain.at(kv).max);
}

// Each architecture's file as `mneme convert` writes it: other names, other order of rows.
TEST_P(Golden, PrefillFromGguf) {
  const test::TempFolder folder;
  const auto original = Checkpoint::open(golden.folder);
  convert_to_gguf(*original, folder / "model.gguf", original->require("token_embd.weight", {-1, -1}).view.dtype());
  const auto from_gguf = Model::load(Checkpoint::open(folder / "model.gguf"), {.context = golden.context}, context);
  SequenceRunner runner(*from_gguf, kv_dtype, context);
  SequenceCache cache(runner.pool);
  const std::vector<float> logits = runner.feed(cache, golden.tokens, golden.tokens.size());
  expect_within_twice(difference(logits, golden.rows, golden.logits("truth.f32"), vocab), golden.plain.at(kv), "GGUF");
}

// Logits of the decoded rows with a method.
std::vector<float> decode_with(const std::string& name, std::int32_t budget, const Model& model, DType kv_dtype,
                               const GoldenCase& golden, const CpuContext& context) {
  const MethodShape shape = method_shape_of(model.config(), kv_dtype);
  const Recipe recipe =
      make_recipe(name, {.budget = budget, .sink = 32, .recent = 32, .dense_layers = std::vector<std::int32_t>{}});
  MethodState method(compile(recipe, shape));
  SequenceRunner runner(model, kv_dtype, context);
  SequenceCache cache(runner.pool);
  cache.set_key_basis(method.plan().key_basis);
  const std::span<const std::int32_t> tokens(golden.tokens);
  const std::size_t split = tokens.size() - static_cast<std::size_t>(golden.n_decode);
  std::vector<float> logits;
  for (std::size_t at = 0; at < tokens.size();) {
    const bool prompt = at == 0;
    const std::span<const std::int32_t> piece = tokens.subspan(at, prompt ? split : 1);
    cache.extend(static_cast<std::int32_t>(piece.size()));
    const SequenceRows rows{.cache = &cache,
                            .n_rows = static_cast<std::int32_t>(piece.size()),
                            .want_logits = !prompt,
                            .method = &method,
                            .phase = prompt ? SequencePhase::kPrefill : SequencePhase::kDecode};
    SequenceRunner::append(runner.forward.run({.tokens = piece, .sequences = std::span(&rows, 1)}), logits);
    method.commit(cache);
    at += piece.size();
  }
  return logits;
}

TEST_P(Golden, MethodsWhoseBudgetHoldsAllDecodeAsFullAttention) {
  if (model->config().sliding_window > 0 && model->config().windowed.empty())
    GTEST_SKIP() << "methods select in full layers";
  const auto n_decode = static_cast<std::size_t>(golden.n_decode);
  const std::vector<float> truth = golden.logits("truth.f32");
  const std::span<const float> stored = std::span(truth).last(n_decode * vocab);
  std::vector<std::int64_t> rows(n_decode);
  std::iota(rows.begin(), rows.end(), 0);
  for (const char* name : {"quest", "freekv", "fier", "mneme"}) {
    SCOPED_TRACE(name);
    const std::vector<float> all = decode_with(name, 160, *model, kv_dtype, golden, context);
    EXPECT_LE(difference(all, rows, stored, vocab).max, 2 * golden.plain.at(kv).max);
    const std::vector<float> some = decode_with(name, 96, *model, kv_dtype, golden, context);
    EXPECT_TRUE(std::all_of(some.begin(), some.end(), [](float v) { return std::isfinite(v); }));
    if (golden.tokens.size() > 96) {
      EXPECT_NE(some, all) << "a smaller budget leaves tokens out";
    }
  }
}

// Layers with windows of the model's own, and those with a state, take no part in any method.
TEST_P(Golden, EveryMethodRunsBesideOtherLayers) {
  const bool windows = !model->config().windowed.empty();
  if (!windows && model->config().n_state_layers() == 0) GTEST_SKIP() << "all layers have keys and values";
  const auto n_decode = static_cast<std::size_t>(golden.n_decode);
  const std::vector<float> truth = golden.logits("truth.f32");
  const std::span<const float> stored = std::span(truth).last(n_decode * vocab);
  std::vector<std::int64_t> rows(n_decode);
  std::iota(rows.begin(), rows.end(), 0);
  const MethodShape shape = method_shape_of(model->config(), kv_dtype);
  for (const RecipeRow& row : recipe_table()) {
    SCOPED_TRACE(row.name);
    const Recipe recipe =
        row.make({.budget = 160, .sink = 32, .recent = 32, .dense_layers = std::vector<std::int32_t>{}});
    const auto reasons = check(recipe, shape);
    if (!reasons.empty()) {  // which are of the method, not of the model
      MethodShape plain = shape;
      plain.sliding_window = 0, plain.windowed.clear();
      EXPECT_EQ(check(recipe, plain), reasons);
      continue;
    }
    const auto plan = compile(recipe, shape);
    for (std::int32_t l = 0; l < shape.n_layers && recipe.attend != Attend::kEverything; ++l)
      EXPECT_EQ(plan->dense[l], windows && model->config().windowed[l]);
    const std::string name(row.name);
    const bool exact = recipe.positions == Positions::kAbsolute && !recipe.norm && !recipe.prefill_end;
    const bool holds_little = name != "raas";  // it needs two pages beside sinks and window
    const std::vector<float> all =
        decode_with(name, exact || !holds_little ? 160 : 96, *model, kv_dtype, golden, context);
    EXPECT_TRUE(std::all_of(all.begin(), all.end(), [](float v) { return std::isfinite(v); }));
    if (exact) {
      EXPECT_LE(difference(all, rows, stored, vocab).max, 2 * golden.plain.at(kv).max);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, Golden,
                         testing::Combine(testing::ValuesIn(golden_names()),
                                          testing::Values(DType::kBF16, DType::kF16)),
                         [](const auto& test) {
                           std::string name =
                               std::get<0>(test.param) + "_" + std::string(dtype_name(std::get<1>(test.param)));
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

}  // namespace
}  // namespace mneme
