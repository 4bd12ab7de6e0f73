// Methods on the device: the same wherever pages lie, however slowly they come, and whoever is beside them.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <string>

#include "src/base/error.h"
#include "src/model/cuda/retrieval/retrieval_set.h"
#include "src/offload/device_cache_cuda.h"
#include "src/ops/attention/attention_cuda.h"
#include "tests/model/cuda/cuda_on_device.h"
#include "tests/model/cuda/step_delays.h"

namespace mneme {
namespace {

class CudaMethodTest : public CudaModelTest {};

// Up to the budget a method is full attention, bit for bit; beyond it, with a budget that excludes one page, nearly.
TEST_F(CudaMethodTest, MethodsAreFullAttentionUpToTheBudget) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(500, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  for (const auto& [name, overrides, store] : {std::tuple{"freekv", "unit=page:32", KvStore::kHost},
                                               {"quest", "unit=page:32", KvStore::kHost},
                                               {"freekv", "unit=page:32,tau=-1", KvStore::kHost},
                                               {"freekv", "unit=page:32,gate=mass", KvStore::kHost},
                                               {"fier", "", KvStore::kHost},
                                               {"fier", "group=64", KvStore::kDevice},
                                               {"window", "", KvStore::kHost},
                                               {"window", "", KvStore::kDevice},
                                               {"freekv", "unit=token,index=one_bit", KvStore::kHost},
                                               {"freekv", "unit=token,index=one_bit,tau=-1", KvStore::kDevice},
                                               {"freekv", "unit=token,index=one_bit,gate=mass", KvStore::kDevice},
                                               {"louiskv", "", KvStore::kHost},
                                               {"louiskv", "", KvStore::kDevice},
                                               {"louiskv", "unit=page:32,index=box", KvStore::kHost},
                                               {"random", "", KvStore::kHost},
                                               {"oracle", "", KvStore::kDevice},
                                               {"oracle", "unit=page:32", KvStore::kHost}}) {
    SCOPED_TRACE(::testing::Message() << name << " " << overrides << (store == KvStore::kHost ? " host" : " device"));
    OnDevice full(*model, store), host(*model, store);
    const auto plan = plan_for(*model, name, 384, overrides);
    MethodState method(plan);
    SequenceCache a(*full.pool), b(*host.pool);
    full.step(a, all.first(300)), host.step(b, all.first(300), &method);
    for (std::size_t at = 300; at < 470; ++at) {
      const auto token = all.subspan(at, 1);
      const std::vector<float> want = full.step(a, token), got = host.step(b, token, &method);
      if (at < 384) {
        ASSERT_EQ(got, want) << at;
      } else {
        ASSERT_LE(relative_error(got, want), 0.2) << at;
      }
    }
    // A method that attends everything is no method.
    SequenceCache e(*host.pool), g(*full.pool);
    MethodState everything(compile(make_recipe("full", {}), plan->shape));
    ASSERT_EQ(host.step(e, all.first(20), &everything), full.step(g, all.first(20)));
    ASSERT_EQ(host.step(e, all.first(1), &everything), full.step(g, all.first(1)));
    const LayerStats& counted = everything.stats().layers.front();
    EXPECT_EQ(counted.steps, 1);
    EXPECT_EQ(counted.attended_tokens, 21 * plan->shape.n_kv_heads);
    // A second turn, and a fork whose state is filled in again.
    full.step(a, all.first(20)), host.step(b, all.first(20), &method);
    SequenceCache c = b.fork();
    MethodState forked(method);
    const std::vector<float> went_on = host.step(b, all.first(1), &method),
                             reselected = host.step(c, all.first(1), &forked);
    ASSERT_LE(relative_error(reselected, went_on), 0.2);
  }
}

// Tokens by 1-bit keys, up to many times the budget: pages on the device and in host memory attend the same.
TEST_F(CudaMethodTest, TokensAreTheSameWhereverPagesLie) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1100, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  for (const auto& [name, overrides] : {std::pair{"fier", ""},
                                        {"freekv", "unit=token,index=one_bit"},
                                        {"freekv", "unit=token,index=one_bit,tau=-1,recent=0"},
                                        {"freekv", "unit=token,index=one_bit,tau=0.3,recent=1"},
                                        {"louiskv", "tau=0.2"},
                                        {"louiskv", "tau=-1,max_reuse=7"},
                                        {"louiskv", "tau=0.2,by_size=yes"},
                                        {"oracle", ""},
                                        {"oracle", "unit=page:32"},
                                        {"random", ""}}) {
    SCOPED_TRACE(::testing::Message() << name << " " << overrides);
    OnDevice device(*model, KvStore::kDevice), host(*model, KvStore::kHost);
    const auto plan = plan_for(*model, name, 256, overrides);
    MethodState on_device(plan), on_host(plan);
    SequenceCache a(*device.pool), b(*host.pool);
    for (const std::size_t n : {400u, 370u, 230u}) {
      const auto piece = all.subspan(static_cast<std::size_t>(a.length()), n);
      device.step(a, piece, &on_device), host.step(b, piece, &on_host);
    }
    for (std::size_t at = 1000; at < 1100; ++at)
      ASSERT_EQ(device.step(a, all.subspan(at, 1), &on_device), host.step(b, all.subspan(at, 1), &on_host)) << at;
  }
}

// Selections and recalls that begin later, for this step and beside it for the next one, change nothing: whatever reads a
// slot is ordered against whatever fills it, not merely sooner.
TEST_F(CudaMethodTest, SlowRecallsChangeNothing) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1400, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  SlowLink link;
  for (const auto& [name, overrides] : {std::pair{"quest", "unit=page:32"},
                                        {"freekv", "unit=page:32,tau=0.3"},
                                        {"freekv", "unit=page:32,tau=-1"},
                                        {"freekv", "unit=page:32,gate=mass,eps=0.1"},
                                        {"freekv", "unit=token,index=one_bit,tau=-1"},
                                        {"freekv", "unit=token,index=one_bit,gate=mass,eps=0.1"},
                                        {"fier", ""},
                                        {"louiskv", "tau=0.2"},
                                        {"louiskv", "tau=-1,max_reuse=9,segment=8-20"},
                                        {"louiskv", "unit=page:32,index=box,tau=0.2"},
                                        {"oracle", ""},
                                        {"random", ""}}) {
    const auto plan = plan_for(*model, name, 256, overrides);
    const auto answers = [&](std::int32_t delay_us, SlowLink* busy) {
      StepDelays delays(delay_us);
      OnDevice host(*model,
                    {.max_rows = 512, .max_sequences = 2, .max_context = model->max_context(), .store = KvStore::kHost},
                    DType::kBF16, 100);
      host.forward.observe(&delays);
      SequenceCache cache(*host.pool);
      MethodState method(plan);
      std::vector<float> out;
      for (int i = 0; i < 83; ++i) {
        const auto piece = all.subspan(static_cast<std::size_t>(cache.length()), i < 3 ? 400 : 1);
        if (busy != nullptr) busy->keep_busy();
        const std::vector<float> logits = host.step(cache, piece, &method);
        out.insert(out.end(), logits.begin(), logits.end());
      }
      return out;
    };
    const std::vector<float> want = answers(0, nullptr);
    for (const std::int32_t delay_us : {0, 20, 150, 600})
      for (SlowLink* const busy : {static_cast<SlowLink*>(nullptr), &link}) {
        ASSERT_TRUE(answers(delay_us, busy) == want)
            << name << " " << overrides << ", up to " << delay_us << " us" << (busy != nullptr ? ", a busy link" : "");
      }
  }
}

LayerStats all_layers(const MethodState& method) {
  LayerStats sum;
  for (const LayerStats& l : method.stats().layers) {
    sum.selected_units += l.selected_units, sum.replaced_units += l.replaced_units;
    sum.missing_units += l.missing_units, sum.recalled_units += l.recalled_units;
    sum.attended_tokens += l.attended_tokens;
  }
  return sum;
}

// How much of a selection is new is what the CPU counts, but for what is selected otherwise by rounding, and what is
// selected ahead is counted a step earlier.
TEST_F(CudaMethodTest, TurnoverOfTokensIsTheCpus) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(800, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  for (const auto& [name, overrides] : {std::pair{"fier", ""}, {"freekv", "unit=token,index=one_bit,tau=-1"}})
    for (const KvStore store : {KvStore::kHost, KvStore::kDevice}) {
      SCOPED_TRACE(::testing::Message() << name << " " << overrides << (store == KvStore::kHost ? " host" : " device"));
      OnDevice device(*model, store);
      SequenceRunner host(*model, DType::kBF16, cpu, 100);
      const auto plan = plan_for(*model, name, 256, overrides);
      MethodState there(plan), here(plan);
      SequenceCache a(*device.pool), b(host.pool);
      step_of(device.forward, a, all.first(500), SequencePhase::kPrefill, &there);
      step_of(host.forward, b, all.first(500), SequencePhase::kPrefill, &here);
      for (std::size_t at = 500; at < 600; ++at) {
        step_of(device.forward, a, all.subspan(at, 1), SequencePhase::kDecode, &there);
        step_of(host.forward, b, all.subspan(at, 1), SequencePhase::kDecode, &here);
      }
      const LayerStats got = all_layers(there), want = all_layers(here);
      const auto selected = static_cast<double>(want.selected_units),
                 replaced = static_cast<double>(want.replaced_units);
      EXPECT_NEAR(static_cast<double>(got.selected_units), selected, *overrides == '\0' ? 0 : 0.02 * selected);
      EXPECT_GT(replaced, 0);
      if (store == KvStore::kDevice) {
        EXPECT_EQ(got.replaced_units, 0);
      } else {
        EXPECT_NEAR(static_cast<double>(got.replaced_units), replaced, 0.1 * replaced);
      }
    }
}

// A window, and methods that select tokens or clusters, in the same steps: whoever comes first, each is what it is
// alone, and up to the budget full attention.
TEST_F(CudaMethodTest, WindowsRunInOneStepWithTokens) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 64), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(2000, model->config().vocab, 12);
  const std::span<const std::int32_t> all(tokens);
  for (const auto& [name, overrides] :
       {std::pair{"fier", ""}, {"freekv", "unit=token,index=one_bit,tau=0.3"}, {"louiskv", "tau=0.7,max_reuse=11"}})
    for (const KvStore store : {KvStore::kHost, KvStore::kDevice}) {
      SCOPED_TRACE(::testing::Message() << name << (store == KvStore::kHost ? " host" : " device"));
      const auto window = plan_for(*model, "window", 256, ""), selects = plan_for(*model, name, 256, overrides);
      const std::shared_ptr<const Plan> plans[] = {window, selects, window, selects};
      OnDevice together(*model, store);
      std::vector<std::unique_ptr<OnDevice>> alone;
      std::vector<SequenceCache> caches, single;
      std::vector<MethodState> methods, by_itself;
      for (const auto& plan : plans) {
        alone.push_back(std::make_unique<OnDevice>(*model, store));
        caches.emplace_back(*together.pool), single.emplace_back(*alone.back()->pool);
        methods.emplace_back(plan), by_itself.emplace_back(plan);
      }
      std::vector<double> sums(4, 0);
      std::vector<int> counted(4, 0);
      const auto step = [&](const std::vector<std::int32_t>& n_rows) {
        std::vector<SequenceRows> rows;
        std::vector<std::int32_t> fed;
        std::vector<std::vector<float>> want;
        std::vector<std::size_t> who;
        for (std::size_t i = 0; i < 4; ++i) {
          if (n_rows[i] == 0) continue;
          const auto piece =
              all.subspan(i * 100 + static_cast<std::size_t>(caches[i].length()), static_cast<std::size_t>(n_rows[i]));
          const SequencePhase phase = n_rows[i] == 1 ? SequencePhase::kDecode : SequencePhase::kPrefill;
          fed.insert(fed.end(), piece.begin(), piece.end());
          want.push_back(step_of(alone[i]->forward, single[i], piece, phase, &by_itself[i]));
          who.push_back(i);
          caches[i].extend(n_rows[i]);
          rows.push_back(
              {.cache = &caches[i], .n_rows = n_rows[i], .want_logits = true, .method = &methods[i], .phase = phase});
        }
        std::vector<float> got;
        SequenceRunner::append(together.forward.run({.tokens = fed, .sequences = rows}), got);
        for (std::size_t i = 0; i < who.size(); ++i) {
          ++counted[who[i]];
          const double error = relative_error(std::span(got).subspan(i * want[i].size(), want[i].size()), want[i]);
          sums[who[i]] += error;
          ASSERT_LE(error, plans[who[i]] == window ? kTolerance : 0.3)
              << "sequence " << who[i] << " at " << caches[who[i]].length();
        }
      };
      const auto steps = [&](int n, const std::vector<std::int32_t>& n_rows) {
        for (int i = 0; i < n && !HasFatalFailure(); ++i) step(n_rows);
      };
      // A window alone, up to the budget and over it; a method comes while it answers, another one, and one ends.
      steps(1, {235, 0, 0, 0});
      steps(30, {1, 0, 0, 0});
      steps(1, {1, 400, 0, 0});
      steps(40, {1, 1, 0, 0});
      steps(1, {1, 1, 300, 0});
      steps(20, {1, 1, 1, 0});
      steps(10, {0, 1, 0, 0});
      steps(1, {0, 0, 1, 350});
      steps(35, {0, 0, 1, 1});
      steps(1, {40, 0, 1, 1});
      steps(20, {1, 1, 1, 1});
      steps(20, {1, 0, 1, 0});
      if (HasFatalFailure()) return;
      for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_LE(sums[i] / counted[i], kTolerance) << i;
        EXPECT_EQ(all_layers(methods[i]).attended_tokens, all_layers(by_itself[i]).attended_tokens) << i;
      }
      // Where the others have left their units, too.
      OnDevice full(*model, store);
      SequenceCache a(*full.pool), b(*together.pool);
      MethodState method(window);
      full.step(a, all.first(200)), together.step(b, all.first(200), &method);
      for (std::size_t at = 200; at < 256; ++at)
        ASSERT_EQ(together.step(b, all.subspan(at, 1), &method), full.step(a, all.subspan(at, 1))) << at;
    }
}

// What selects nothing shares the state of whatever selects, also when it came first; what selects by other units does
// not.
TEST(CudaMethods, WindowsShareStateWithAnyUnits) {
  const MethodShape shape{.n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128};
  const auto plan = [&](const char* name, const char* overrides) {
    Recipe recipe =
        make_recipe(name, {.budget = 512, .sink = 32, .recent = 64, .dense_layers = std::vector<std::int32_t>{0}});
    apply_overrides(overrides, recipe);
    return compile(recipe, shape);
  };
  const auto window = plan("window", ""), narrow = plan("window", "budget=160,sink=64"), fier = plan("fier", ""),
             pages = plan("freekv", "unit=page:32"), lists = plan("louiskv", ""),
             far = plan("streaming_llm", "dense=0");
  using Needs = CudaRetrieval::Needs;
  const auto needs = [](const std::shared_ptr<const Plan>& p) { return CudaRetrieval::needs_of(*p, {.spare = 0.5f}); };
  for (const auto& other : {window, narrow, fier, pages, lists}) {
    EXPECT_TRUE(needs(window).goes_with(needs(other)));
    EXPECT_TRUE(needs(other).goes_with(needs(window)));
  }
  EXPECT_FALSE(needs(pages).goes_with(needs(fier)));
  EXPECT_FALSE(needs(fier).goes_with(needs(lists)));
  EXPECT_FALSE(needs(far).goes_with(needs(window)));
  const Needs of_window = needs(window), of_fier = needs(fier);
  Needs both = of_window, reversed = of_fier;
  both.add(of_fier), reversed.add(of_window);
  for (const Needs& n : {both, reversed}) {
    EXPECT_EQ(n.keys.entries.tokens, 32);
    EXPECT_TRUE(n.holds(of_window));
    EXPECT_TRUE(n.holds(of_fier));
    EXPECT_GE(n.n_slots, 512) << "single tokens";
  }
  EXPECT_FALSE(of_window.holds(of_fier));
  EXPECT_LE(of_window.n_slots, 17) << "pages, alone";
}

// Cache slots that grow into free memory change what is fetched, and no answer.
TEST_F(CudaMethodTest, MoreCacheSlotsMissLessAndAnswerTheSame) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = kept_runs(1500, model->config().vocab, 8);
  const std::span<const std::int32_t> all(tokens);
  for (const char* name : {"freekv", "quest", "mneme"}) {
    SCOPED_TRACE(name);
    CudaForwardOptions options{
        .max_rows = 512, .max_sequences = 2, .max_context = model->max_context(), .store = KvStore::kHost};
    OnDevice few(*model, options);
    options.grow_slots = true;
    OnDevice many(*model, options);
    const auto plan = plan_for(*model, name, 320, "unit=page:32");
    MethodState of_few(plan), of_many(plan);
    SequenceCache a(*few.pool), b(*many.pool);
    for (std::size_t at = 0; at < 1024; at += 512)
      few.step(a, all.subspan(at, 512), &of_few), many.step(b, all.subspan(at, 512), &of_many);
    for (std::size_t at = 1024; at < 1500; ++at)
      ASSERT_EQ(few.step(a, all.subspan(at, 1), &of_few), many.step(b, all.subspan(at, 1), &of_many)) << at;
    const LayerStats one = all_layers(of_few), more = all_layers(of_many);
    EXPECT_EQ(more.selected_units, one.selected_units);
    EXPECT_LT(more.missing_units, one.missing_units);
    EXPECT_GT(many.forward.method_bytes().slots, 2 * few.forward.method_bytes().slots);
  }
}

// The number of further slots is arithmetic; state that finds no memory takes what others have grown by.
TEST_F(CudaMethodTest, CacheSlotsGrowIntoHalfOfWhatIsFreeAndShrinkForOthers) {
  const KvShape shape{.n_layers = 3, .n_kv_heads = 2, .head_dim = 128};
  const auto needs = [](const char* name, const char* overrides, std::int32_t budget) {
    Recipe recipe =
        make_recipe(name, {.budget = budget, .sink = 32, .recent = 64, .dense_layers = std::vector<std::int32_t>{0}});
    apply_overrides(overrides, recipe);
    return CudaRetrieval::needs_of(*compile(recipe, {.n_layers = 3, .n_heads = 8, .n_kv_heads = 2, .head_dim = 128}),
                                   {.spare = 0.5f});
  };
  const CudaRetrieval::Needs pages = needs("freekv", "unit=page:32", 512);
  constexpr std::int64_t kGiB = std::int64_t{1} << 30;
  // A slot of two layers, two heads and two sequences takes 8 x 16 KiB.
  CudaRetrievalSetup setup{.shape = shape, .n_heads = 8, .options = {.n_seq_slots = 2, .max_context = 4096}};
  EXPECT_EQ(more_slots(pages, setup), 0) << "not asked for";
  setup.free_bytes = [] { return 40 * kGiB; };
  EXPECT_EQ(more_slots(pages, setup), 2 * pages.n_slots);
  setup.free_bytes = [] { return 4 * kGiB + 2 * 5 * 8 * 16384 + 100; };
  EXPECT_EQ(more_slots(pages, setup), 5);
  setup.free_bytes = [] { return 3 * kGiB; };
  EXPECT_EQ(more_slots(pages, setup), 0);
  setup.free_bytes = [] { return 40 * kGiB; };
  EXPECT_EQ(more_slots(needs("fier", "", 512), setup), 0) << "single tokens";
  setup.options.pages_on_device = true;
  EXPECT_EQ(more_slots(pages, setup), 0);
  setup.options.pages_on_device = false;

  CudaRetrievalSet set;
  set.begin();
  set.add(pages);
  EXPECT_TRUE(set.prepare(setup, stream));
  EXPECT_EQ(set.retrieval_of(0).device_cache().n_slots, 3 * pages.n_slots);
  EXPECT_FALSE((set.begin(), set.add(pages), set.prepare(setup, stream))) << "what has grown is kept";
  // Beside state that no device has memory for.
  CudaRetrieval::Needs huge = needs("freekv", "unit=page:32,dense=0+1", 512);
  huge.n_slots = kMaxKvSlots;
  CudaRetrievalSetup large = setup;
  large.options.n_seq_slots = 1024;
  set.begin();
  set.add(pages), set.add(huge);
  EXPECT_THROW(set.prepare(large, stream), Error);
  set.begin();
  set.add(pages);
  EXPECT_NO_THROW(set.prepare(setup, stream));
}

// Sequences of one step may have any plans: units, dense layers and positions differ, and each gives what it gives
// alone, in the order of either.
TEST_F(CudaMethodTest, SequencesOfAnyPlansRunInOneStep) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1500, model->config().vocab, 8);
  const std::span<const std::int32_t> all(tokens);
  constexpr std::pair<const char*, const char*> kForms[] = {
      {"full", ""},    {"freekv", "unit=page:32"},         {"fier", "dense=1"},
      {"louiskv", ""}, {"freekv", "unit=page:32,tau=0.5"}, {"quest", "unit=page:16,dense=0+2"},
      {"window", ""},  {"streaming_llm", "dense=0"}};
  for (const KvStore store : {KvStore::kHost, KvStore::kDevice}) {
    OnDevice together(*model, store), alone(*model, store);
    std::vector<SequenceCache> here, there;
    std::vector<MethodState> of_here, of_there;
    for (const auto& [name, overrides] : kForms) {
      const auto plan = plan_for(*model, name, 256, overrides);
      here.emplace_back(*together.pool), there.emplace_back(*alone.pool);
      of_here.emplace_back(plan), of_there.emplace_back(plan);
    }
    for (std::size_t i = 0; i < here.size(); ++i) {
      const auto prompt = all.subspan(i * 40, 300 + i * 17);
      step_of(together.forward, here[i], prompt, SequencePhase::kPrefill, &of_here[i]);
      step_of(alone.forward, there[i], prompt, SequencePhase::kPrefill, &of_there[i]);
    }
    std::vector<double> errors;
    for (int step = 0; step < 60; ++step) {
      std::vector<SequenceRows> rows;
      std::vector<std::int32_t> fed;
      std::vector<float> want, got;
      for (std::size_t n = 0; n < here.size(); ++n) {
        const std::size_t i = step < 30 ? n : here.size() - 1 - n;
        const std::int32_t token = tokens[static_cast<std::size_t>(step) + 700 + i * 50];
        fed.push_back(token);
        const auto one = step_of(alone.forward, there[i], {&token, 1}, SequencePhase::kDecode, &of_there[i]);
        want.insert(want.end(), one.begin(), one.end());
        here[i].extend(1);
        rows.push_back({.cache = &here[i],
                        .n_rows = 1,
                        .want_logits = true,
                        .method = &of_here[i],
                        .phase = SequencePhase::kDecode});
      }
      SequenceRunner::append(together.forward.run({.tokens = fed, .sequences = rows}), got);
      errors.push_back(relative_error(got, want));
      ASSERT_LE(errors.back(), 0.3) << step;
    }
    std::sort(errors.begin(), errors.end());
    EXPECT_LE(errors[errors.size() / 2], kTolerance);
    for (std::size_t i = 0; i < here.size(); ++i)
      EXPECT_EQ(of_here[i].stats().layers[1].attended_tokens, of_there[i].stats().layers[1].attended_tokens) << i;
  }
}

// Clusters, segments and boundaries: the CPU's, through prompts in chunks, answers and second turns. Keys that differ
// by rounding may fall into another cluster, and another one be selected: a few steps stray, the mean does not.
TEST_F(CudaMethodTest, ClustersAndSegmentsAreTheCpus) {
  for (const auto& [head_dim, store, overrides] :
       {std::tuple{64, KvStore::kHost, "tau=0.7"},
        {128, KvStore::kDevice, "tau=0.7,segment=8-40"},
        {128, KvStore::kHost, "tau=0.7,reference=last_retrieval,max_reuse=20"},
        {64, KvStore::kDevice, "tau=0.7,metric=cosine,unit=cluster:8,max_reuse=0,gate_pool=any"},
        {128, KvStore::kHost, "tau=0.7,unit=page:32,index=box"}}) {
    SCOPED_TRACE(::testing::Message() << head_dim << " " << overrides);
    const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, head_dim), DType::kBF16, {}, 5, cpu);
    OnDevice device(*model, store);
    SequenceRunner host(*model, DType::kBF16, cpu, 100);
    const auto plan = plan_for(*model, "louiskv", 384, overrides);
    MethodState there(plan), here(plan);
    SequenceCache a(*device.pool), b(host.pool);
    const std::vector<std::int32_t> tokens = kept_runs(1600, model->config().vocab, 6);
    const std::span<const std::int32_t> all(tokens);
    std::vector<double> errors;
    const auto step = [&](std::size_t n, SequencePhase phase, std::int32_t left) {
      const auto piece = all.subspan(static_cast<std::size_t>(a.length()), n);
      errors.push_back(relative_error(step_of(device.forward, a, piece, phase, &there, left),
                                      step_of(host.forward, b, piece, phase, &here, left)));
      return errors.back();
    };
    for (const auto& [n, left] : {std::pair{300u, 200}, {199u, 1}, {1u, 0}})
      ASSERT_LE(step(n, SequencePhase::kPrefill, left), kTolerance);
    const auto answer = [&](int n) {
      errors.clear();
      for (int i = 0; i < n; ++i) ASSERT_LE(step(1, SequencePhase::kDecode, 0), 0.3) << "at " << a.length();
      const double mean = std::accumulate(errors.begin(), errors.end(), 0.0) / static_cast<double>(errors.size());
      EXPECT_LE(mean, kTolerance) << "up to " << a.length();
      RecordProperty("mean error", std::to_string(mean));
      for (std::int32_t l = 1; l < 3; ++l) {
        const auto got = there.layer(l).partition.ranges(), want = here.layer(l).partition.ranges();
        EXPECT_TRUE(std::equal(got.begin(), got.end(), want.begin(), want.end())) << "layer " << l;
        EXPECT_EQ(there.stats().layers[static_cast<std::size_t>(l)].corrections,
                  here.stats().layers[static_cast<std::size_t>(l)].corrections);
        EXPECT_EQ(there.stats().layers[static_cast<std::size_t>(l)].selections,
                  here.stats().layers[static_cast<std::size_t>(l)].selections);
      }
    };
    answer(220);
    if (HasFatalFailure()) return;
    // Second turns, one of them shorter than a segment; then the sequence is cut off and goes on.
    for (const std::size_t n : {90u, 5u}) {
      step(n, SequencePhase::kPrefill, 0);
      answer(70);
      if (HasFatalFailure()) return;
    }
    a.truncate(800), b.truncate(800);
    there.truncate(800), here.truncate(800);
    step(40, SequencePhase::kPrefill, 0);
    answer(60);
    if (HasFatalFailure()) return;
    // A fork reselects, as the CPU does where it has nothing to keep.
    SequenceCache fork_a = a.fork(), fork_b = b.fork();
    MethodState fork_device(there), fork_here(here);
    fork_here.step_back(b.length());
    for (int i = 0; i < 30; ++i) {
      const auto token = all.subspan(static_cast<std::size_t>(a.length() + i), 1);
      const auto got = step_of(device.forward, fork_a, token, SequencePhase::kDecode, &fork_device),
                 want = step_of(host.forward, fork_b, token, SequencePhase::kDecode, &fork_here);
      ASSERT_LE(relative_error(got, want), 0.3) << i;
    }
    answer(20);
    if (HasFatalFailure()) return;
  }
}

// Two sequences with clusters in one batch each give what they give alone.
TEST_F(CudaMethodTest, SequencesWithClustersRunInOneStep) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  for (const KvStore store : {KvStore::kHost, KvStore::kDevice}) {
    const auto plan = plan_for(*model, "louiskv", 256, "tau=0.7,max_reuse=11");
    const std::vector<std::int32_t> tokens = kept_runs(1500, model->config().vocab, 8);
    const std::span<const std::int32_t> all(tokens);
    OnDevice together(*model, store), alone(*model, store);
    std::vector<SequenceCache> pair, single;
    std::vector<MethodState> of_pair, of_single;
    for (int i = 0; i < 2; ++i) {
      pair.emplace_back(*together.pool), single.emplace_back(*alone.pool);
      of_pair.emplace_back(plan), of_single.emplace_back(plan);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const auto prompt = all.subspan(i * 300, 400 + i * 97);
      step_of(together.forward, pair[i], prompt, SequencePhase::kPrefill, &of_pair[i]);
      step_of(alone.forward, single[i], prompt, SequencePhase::kPrefill, &of_single[i]);
    }
    double sum = 0;
    for (int step = 0; step < 120; ++step) {
      std::vector<SequenceRows> rows;
      std::vector<std::int32_t> fed;
      std::vector<float> want, got;
      for (std::size_t i = 0; i < 2; ++i) {
        const std::int32_t token = tokens[static_cast<std::size_t>(step) + 700 + i * 200];
        fed.push_back(token);
        const auto one = step_of(alone.forward, single[i], {&token, 1}, SequencePhase::kDecode, &of_single[i]);
        want.insert(want.end(), one.begin(), one.end());
        pair[i].extend(1);
        rows.push_back({.cache = &pair[i],
                        .n_rows = 1,
                        .want_logits = true,
                        .method = &of_pair[i],
                        .phase = SequencePhase::kDecode});
      }
      SequenceRunner::append(together.forward.run({.tokens = fed, .sequences = rows}), got);
      const double error = relative_error(got, want);
      ASSERT_LE(error, 0.3) << step;
      sum += error;
    }
    EXPECT_LE(sum / 120, kTolerance);
  }
}

}  // namespace
}  // namespace mneme
