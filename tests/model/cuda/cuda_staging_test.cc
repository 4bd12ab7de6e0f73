// Staging of prompts whose pages are in host memory: what a round's buffer holds, what it writes back, what it fetches.
#include "src/model/cuda/staging.h"

#include <cstring>

#include "src/cuda/device.h"
#include "src/model/cuda/blocks.h"
#include "src/model/cuda/tables.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

constexpr std::int32_t kLayers = 3, kContext = 400;

std::int64_t plenty() {
  return std::int64_t{1} << 30;
}
std::int64_t little() {
  return 0;
}

class CudaStagingTest : public CudaTest {
 protected:
  struct Prompt {
    SequenceCache cache;
    int seed;
    std::int32_t changed_at = kContext;  // tokens from here on are others than those of the seed
  };
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    shape_ = {.n_layers = kLayers, .n_kv_heads = 2, .head_dim = 64, .dtype = DType::kBF16};
    auto blocks = CudaBlocks::on_host(200 * shape_.page_bytes(), stream, {});
    tables_.emplace(shape_, blocks->base(), 4, kContext);
    pool_ = std::make_unique<PagePool>(shape_, 200, std::move(blocks));
    staging_.emplace(shape_, kContext);
  }
  std::size_t token_bytes() const { return shape_.page_bytes() / kPageTokens; }
  std::vector<std::byte> token(const Prompt& p, std::int32_t layer, std::int32_t head, std::int32_t at) const {
    std::vector<std::byte> out(token_bytes());
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<std::byte>(
          ((at < p.changed_at ? p.seed : 9) * 151 + layer * 31 + head * 17 + at * 7 + static_cast<int>(i)) % 251);
    return out;
  }
  std::byte* staged(std::int32_t head, std::int32_t at) const {
    const std::int64_t page = std::int64_t{head} * staging_->tables().max_pages + at / kPageTokens;
    return staging_->tables().base + static_cast<std::size_t>(page) * shape_.page_bytes() +
           static_cast<std::size_t>(at % kPageTokens) * token_bytes();
  }
  // One layer of a prompt's chunk: the buffer holds all earlier tokens, and the pages get the new ones.
  void round(const Prompt& p, std::int32_t slot, std::int32_t layer, std::int32_t n) {
    const std::int32_t length = p.cache.length(), first = length - n;
    staging_->begin(stream);
    std::vector<std::byte> there(token_bytes());
    for (std::int32_t head = 0; head < 2; ++head) {
      for (std::int32_t at = 0; at < first; ++at) {
        copy_bytes(there.data(), staged(head, at), there.size(), stream);
        stream.synchronize();
        ASSERT_EQ(there, token(p, layer, head, at)) << "layer " << layer << ", head " << head << ", token " << at;
      }
      for (std::int32_t at = first; at < length; ++at)
        copy_bytes(staged(head, at), token(p, layer, head, at).data(), there.size(), stream);
    }
    staging_->end(tables_->tables(), layer, slot, first, length, stream);
  }
  // A step of chunks, as attention runs it. Returns the tokens that it fetched.
  std::int64_t step(const std::vector<std::pair<Prompt*, std::int32_t>>& chunks, std::int64_t (*free_bytes)()) {
    const std::int64_t before = staging_->fetched_tokens();
    std::vector<const SequenceCache*> caches;
    for (const auto& [p, n] : chunks) p->cache.extend(n), caches.push_back(&p->cache);
    std::vector<std::int32_t> slots(caches.size());
    tables_->assign_slots(caches, stream, slots);
    std::vector<CudaStaging::Earlier> rounds;
    for (std::int32_t layer = 0; layer < kLayers; ++layer)
      for (std::size_t i = 0; i < chunks.size(); ++i)
        rounds.push_back({.layer = layer,
                          .slot = slots[i],
                          .first = caches[i]->length() - chunks[i].second,
                          .revision = caches[i]->revision()});
    staging_->select_prompt(std::span(rounds).first(chunks.size()), free_bytes);
    staging_->fetch(tables_->tables(), rounds[0], stream);
    for (std::size_t r = 0; r < rounds.size(); ++r) {
      const auto& [p, n] = chunks[r % chunks.size()];
      // The next round is fetched while this one computes; here its check comes first.
      if (r + 1 < rounds.size() && r % 2 == 0) staging_->fetch(tables_->tables(), rounds[r + 1], stream);
      round(*p, rounds[r].slot, rounds[r].layer, n);
      if (r + 1 < rounds.size() && r % 2 == 1) staging_->fetch(tables_->tables(), rounds[r + 1], stream);
    }
    staging_->join(stream);
    stream.synchronize();
    for (const auto& [p, n] : chunks)
      for (std::int32_t at = 0; at < p->cache.length(); ++at)
        EXPECT_EQ(std::memcmp(p->cache.token(1, 1, at), token(*p, 1, 1, at).data(), token_bytes()), 0) << at;
    return staging_->fetched_tokens() - before;
  }
  Prompt prompt(int seed) const { return {SequenceCache(*pool_), seed}; }

  KvShape shape_;
  std::optional<CudaTables> tables_;
  std::unique_ptr<PagePool> pool_;
  std::optional<CudaStaging> staging_;
};

TEST_F(CudaStagingTest, WithoutFreeMemoryEveryChunkFetchesAllEarlierTokens) {
  Prompt p = prompt(1);
  EXPECT_EQ(step({{&p, 40}}, little), 0);
  EXPECT_EQ(step({{&p, 50}}, little), kLayers * 40);
  EXPECT_EQ(step({{&p, 33}}, nullptr), kLayers * 90);
}

// One page more than nothing: a cut within the last page is not seen.
TEST_F(CudaStagingTest, AKeptPromptFetchesItsLastPageAtMost) {
  Prompt p = prompt(1);
  EXPECT_EQ(step({{&p, 40}}, plenty), 0);
  EXPECT_EQ(step({{&p, 50}}, plenty), kLayers * 40) << "from its second chunk on";
  EXPECT_EQ(step({{&p, 38}}, plenty), kLayers * (90 - 64));
  EXPECT_EQ(step({{&p, 100}}, plenty), kLayers * (128 - 96));
  EXPECT_EQ(step({{&p, 7}}, plenty), kLayers * (228 - 224));
}

// A cut within the last page, where other tokens follow without a chunk; then one of whole pages.
TEST_F(CudaStagingTest, CutsAreFetchedAgain) {
  Prompt p = prompt(1);
  step({{&p, 100}}, plenty), step({{&p, 60}}, plenty);
  const std::uint64_t revision = p.cache.revision();
  p.cache.truncate(140);
  p.changed_at = 140;
  p.cache.extend(20);
  for (std::int32_t layer = 0; layer < kLayers; ++layer)
    for (std::int32_t head = 0; head < 2; ++head)
      for (std::int32_t at = 140; at < 160; ++at)
        std::memcpy(p.cache.token(layer, head, at), token(p, layer, head, at).data(), token_bytes());
  ASSERT_EQ(p.cache.revision(), revision);
  EXPECT_EQ(step({{&p, 40}}, plenty), kLayers * (160 - 128));
  p.cache.truncate(90);
  p.changed_at = 90;
  EXPECT_EQ(step({{&p, 60}}, plenty), kLayers * 90);
  EXPECT_EQ(step({{&p, 60}}, plenty), kLayers * (150 - 128));
}

TEST_F(CudaStagingTest, OneOfTwoPromptsIsKept) {
  Prompt a = prompt(1), b = prompt(2);
  step({{&a, 64}, {&b, 32}}, plenty);
  EXPECT_EQ(step({{&b, 32}, {&a, 64}}, plenty), kLayers * (32 + 64)) << "neither was kept yet";
  EXPECT_EQ(step({{&b, 32}, {&a, 64}}, plenty), kLayers * (64 + 32)) << "the longer one is";
  EXPECT_EQ(step({{&b, 32}}, plenty), kLayers * 96) << "the other one alone takes its place";
  EXPECT_EQ(step({{&b, 32}, {&a, 31}}, plenty), kLayers * (32 + 192));
}

TEST_F(CudaStagingTest, ReleasedMemoryIsNotTakenAgain) {
  Prompt p = prompt(3);
  EXPECT_FALSE(CudaStaging(shape_, kContext).release());
  step({{&p, 64}}, plenty), step({{&p, 32}}, plenty);
  const std::size_t kept = staging_->bytes();
  EXPECT_TRUE(staging_->release());
  EXPECT_LT(staging_->bytes(), kept);
  EXPECT_FALSE(staging_->release());
  EXPECT_EQ(step({{&p, 32}}, plenty), kLayers * 96);
}

// Chunks, answers and cuts of two sequences while one of them keeps its layers on the device.
TEST_F(CudaModelTest, PromptsThatAreKeptOnTheDeviceGiveTheSame) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  OnDevice device(*model);
  OnDevice host(*model, {.max_rows = 256,
                         .max_sequences = 12,
                         .max_context = model->max_context(),
                         .store = KvStore::kHost,
                         .grow_slots = true});
  const std::vector<std::int32_t> tokens = random_tokens(400, model->config().vocab, 6);
  SequenceCache here[2] = {SequenceCache(*device.pool), SequenceCache(*device.pool)};
  SequenceCache there[2] = {SequenceCache(*host.pool), SequenceCache(*host.pool)};
  struct Move {
    int sequence;
    std::size_t n;
    std::int32_t cut = -1;  // first, to this length
  };
  std::size_t at = 0;
  for (const Move& m : std::vector<Move>{{0, 40},
                                         {0, 60},
                                         {0, 1},
                                         {0, 30},
                                         {1, 33},
                                         {1, 40},
                                         {0, 20},
                                         {0, 21, 140},
                                         {0, 1, 155},
                                         {0, 1},
                                         {0, 40},
                                         {1, 50, 64},
                                         {0, 45, 100},
                                         {0, 33}}) {
    const auto s = static_cast<std::size_t>(m.sequence);
    if (m.cut >= 0) here[s].truncate(m.cut), there[s].truncate(m.cut);
    at = (at + 61) % 300;
    const auto piece = std::span<const std::int32_t>(tokens).subspan(at, m.n);
    ASSERT_LE(relative_error(host.step(there[s], piece), device.step(here[s], piece)), kTolerance)
        << m.n << " tokens of sequence " << m.sequence << ", now " << here[s].length();
  }
}

}  // namespace
}  // namespace mneme
