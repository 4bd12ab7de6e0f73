// With fixed rounding drafts change no bit of an answer: random models of every architecture, random requests, any
// drafter, any company.
#include <gtest/gtest.h>

#include <map>

#include "src/engine/speculation/ngram_drafter.h"
#include "tests/engine/test_drafter.h"
#include "tests/model/test_models.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

using Tokens = std::vector<std::int32_t>;

// An answer and all that is told with it.
struct Told {
  Tokens tokens;
  std::vector<float> logprobs, top;
  StopReason reason = StopReason::kLength;
  bool operator==(const Told&) const = default;
};

std::unique_ptr<Engine> engine_of(Architecture architecture, DType dtype, KvDtype kv, int max_batched_tokens) {
  auto threads = std::make_unique<ThreadPool>(kTestThreads);
  const CpuContext fixed{.pool = threads.get(), .rounding = Rounding::kFixed};
  auto model = Model::random(small_config(architecture), dtype, {}, 11, fixed);
  const EngineOptions options{.kv_cache_dtype = kv,
                              .context = 512,
                              .kv_memory_bytes = std::int64_t{8} << 20,
                              .max_sequences = 8,
                              .max_batched_tokens = max_batched_tokens,
                              .deterministic = true};
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

// Allows what differs from the last token by less than half of the vocabulary.
class NearTokens final : public TokenConstraint {
 public:
  explicit NearTokens(std::int32_t last) : last_(last) {}
  void allowed(std::span<std::uint64_t> mask) const override {
    std::fill(mask.begin(), mask.end(), 0);
    for (std::int32_t i = 0; i < 25; ++i) mask[0] |= std::uint64_t{1} << (last_ + i) % 50;
  }
  std::shared_ptr<const TokenConstraint> after(std::int32_t token) const override {
    return std::make_shared<NearTokens>(token);
  }

 private:
  std::int32_t last_;
};

// Of few tokens, so that answers repeat what was there.
RequestInput random_request(Rng& rng) {
  RequestInput input;
  input.prompt.resize(1 + rng.below(rng.below(4) == 0 ? 120 : 30));
  const std::uint64_t alphabet = 1 + rng.below(50);
  for (auto& t : input.prompt) t = static_cast<std::int32_t>(rng.below(alphabet));
  input.max_tokens = 1 + static_cast<std::int32_t>(rng.below(30));
  if (rng.below(2) == 0) input.end_tokens = {static_cast<std::int32_t>(rng.below(50))};
  if (rng.below(2) == 0) {
    input.sampling.temperature = rng.below(2) == 0 ? 0.2f : 1.0f;
    input.sampling.seed = rng.next();
    if (rng.below(2) == 0) input.sampling.top_p = 0.8f;
    if (rng.below(3) == 0) input.sampling.top_k = 5;
    if (rng.below(3) == 0) input.sampling.min_p = 0.05f;
    if (rng.below(3) == 0) input.sampling.repetition_penalty = 1.2f;
    if (rng.below(3) == 0) input.sampling.frequency_penalty = 0.4f;
    if (rng.below(4) == 0) input.sampling.logit_bias = {{.token = 3, .bias = 2.0f}};
  }
  if (rng.below(4) == 0) input.constraint = std::make_shared<NearTokens>(7);
  if (rng.below(3) == 0) input.top_logprobs = 2;
  return input;
}

std::vector<Told> answers_of(Engine& engine, std::vector<RequestInput> inputs, Rng& rng) {
  std::map<RequestId, Told> told;
  const auto step = [&] {
    for (const RequestEvent& e : engine.step()) {
      Told& t = told[e.id];
      if (e.token) {
        t.tokens.push_back(e.token->token);
        t.logprobs.push_back(e.token->logprob);
      }
      for (const TokenLogprob& top : e.top) t.top.push_back(top.logprob);
      if (e.finished) t.reason = *e.finished;
    }
  };
  std::vector<RequestId> ids;
  for (RequestInput& input : inputs) {
    ids.push_back(engine.start({}, std::move(input)));
    for (std::uint64_t n = rng.below(4); n > 0 && !engine.idle(); --n) step();
  }
  while (!engine.idle()) step();
  engine.check_invariants();
  std::vector<Told> answers;
  for (const RequestId id : ids) answers.push_back(told[id]);
  return answers;
}

enum class Drafts { kNgram, kRight, kWrong, kRandom };

std::shared_ptr<Drafter> drafter_for(const RequestInput& input, const Told& plain, Rng& rng) {
  const auto kind = static_cast<Drafts>(rng.below(4));
  const auto k = 1 + static_cast<std::int32_t>(rng.below(15));
  if (kind == Drafts::kNgram)
    return std::make_shared<NgramDrafter>(SpeculationOptions{
        .method = SpeculationOptions::Method::kNgram, .drafts = k, .min_match = 1 + static_cast<int>(rng.below(4))});
  const double truth = kind == Drafts::kRight ? 1 : kind == Drafts::kWrong ? 0 : 0.6;
  return std::make_shared<TestDrafter>(input.prompt.size(), plain.tokens,
                                       TestDrafter::Options{.k = k, .truth = truth, .vocab = 50, .outside = 0.05},
                                       rng.next());
}

// Answers of `n_groups` groups of requests with and without drafts. Returns how many drafts were accepted.
std::int64_t compare(Engine& plain, Engine& drafting, int n_groups, std::uint64_t seed) {
  Rng rng(seed);
  std::int64_t accepted = 0;
  for (int group = 0; group < n_groups; ++group) {
    std::vector<RequestInput> inputs(1 + rng.below(8));
    for (RequestInput& input : inputs) input = random_request(rng);
    const std::vector<Told> expected = answers_of(plain, inputs, rng);
    std::vector<RequestInput> with = inputs;
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (rng.below(8) > 0) with[i].drafter = drafter_for(inputs[i], expected[i], rng);
    const std::vector<Told> got = answers_of(drafting, with, rng);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].tokens, expected[i].tokens) << "seed " << seed << ", group " << group << ", request " << i;
      EXPECT_EQ(got[i], expected[i]) << "seed " << seed << ", group " << group << ", request " << i;
      if (const auto* d = dynamic_cast<const TestDrafter*>(with[i].drafter.get())) accepted += d->counts.accepted;
    }
    if (testing::Test::HasFailure()) break;
  }
  return accepted;
}

// The guarantee of docs/guide/speculation.md.
TEST(LosslessDrafts, TokensAreTheSameToTheBit) {
  std::uint64_t seed = 1;
  for (const Architecture architecture : all_architectures()) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const KvDtype kv = std::array{KvDtype::kBf16, KvDtype::kF16, KvDtype::kInt8, KvDtype::kFp8}[seed % 4];
      // Drafts of others cut prompts elsewhere; so does this.
      const auto plain = engine_of(architecture, dtype, kv, seed % 2 == 0 ? 2048 : 64);
      const auto drafting = engine_of(architecture, dtype, kv, 24);
      if (!drafting->no_drafts_reason(nullptr).empty()) continue;
      const std::int64_t accepted = compare(*plain, *drafting, 10, seed);
      EXPECT_GT(accepted, 20) << architecture_name(architecture);
      if (testing::Test::HasFailure()) return;
      ++seed;
    }
  }
}

}  // namespace
}  // namespace mneme
