// Budgets that the end of a prompt sets, layer by layer, of methods that select on the device: the CPU's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <ostream>

#include "tests/model/cuda_beside_cpu.h"
#include "tests/model/cuda_on_device.h"
#include "tests/model/cuda_refusal.h"

namespace mneme {
namespace {

class CudaNormBudgetTest : public CudaModelTest {};

TEST(CudaNormBudget, RefusesClustersWithAReason) {
  for (const auto& [name, overrides] : {std::pair{"quest", "unit=page:32,recent=64,budget=norm"},
                                        {"freekv", "unit=page:32,recent=64,budget=norm,rows=7"},
                                        {"freekv", "unit=token,index=one_bit,recent=64,budget=norm"},
                                        {"fier", "budget=norm,loss=0.2"},
                                        {"oracle", "budget=norm"},
                                        {"random", "budget=norm"},
                                        {"refreekv", ""}})
    EXPECT_EQ(refusal_of(name, overrides), "") << name;
  const std::string words = refusal_of("louiskv", "budget=norm");
  EXPECT_NE(words.find("--kv budget=TOKENS"), std::string::npos) << words;
}

// Slots are for the layer with the most, of tokens without spare ones rather than not at all.
TEST(CudaNormBudget, SlotsAreForTheLayerThatTakesMost) {
  const MethodShape shape{.n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128};
  const auto method = [&](const char* name, const char* overrides, std::int32_t largest) {
    Recipe recipe =
        make_recipe(name, {.budget = 512, .sink = 32, .recent = 64, .dense_layers = std::vector<std::int32_t>{0}});
    apply_overrides(overrides, recipe);
    MethodState m(compile(recipe, shape));
    m.layer(1).budget = largest > 0 ? 100 : 0, m.layer(2).budget = largest;
    return m;
  };
  const auto needs = [](const MethodState& m, std::int32_t length, bool decodes) {
    return CudaRetrieval::needs_of(m, length, decodes, 0.5f);
  };
  const char* pages = "unit=page:32,budget=norm";
  const auto plain = CudaRetrieval::needs_of(method("quest", "unit=page:32", 0).plan(), 0.5f);
  const auto prompt = needs(method("quest", pages, 0), 30000, false),
             few = needs(method("quest", pages, 300), 30000, true),
             more = needs(method("quest", pages, 3000), 30000, true),
             unset = needs(method("quest", pages, 0), 5000, true);
  EXPECT_EQ(prompt.n_slots, plain.n_slots);
  EXPECT_TRUE(prompt.holds(plain));
  EXPECT_FALSE(plain.holds(prompt)) << "all layers have the same budget there";
  EXPECT_EQ(few.n_slots, prompt.n_slots);
  EXPECT_EQ(more.n_slots, 3 + (3072 - 96) / 32 * 3 / 2) << "half a selection is spare";
  EXPECT_EQ(more.max_listed, 3072 / 32 + 1);
  EXPECT_GE(unset.n_slots, 5000 / 32 + 1) << "all is attended";
  EXPECT_FALSE(prompt.holds(more));
  EXPECT_TRUE(more.holds(few));

  const auto fits = [&](std::int32_t largest) {
    const auto n = needs(method("fier", "budget=norm", largest), 30000, true);
    KvSlots slots{.head_dim = 128, .n_slots = n.n_slots};
    try {
      expect_slots_cuda(slots);
      return true;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
      return false;
    }
  };
  EXPECT_TRUE(fits(5000));
  EXPECT_TRUE(fits(7680)) << "with fewer spare ones";
  EXPECT_FALSE(fits(9000));
}

// What the prompts' ends of a step decided is nearly the same here and there, and becomes the same; another number in
// each layer.
void settle(Pair& p) {
  for (std::int32_t l = 0; l < 3; ++l) {
    std::int32_t &there = p.on_device.layer(l).pending.budget, &here = p.on_host.layer(l).pending.budget;
    ASSERT_EQ(there > 0, here > 0) << "layer " << l;
    ASSERT_LE(std::abs(there - here), 2 + p.host.length() / 20) << "layer " << l;
    here = there = l == 2 ? there * 2 / 3 : there;
  }
  p.on_device.commit(p.device), p.on_host.commit(p.host);
}

struct Case {
  const char* name;
  const char* overrides;
  bool by_lot = false;  // no selection depends on the model
};

TEST_F(CudaNormBudgetTest, SelectsAsManyAsTheCpu) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(2000, model->config().vocab, 6);
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const Case& c : {Case{"random", "budget=norm,loss=0.2", true},
                          {"quest", "unit=page:32,budget=norm,loss=0.3"},
                          {"quest", "unit=page:32,budget=norm,loss=0.3,rows=5"},
                          {"freekv", "unit=page:32,budget=norm,loss=0.3,tau=0.5"},
                          {"freekv", "unit=page:32,budget=norm,loss=0.3,gate=mass,eps=0.03"},
                          {"freekv", "unit=token,index=one_bit,budget=norm,loss=0.3,tau=-1"},
                          {"fier", "budget=norm,loss=0.3"},
                          {"oracle", "budget=norm,loss=0.4"}}) {
      SCOPED_TRACE(::testing::Message() << c.name << " " << c.overrides
                                        << (store == KvStore::kHost ? ", host" : ", device"));
      const auto plan = plan_for(*model, c.name, 192, c.overrides);
      Both both(*model, DType::kBF16, store, cpu);
      // Beside them one whose layers all have the same budget, where that goes.
      Pair a = both.start(plan), b = both.start(plan), other = both.start(plan_for(*model, "window", 192, ""));
      std::vector<double> errors;
      const auto step = [&](const std::vector<Both::Piece>& pieces) {
        errors.push_back(both.step(tokens, pieces));
        for (const Both::Piece& p : pieces) settle(*p.pair);
      };
      const auto answer = [&](int n, const std::vector<Pair*>& pairs) {
        for (int i = 0; i < n && !HasFatalFailure(); ++i) {
          std::vector<Both::Piece> pieces;
          for (Pair* p : pairs) pieces.push_back({p, 1, RowPhase::kDecode});
          step(pieces);
        }
      };
      const auto prompt = RowPhase::kPrefill;
      step({{&a, 500, prompt, 202}});
      step({{&a, 200, prompt, 2}});
      step({{&a, 2}});
      ASSERT_GT(a.on_device.layer(1).budget, 192) << "more than what slots were taken for";
      answer(40, {&a});
      Pair fork = a.fork();
      // A second turn, beside prompts of others.
      step({{&a, 80, prompt, 300}, {&other, 150}});
      step({{&b, 210}, {&a, 300}, {&other, 1, RowPhase::kDecode}});
      answer(40, {&b, &a, &other});
      answer(6, {&fork, &other, &a, &b});
      // A prompt of one token, and one that is no more than sinks and window.
      step({{&b, 1}});
      Pair small = both.start(plan);
      step({{&small, 70}, {&b, 1, RowPhase::kDecode}});
      answer(40, {&small, &b});
      if (HasFatalFailure()) return;
      const std::size_t n = errors.size();
      std::sort(errors.begin(), errors.end());
      std::printf("%s %s: error of the median step %.4f, worst %.4f\n", c.name, c.overrides, errors[n / 2],
                  errors.back());
      EXPECT_LE(errors[n / 2], kTolerance);
      EXPECT_LE(errors.back(), c.by_lot ? kTolerance : 0.3);
      for (const Pair* p : {&a, &b, &fork, &small, &other})
        for (std::size_t l = 0; l < 3; ++l) {
          const LayerStats &there = p->on_device.stats().layers[l], &here = p->on_host.stats().layers[l];
          EXPECT_EQ(there.attended_tokens, here.attended_tokens) << "layer " << l;
          EXPECT_EQ(there.prefill_ends, here.prefill_ends) << "layer " << l;
          if (p != &other && p != &small && l > 0) {
            EXPECT_GT(there.sparse_steps, 0) << "layer " << l;
            EXPECT_EQ(there.sparse_steps, here.sparse_steps) << "layer " << l;
          }
          if (c.by_lot && p != &small) {
            EXPECT_EQ(there.selected_units, here.selected_units) << "layer " << l;
            EXPECT_EQ(there.selections, here.selections) << "layer " << l;
          }
        }
      EXPECT_LT(a.on_device.stats().layers[2].attended_tokens, a.on_device.stats().layers[1].attended_tokens);
    }
}

// The same logits, bit for bit, wherever pages lie and however slowly they come; and each alone what it is together.
TEST_F(CudaNormBudgetTest, NothingDependsOnWherePagesLie) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1200, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  for (const auto& [name, overrides] : {std::pair{"quest", "unit=page:32,budget=norm,loss=0.3"},
                                        {"freekv", "unit=page:32,budget=norm,loss=0.3,tau=0.3"},
                                        {"fier", "budget=norm,loss=0.3,unit_fetch=4"},
                                        {"freekv", "unit=token,index=one_bit,budget=norm,loss=0.3,tau=0.3"},
                                        {"oracle", "budget=norm,loss=0.3"}}) {
    const auto plan = plan_for(*model, name, 192, overrides);
    const auto answers = [&](KvStore store, std::int32_t delay_us) {
      OnDevice on(*model, {.max_rows = 512,
                           .max_sequences = 2,
                           .max_context = model->max_context(),
                           .store = store,
                           .delay_us = delay_us});
      SequenceCache cache(*on.pool);
      MethodState method(plan);
      std::vector<float> out;
      for (const std::size_t n : {500u, 300u, 1u}) {
        for (std::size_t i = 0; i < (n == 1 ? 60u : 1u); ++i) {
          const std::vector<float> logits =
              on.step(cache, all.subspan(static_cast<std::size_t>(cache.length()), n), &method);
          out.insert(out.end(), logits.begin(), logits.end());
          std::int32_t& last = method.layer(2).pending.budget;
          last = last / 2;
          method.commit(cache);
        }
      }
      return out;
    };
    const std::vector<float> want = answers(KvStore::kDevice, 0);
    EXPECT_TRUE(answers(KvStore::kHost, 0) == want) << name << " " << overrides;
    EXPECT_TRUE(answers(KvStore::kHost, 200) == want) << name << " " << overrides << ", slowly";
  }
}

// Cut off within its prompt, a layer attends everything until its budget is reached, the other one does not.
TEST_F(CudaNormBudgetTest, LayersPassTheirBudgetsOneByOne) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1200, model->config().vocab, 6);
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const Case& c : {Case{"random", "budget=norm,loss=0.1", true},
                          {"freekv", "unit=page:32,budget=norm,loss=0.1,tau=-1"},
                          {"fier", "budget=norm,loss=0.1"}}) {
      SCOPED_TRACE(::testing::Message() << c.name << (store == KvStore::kHost ? ", host" : ", device"));
      Both both(*model, DType::kBF16, store, cpu, 1);
      Pair a = both.start(plan_for(*model, c.name, 192, c.overrides));
      both.step(tokens, {{&a, 500}});
      settle(a);
      const std::int32_t largest = a.on_device.layer(1).budget, smallest = a.on_device.layer(2).budget;
      ASSERT_GT(largest, smallest + 20);
      const std::int32_t cut = largest - 12;
      a.device.truncate(cut), a.host.truncate(cut);
      a.on_device.truncate(cut), a.on_host.truncate(cut);
      std::vector<double> errors;
      for (int i = 0; i < 40; ++i) errors.push_back(both.step(tokens, {{&a, 1, RowPhase::kDecode}}));
      std::sort(errors.begin(), errors.end());
      EXPECT_LE(errors[20], kTolerance);
      EXPECT_LE(errors.back(), c.by_lot ? kTolerance : 0.3);
      for (std::size_t l = 1; l < 3; ++l) {
        const LayerStats &there = a.on_device.stats().layers[l], &here = a.on_host.stats().layers[l];
        EXPECT_EQ(there.sparse_steps, l == 1 ? 28 : 40);
        EXPECT_EQ(here.sparse_steps, l == 1 ? 28 : 40);
        EXPECT_EQ(there.attended_tokens, here.attended_tokens);
        if (c.by_lot) {
          EXPECT_EQ(there.selections, here.selections);
        }
        EXPECT_EQ(there.audits, here.audits);
        EXPECT_NEAR(there.audit_recall / static_cast<double>(there.audits),
                    here.audit_recall / static_cast<double>(here.audits), 0.05);
      }
    }
}

}  // namespace
}  // namespace mneme
