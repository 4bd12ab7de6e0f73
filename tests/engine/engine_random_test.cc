// One engine under random events, in pools of many sizes.
#include "tests/engine/random_life.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

EngineOptions options(std::int64_t n_pages, int max_sequences, int max_batched_tokens) {
  return random_life_options(n_pages, max_sequences, max_batched_tokens);
}

TEST(EngineRandom, RoomyPool) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) RandomLife(options(400, 8, 64), seed).run(1200);
}

TEST(EngineRandom, TightPool) {
  for (std::uint64_t seed = 10; seed < 18; ++seed) RandomLife(options(12, 8, 40), seed).run(1200);
}

// Where answers begin by forecast, any of them may lose its pages in the middle of a step, and be read again.
TEST(EngineRandom, PoolsThatForecastsOvercommit) {
  for (std::uint64_t seed = 40; seed < 50; ++seed) {
    EngineOptions o = options(8 + static_cast<std::int64_t>(seed % 7), 8, 40);
    o.kv_admission = KvAdmission::kForecast;
    o.deterministic = seed % 2 == 0;
    RandomLife(o, seed).run(1000);
  }
}

// One of two layers keeps a window: forks from anywhere, cuts and preemptions find its pages or compute them again.
TEST(EngineRandom, LayersThatKeepAWindow) {
  for (std::uint64_t seed = 80; seed < 96; ++seed) {
    EngineOptions o = options(seed % 2 == 0 ? 60 : 14, 6, 40);
    if (seed % 4 == 3) o.kv_admission = KvAdmission::kForecast;
    RandomLife(o, seed, nullptr, seed % 3 == 0 ? 7 : 40).run(1200);
  }
}

// A state beside the pages: forks, cuts, failed steps and preemptions go on from one of the right length, or from none.
TEST(EngineRandom, ModelsWithAState) {
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    EngineOptions o = options(seed % 2 == 0 ? 60 : 14, 6, seed % 3 == 0 ? 7 : 40);
    if (seed % 4 == 3) o.kv_admission = KvAdmission::kForecast;
    o.deterministic = seed % 5 == 0;
    RandomLife(o, seed, nullptr, 0, true).run(900);
  }
}

// The coldest pages lie in a file: two pages' memory for sequences of many.
TEST(EngineRandom, PoolsLargerThanMemory) {
  const TempFolder folder(TempFolder::memory());
  for (std::uint64_t seed = 60; seed < 64; ++seed) {
    EngineOptions o = options(2, 8, 40);
    o.kv_spill = {.folder = folder.path(), .bytes = 30 * o.kv_memory_bytes};
    if (seed % 2 == 1) o.kv_admission = KvAdmission::kForecast;
    RandomLife(o, seed).run(800);
  }
}

TEST(EngineRandom, TinyPoolsAndBudgets) {
  for (std::uint64_t seed = 20; seed < 30; ++seed) {
    RandomLife(options(6 + static_cast<std::int64_t>(seed % 5), 3, 1 + static_cast<int>(seed % 4) * 11), seed).run(800);
  }
}

}  // namespace
}  // namespace mneme
