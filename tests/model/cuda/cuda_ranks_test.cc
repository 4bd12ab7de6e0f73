// Two ranks on one GPU, as two processes over host memory, beside one that has the whole model: logits of prompts, of
// steps and of replayed graphs, under every kind of selection; ranks that end and that stall. NCCL with one rank runs
// the same path.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <cstdlib>
#include <numeric>
#include <optional>

#include "src/base/error.h"
#include "src/cuda/device.h"
#include "src/model/cuda/forward.h"
#include "src/model/cuda/ranks/device_collective.h"
#include "src/model/ranks/rank_checkpoint.h"
#include "src/model/ranks/rank_forward.h"
#include "src/parallel/nccl/nccl_library.h"
#include "src/recipes/recipes.h"
#include "tests/model/cuda/cuda_models.h"
#include "tests/model/method_shape.h"
#include "tests/model/sequence_runner.h"
#include "tests/parallel/ranks.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

using parallel_test::in_children;
using parallel_test::kNoDevice;
using parallel_test::kRight;
using parallel_test::kWrong;
using parallel_test::no_device;
using testing::AnyOf;
using testing::Each;
using testing::ElementsAre;

constexpr std::size_t kPrompt = 600, kDecode = 20, kChunk = 256;

struct Case {
  Architecture architecture = Architecture::kLlama;
  DType type = DType::kF32;  // bf16 on the device
  KvStore store = KvStore::kDevice;
  const char* method = "";
  RankSplit split = RankSplit::kHeads;
};

std::unique_ptr<Checkpoint> checkpoint_of(const Case& c) {
  auto checkpoint = std::make_unique<MemoryCheckpoint>(cuda_config(c.architecture, 8, 4, 64), DType::kF32);
  checkpoint->fill(17);
  if (c.type != DType::kF32) checkpoint->unstack_experts();
  for (const char* part : {"ffn_gate", "ffn_up", "ffn_down"})
    for (std::int64_t e = 0; c.type != DType::kF32 && e < checkpoint->config().experts.n; ++e)
      checkpoint->quantise(fmt::format("{}.{}.weight", part, e), c.type);
  if (c.type != DType::kF32)
    for (const char* name : {"attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "ffn_gate.weight",
                             "ffn_up.weight", "ffn_down.weight", "token_embd.weight"})
      checkpoint->quantise(name, c.type);
  return checkpoint;
}

// Logits of a prompt in chunks and of 20 tokens after it; from the third of these on a graph is replayed.
std::vector<float> logits_of(const Model& model, CudaForward& forward, const Case& c) {
  const KvShape shape = model.kv_shape(DType::kBF16);
  const auto pool = forward.make_pool(shape, 40 * shape.blocks_per_page());
  SequenceCache cache(*pool);
  std::unique_ptr<MethodState> state;
  if (*c.method != '\0')
    state = std::make_unique<MethodState>(compile(parse_recipe(c.method), method_shape(model.config())));
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
    SequenceRunner::append(forward.run({.tokens = std::span(tokens).subspan(at, n), .sequences = std::span(&rows, 1)}),
                           out);
    if (state) state->commit(cache);
    at += n;
  }
  return out;
}

CudaForwardOptions options_of(const Model& model, const Case& c, DeviceCollective* ranks) {
  return {.max_rows = kChunk,
          .max_sequences = 2,
          .max_context = model.max_context(),
          .store = c.store,
          .ranks = ranks,
          .split = c.split};
}

std::vector<float> whole(const Case& c, const CpuContext& cpu) {
  const auto model = Model::load(checkpoint_of(c), {}, cpu);
  const Stream stream = Stream::make();
  CudaForward forward(*model, CudaWeights::load(*model, stream), Stream::make(), options_of(*model, c, nullptr));
  return logits_of(*model, forward, c);
}

std::unique_ptr<DeviceCollective> by_host(Collective& ranks, const Model& model, const Case& c) {
  return host_device_collective(
      ranks, CudaForward::rank_message_bytes(model.config(), options_of(model, c, nullptr), ranks.size()));
}

// Prompts of 256 rows do not fit in packets: two ranks read each other's.
PeerLimits limits_of(const Model& model, const Case& c) {
  return {.packets = std::size_t{64} << 10,
          .rows = CudaForward::rank_message_bytes(model.config(), options_of(model, c, nullptr), 2)};
}

// Sums by kernels that access the other process's memory, all else by the host. Processes of one GPU take turns of some
// ms, while the others wait.
std::unique_ptr<DeviceCollective> by_peers(Collective& ranks, const Model& model, const Case& c) {
  std::string why_not;
  auto collective = peer_device_collective(by_host(ranks, model, c), limits_of(model, c), why_not, 5);
  std::fprintf(stderr, "sums: %s%s\n", collective->form().data(), why_not.empty() ? "" : (", " + why_not).c_str());
  if (!why_not.empty()) fail(ErrorKind::kDevice, "no peers: {}", why_not);
  return collective;
}
std::unique_ptr<DeviceCollective> by_nccl(Collective& ranks, const Model&, const Case&) {
  return nccl_device_collective(ranks);
}
std::unique_ptr<DeviceCollective> by_nccl_and_peers(Collective& ranks, const Model& model, const Case& c) {
  std::string why_not;
  auto collective = peer_device_collective(nccl_device_collective(ranks), limits_of(model, c), why_not);
  if (!why_not.empty()) std::fprintf(stderr, "no peers: %s\n", why_not.c_str());
  return collective;
}

using MakeCollective = std::unique_ptr<DeviceCollective>(Collective&, const Model&, const Case&);

std::vector<float> part(Collective& ranks, const Case& c, const CpuContext& cpu, MakeCollective* make = by_host) {
  const bool layers = c.split == RankSplit::kLayers;
  const auto model = Model::load(layers ? stage_checkpoint(checkpoint_of(c), ranks.rank(), ranks.size())
                                        : rank_checkpoint(checkpoint_of(c), ranks.rank(), ranks.size()),
                                 {}, cpu);
  const auto collective = make(ranks, *model, c);
  const Stream stream = Stream::make();
  std::optional<RankRange> head;
  if (!layers) head = vocabulary_range(model->config().vocab, ranks.rank(), ranks.size());
  CudaForward forward(*model, CudaWeights::load(*model, stream, {}, {}, head), Stream::make(),
                      options_of(*model, c, collective.get()));
  return logits_of(*model, forward, c);
}

// Whether every case's logits are those of one GPU with the whole model.
int compare(Collective& ranks, const std::vector<Case>& cases, MakeCollective* make = by_host) {
  if (device_count() == 0) return kNoDevice;
  use_device(0);
  ThreadPool threads(2);
  const CpuContext cpu{.pool = &threads};
  int code = kRight;
  for (const Case& c : cases) {
    const std::vector<float> mine = part(ranks, c, cpu, make);
    const std::vector<float> expected = whole(c, cpu);
    const double error = relative_error(mine, expected);
    fmt::print(stderr, "rank {} of {}, {} {} {} {}: {:.2g}\n", ranks.rank(), ranks.size(),
               architecture_name(c.architecture), dtype_name(c.type), c.store == KvStore::kHost ? "host" : "device",
               c.method, error);
    if (!(error <= kTolerance)) code = kWrong;
  }
  return code;
}

const char* const kMethods[] = {"window:budget=256,sink=32,recent=64", "quest:budget=256,sink=32,recent=64",
                                "freekv:budget=256,sink=32,recent=64", "fier:budget=256,sink=32,recent=64",
                                "snapkv:budget=256"};

TEST(CudaRanks, LogitsOfTwoRanksAreThoseOfOne) {
  std::vector<Case> cases;
  for (const Architecture a :
       {Architecture::kLlama, Architecture::kQwen2, Architecture::kQwen3, Architecture::kMistral})
    for (const DType type : {DType::kF32, DType::kQ8_0}) cases.push_back({.architecture = a, .type = type});
  cases.push_back({.store = KvStore::kHost});
  const std::vector<int> codes = in_children(2, [&](Collective& ranks) { return compare(ranks, cases); });
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, Each(kRight));
}

TEST(CudaRanks, MixturesOfExperts) {
  std::vector<Case> cases;
  for (const Architecture a : {Architecture::kQwen3Moe, Architecture::kGptOss})
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
      for (const char* method : {"", kMethods[2]})
        cases.push_back({.architecture = a, .store = store, .method = method});
  cases.push_back({.architecture = Architecture::kQwen3Moe, .type = DType::kQ8_0});
  for (MakeCollective* make : {by_host, by_peers}) {
    const std::vector<int> codes = in_children(2, [&](Collective& ranks) { return compare(ranks, cases, make); });
    if (no_device(codes)) GTEST_SKIP() << "no GPU";
    EXPECT_THAT(codes, Each(kRight));
  }
  const std::vector<Case> four = {{.architecture = Architecture::kGptOss}};  // 1, 2, 1 and 2 of six experts
  EXPECT_THAT(in_children(4, [&](Collective& ranks) { return compare(ranks, four); }), Each(kRight));
}

TEST(CudaRanks, MethodsSelectByRank) {
  std::vector<Case> cases;
  for (const char* method : kMethods)
    for (const KvStore store : {KvStore::kDevice, KvStore::kHost}) cases.push_back({.store = store, .method = method});
  const std::vector<int> codes = in_children(2, [&](Collective& ranks) { return compare(ranks, cases); });
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, Each(kRight));
}

TEST(CudaRanks, FourRanks) {
  const std::vector<Case> cases = {{}, {.store = KvStore::kHost, .method = kMethods[2]}};
  const std::vector<int> codes = in_children(4, [&](Collective& ranks) { return compare(ranks, cases); });
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, Each(kRight));
}

// One layer, two layers; one each.
TEST(CudaRanks, LayersOverTwoAndThreeRanks) {
  const std::vector<Case> cases = {{.split = RankSplit::kLayers},
                                   {.type = DType::kQ8_0, .split = RankSplit::kLayers},
                                   {.store = KvStore::kHost,
                                    .method = "freekv:budget=256,sink=32,recent=64,dense=none",
                                    .split = RankSplit::kLayers}};
  for (const int size : {2, 3}) {
    const std::vector<int> codes = in_children(size, [&](Collective& ranks) { return compare(ranks, cases); });
    if (no_device(codes)) GTEST_SKIP() << "no GPU";
    EXPECT_THAT(codes, Each(kRight));
  }
}

TEST(CudaRanks, LogitsOfTwoRanksOverPeers) {
  const std::vector<Case> cases = {{}, {.type = DType::kQ8_0}, {.store = KvStore::kHost, .method = kMethods[2]}};
  const std::vector<int> codes = in_children(2, [&](Collective& ranks) { return compare(ranks, cases, by_peers); });
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, Each(kRight));
}

// A GPU of its own for each rank's process: before its first call of CUDA.
bool take_own_gpu(Collective& ranks) {
  const char* const seen = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string_view gpus = seen == nullptr ? "0,1,2,3,4,5,6,7" : seen;
  for (int r = 0; r < ranks.rank(); ++r) gpus.remove_prefix(std::min(gpus.find(',') + 1, gpus.size()));
  setenv("CUDA_VISIBLE_DEVICES", std::string(gpus.substr(0, gpus.find(','))).c_str(), 1);
  const std::uint64_t have = device_count() > 0 ? 1 : 0;
  std::vector<std::uint64_t> all(static_cast<std::size_t>(ranks.size()));
  ranks.all_gather(std::as_bytes(std::span(&have, 1)), std::as_writable_bytes(std::span(all)));
  return std::accumulate(all.begin(), all.end(), std::uint64_t{0}) == all.size();
}

// Of two values there is one sum: the kernel over peers and NCCL give the same bits.
TEST(CudaRanks, TwoGpusByNcclAndOverPeers) {
  const std::vector<int> codes = in_children(2, [](Collective& ranks) {
    if (!take_own_gpu(ranks)) return kNoDevice;
    use_device(0);
    ThreadPool threads(2);
    const CpuContext cpu{.pool = &threads};
    int code = kRight;
    for (const Case& c : {Case{}, Case{.type = DType::kQ8_0}, Case{.store = KvStore::kHost, .method = kMethods[2]}}) {
      const std::vector<float> expected = whole(c, cpu), nccl = part(ranks, c, cpu, by_nccl),
                               peers = part(ranks, c, cpu, by_nccl_and_peers);
      const double error = relative_error(nccl, expected), between = relative_error(peers, nccl);
      fmt::print(stderr, "rank {}: NCCL {:.2g}, peers beside NCCL {:.2g}\n", ranks.rank(), error, between);
      if (!(error <= kTolerance && between <= kTolerance)) code = kWrong;
    }
    return code;
  });
  if (no_device(codes)) GTEST_SKIP() << "no two GPUs";
  EXPECT_THAT(codes, Each(kRight));
}

TEST(CudaRanks, OneRankByNccl) {
  const std::vector<int> codes = in_children(1, [](Collective& ranks) {
    if (device_count() == 0) return kNoDevice;
    use_device(0);
    try {
      return compare(ranks, {{}, {.store = KvStore::kHost, .method = kMethods[2]}}, by_nccl);
    } catch (const Error& e) {
      std::fprintf(stderr, "%s\n", e.what());
      return std::string(e.what()).find("cannot be opened") != std::string::npos ? kNoDevice : kWrong;
    }
  });
  if (no_device(codes)) GTEST_SKIP() << "no GPU, or no NCCL";
  EXPECT_THAT(codes, Each(kRight));
}

// What the rank that stays has after the other one is gone: an error, within the collective's deadline.
template <typename Leave>
std::vector<int> after_a_rank_left(Leave leave, MakeCollective* make = by_host) {
  return in_children(
      2,
      [&](Collective& ranks) {
        if (device_count() == 0) return kNoDevice;
        use_device(0);
        ThreadPool threads(1);
        const CpuContext cpu{.pool = &threads};
        const Case c;
        const auto model = Model::load(rank_checkpoint(checkpoint_of(c), ranks.rank(), ranks.size()), {}, cpu);
        const auto collective = make(ranks, *model, c);
        const RankRange head = vocabulary_range(model->config().vocab, ranks.rank(), ranks.size());
        const Stream stream = Stream::make();
        CudaForward forward(*model, CudaWeights::load(*model, stream, {}, {}, head), Stream::make(),
                            options_of(*model, c, collective.get()));
        const KvShape shape = model->kv_shape(DType::kBF16);
        const auto pool = forward.make_pool(shape, 40 * shape.blocks_per_page());
        SequenceCache cache(*pool);
        const std::vector<std::int32_t> tokens = random_tokens(8, model->config().vocab, 5);
        for (std::size_t i = 0; i < tokens.size(); ++i) {
          cache.extend(1);
          const SequenceRows rows{
              .cache = &cache, .n_rows = 1, .want_logits = true, .method = nullptr, .phase = SequencePhase::kDecode};
          const ForwardInput input{.tokens = std::span(tokens).subspan(i, 1), .sequences = std::span(&rows, 1)};
          if (ranks.rank() == 1 && i == 5) {  // the other one's step has started
            expect_agreement(ranks, "step", step_hash(input));
            leave();
          }
          const auto begin = std::chrono::steady_clock::now();
          try {
            forward.run(input);
          } catch (const RanksStopped& e) {
            const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
            std::fprintf(stderr, "%s, after %.2f s\n", e.what(), seconds.count());
            return i == 5 && seconds.count() < 8 ? kRight : kWrong;
          }
        }
        return kWrong;
      },
      {.seconds = 2});
}

TEST(CudaRanks, ARankThatEndsEndsTheOthersStep) {
  const std::vector<int> codes = after_a_rank_left([] { _exit(42); });
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, ElementsAre(kRight, 42));
}

TEST(CudaRanks, ARankThatStallsEndsTheOthersStep) {
  const std::vector<int> codes = after_a_rank_left([] {
    std::this_thread::sleep_for(std::chrono::seconds(9));
    _exit(42);
  });
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, ElementsAre(kRight, 42));
}

// A kernel waits: nothing on the device ends it but the flag.
TEST(CudaRanks, ARankThatEndsEndsTheKernelThatWaitsForIt) {
  const std::vector<int> codes = after_a_rank_left([] { _exit(42); }, by_peers);
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, ElementsAre(kRight, 42));
}

TEST(CudaRanks, ARankThatStallsEndsTheKernelThatWaitsForIt) {
  const std::vector<int> codes = after_a_rank_left(
      [] {
        std::this_thread::sleep_for(std::chrono::seconds(9));
        _exit(42);
      },
      by_peers);
  if (no_device(codes)) GTEST_SKIP() << "no GPU";
  EXPECT_THAT(codes, ElementsAre(kRight, 42));
}

}  // namespace
}  // namespace mneme
