#include "apps/bench/step_cost.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

#include "apps/bench/shapes.h"
#include "mneme/error.h"

namespace mneme {
namespace {

// A shape small enough to build in a test.
ModelConfig small_shape() {
  ModelConfig c = bench_shape("tiny-16l");
  c.n_layers = 3;
  c.vocab = 512;
  return c;
}

TEST(Shapes, HaveTheParametersThatTheirAuthorsPublished) {
  const std::map<std::string, std::int64_t> published = {
      {"qwen2.5-0.5b", 494032768},   {"qwen3-0.6b", 596049920},       {"llama-3.2-1b", 1235814400},
      {"qwen2.5-1.5b", 1543714304},  {"llama-3.2-3b", 3212749824},    {"llama-2-7b", 6738415616},
      {"qwen2.5-7b", 7615616512},    {"mistral-7b-v0.3", 7248023552}, {"llama-3.1-8b", 8030261248},
      {"qwen3-8b", 8190735360},      {"qwen3-30b-a3b", 30532122624},  {"gpt-oss-20b", 20914757184},
      {"llama-3.1-70b", 70553706496}};
  for (const auto& [name, count] : published) EXPECT_EQ(parameter_count(bench_shape(name)), count) << name;
  EXPECT_EQ(bench_shapes().size(), published.size() + 1);
  EXPECT_THROW(bench_shape("gpt-5"), Error);
}

TEST(StepCost, RowsOfAMixtureShareTheExpertsThatTheyBothGoTo) {
  ModelConfig c = small_shape();
  c.experts = {.n = 8, .n_used = 2, .ffn = 32};
  const WeightBytes weights{.step = 1000, .embedding_row = 0, .head = 0, .experts = 400};
  const KvShape kv{.n_layers = 3, .n_kv_heads = 2, .head_dim = 32};
  EXPECT_DOUBLE_EQ(dense_cost(c, weights, kv, 10, 1, 1, true).weights, 1000);
  EXPECT_DOUBLE_EQ(dense_cost(c, weights, kv, 10, 1, 2, true).weights, 1000 + 400 * 0.75) << "1 - (3/4)^2, of 1/4";
}

TEST(StepCost, OnlyLayersWithAWindowReadTheWindow) {
  ModelConfig c = small_shape();
  const KvShape kv{.n_layers = 3, .n_kv_heads = 2, .head_dim = 32};
  const double per_layer = static_cast<double>(kv.bytes_per_token()) / 3;
  c.sliding_window = 8;
  c.windowed = {true, false, true};
  EXPECT_DOUBLE_EQ(dense_cost(c, {}, kv, 99, 1, 1, true).kv_read, (100 + 8 + 8) * per_layer);
}

TEST(StepCost, CountsWhatAStepMustMove) {
  ThreadPool pool(2);
  const CpuContext context{.pool = &pool};
  const ModelConfig c = small_shape();
  const auto model = Model::random(c, DType::kQ8_0, {.context = 4096}, 1, context);
  const KvShape kv = model->kv_shape(DType::kBF16);
  const double token = 3 * 2 * (32 + 32) * 2;  // layers, KV heads, K and V, bytes
  ASSERT_EQ(static_cast<double>(kv.bytes_per_token()), token);

  const StepCost one = dense_cost(*model, kv, 100, 1, 1, true);
  EXPECT_EQ(one.weights, static_cast<double>(model->step_weight_bytes()));
  EXPECT_EQ(one.kv_read, 101 * token);
  EXPECT_EQ(one.kv_written, token);
  EXPECT_EQ(one.index_read, 0);
  const double matrices = 3.0 * 256 * (256 + 64 + 64 + 256 + 3 * 768);
  EXPECT_EQ(one.operations, 2 * matrices + 4 * 3 * 8 * 32 * 101.0 + 2 * 256 * 512.0);

  const StepCost four = dense_cost(*model, kv, 100, 1, 4, true);
  EXPECT_EQ(four.weights - one.weights, 3 * 256 / 32 * 34);  // their rows of the embedding table
  EXPECT_EQ(four.kv_read, 4 * one.kv_read);
  EXPECT_EQ(four.operations, 4 * one.operations);

  const StepCost chunk = dense_cost(*model, kv, 10, 5, 1, false);
  EXPECT_EQ(chunk.kv_read, 15 * token);
  EXPECT_EQ(chunk.kv_written, 5 * token);
  EXPECT_EQ(chunk.operations, 5 * 2 * matrices + 4 * 3 * 8 * 32 * (11.0 + 12 + 13 + 14 + 15));
  EXPECT_EQ(chunk.weights, static_cast<double>(model->step_weight_bytes()) + 4 * 256 / 32 * 34 -
                               static_cast<double>(model->head().bytes()));
}

TEST(StepCost, SeesNoFurtherThanTheWindow) {
  ThreadPool pool(1);
  ModelConfig c = small_shape();
  c.sliding_window = 8;
  const auto model = Model::random(c, DType::kBF16, {.context = 4096}, 1, {.pool = &pool});
  const KvShape kv = model->kv_shape(DType::kBF16);
  const auto token = static_cast<double>(kv.bytes_per_token());
  EXPECT_EQ(dense_cost(*model, kv, 100, 1, 1, true).kv_read, 8 * token);
  EXPECT_EQ(dense_cost(*model, kv, 3, 1, 1, true).kv_read, 4 * token);
  EXPECT_EQ(dense_cost(*model, kv, 100, 4, 1, true).kv_read, 11 * token);
}

TEST(StepCost, FloorIsTheSlowerOfMovingAndComputing) {
  const StepCost cost{.weights = 60, .kv_read = 30, .kv_written = 6, .index_read = 4, .operations = 1000};
  EXPECT_DOUBLE_EQ(floor_seconds(cost, 10, 0), 10);
  EXPECT_DOUBLE_EQ(floor_seconds(cost, 10, 1000), 10);
  EXPECT_DOUBLE_EQ(floor_seconds(cost, 10, 50), 20);
}

TEST(Activations, AreAsManyAsForwardTakes) {
  ThreadPool pool(2);
  const CpuContext context{.pool = &pool};
  const auto model = Model::random(small_shape(), DType::kBF16, {.context = 4096}, 1, context);
  for (const std::int32_t rows : {64, 512}) {
    Forward forward(*model, context);
    PagePool pages(model->kv_shape(DType::kBF16), 3 * 2 * 16);
    SequenceCache cache(pages);
    cache.extend(rows);
    const std::vector<std::int32_t> tokens(rows, 7);
    const SequenceRows sequence{.cache = &cache, .n_rows = rows, .want_logits = true};
    forward.run({.tokens = tokens, .sequences = std::span(&sequence, 1)});
    const std::int64_t taken = forward.activation_bytes();
    const std::int64_t estimate = activation_estimate(model->config(), rows, 1);
    EXPECT_LE(taken, estimate) << rows;
    EXPECT_GE(taken, estimate / 3 * 2) << rows;
  }
}

}  // namespace
}  // namespace mneme
