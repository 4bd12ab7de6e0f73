// The forward pass on the device against the CPU's.
#include "src/model/cuda/forward.h"
#include "src/ops/attention/attention_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <numeric>
#include <string_view>

#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/model/shapes.h"
#include "tests/model/cuda/cuda_on_device.h"
#include "tests/model/needle_runner.h"

namespace mneme {
namespace {

class CudaForwardTest : public CudaModelTest {};

TEST_F(CudaForwardTest, HasTheCpusLogitsForEveryArchitecture) {
  for (const auto& [architecture, heads, kv_heads, head_dim] : {std::tuple{Architecture::kLlama, 8, 2, 64},
                                                                {Architecture::kQwen2, 7, 1, 64},
                                                                {Architecture::kQwen3, 4, 4, 128},
                                                                {Architecture::kMistral, 16, 1, 128},
                                                                {Architecture::kMistral3, 8, 2, 64},
                                                                {Architecture::kQwen3Moe, 8, 2, 64},
                                                                {Architecture::kGptOss, 8, 2, 64},
                                                                {Architecture::kGemma3, 4, 1, 256}})
    for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1}) {
      SCOPED_TRACE(::testing::Message() << architecture_name(architecture) << " " << dtype_name(type));
      ModelConfig config = cuda_config(architecture, heads, kv_heads, head_dim);
      // Every expert of a row, so that rounding sends none to another: 400 rows of 4-bit weights have near ties.
      config.experts.n_used = config.experts.n;
      const auto model = Model::random(config, type, {}, 5, cpu);
      OnDevice device(*model);
      SequenceRunner host(*model, DType::kBF16, cpu, 100);
      SequenceCache a(*device.pool), b(host.pool);
      const std::vector<std::int32_t> tokens = random_tokens(400, model->config().vocab, 6);
      const std::span<const std::int32_t> all(tokens);
      for (const auto& [begin, end] :
           {std::pair{0, 1}, {1, 40}, {40, 296}, {296, 297}, {297, 298}, {298, 299}, {299, 400}}) {
        const auto piece = all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        ASSERT_LE(relative_error(device.step(a, piece), host.step(b, piece)), kTolerance) << begin << " to " << end;
      }
    }
}

// Weights of norms, biases and matrices that no constant can stand for: norms in another order, or over other values,
// would be seen.
TEST_F(CudaForwardTest, HasTheCpusLogitsWithWeightsOfAllKindsDrawn) {
  for (const Architecture architecture : all_architectures())
    for (const DType kv : {DType::kBF16, DType::kInt8}) {
      if (kv == DType::kInt8 && !small_config(architecture).qk_norm) continue;  // norms are all that differs
      SCOPED_TRACE(::testing::Message() << architecture_name(architecture) << " " << dtype_name(kv));
      ModelConfig config = cuda_config(architecture, 8, 2, 64);
      config.experts.n_used = config.experts.n;
      auto checkpoint = std::make_unique<MemoryCheckpoint>(config, DType::kF32);
      checkpoint->fill(23);
      const auto model = Model::load(std::move(checkpoint), {}, cpu);
      OnDevice device(*model, 256, 12, kv);
      SequenceRunner host(*model, kv, cpu, 100);
      SequenceCache a(*device.pool), b(host.pool);
      const std::vector<std::int32_t> tokens = random_tokens(140, model->config().vocab, 6);
      const std::span<const std::int32_t> all(tokens);
      for (const auto& [begin, end] : {std::pair{0, 1}, {1, 100}, {100, 101}, {101, 140}}) {
        const auto piece = all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        ASSERT_LE(relative_error(device.step(a, piece), host.step(b, piece)), 3 * kTolerance) << begin << " to " << end;
      }
    }
}

// Steps of 1, of a few and of many rows, on the device and on the CPU.
void expect_the_cpus_logits(const Model& model, const CpuContext& cpu) {
  OnDevice device(model);
  SequenceRunner host(model, DType::kBF16, cpu, 100);
  SequenceCache a(*device.pool), b(host.pool);
  const std::vector<std::int32_t> tokens = random_tokens(300, model.config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  for (const auto& [begin, end] : {std::pair{0, 200}, {200, 201}, {201, 202}, {202, 203}, {203, 230}, {230, 300}}) {
    const auto piece = all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
    ASSERT_LE(relative_error(device.step(a, piece), host.step(b, piece)), kTolerance) << begin << " to " << end;
  }
}

TEST_F(CudaForwardTest, HasTheCpusLogitsForEveryTypeOfWeights) {
  ModelConfig config = cuda_config(Architecture::kLlama, 8, 2, 64);
  config.hidden = 256;
  for (const DType type : {DType::kQ5_0, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                           DType::kQ6_K, DType::kIQ4_NL, DType::kMXFP4}) {
    SCOPED_TRACE(dtype_name(type));
    expect_the_cpus_logits(*Model::random(config, type, {}, 5, cpu), cpu);
  }
}

// As llama.cpp mixes them: q, k and v in two types, the head in a third; and gate and up apart, which become bf16.
TEST_F(CudaForwardTest, TypesMayDifferWithinALayer) {
  ModelConfig config = cuda_config(Architecture::kQwen2, 4, 2, 64);
  config.hidden = 256;
  auto mixed = std::make_unique<MemoryCheckpoint>(config, DType::kF32);
  mixed->fill(3);
  for (const auto& [end, type] : {std::pair{"attn_q.weight", DType::kQ4_K},
                                  {"attn_k.weight", DType::kQ4_K},
                                  {"attn_v.weight", DType::kQ6_K},
                                  {"attn_output.weight", DType::kQ5_0},
                                  {"0.ffn_gate.weight", DType::kQ4_K},
                                  {"0.ffn_up.weight", DType::kQ5_K},
                                  {"1.ffn_gate.weight", DType::kQ4_K},
                                  {"1.ffn_up.weight", DType::kQ4_K},
                                  {"ffn_down.weight", DType::kQ6_K},
                                  {"token_embd.weight", DType::kQ6_K}})
    mixed->quantise(end, type);
  const auto model = Model::load(std::move(mixed), {}, cpu);
  expect_the_cpus_logits(*model, cpu);
}

// Random orders of a matrix's columns, which it keeps.
class ColumnOrders {
 public:
  std::span<const std::int32_t> operator()(std::int64_t n) {
    std::vector<std::int32_t>& columns = orders_.emplace_back(static_cast<std::size_t>(n));
    std::iota(columns.begin(), columns.end(), 0);
    for (std::size_t i = columns.size() - 1; i > 0; --i) std::swap(columns[i], columns[rng_.below(i + 1)]);
    return columns;
  }

 private:
  Rng rng_{8};
  std::deque<std::vector<std::int32_t>> orders_;
};

// Matrices whose columns are in another order (act-order): each its own, but for q, k and v, and in the last layer gate and
// up, which have different ones in the first.
TEST_F(CudaForwardTest, ColumnsMayBeInAnotherOrder) {
  ModelConfig config = cuda_config(Architecture::kQwen2, 4, 2, 64);
  config.hidden = 256;
  auto reordered = std::make_unique<MemoryCheckpoint>(config, DType::kF32);
  reordered->fill(3);
  ColumnOrders order;
  for (const std::string end : {"attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"})
    reordered->quantise(end + ".weight", DType::kQ4_0);
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer) {
    const std::string block = "blk." + std::to_string(layer) + ".";
    const auto qkv = order(config.hidden), gate = order(config.hidden);
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_v.weight"}) reordered->reorder(block + name, qkv);
    reordered->reorder(block + "attn_output.weight", order(config.n_heads * config.head_dim));
    reordered->reorder(block + "ffn_gate.weight", gate);
    reordered->reorder(block + "ffn_up.weight", layer == 0 ? order(config.hidden) : gate);
    reordered->reorder(block + "ffn_down.weight", order(config.ffn));
  }
  const auto model = Model::load(std::move(reordered), {}, cpu);
  expect_the_cpus_logits(*model, cpu);
}

// Experts' columns in another order: each expert its own, one as they are; in the last layer one has different orders of gate
// and up.
TEST_F(CudaForwardTest, ExpertsColumnsMayBeInAnotherOrder) {
  ModelConfig config = cuda_config(Architecture::kQwen3Moe, 8, 2, 64);
  config.experts.n_used = config.experts.n;
  auto reordered = std::make_unique<MemoryCheckpoint>(config, DType::kF32);
  reordered->fill(3);
  reordered->unstack_experts();
  ColumnOrders order;
  for (std::int64_t layer = 0; layer < config.n_layers; ++layer)
    for (std::int64_t e = 0; e < config.experts.n; ++e) {
      const auto name = [&](const char* matrix) {
        return "blk." + std::to_string(layer) + "." + matrix + "." + std::to_string(e) + ".weight";
      };
      for (const char* matrix : {"ffn_gate", "ffn_up", "ffn_down"}) reordered->quantise(name(matrix), DType::kQ4_0);
      if (e == 1) continue;
      const auto gate = order(config.hidden);
      reordered->reorder(name("ffn_gate"), gate);
      reordered->reorder(name("ffn_up"), layer == 2 && e == 0 ? order(config.hidden) : gate);
      reordered->reorder(name("ffn_down"), order(config.experts.ffn));
    }
  const auto model = Model::load(std::move(reordered), {}, cpu);
  ASSERT_FALSE(model->layers()[0].experts[0].down.columns().empty());
  expect_the_cpus_logits(*model, cpu);
}

// Kernels read weights in host memory in place: what they compute is the same.
TEST_F(CudaForwardTest, WeightsInHostMemoryGiveTheSameLogits) {
  for (const Architecture architecture : {Architecture::kLlama, Architecture::kQwen3Moe})
    for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
      SCOPED_TRACE(::testing::Message() << architecture_name(architecture) << " " << dtype_name(type));
      ModelConfig config = cuda_config(architecture, 8, 2, 64);
      config.hidden = 256;
      if (config.experts.n > 0) config.experts.ffn = 256;
      const auto model = Model::random(config, type, {}, 5, cpu);
      OnDevice device(*model);
      const std::vector<std::int32_t> tokens = random_tokens(300, model->config().vocab, 6);
      const std::span<const std::int32_t> all(tokens);
      for (const WeightPlacement& placement :
           {WeightPlacement{.layers = 1, .expert_layers = 1},
            WeightPlacement{.layers = config.n_layers, .expert_layers = 0}, WeightPlacement{}}) {
        OnDevice split(*model, placement);
        if (placement.layers == 0) {
          EXPECT_GT(split.forward.weights().host_bytes(), 0u);
          EXPECT_EQ(split.forward.weights().step_bytes(), device.forward.weights().step_bytes());
        }
        SequenceCache a(*device.pool), b(*split.pool);
        for (const auto& [begin, end] :
             {std::pair{0, 200}, {200, 201}, {201, 202}, {202, 203}, {203, 230}, {230, 300}}) {
          const auto piece = all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
          ASSERT_EQ(device.step(a, piece), split.step(b, piece)) << begin << " to " << end;
        }
      }
    }
}

// Steps of so many sequences as take other kernels: each row has the logits of a step of its own.
TEST_F(CudaForwardTest, StepsOfUpTo64SequencesAreTheirRows) {
  for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_1}) {
    const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), type, {}, 5, cpu);
    OnDevice device(*model, 256, 64), alone(*model);
    for (const std::size_t n : {12u, 30u, 64u}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << n << " sequences");
      std::vector<SequenceCache> together;
      for (std::size_t i = 0; i < n; ++i) together.emplace_back(*device.pool);
      for (int step = 0; step < 3; ++step) {  // the third replays a graph
        const std::vector<std::int32_t> tokens = random_tokens(n, model->config().vocab, 40 + n);
        std::vector<SequenceRows> rows;
        for (SequenceCache& cache : together) {
          cache.extend(1);
          rows.push_back({.cache = &cache, .n_rows = 1, .want_logits = true});
        }
        std::vector<float> got;
        SequenceRunner::append(device.forward.run({.tokens = tokens, .sequences = rows}), got);
        const std::size_t vocab = got.size() / n;
        for (const std::size_t i : {std::size_t{0}, n / 2, n - 1}) {
          SequenceCache one(*alone.pool);
          std::vector<float> want;
          for (int s = 0; s <= step; ++s) want = alone.step(one, std::span(tokens).subspan(i, 1));
          ASSERT_LE(relative_error(std::span(got).subspan(i * vocab, vocab), want), kTolerance) << step << ", " << i;
        }
      }
    }
  }
}

// Steps that are launched, captured and replayed; of full attention and of a method that selects ahead.
TEST_F(CudaForwardTest, StepsTimedByPhaseGiveTheSameLogits) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(330, model->config().vocab, 6);
  for (const char* method : {"full", "freekv"}) {
    SCOPED_TRACE(method);
    OnDevice timed(*model, KvStore::kHost), plain(*model, KvStore::kHost);
    const auto plan = method == std::string_view("full")
                          ? compile(make_recipe("full", {}), method_shape(model->config()))
                          : plan_for(*model, method, 192, "");
    SequenceCache a(*timed.pool), b(*plain.pool);
    MethodState state_a(plan), state_b(plan);
    const auto prompt = std::span(tokens).first(320);
    ASSERT_EQ(timed.step(a, prompt, &state_a), plain.step(b, prompt, &state_b));
    timed.forward.time_phases(true);
    for (std::size_t i = 320; i < tokens.size(); ++i) {
      const auto token = std::span(tokens).subspan(i, 1);
      ASSERT_LE(relative_error(timed.step(a, token, &state_a), plain.step(b, token, &state_b)), kTolerance) << i;
      const PhaseClock::Seconds seconds = timed.forward.phase_seconds();
      double sum = 0;
      for (const double s : seconds) sum += s;
      EXPECT_GT(seconds[underlying(StepPhase::kGemm)], 0) << i;
      EXPECT_GT(seconds[underlying(StepPhase::kAttention)], 0) << i;
      EXPECT_LE(sum, timed.forward.device_seconds()) << i;
    }
    timed.forward.time_phases(false);
    timed.step(a, std::span(tokens).first(1), &state_a);
    EXPECT_EQ(timed.forward.phase_seconds(), PhaseClock::Seconds{}) << "not timed any more";
  }
}

TEST_F(CudaForwardTest, HasTheCpusLogitsForEveryHeadSizeThatIsBuilt) {
  for (const std::int32_t head_dim : attention_head_dims_cuda()) {
    SCOPED_TRACE(head_dim);
    const auto model = Model::random(cuda_config(Architecture::kLlama, 6, 2, head_dim), DType::kBF16, {}, 5, cpu);
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) {
      OnDevice device(*model, store);
      SequenceRunner host(*model, DType::kBF16, cpu, 100);
      SequenceCache a(*device.pool), b(host.pool);
      const std::vector<std::int32_t> tokens = random_tokens(400, model->config().vocab, 6);
      const std::span<const std::int32_t> all(tokens);
      for (const auto& [begin, end] : {std::pair{0, 40}, {40, 296}, {296, 297}, {297, 298}, {298, 299}, {299, 400}}) {
        const auto piece = all.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
        ASSERT_LE(relative_error(device.step(a, piece), host.step(b, piece)), kTolerance) << begin << " to " << end;
      }
    }
  }
}

// Rows of many sequences in one step give what each gives alone: in graphs of every size, with padding, and with
// prompts.
TEST_F(CudaForwardTest, BatchesAreTheirRows) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  OnDevice device(*model), alone(*model);
  constexpr std::size_t kSequences = 11;
  std::vector<SequenceCache> together, single;
  std::vector<std::vector<std::int32_t>> tokens;
  for (std::size_t i = 0; i < kSequences; ++i) {
    together.emplace_back(*device.pool);
    single.emplace_back(*alone.pool);
    tokens.push_back(random_tokens(120 + i, model->config().vocab, 20 + i));
  }
  const std::vector<std::size_t> start = {0, 31, 32, 1, 70, 5, 64, 33, 90, 2, 17};
  for (std::size_t i = 0; i < kSequences; ++i) {
    if (start[i] == 0) continue;
    const auto prompt = std::span<const std::int32_t>(tokens[i]).first(start[i]);
    device.step(together[i], prompt);
    alone.step(single[i], prompt);
  }
  // How many rows each sequence gets, step by step.
  std::vector<std::vector<std::int32_t>> steps;
  for (const std::size_t n : {1u, 1u, 1u, 2u, 2u, 3u, 5u, 8u, 8u, 8u, 9u, 9u, 9u, 11u, 11u, 11u}) {
    std::vector<std::int32_t> rows(kSequences, 0);
    for (std::size_t i = 0; i < n; ++i) rows[i] = 1;
    steps.push_back(rows);
  }
  steps.push_back({1, 0, 7, 1, 1, 2, 0, 3, 1, 1, 4});
  steps.push_back({0, 2, 1, 1, 0, 1, 5, 0, 1, 1, 1});
  for (std::size_t s = 0; s < steps.size(); ++s) {
    std::vector<SequenceRows> rows;
    std::vector<std::int32_t> fed;
    std::vector<std::vector<float>> want;
    for (std::size_t i = 0; i < kSequences; ++i) {
      const std::int32_t n = steps[s][i];
      if (n == 0) continue;
      const auto at = static_cast<std::size_t>(together[i].length());
      const auto piece = std::span<const std::int32_t>(tokens[i]).subspan(at, static_cast<std::size_t>(n));
      fed.insert(fed.end(), piece.begin(), piece.end());
      together[i].extend(n);
      const bool wanted = i % 3 != 2;
      rows.push_back({.cache = &together[i], .n_rows = n, .want_logits = wanted});
      const std::vector<float> logits = alone.step(single[i], piece);
      if (wanted) want.push_back(logits);
    }
    std::vector<float> got;
    SequenceRunner::append(device.forward.run({.tokens = fed, .sequences = rows}), got);
    ASSERT_EQ(got.size(), want.size() * static_cast<std::size_t>(model->config().vocab));
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_LE(relative_error(std::span(got).subspan(i * want[i].size(), want[i].size()), want[i]), kTolerance)
          << "step " << s << ", " << i;
  }
}

// Pages in host memory: the same logits, for any chunks of a prompt.
TEST_F(CudaForwardTest, PagesInHostMemoryGiveTheSame) {
  for (const std::int64_t head_dim : {64, 128}) {
    const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, head_dim), DType::kBF16, {}, 5, cpu);
    OnDevice device(*model), host(*model, KvStore::kHost);
    SequenceCache a(*device.pool), b(*host.pool), c(*device.pool), d(*host.pool);
    const std::vector<std::int32_t> tokens = random_tokens(700, model->config().vocab, 6);
    const std::span<const std::int32_t> all(tokens);
    std::size_t at = 0;
    for (const std::size_t n : {1u, 40u, 200u, 1u, 1u, 1u, 31u, 33u, 1u, 1u, 150u}) {
      const auto piece = all.subspan(at, n);
      at += n;
      ASSERT_LE(relative_error(host.step(b, piece), device.step(a, piece)), kTolerance) << "up to " << at;
    }
    // Two prompts and an answer in one step, twice.
    SequenceCache e(*device.pool), f(*host.pool);
    device.step(c, all.first(50)), host.step(d, all.first(50));
    for (int round = 0; round < 2; ++round) {
      const auto together = [&](OnDevice& on, SequenceCache& answer, SequenceCache& one, SequenceCache& two) {
        std::vector<SequenceRows> rows;
        std::vector<std::int32_t> fed;
        for (const auto& [cache, n] : {std::pair{&one, 70}, {&answer, 1}, {&two, 45}}) {
          for (std::int32_t i = 0; i < n; ++i) fed.push_back(tokens[static_cast<std::size_t>(cache->length() + i)]);
          cache->extend(n);
          rows.push_back({.cache = cache, .n_rows = n, .want_logits = true});
        }
        std::vector<float> out;
        SequenceRunner::append(on.forward.run({.tokens = fed, .sequences = rows}), out);
        return out;
      };
      ASSERT_LE(relative_error(together(host, b, d, f), together(device, a, c, e)), kTolerance);
    }
  }
}

// More rows than the head takes at once.
TEST_F(CudaForwardTest, GivesTheLogitsOfEveryRow) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  OnDevice device(*model);
  SequenceRunner host(*model, DType::kBF16, cpu, 100);
  SequenceCache a(*device.pool), b(host.pool);
  const std::vector<std::int32_t> tokens = random_tokens(200, model->config().vocab, 6);
  const SequenceRows rows{.cache = &a, .n_rows = 200, .all_logits = true};
  a.extend(200);
  std::vector<float> got;
  SequenceRunner::append(device.forward.run({.tokens = tokens, .sequences = std::span(&rows, 1)}), got);
  const std::vector<float> want = host.feed(b, tokens, 200);
  ASSERT_EQ(got.size(), want.size());
  const auto vocab = static_cast<std::size_t>(model->config().vocab);
  for (std::size_t i = 0; i < got.size(); i += vocab)
    ASSERT_LE(relative_error(std::span(got).subspan(i, vocab), std::span(want).subspan(i, vocab)), kTolerance) << i;
}

TEST_F(CudaForwardTest, BestTokensAreTheLogitsBest) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  OnDevice device(*model);
  SequenceCache a(*device.pool), b(*device.pool);
  const std::vector<std::int32_t> tokens = random_tokens(60, model->config().vocab, 6);
  for (const std::size_t n : {40u, 1u, 1u, 1u}) {
    const auto piece = std::span<const std::int32_t>(tokens).subspan(static_cast<std::size_t>(a.length()), n);
    const std::vector<float> logits = device.step(a, piece);
    const SequenceRows rows{.cache = &b, .n_rows = static_cast<std::int32_t>(n), .want_logits = true};
    b.extend(rows.n_rows);
    const auto sampled = device.forward.sample({.tokens = piece, .sequences = std::span(&rows, 1)});
    ASSERT_EQ(sampled.size(), 1u);
    EXPECT_EQ(sampled[0].token, std::max_element(logits.begin(), logits.end()) - logits.begin());
    // The same row again, drawn for: the rarest token last in order of id, the largest where it is the only one.
    b.truncate(b.length() - rows.n_rows);
    b.extend(rows.n_rows);
    const SamplingRule rule =
        n == 1 ? SamplingRule{.temperature = 1, .u = 0x1.fffffffffffffp-1} : SamplingRule{.temperature = 1, .top_k = 1};
    const auto drawn = device.forward.sample({.tokens = piece, .sequences = std::span(&rows, 1)}, {&rule, 1});
    EXPECT_EQ(drawn[0].token,
              n == 1 ? model->config().vocab - 1 : std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

// Block changes of a sequence: truncated, forked, copied on write.
TEST_F(CudaForwardTest, FollowsTruncatedAndForkedSequences) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  OnDevice device(*model, 256, 2);  // fewer sequence slots than sequences
  SequenceRunner host(*model, DType::kBF16, cpu, 100);
  const std::vector<std::int32_t> tokens = random_tokens(200, model->config().vocab, 9);
  const std::span<const std::int32_t> all(tokens);
  SequenceCache a(*device.pool), b(host.pool);
  device.step(a, all.first(90)), host.step(b, all.first(90));
  SequenceCache fork = a.fork(), fork_b = b.fork();
  SequenceCache third = a.fork(), third_b = b.fork();
  ASSERT_LE(relative_error(device.step(a, all.subspan(90, 20)), host.step(b, all.subspan(90, 20))), kTolerance);
  ASSERT_LE(relative_error(device.step(fork, all.subspan(120, 9)), host.step(fork_b, all.subspan(120, 9))), kTolerance);
  ASSERT_LE(relative_error(device.step(third, all.subspan(7, 1)), host.step(third_b, all.subspan(7, 1))), kTolerance);
  a.truncate(50), b.truncate(50);
  fork.clear(), fork_b.clear();
  ASSERT_LE(relative_error(device.step(a, all.subspan(130, 30)), host.step(b, all.subspan(130, 30))), kTolerance);
  for (std::size_t i = 0; i < 5; ++i) {
    ASSERT_LE(relative_error(device.step(a, all.subspan(160 + i, 1)), host.step(b, all.subspan(160 + i, 1))),
              kTolerance);
    ASSERT_LE(relative_error(device.step(third, all.subspan(i, 1)), host.step(third_b, all.subspan(i, 1))), kTolerance);
  }
}

// Layers with a window read none of the pages that were released, whoever has them now: the logits of two sequences have
// the bits that they have where all pages are kept.
TEST_F(CudaForwardTest, ReleasedPagesOfAWindowAreNotRead) {
  const auto model = Model::random(cuda_config(Architecture::kGptOss, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(900, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const char* name : {"full", "freekv", "mneme", "snapkv"}) {
      SCOPED_TRACE(::testing::Message() << name << (store == KvStore::kHost ? " host" : " device"));
      std::vector<float> expected;
      for (const bool releases : {false, true}) {
        OnDevice device(*model,
                        {.max_rows = 256, .max_sequences = 2, .max_context = model->max_context(), .store = store},
                        DType::kBF16, 40);
        if (releases) {
          KvWindows windows = kv_windows_of(model->config());
          windows.step_tokens = 256;
          device.pool->set_windows(windows);
        }
        const bool full = std::string_view(name) == "full";
        const auto plan =
            full ? compile(make_recipe("full", {}), method_shape(model->config())) : plan_for(*model, name, 128, "");
        SequenceCache first(*device.pool), second(*device.pool);
        MethodState methods[2] = {MethodState(plan), MethodState(plan)};
        std::vector<float> out;
        const auto step = [&](int sequence, std::size_t n, SequencePhase phase, std::int32_t left) {
          SequenceCache& cache = sequence == 0 ? first : second;
          const auto piece = all.subspan(static_cast<std::size_t>(cache.length() + 100 * sequence), n);
          const std::vector<float> logits = step_of(device.forward, cache, piece, phase, &methods[sequence], left);
          out.insert(out.end(), logits.begin(), logits.end());
          methods[sequence].commit(cache);
          if (releases) cache.release_behind();
        };
        step(0, 200, SequencePhase::kPrefill, 211), step(0, 211, SequencePhase::kPrefill, 0);
        for (int i = 0; i < 4; ++i) step(0, 1, SequencePhase::kDecode, 0);
        step(1, 250, SequencePhase::kPrefill, 161),
            step(1, 161, SequencePhase::kPrefill, 0);  // takes what the first released
        for (int i = 0; i < 40; ++i) step(i % 2, 1, SequencePhase::kDecode, 0);
        if (releases) {
          EXPECT_GT(first.released_pages(), 5);
          ASSERT_TRUE(out == expected);
        }
        expected = out;
      }
    }
}

// What an architecture adds reaches the logits in both stores, and under methods whose budget holds all tokens.
TEST_F(CudaForwardTest, ArchitecturesRunInBothStoresAndUnderMethods) {
  for (const Architecture architecture : all_architectures()) {
    if (architecture < Architecture::kMistral3) continue;  // the test above has them
    ModelConfig config = cuda_config(architecture, 8, 2, 64);
    config.experts.n_used = config.experts.n;  // rounding sends no row to another
    const auto model = Model::random(config, DType::kBF16, {}, 5, cpu);
    const std::vector<std::int32_t> tokens = random_tokens(330, model->config().vocab, 6);
    const std::span<const std::int32_t> all(tokens);
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const char* name : {"full", "freekv", "quest", "fier", "mneme"}) {
        SCOPED_TRACE(::testing::Message() << architecture_name(architecture) << " " << name << " "
                                          << (store == KvStore::kHost ? "host" : "device"));
        OnDevice device(*model, store);
        SequenceRunner host(*model, DType::kBF16, cpu, 100);
        SequenceCache a(*device.pool), b(host.pool);
        const bool full = std::string_view(name) == "full";
        MethodState method(full ? compile(make_recipe("full", {}), method_shape(model->config()))
                                : plan_for(*model, name, 400, ""));
        ASSERT_LE(
            relative_error(device.step(a, all.first(300), full ? nullptr : &method), host.step(b, all.first(300))),
            kTolerance);
        for (std::size_t i = 300; i < 306; ++i)
          ASSERT_LE(relative_error(device.step(a, all.subspan(i, 1), full ? nullptr : &method),
                                   host.step(b, all.subspan(i, 1))),
                    kTolerance)
              << i;
        if (full) continue;
        for (std::int32_t l = 0; l < a.shape().n_layers; ++l) {
          const LayerStats& s = method.stats().layers[static_cast<std::size_t>(l)];
          const std::int64_t window = model->config().window_of(l);
          if (window > 0) {
            EXPECT_EQ(s.attended_tokens, s.attended_heads * window) << l;
          }
        }
      }
  }
}

// More rows than the skinny GEMM takes, each of its own sequence: the same experts as alone.
TEST_F(CudaForwardTest, RowsOfManySequencesGoToTheirOwnExperts) {
  const auto model = Model::random(cuda_config(Architecture::kQwen3Moe, 8, 2, 64), DType::kQ8_0, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(12 * 42, model->config().vocab, 6);
  for (const std::size_t n : {3, 12}) {
    OnDevice device(*model);
    SequenceRunner host(*model, DType::kBF16, cpu, 200);
    std::vector<SequenceCache> a, b;
    for (std::size_t i = 0; i < n; ++i) a.emplace_back(*device.pool), b.emplace_back(host.pool);
    for (std::size_t i = 0; i < n; ++i) {
      const auto prompt = std::span<const std::int32_t>(tokens).subspan(i * 42, 30 + i);
      device.step(a[i], prompt), host.step(b[i], prompt);
    }
    std::vector<std::int32_t> batch;
    std::vector<SequenceRows> rows, host_rows;
    for (std::size_t i = 0; i < n; ++i) {
      a[i].extend(1), b[i].extend(1);
      batch.push_back(tokens[i]);
      rows.push_back({.cache = &a[i], .n_rows = 1, .want_logits = true, .phase = SequencePhase::kDecode});
      host_rows.push_back({.cache = &b[i], .n_rows = 1, .want_logits = true, .phase = SequencePhase::kDecode});
    }
    std::vector<float> got, want;
    SequenceRunner::append(device.forward.run({.tokens = batch, .sequences = rows}), got);
    SequenceRunner::append(host.forward.run({.tokens = batch, .sequences = host_rows}), want);
    ASSERT_LE(relative_error(got, want), kTolerance) << n;
  }
}

TEST_F(CudaForwardTest, ASlidingWindowIsKept) {
  ModelConfig config = cuda_config(Architecture::kMistral, 8, 2, 64);
  config.sliding_window = 70;
  const auto model = Model::random(config, DType::kBF16, {}, 5, cpu);
  OnDevice device(*model);
  SequenceRunner host(*model, DType::kBF16, cpu, 100);
  SequenceCache a(*device.pool), b(host.pool);
  const std::vector<std::int32_t> tokens = random_tokens(220, config.vocab, 9);
  for (const auto& [begin, n] : {std::pair{0, 150}, {150, 1}, {151, 60}, {211, 1}, {212, 1}}) {
    const auto piece =
        std::span<const std::int32_t>(tokens).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n));
    ASSERT_LE(relative_error(device.step(a, piece), host.step(b, piece)), kTolerance) << begin;
  }
}

// The shipped model: the same tokens as on the CPU, except where the CPU itself was undecided.
TEST_F(CudaForwardTest, TheNeedleModelAnswersAsOnTheCpu) {
  NeedleRunner needle(needle_path(), DType::kBF16, cpu, 8192);
  OnDevice device(needle.model(), 1024, 4, DType::kBF16, 400);
  NeedleMaker maker(NeedleMaker::made_up_prose(40000, 1), 2026);
  for (const auto& [kind, n_chars] : {std::pair{NeedleKind::kNumber, 4000},
                                      {NeedleKind::kWhere, 4000},
                                      {NeedleKind::kRegister, 4000},
                                      {NeedleKind::kNumber, 20000}}) {
    const NeedlePrompt prompt = maker.make(kind, static_cast<std::size_t>(n_chars));
    const NeedleAnswer want = needle.answer(prompt);
    EXPECT_EQ(want.text, prompt.answer);
    const std::vector<TokenId> ids =
        needle.format().user_turn({.document = prompt.document, .question = prompt.question}, true);
    SequenceCache cache(*device.pool);
    std::vector<float> logits;
    for (std::size_t at = 0; at < ids.size(); at += 700)
      logits = device.step(cache, std::span(ids).subspan(at, std::min<std::size_t>(700, ids.size() - at)));
    std::vector<TokenId> out;
    for (int i = 0; i < 200; ++i) {
      const auto next = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      if (needle.tokenizer().is_end(next)) break;
      out.push_back(next);
      logits = device.step(cache, std::span(&out.back(), 1));
    }
    EXPECT_EQ(needle.tokenizer().decode(out), prompt.answer) << ids.size() << " tokens";
  }
}

}  // namespace
}  // namespace mneme
