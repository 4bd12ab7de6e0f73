#include "src/engine/kv_plan.h"

#include <gtest/gtest.h>

#include <string>

#include "mneme/error.h"
#include "src/engine/memory_limit.h"

namespace mneme {
namespace {

// 4 blocks of 4 KiB a page: 16 KiB a page, 512 bytes a token.
constexpr KvShape kShape{.n_layers = 2, .n_kv_heads = 2, .head_dim = 32, .dtype = DType::kBF16};
constexpr std::int64_t kPage = 16384;
constexpr std::int64_t kPlenty = std::int64_t{1} << 40;

EngineOptions with(std::int64_t context, std::int64_t kv_memory, int max_sequences = 3) {
  EngineOptions o;
  o.context = context;
  o.kv_memory_bytes = kv_memory;
  o.max_sequences = max_sequences;
  return o;
}

void expect_error(const EngineOptions& o, std::int64_t available, ErrorKind kind, const std::string& words) {
  try {
    plan_kv(kShape, o, 8192, available);
    ADD_FAILURE() << words;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind);
    EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
  }
}

// One of two layers keeps a window of 128: at most (128 + 64 + 256) / 32 + 1 = 15 of its pages.
TEST(KvPlan, LayersThatKeepAWindow) {
  const KvWindows windows{.tokens = 128, .layers = {false, true}, .step_tokens = 256};
  EXPECT_EQ(blocks_of(kShape, windows, 480), 15 * 4);
  EXPECT_EQ(blocks_of(kShape, windows, 481), 15 * 4 + 2);
  EXPECT_EQ(blocks_of(kShape, windows, 8192), 256 * 2 + 15 * 2);
  EXPECT_EQ(plan_kv(kShape, with(0, 0), 8192, kPlenty, windows).n_blocks, (256 * 2 + 15 * 2 + 3 * 4) / 4 * 4);
  // The longest sequence that fits: 100 pages of all layers are 400 blocks, 15 of them pages of the window twice.
  EXPECT_EQ(plan_kv(kShape, with(0, 100 * kPage), 8192, kPlenty, windows).context, (400 - 30) / 2 * 32);
  EXPECT_EQ(plan_kv(kShape, with(0, 10 * kPage), 8192, kPlenty, windows).context, 10 * 32);
}

TEST(KvPlan, OneSequenceAndAPageForEveryOtherByDefault) {
  const KvPlan p = plan_kv(kShape, with(0, 0), 8192, kPlenty);
  EXPECT_EQ(p.context, 8192);
  EXPECT_EQ(p.n_blocks, (256 + 3) * 4);
  EXPECT_EQ(plan_kv(kShape, with(1, 0), 8192, kPlenty).n_blocks, (1 + 3) * 4);
  EXPECT_EQ(plan_kv(kShape, with(33, 0), 8192, kPlenty).n_blocks, (2 + 3) * 4);
}

// 13,000 bytes of state are four blocks. Whatever the memory, the longest sequence that it is planned for fits.
TEST(KvPlan, StatesTakeBlocksBesideThePages) {
  KvShape shape = kShape;
  shape.state_bytes = 13000;
  EXPECT_EQ(blocks_of(shape, 0), 0);
  EXPECT_EQ(blocks_of(shape, 1), 4 + 4);
  EXPECT_EQ(plan_kv(shape, with(64, 0), 8192, kPlenty).n_blocks, 2 * 4 + 4 + 3 * (4 + 4));
  for (const std::size_t bytes : {13000, 9000, 4096, 1})
    for (std::int64_t blocks = 9; blocks < 30; ++blocks) {
      shape.state_bytes = bytes;
      const KvPlan p = plan_kv(shape, with(0, blocks * kPage / 4), 8192, 0);
      EXPECT_LE(blocks_of(shape, p.context), p.n_blocks) << blocks << " blocks, states of " << bytes;
      EXPECT_GT(blocks_of(shape, p.context + kPageTokens), blocks);
    }
}

TEST(KvPlan, MemoryAskedForIsTakenInWholePages) {
  const KvPlan p = plan_kv(kShape, with(64, 10 * kPage - 1), 8192, 0);
  EXPECT_EQ(p.context, 64);
  EXPECT_EQ(p.n_blocks, 9 * 4);
}

TEST(KvPlan, AContextThatNobodyAskedForShrinksToTheMemory) {
  EXPECT_EQ(plan_kv(kShape, with(0, 5 * kPage), 8192, kPlenty).context, 160);
  EXPECT_EQ(plan_kv(kShape, with(0, 0), 8192, 7 * kPage + 5).context, 224);
}

TEST(KvPlan, AContextAskedForMustFit) {
  expect_error(with(8192, 255 * kPage), kPlenty, ErrorKind::kResource,
               "one sequence of 8192 tokens takes 4194304 bytes of KV cache (512 a token); 4177920 bytes are set "
               "aside (kv_memory_bytes): room for 8160 tokens");
  expect_error(with(8192, 0), 1 << 20, ErrorKind::kResource, "1048576 bytes are left beside the weights");
  expect_error(with(0, 0), -5, ErrorKind::kResource, "0 bytes are left beside the weights");
  expect_error(with(0, kPage - 1), kPlenty, ErrorKind::kResource, "room for 0 tokens");
}

TEST(KvPlan, OptionsOutOfRangeAreNamed) {
  expect_error(with(8193, 0), kPlenty, ErrorKind::kOption, "context: expected 0 (all) to 8192");
  expect_error(with(-1, 0), kPlenty, ErrorKind::kOption, "found -1");
  expect_error(with(0, -7), kPlenty, ErrorKind::kOption, "kv_memory_bytes: expected 0 (automatic) or more, found -7");
  expect_error(with(0, 0, 0), kPlenty, ErrorKind::kOption, "max_sequences: expected 1 or more, found 0");
  EngineOptions o;
  o.max_batched_tokens = 0;
  expect_error(o, kPlenty, ErrorKind::kOption, "max_batched_tokens: expected 1 or more, found 0");
  o.kv_cache_dtype = KvDtype::kF16;
  EXPECT_EQ(kv_dtype_of(o), DType::kF16);
  o.kv_cache_dtype = KvDtype::kInt8;
  EXPECT_EQ(kv_dtype_of(o), DType::kInt8);
  o.kv_cache_dtype = KvDtype::kFp8;
  EXPECT_EQ(kv_dtype_of(o), DType::kFp8);
}

TEST(KvPlan, HugeNumbersDoNotOverflow) {
  const KvPlan p = plan_kv(kShape, with(0, std::int64_t{1} << 62), std::int64_t{1} << 50, 0);
  EXPECT_LE(p.n_blocks, std::int64_t{1} << 31);
  EXPECT_EQ(p.n_blocks % 4, 0);
  EXPECT_LT(p.context, std::int64_t{1} << 31);
  EXPECT_LE(blocks_of(kShape, p.context), p.n_blocks);
}

TEST(MemoryLimit, IsThatOfAMachine) {
  EXPECT_GT(memory_limit_bytes(), std::int64_t{64} << 20);
  EXPECT_LT(memory_limit_bytes(), std::int64_t{1} << 50);
}

TEST(KvPlan, AFileAddsRoomForLongerSequences) {
  EngineOptions o = with(8192, 100 * kPage);
  o.kv_spill = {.folder = "/nvme", .bytes = 156 * kPage};
  const KvPlan p = plan_kv(kShape, o, 8192, kPlenty);
  EXPECT_EQ(p.n_blocks, 256 * 4);
  EXPECT_EQ(p.resident_bytes, 100 * kPage);
  // Without a size for memory: what the machine has, and no file where that is enough.
  o.kv_memory_bytes = 0;
  EXPECT_EQ(plan_kv(kShape, o, 8192, kPlenty).resident_bytes, 0);
  EXPECT_EQ(plan_kv(kShape, o, 8192, 200 * kPage).resident_bytes, 200 * kPage);
  expect_error(o, 50 * kPage, ErrorKind::kResource, "in memory and on the disk");
  o.kv_spill.folder = "";
  expect_error(o, kPlenty, ErrorKind::kOption, "kv_spill: expected a folder");
  o.kv_spill = {.folder = "/nvme", .bytes = -1};
  expect_error(o, kPlenty, ErrorKind::kOption, "kv_spill");
  o.kv_spill.bytes = 1;
  o.device = Device::kCuda;
  expect_error(o, kPlenty, ErrorKind::kUnsupported, "page-locked");
}

}  // namespace
}  // namespace mneme
