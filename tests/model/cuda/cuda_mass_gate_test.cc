// Speculative selections on the device, corrected by the mass that they lack.
#include <gtest/gtest.h>

#include <string>

#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

class CudaMassGateTest : public CudaModelTest {};

struct Answers {
  std::vector<std::vector<float>> logits;
  std::int64_t checks = 0, corrections = 0, selected = 0;
  explicit Answers(const MethodState& method, std::vector<std::vector<float>> l) : logits(std::move(l)) {
    for (const LayerStats& s : method.stats().layers) {
      for (const std::int64_t n : s.gate_checks) checks += n;
      for (const std::int64_t n : s.corrections) corrections += n;
      selected += s.selected_units;
    }
  }
};

// A prompt of 1,200 tokens and an answer of 100, whose tokens stay the same for a while.
Answers answer_by(auto& on, const Model& model, const char* name, const std::string& overrides) {
  const auto plan = plan_for(model, name, 384, overrides.c_str());
  const std::vector<std::int32_t> tokens = kept_runs(1300, model.config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  MethodState method(plan);
  SequenceCache cache([&]() -> PagePool& {
    if constexpr (requires { *on.pool; })
      return *on.pool;
    else
      return on.pool;
  }());
  for (int i = 0; i < 3; ++i)
    step_of(on.forward, cache, all.subspan(static_cast<std::size_t>(i) * 400, 400), SequencePhase::kPrefill, &method);
  std::vector<std::vector<float>> out;
  for (std::size_t i = 1200; i < 1300; ++i)
    out.push_back(step_of(on.forward, cache, all.subspan(i, 1), SequencePhase::kDecode, &method));
  return Answers(method, std::move(out));
}

// The gate on the mass of what is missing: always or never flagging it is a method without it; in between it flags what
// the CPU's flags, but for what rounding decides.
TEST_F(CudaMassGateTest, IsTheCpus) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  struct Units {
    const char* units;
    KvStore store;
    std::pair<const char*, const char*> between;  // eps that flag some heads
  };
  const std::pair of_tokens{"gate=mass,eps=0.05", "gate=mass,eps=0.1,pool=meanQK,alpha=1"};
  for (const auto& [units, store, between] :
       {Units{"unit=page:32", KvStore::kHost, {"gate=mass,eps=0.02", "gate=mass,eps=0.03,pool=meanQK,alpha=1"}},
        Units{"unit=token,index=one_bit", KvStore::kHost, of_tokens},
        Units{"unit=token,index=one_bit", KvStore::kDevice, of_tokens}}) {
    SCOPED_TRACE(::testing::Message() << units << (store == KvStore::kHost ? " host" : " device"));
    const auto with = [&](const char* overrides) { return fmt::format("{},{}", units, overrides); };
    const auto there = [&](const std::string& overrides) {
      OnDevice device(*model, store);
      return answer_by(device, *model, "freekv", overrides);
    };
    const Answers always = there(with("gate=mass,eps=-1")), every = there(with("schedule=every_step")),
                  never = there(with("gate=mass,eps=1")), speculative = there(with("tau=-1"));
    EXPECT_TRUE(always.logits == every.logits);
    EXPECT_TRUE(never.logits == speculative.logits);
    EXPECT_FALSE(never.logits == always.logits);
    EXPECT_EQ(always.corrections, always.checks);
    EXPECT_EQ(never.corrections, 0);
    EXPECT_EQ(never.selected, speculative.selected);
    if (std::string_view(units) == "unit=page:32") {
      EXPECT_EQ(always.selected, every.selected / 100 * 103);  // three pages end, and the next step has others
    } else {
      EXPECT_GT(always.selected, every.selected / 100 * 199);  // it always has
    }
    for (const char* overrides : {between.first, between.second}) {
      SequenceRunner host(*model, DType::kBF16, cpu, 100);
      const Answers got = there(with(overrides)), want = answer_by(host, *model, "freekv", with(overrides));
      EXPECT_EQ(got.checks, want.checks);
      EXPECT_GT(got.corrections, 0);
      EXPECT_LT(got.corrections, got.checks);
      RecordProperty("corrections", std::to_string(got.corrections) + " of " + std::to_string(got.checks) + ", CPU " +
                                        std::to_string(want.corrections));
      EXPECT_NEAR(static_cast<double>(got.corrections), static_cast<double>(want.corrections),
                  0.05 * static_cast<double>(want.checks));
      double error = 0;
      for (std::size_t i = 0; i < want.logits.size(); ++i)
        error += relative_error(got.logits[i], want.logits[i]) / static_cast<double>(want.logits.size());
      EXPECT_LE(error, kTolerance) << overrides;
    }
  }
}

}  // namespace
}  // namespace mneme
