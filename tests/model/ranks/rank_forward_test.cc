// Two and four ranks beside one: the same logits but for the order of sums, under every kind of method; in threads and
// in processes.
#include "src/model/ranks/rank_forward.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

#include "src/model/ranks/rank_checkpoint.h"
#include "src/recipes/compile.h"
#include "tests/error_message.h"
#include "tests/model/method_shape.h"
#include "tests/model/test_models.h"
#include "tests/parallel/ranks.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

using parallel_test::in_processes;
using parallel_test::in_threads;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

ModelConfig config_of(Architecture architecture) {
  ModelConfig c = small_config(architecture);
  c.n_kv_heads = 4;
  c.vocab = 151;  // parts of 64: the last of two has 23, the last of four none
  return c;
}

std::unique_ptr<Checkpoint> checkpoint_of(Architecture architecture) {
  auto checkpoint = std::make_unique<MemoryCheckpoint>(config_of(architecture), DType::kF32);
  checkpoint->fill(17);
  return checkpoint;
}

// Logits of a prompt in chunks of 40 tokens, then of tokens one by one under `method` ("": full attention).
template <typename F>
std::vector<float> logits_of(const Model& model, F& forward, const std::string& method) {
  constexpr std::size_t kPrompt = 200, kDecode = 12, kChunk = 40;
  PagePool pool(model.kv_shape(DType::kBF16), 16 * model.kv_shape(DType::kBF16).blocks_per_page());
  SequenceCache cache(pool);
  std::unique_ptr<MethodState> state;
  if (!method.empty())
    state = std::make_unique<MethodState>(compile(parse_recipe(method), method_shape(model.config())));
  const std::vector<std::int32_t> tokens = random_tokens(kPrompt + kDecode, model.config().vocab, 5);
  std::vector<float> out;
  for (std::size_t at = 0; at < tokens.size();) {
    const bool decodes = at >= kPrompt;
    const std::size_t n = decodes ? 1 : std::min(kChunk, kPrompt - at);
    cache.extend(static_cast<std::int32_t>(n));
    const SequenceRows rows{.cache = &cache,
                            .n_rows = static_cast<std::int32_t>(n),
                            .want_logits = true,
                            .method = state.get(),
                            .phase = decodes ? SequencePhase::kDecode : SequencePhase::kPrefill,
                            .prefill_left = static_cast<std::int32_t>(decodes ? 0 : kPrompt - at - n)};
    const ConstTensorView y =
        forward.run({.tokens = std::span(tokens).subspan(at, n), .sequences = std::span(&rows, 1)});
    if (state) state->commit(cache);
    out.insert(out.end(), y.row_as<float>(0), y.row_as<float>(0) + model.config().vocab);
    at += n;
  }
  return out;
}

// Logits under full attention of the part of a checkpoint that a rank has; null: of the whole.
std::vector<float> full_logits(std::unique_ptr<Checkpoint> checkpoint, Collective* ranks) {
  ThreadPool threads(1);
  const CpuContext context{.pool = &threads, .rounding = Rounding::kFixed};
  const auto model = Model::load(
      ranks == nullptr ? std::move(checkpoint) : rank_checkpoint(std::move(checkpoint), ranks->rank(), ranks->size()),
      {}, context);
  Forward forward(*model, context, ranks);
  return logits_of(*model, forward, "");
}

std::vector<float> one_rank(Architecture architecture, const std::string& method) {
  ThreadPool threads(1);
  const CpuContext context{.pool = &threads, .rounding = Rounding::kFixed};
  const auto model = Model::load(checkpoint_of(architecture), {}, context);
  Forward forward(*model, context);
  return logits_of(*model, forward, method);
}

std::vector<float> of_rank(Collective& ranks, Architecture architecture, const std::string& method) {
  ThreadPool threads(1);
  const CpuContext context{.pool = &threads, .rounding = Rounding::kFixed};
  const auto model = Model::load(rank_checkpoint(checkpoint_of(architecture), ranks.rank(), ranks.size()), {}, context);
  Forward forward(*model, context, &ranks);
  return logits_of(*model, forward, method);
}

// Sums in f32 in another order, over 2 layers, of logits up to some tens. A bf16 key that rounds the other way moves
// attention by 2^-9 of itself.
bool near(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  float largest = 0, difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!(std::abs(a[i] - b[i]) <= 1e30f)) return false;
    largest = std::max(largest, std::abs(a[i]));
    difference = std::max(difference, std::abs(a[i] - b[i]));
  }
  return difference <= 4e-3f * largest;
}

const char* const kMethods[] = {"",
                                "window:budget=128,sink=32,recent=32",
                                "quest:budget=128,sink=32,recent=32",
                                "freekv:budget=128,sink=32,recent=32",
                                "fier:budget=128,sink=32,recent=32",
                                "snapkv:budget=96",
                                "h2o:budget=96,recent=48"};

TEST(RankForward, LogitsOfSeveralRanksAreThoseOfOne) {
  for (const char* method : kMethods) {
    const std::vector<float> expected = one_rank(Architecture::kLlama, method);
    for (const int size : {1, 2, 4})
      EXPECT_THAT(in_threads(size,
                             [&](Collective& ranks) {
                               EXPECT_TRUE(near(of_rank(ranks, Architecture::kLlama, method), expected))
                                   << method << " rank " << ranks.rank() << " of " << ranks.size();
                             }),
                  Each(""));
  }
}

// Layers over ranks add nothing up: the same bits.
TEST(RankForward, LogitsOfLayersOverRanksAreThoseOfOne) {
  for (const char* method : {"", "quest:budget=128,sink=32,recent=32,dense=none", "tova:budget=96,recent=48"}) {
    const std::vector<float> expected = one_rank(Architecture::kQwen3, method);
    EXPECT_THAT(in_threads(2,
                           [&](Collective& ranks) {
                             ThreadPool threads(1);
                             const CpuContext context{.pool = &threads, .rounding = Rounding::kFixed};
                             const auto model = Model::load(
                                 stage_checkpoint(checkpoint_of(Architecture::kQwen3), ranks.rank(), 2), {}, context);
                             Forward forward(*model, context, &ranks, RankSplit::kLayers);
                             EXPECT_EQ(logits_of(*model, forward, method), expected) << method;
                           }),
                Each(""));
  }
  EXPECT_THAT(error_message(ErrorKind::kOption, [] { stage_checkpoint(checkpoint_of(Architecture::kLlama), 0, 99); }),
              HasSubstr("--pipeline-parallel-size 99: the model has"));
}

TEST(RankForward, EveryDenseArchitecture) {
  for (const Architecture a :
       {Architecture::kMistral, Architecture::kQwen2, Architecture::kQwen3, Architecture::kMistral3}) {
    const std::vector<float> expected = one_rank(a, "");
    EXPECT_THAT(in_threads(2, [&](Collective& ranks) { EXPECT_TRUE(near(of_rank(ranks, a, ""), expected)); }), Each(""))
        << architecture_name(a);
  }
}

// Six experts: four ranks have 1, 2, 1 and 2 of them. gpt-oss has sinks, and biases that are added once.
TEST(RankForward, MixturesOfExperts) {
  for (const Architecture a : {Architecture::kQwen3Moe, Architecture::kGptOss})
    for (const char* method : {"", "freekv:budget=128,sink=32,recent=32"}) {
      const std::vector<float> expected = one_rank(a, method);
      for (const int size : {1, 2, 4})
        EXPECT_THAT(in_threads(size,
                               [&](Collective& ranks) {
                                 EXPECT_TRUE(near(of_rank(ranks, a, method), expected))
                                     << architecture_name(a) << " " << method << " rank " << ranks.rank() << " of "
                                     << ranks.size();
                               }),
                    Each(""));
    }
}

// As folders have experts: one tensor each. Of a type whose blocks no expert's width divides by the ranks.
TEST(RankForward, ExpertsOneByOneAndQuantised) {
  const auto logits = [](Collective* ranks, bool one_by_one) {
    auto checkpoint = std::make_unique<MemoryCheckpoint>(config_of(Architecture::kQwen3Moe), DType::kF32);
    checkpoint->fill(17);
    if (one_by_one) checkpoint->unstack_experts();
    for (const char* part : {"ffn_gate.", "ffn_up.", "ffn_down."})
      for (int e = 0; one_by_one && e < 6; ++e) checkpoint->quantise(fmt::format("{}{}.weight", part, e), DType::kQ8_0);
    return full_logits(std::move(checkpoint), ranks);
  };
  const std::vector<float> expected = logits(nullptr, true);
  EXPECT_NE(expected, logits(nullptr, false));
  EXPECT_THAT(in_threads(2, [&](Collective& ranks) { EXPECT_TRUE(near(logits(&ranks, true), expected)); }), Each(""));
}

TEST(RankCheckpoint, ARankHasItsExpertsAlone) {
  std::size_t bytes = 0;
  ThreadPool threads(1);
  const CpuContext context{.pool = &threads};
  for (int rank = 0; rank < 4; ++rank) {
    const auto part = Model::load(rank_checkpoint(checkpoint_of(Architecture::kGptOss), rank, 4), {}, context);
    const RankRange mine = rank_experts(6, rank, 4);
    const std::vector<ExpertWeights>& experts = part->layers()[1].experts;
    for (std::int64_t e = 0; e < 6; ++e) {
      EXPECT_EQ(experts[e].down.n_out() > 0, e >= mine.first && e < mine.end) << rank << " expert " << e;
      bytes += experts[e].down.n_out() > 0 ? experts[e].down.bytes() : 0;
    }
  }
  EXPECT_EQ(bytes, std::size_t{6 * 64 * 32 * sizeof(float)});
}

TEST(RankForward, TheSameBitsOnEveryRank) {
  std::vector<std::vector<float>> all(4);
  const auto errors = in_threads(4, [&](Collective& ranks) {
    all[ranks.rank()] = of_rank(ranks, Architecture::kLlama, "freekv:budget=128,sink=32,recent=32");
  });
  EXPECT_THAT(errors, Each(""));
  ASSERT_FALSE(all[0].empty());
  for (int r = 1; r < 4; ++r) EXPECT_EQ(all[r], all[0]);
}

TEST(RankForward, ProcessesAsThreads) {
  const std::vector<float> expected = one_rank(Architecture::kQwen2, "quest:budget=128,sink=32,recent=32");
  EXPECT_THAT(in_processes(2,
                           [&](Collective& ranks) {
                             return near(of_rank(ranks, Architecture::kQwen2, "quest:budget=128,sink=32,recent=32"),
                                         expected);
                           }),
              Each(0));
}

TEST(RankForward, RanksWithOtherStepsFindOut) {
  const std::vector<std::string> errors = in_threads(2, [](Collective& ranks) {
    ThreadPool threads(1);
    const CpuContext context{.pool = &threads};
    const auto model = Model::load(rank_checkpoint(checkpoint_of(Architecture::kLlama), ranks.rank(), 2), {}, context);
    Forward forward(*model, context, &ranks);
    PagePool pool(model->kv_shape(DType::kBF16), model->kv_shape(DType::kBF16).blocks_per_page());
    SequenceCache cache(pool);
    cache.extend(1);
    const std::int32_t token = ranks.rank() + 3;
    const SequenceRows rows{.cache = &cache, .n_rows = 1, .want_logits = true};
    forward.run({.tokens = std::span(&token, 1), .sequences = std::span(&rows, 1)});
  });
  EXPECT_THAT(errors, Each(HasSubstr("ranks 0 and 1 have not the same step")));
}

TEST(RankCheckpoint, ErrorsNameWhatCannotBeSharedOut) {
  const auto message = [](ErrorKind kind, ModelConfig c, int size) {
    return error_message(kind, [&] { rank_checkpoint(std::make_unique<MemoryCheckpoint>(c, DType::kF32), 0, size); });
  };
  EXPECT_THAT(message(ErrorKind::kOption, config_of(Architecture::kLlama), 3),
              HasSubstr("--tensor-parallel-size 3: 4 KV heads cannot be shared out"));
  ModelConfig narrow = config_of(Architecture::kLlama);
  narrow.ffn = 98;
  EXPECT_THAT(message(ErrorKind::kOption, narrow, 4), HasSubstr("98 columns of the feed-forward layer"));
  ModelConfig few = config_of(Architecture::kQwen3Moe);
  few.experts.n = 3;
  EXPECT_THAT(message(ErrorKind::kOption, few, 4), HasSubstr("--tensor-parallel-size 4: the model has 3 experts"));
  auto quantised = std::make_unique<MemoryCheckpoint>(config_of(Architecture::kLlama), DType::kF32);
  quantised->quantise("ffn_down.weight", DType::kQ8_0);  // 96 columns: 3 blocks
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { rank_checkpoint(std::move(quantised), 0, 2); }),
              HasSubstr("in blocks of 32 cannot be shared out"));
}

TEST(RankCheckpoint, LayersWithAStateAreRefused) {
  for (const Architecture a : {Architecture::kQwen35, Architecture::kQwen35Moe, Architecture::kQwen3Next}) {
    const auto whole = [a] { return std::make_unique<MemoryCheckpoint>(small_config(a), DType::kF32); };
    EXPECT_THAT(error_message(ErrorKind::kUnsupported, [&] { rank_checkpoint(whole(), 0, 2); }),
                AllOf(HasSubstr("--tensor-parallel-size 2: "), HasSubstr("run the model in one process")));
    EXPECT_THAT(error_message(ErrorKind::kUnsupported, [&] { stage_checkpoint(whole(), 0, 2); }),
                AllOf(HasSubstr("--pipeline-parallel-size 2: "), HasSubstr("run the model in one process")));
  }
}

// GPTQ with act-order: rows keep the order of the columns that they are stored in; columns of one rank would be in
// blocks of all.
TEST(RankCheckpoint, ReorderedColumnsStayWithRowsAndAreRefusedWhereColumnsAreCut) {
  const ModelConfig c = config_of(Architecture::kLlama);
  std::vector<std::int32_t> columns(c.hidden);
  std::iota(columns.rbegin(), columns.rend(), 0);
  auto rows = std::make_unique<MemoryCheckpoint>(c, DType::kF32);
  for (const char* name : {"blk.0.attn_q.weight", "blk.1.ffn_up.weight"}) rows->reorder(name, columns);
  const auto part = rank_checkpoint(std::move(rows), 1, 2);
  for (const char* name : {"blk.0.attn_q.weight", "blk.1.ffn_up.weight"})
    EXPECT_THAT(part->find(name)->columns, testing::ElementsAreArray(columns)) << name;
  for (const char* name : {"blk.0.attn_output.weight", "blk.1.ffn_down.weight"}) {
    auto cut = std::make_unique<MemoryCheckpoint>(c, DType::kF32);
    cut->reorder(name, columns);
    EXPECT_THAT(error_message(ErrorKind::kUnsupported, [&] { rank_checkpoint(std::move(cut), 0, 2); }),
                HasSubstr(std::string(name) + " has reordered columns (GPTQ with act-order)"));
  }
}

// Logits of rows whose columns are stored in reverse.
TEST(RankForward, ReorderedColumnsOfRows) {
  const auto logits = [](Collective* ranks, std::span<const std::int32_t> columns) {
    auto checkpoint = std::make_unique<MemoryCheckpoint>(config_of(Architecture::kLlama), DType::kF32);
    checkpoint->fill(17);
    checkpoint->reorder("blk.0.attn_k.weight", columns);
    checkpoint->reorder("blk.1.ffn_gate.weight", columns);
    return full_logits(std::move(checkpoint), ranks);
  };
  std::vector<std::int32_t> columns(config_of(Architecture::kLlama).hidden);
  std::iota(columns.rbegin(), columns.rend(), 0);
  const std::vector<float> expected = logits(nullptr, columns);
  EXPECT_FALSE(near(logits(nullptr, {}), expected));
  EXPECT_THAT(in_threads(2, [&](Collective& ranks) { EXPECT_TRUE(near(logits(&ranks, columns), expected)); }),
              Each(""));
}

}  // namespace
}  // namespace mneme
