#include "apps/eval/gate_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "apps/eval/ablation.h"
#include "mneme/error.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/apps/eval/tiny_engine.h"

namespace mneme::eval {
namespace {

using ::testing::HasSubstr;

constexpr MethodShape kShape{.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 16};

TEST(GateRecord, RatesAndQuantiles) {
  const std::vector<float> values = {0.9f, 0.1f, 0.5f, 0.7f, 0.3f};
  EXPECT_DOUBLE_EQ(correction_rate(values, 0.5f), 0.4);  // 0.5 itself has not moved
  EXPECT_DOUBLE_EQ(correction_rate(values, -1.0f), 0.0);
  EXPECT_DOUBLE_EQ(correction_rate(values, 2.0f), 1.0);
  EXPECT_DOUBLE_EQ(correction_rate({}, 0.5f), 0.0);
  EXPECT_FLOAT_EQ(tau_for_rate(values, 0.4), 0.5f);
  EXPECT_FLOAT_EQ(tau_for_rate(values, 0.0), 0.1f);
  EXPECT_FLOAT_EQ(tau_for_rate(values, 1.0), 0.9f);
  EXPECT_DOUBLE_EQ(correction_rate(values, tau_for_rate(values, 0.4)), 0.4);
  const std::vector<float> broken = {NAN, 0.5f};
  EXPECT_DOUBLE_EQ(correction_rate(broken, -1.0f), 0.5);
  EXPECT_FLOAT_EQ(tau_for_rate(broken, 0.5), 0.5f);
}

// Cosines that fall once heads are corrected: the first guess is wrong, and the next one comes from what was measured.
TEST(Calibrate, MeasuresWhatItGuessed) {
  int runs = 0;
  const auto run = [&](const Recipe& recipe, int round, GateRecord& record) {
    EXPECT_EQ(round, runs++);
    EXPECT_EQ(override_value(recipe, "tau") == "-1", round == 0);
    for (int i = 0; i < 1000; ++i) record.add(0, i % 2, static_cast<float>(i / 1000.0 - (round > 0 ? 0.3 : 0.0)));
  };
  const Calibration c = calibrate(make_recipe("freekv", {}), kShape, {}, run);
  ASSERT_EQ(c.rounds.size(), 2u);
  EXPECT_FLOAT_EQ(c.rounds[0].tau, 0.15f);
  EXPECT_NEAR(c.rounds[0].rate, 0.45, 2e-3);
  EXPECT_FLOAT_EQ(c.tau(), -0.15f);
  EXPECT_NEAR(c.rounds[1].rate, 0.15, 2e-3);
  EXPECT_TRUE(c.reached);
  EXPECT_FALSE(calibrate(make_recipe("freekv", {}), kShape, {.rounds = 1}, [&](const Recipe& r, int round, auto& rec) {
                 runs = round;
                 run(r, round, rec);
               }).reached);
}

TEST(Calibrate, SaysWhyItCannot) {
  const auto nothing = [](const Recipe&, int, GateRecord&) {};
  const auto message = [&](const char* name) {
    try {
      calibrate(make_recipe(name, {}), kShape, {}, nothing);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(message("freekv"), HasSubstr("never had to decide"));
  EXPECT_THAT(message("quest"), HasSubstr("schedule=speculative"));
  EXPECT_THAT(message("full"), HasSubstr("tau"));
}

// What the tap records is what the gate decided by: the engine counted the same corrections.
TEST(GateRecord, AgreesWithTheMethodsOwnCounts) {
  TinyEngine tiny;
  for (const char* pool : {"mean", "max", "any"}) {
    Recipe recipe = make_recipe("freekv", {.budget = 48, .sink = 8, .recent = 8, .dense_layers = {{0}}});
    apply_overrides(std::string("unit=page:8,tau=0,gate_pool=") + pool, recipe);
    GateRecord record(tiny.engine->method_shape());
    tiny.engine->set_observer(&record);
    const RequestId id = tiny.answer(tiny.random_tokens(120, 3), 40, compile(recipe, tiny.engine->method_shape()));
    tiny.engine->set_observer(nullptr);
    const LayerStats& stats = tiny.engine->method_stats(id)->layers[1];
    EXPECT_TRUE(record.values(0, 0).empty()) << "a dense layer has no gate";
    std::int64_t corrections = 0;
    for (std::int32_t m = 0; m < 2; ++m) {
      const auto values = record.values(1, m);
      const std::size_t at = m;
      ASSERT_EQ(std::ssize(values), stats.gate_checks[at]);
      EXPECT_EQ(std::lround(correction_rate(values, 0.0f) * static_cast<double>(values.size())), stats.corrections[at]);
      corrections += stats.corrections[at];
    }
    EXPECT_GT(corrections, 0);
    EXPECT_LT(corrections, stats.gate_checks[0] + stats.gate_checks[1]);
    tiny.engine->cancel(id);
  }
}

TEST(Ablation, EverySetCanBeRun) {
  for (const AblationSet& set : ablation_table()) {
    const auto methods = ablation_methods(set, {0.625f, 0.2});
    ASSERT_GE(methods.size(), 2u) << set.name;
    for (const std::string& text : methods) {
      EXPECT_EQ(text.find('{'), std::string::npos) << text;
      const std::size_t colon = text.find(':');
      ASSERT_NE(colon, std::string::npos) << text;
      Recipe recipe = make_recipe(text.substr(0, colon), {.budget = 512, .sink = 32, .recent = 128});
      std::string overrides = text.substr(colon + 1);
      std::replace(overrides.begin(), overrides.end(), '/', ',');
      apply_overrides(overrides, recipe);
      EXPECT_THAT(check(recipe, {.n_layers = 4, .n_heads = 8, .n_kv_heads = 2, .head_dim = 64}), ::testing::IsEmpty())
          << text;
    }
    EXPECT_EQ(&find_ablation(set.name), &set);
  }
  EXPECT_TRUE(find_ablation("tau").needs_tau());
  EXPECT_FALSE(find_ablation("groups").needs_tau());
  EXPECT_EQ(ablation_methods(find_ablation("tau"), {0.625f, 0.2})[2], "freekv:tau=0.625");
  // As often as a gate that flags a fifth: one step of five selects, four reuse.
  EXPECT_EQ(ablation_methods(find_ablation("boundaries"), {0.7f, 0.2}).back(), "louiskv:tau=-1/max_reuse=4");
  EXPECT_EQ(find_ablation("boundaries").gate, "louiskv");
  EXPECT_THROW(find_ablation("taus"), Error);
}

}  // namespace
}  // namespace mneme::eval
