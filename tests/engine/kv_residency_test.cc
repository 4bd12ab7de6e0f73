#include "src/engine/kv_residency.h"

#include <gtest/gtest.h>

#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

constexpr KvShape kSmallShape{.n_layers = 4, .n_kv_heads = 2, .head_dim = 64};

std::int64_t index_of(const char* name, const char* overrides, std::int64_t context, int sequences) {
  Recipe recipe = make_recipe(name, {});
  apply_overrides(overrides, recipe);
  const auto plan = compile(recipe, {.n_layers = 4, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64});
  return wanted_index_bytes(*plan, context, sequences);
}

TEST(KvResidency, OneSequenceOfTheContextOrWhatIsSetAside) {
  EngineOptions o;
  EXPECT_EQ(wanted_kv_bytes(kSmallShape, o, 1000), 32 * 8 * 32 * 256) << "32 pages of 4 layers and 2 KV heads";
  o.kv_memory_bytes = 12345;
  EXPECT_EQ(wanted_kv_bytes(kSmallShape, o, 1000), 12345);
}

TEST(KvResidency, LayersWithAWindowKeepTheWindow) {
  // Layers 0 and 2: 128 tokens, 64 more, a step of 256, and one page for their ends.
  const KvWindows windows{.tokens = 128, .layers = {true, false, true}};
  const EngineOptions o{.max_batched_tokens = 256};
  EXPECT_EQ(wanted_kv_bytes(kSmallShape, o, 32000, windows), (2 * 1000 + 2 * 15) * 2 * 32 * 256);
  EXPECT_EQ(wanted_kv_bytes(kSmallShape, o, 100, windows), wanted_kv_bytes(kSmallShape, o, 100));
}

TEST(KvResidency, EightBitsTakeHalf) {
  KvShape eight = kSmallShape;
  eight.dtype = DType::kInt8;
  EXPECT_EQ(wanted_kv_bytes(eight, {}, 3200), wanted_kv_bytes(kSmallShape, {}, 3200) * 136 / 256);
}

TEST(KvResidency, FullAttentionHasNoIndex) {
  EXPECT_EQ(index_of("full", "", 32768, 16), 0);
  EXPECT_EQ(index_of("window", "", 32768, 16), 0);
}

// A box is two values of 16 bits a channel and page: with pages of 32 tokens 8 bytes a token and head of 64.
TEST(KvResidency, BoxesOfAllSequencesAndAQuarter) {
  EXPECT_EQ(index_of("quest", "unit=page:32", 32768, 1), 32768 * 8 * 8 * 5 / 4);
  EXPECT_EQ(index_of("quest", "unit=page:32", 32768, 16), std::int64_t{16} * 32768 * 8 * 8 * 5 / 4);
}

TEST(KvResidency, AnIndexOfQueryHeadsIsOneForEach) {
  EXPECT_EQ(index_of("quest", "unit=page:32,pool=none", 4096, 1), 4 * index_of("quest", "unit=page:32", 4096, 1));
}

}  // namespace
}  // namespace mneme
