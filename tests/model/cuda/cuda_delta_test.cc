// Models with linear attention on the device against the CPU: their states within steps, between them and in host memory.
#include <gtest/gtest.h>

#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

class CudaDeltaTest : public CudaModelTest {
 protected:
  using Tokens = std::span<const std::int32_t>;

  // Heads of published models: 128 in linear attention, 256 of which RoPE turns 64 in the others; groups of 8.
  static ModelConfig published(Architecture architecture) {
    ModelConfig c = cuda_config(architecture, 8, 1, 256);
    c.n_layers = 4;
    c.rope.rotary_dim = 64;
    c.delta = {.n_k_heads = 2, .n_v_heads = 8, .d_k = 128, .d_v = 128, .taps = 4, .layers = {true, true, true, false}};
    return c;
  }

  // Logits of the last of a sequence's next tokens on the CPU.
  struct Host {
    SequenceRunner runner;
    SequenceCache cache;
    Host(const Model& m, const CpuContext& cpu) : runner(m, DType::kBF16, cpu, 100), cache(runner.pool) {}
    std::vector<float> step(Tokens tokens) { return runner.step(cache, tokens); }
  };
};

TEST_F(CudaDeltaTest, PublishedHeadsHaveTheCpusLogits) {
  for (const Architecture architecture : {Architecture::kQwen35, Architecture::kQwen35Moe, Architecture::kQwen3Next})
    for (const DType type : {DType::kBF16, DType::kQ8_0}) {
      SCOPED_TRACE(::testing::Message() << architecture_name(architecture) << " " << dtype_name(type));
      ModelConfig config = published(architecture);
      config.experts.n_used = config.experts.n;
      const auto model = Model::random(config, type, {}, 5, cpu);
      OnDevice device(*model);
      Host host(*model, cpu);
      SequenceCache a(*device.pool);
      const std::vector<std::int32_t> tokens = random_tokens(400, config.vocab, 6);
      const Tokens all(tokens);
      for (const auto& [begin, end] : {std::pair{0, 1}, {1, 40}, {40, 256}, {256, 257}, {257, 258}, {258, 400}}) {
        const Tokens piece = all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        ASSERT_LE(relative_error(device.step(a, piece), host.step(piece)), kTolerance) << begin << " to " << end;
      }
    }
}

// Chunks begin at positions divisible by 64: a prompt that is cut there is the same.
TEST_F(CudaDeltaTest, PromptsCutAtChunksHaveTheSameLogits) {
  const auto model = Model::random(published(Architecture::kQwen35), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(256, model->config().vocab, 6);
  OnDevice device(*model);
  SequenceCache whole(*device.pool), cut(*device.pool);
  const std::vector<float> expected = device.step(whole, tokens);
  device.step(cut, Tokens(tokens).first(64));
  device.step(cut, Tokens(tokens).subspan(64, 128));
  EXPECT_LE(relative_error(device.step(cut, Tokens(tokens).subspan(192)), expected), kTolerance / 4);
}

// Prompts and single rows of several sequences in one step: each as alone.
TEST_F(CudaDeltaTest, SequencesOfAStepAreEachAsAlone) {
  const auto model = Model::random(published(Architecture::kQwen35), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(600, model->config().vocab, 6);
  const Tokens all(tokens);
  OnDevice device(*model);
  std::vector<SequenceCache> caches;
  std::vector<std::unique_ptr<Host>> alone;
  constexpr std::size_t kSequences = 5;
  for (std::size_t i = 0; i < kSequences; ++i) {
    caches.emplace_back(*device.pool);
    alone.push_back(std::make_unique<Host>(*model, cpu));
    const Tokens first = all.subspan(i * 100, 20 + i);
    device.step(caches[i], first);
    alone[i]->step(first);
  }
  for (const std::vector<std::size_t>& n :
       {std::vector<std::size_t>{1, 1, 1, 1, 1}, {1, 30, 1, 1, 7}, {65, 1, 2, 0, 1}}) {
    std::vector<std::int32_t> in;
    std::vector<SequenceRows> rows;
    for (std::size_t i = 0; i < kSequences; ++i) {
      const Tokens piece = all.subspan(i * 100 + 30, n[i]);
      in.insert(in.end(), piece.begin(), piece.end());
      caches[i].extend(static_cast<std::int32_t>(n[i]));
      rows.push_back({.cache = &caches[i],
                      .n_rows = static_cast<std::int32_t>(n[i]),
                      .want_logits = true,
                      .phase = n[i] == 1 ? SequencePhase::kDecode : SequencePhase::kPrefill});
    }
    std::vector<float> found;
    SequenceRunner::append(device.forward.run({.tokens = in, .sequences = rows}), found);
    const auto vocab = static_cast<std::size_t>(model->config().vocab);
    std::size_t at = 0;
    for (std::size_t i = 0; i < kSequences; ++i) {
      if (n[i] == 0) continue;
      const std::vector<float> expected = alone[i]->step(all.subspan(i * 100 + 30, n[i]));
      ASSERT_LE(relative_error(std::span(found).subspan(at * vocab, vocab), expected), kTolerance) << i;
      ++at;
    }
  }
}

// More sequences than slots: their states move to host memory and back.
TEST_F(CudaDeltaTest, StatesMoveToHostMemoryAndBack) {
  const auto model = Model::random(published(Architecture::kQwen35), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(400, model->config().vocab, 6);
  OnDevice few(*model, 256, 1), many(*model, 256, 12);
  std::vector<SequenceCache> a, b;
  for (std::size_t i = 0; i < 7; ++i) a.emplace_back(*few.pool), b.emplace_back(*many.pool);
  for (std::size_t turn = 0; turn < 3; ++turn)
    for (std::size_t i = 0; i < a.size(); ++i) {
      const Tokens piece = Tokens(tokens).subspan(i * 40 + turn * 20, turn == 1 ? 1 : 20);
      ASSERT_EQ(few.step(a[i], piece), many.step(b[i], piece)) << turn << ", " << i;
    }
}

// A sequence that is cut back to a state that was kept, and a fork, go on as one that was never longer.
TEST_F(CudaDeltaTest, KeptStatesAndForksGoOn) {
  const auto model = Model::random(published(Architecture::kQwen35), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(200, model->config().vocab, 6);
  const Tokens all(tokens), prompt = all.first(70), other = all.subspan(100, 20), next = all.subspan(150, 1);
  OnDevice device(*model);
  SequenceCache plain(*device.pool), a(*device.pool);
  device.step(plain, prompt);
  const std::vector<float> expected = device.step(plain, next), then = device.step(plain, other);

  device.step(a, prompt);
  a.states().keep();
  device.step(a, other);
  ASSERT_TRUE(a.can_truncate(70));
  SequenceCache fork = a.fork();
  a.truncate(70), fork.truncate(70);
  EXPECT_EQ(device.step(a, next), expected);
  EXPECT_EQ(device.step(fork, next), expected);
  EXPECT_EQ(device.step(a, other), then);
  EXPECT_EQ(device.step(fork, other), then);
}

TEST_F(CudaDeltaTest, HeadsThatTheKernelsDoNotTakeAreRefused) {
  ModelConfig config = published(Architecture::kQwen35);
  config.delta.d_k = 132;
  const auto model = Model::random(config, DType::kBF16, {}, 5, cpu);
  try {
    OnDevice device(*model);
    FAIL() << "heads of 132";
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(e.what()).find("heads of 132 and 128"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace mneme
