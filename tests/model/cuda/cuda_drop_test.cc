// Methods that drop tokens, on the device: they keep what the CPU keeps, and attend what is kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "src/model/cuda/drops/device_drops.h"
#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

struct Method {
  const char* name;
  const char* overrides;
};
std::shared_ptr<const Plan> plan_for(const Model& model, const Method& m, std::int32_t budget,
                                     DType kv_dtype = DType::kBF16) {
  const bool once =
      compile(make_recipe(m.name, {}), method_shape(model.config()))->recipe.rows == MassRows(LastRows{32});
  Recipe recipe = make_recipe(m.name, {.budget = budget, .recent = once ? 16 : 8});
  apply_overrides(m.overrides, recipe);
  return compile(recipe, method_shape(model.config(), kv_dtype));
}

// A sequence on the device and on the CPU, with the same tokens at all times: the device's drops are applied to both.
struct Sequence {
  SequenceCache there, here;
  MethodState method_device, method_here;
  Sequence fork() const { return {there.fork(), here.fork(), method_device, method_here}; }
};

class CudaDropTest : public CudaTest {
 protected:
  void make(std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, KvStore store,
            std::int32_t max_sequences = 6, DType kv_dtype = DType::kBF16) {
    tolerance_ = is_eight_bit(kv_dtype) ? 2 * kTolerance : kTolerance;  // codes next to a rounding limit differ
    model_ = Model::random(cuda_config(Architecture::kLlama, heads, kv_heads, head_dim), DType::kBF16, {}, 5, cpu_);
    Stream loading = Stream::make();
    device_ = std::make_unique<CudaForward>(*model_, CudaWeights::load(*model_, loading), Stream::make(),
                                            CudaForwardOptions{.max_rows = 512,
                                                               .max_sequences = max_sequences,
                                                               .max_context = model_->max_context(),
                                                               .store = store,
                                                               .kv_dtype = kv_dtype});
    const KvShape shape = model_->kv_shape(kv_dtype);
    pool_device_ = device_->make_pool(shape, 200 * shape.blocks_per_page());
    pool_here_ = std::make_unique<PagePool>(shape, 200 * shape.blocks_per_page());
    host_ = std::make_unique<Forward>(*model_, cpu_);
    tokens_ = random_tokens(3000, model_->config().vocab, 6);
  }
  Sequence sequence(const std::shared_ptr<const Plan>& plan) {
    return {SequenceCache(*pool_device_), SequenceCache(*pool_here_), MethodState(plan), MethodState(plan)};
  }
  std::span<const std::int32_t> next(std::int32_t n) {
    const auto at = next_;
    next_ += static_cast<std::size_t>(n);
    return std::span<const std::int32_t>(tokens_).subspan(at, static_cast<std::size_t>(n));
  }

  // A step on both. Expects the same logits, and nearly the same kept tokens.
  void step(Sequence& s, std::int32_t n, SequencePhase phase = SequencePhase::kDecode, std::int32_t left = 0) {
    const auto tokens = next(n);
    const std::vector<float> got = step_of(*device_, s.there, tokens, phase, &s.method_device, left),
                             want = step_of(*host_, s.here, tokens, phase, &s.method_here, left);
    ASSERT_LE(relative_error(got, want), tolerance_) << "after " << s.there.length() << " tokens";
    const bool drops_there = phase == SequencePhase::kDecode && s.method_device.plan().observed_rows != 0 &&
                             CudaDrops::takes(s.method_device, s.there);
    if (!drops_there) compare_pending(s);
    s.method_device.commit(s.there);
    if (drops_there) compare_late(s);
    s.method_here.commit(s.here);
    for (std::int32_t l = 0; l < 3; ++l)
      for (std::int32_t m = 0; m < s.here.shape().n_kv_heads; ++m) ASSERT_EQ(s.there.stored(l, m), s.here.stored(l, m));
  }

  // The same of a drop that the device has made itself.
  void compare_late(Sequence& s) {
    s.method_device.settle(s.there);
    for (std::int32_t l = 0; l < 3; ++l) {
      MethodState::Pending& here = s.method_here.layer(l).pending;
      const auto n_kv = static_cast<std::size_t>(s.here.shape().n_kv_heads);
      std::vector<std::vector<TokenRange>> kept(n_kv);
      bool any = false;
      for (std::size_t h = 0; h < n_kv; ++h) {
        const auto m = static_cast<std::int32_t>(h);
        kept[h] = ranks_in(s.here.stored(l, m), s.there.stored(l, m));
        any = any || s.there.n_stored(l, m) < s.here.n_stored(l, m);
      }
      ASSERT_EQ(any, !here.kept.empty()) << "layer " << l;
      for (std::size_t h = 0; h < here.mass.size(); ++h) {
        const std::vector<float>& there = s.method_device.layer(l).mass[h];
        std::vector<float> of_kept;
        for (const TokenRange& r : any ? kept[h] : std::vector<TokenRange>{{0, static_cast<int>(here.mass[h].size())}})
          of_kept.insert(of_kept.end(), here.mass[h].begin() + r.begin, here.mass[h].begin() + r.end);
        ASSERT_EQ(there.size(), of_kept.size());
        if (there.empty()) continue;
        ASSERT_LE(relative_error(there, of_kept), 0.03) << "layer " << l << ", head " << h;
      }
      for (std::size_t h = 0; h < here.kept.size(); ++h) see_kept(kept[h], here.kept[h]);
      if (any) here.kept = kept;
    }
  }

  // Ranks of positions in `all`.
  static std::vector<TokenRange> ranks_in(const std::vector<TokenRange>& all,
                                          const std::vector<TokenRange>& positions) {
    std::vector<TokenRange> out;
    for (const TokenRange& r : positions) {
      std::int32_t rank = 0;
      for (const TokenRange& a : all) {
        const std::int32_t from = std::max(a.begin, r.begin), to = std::min(a.end, r.end);
        if (from < to) out.push_back({rank + from - a.begin, rank + to - a.begin});
        rank += a.end - a.begin;
      }
    }
    return out;
  }

  // The decision by which a layer of `cache` came from what was stored `before`.
  static MethodState::Pending made_of(const SequenceCache& cache, const MethodState::Layer& state, std::int32_t layer,
                                      std::span<const std::vector<TokenRange>> before) {
    MethodState::Pending made;
    for (std::size_t h = 0; h < before.size(); ++h) {
      made.kept.push_back(ranks_in(before[h], cache.stored(layer, static_cast<std::int32_t>(h))));
      if (state.mass.empty() || state.mass[h].empty()) continue;
      std::int32_t n = 0;
      for (const TokenRange& r : before[h]) n += r.end - r.begin;
      std::vector<float>& mass = made.mass.emplace_back(static_cast<std::size_t>(n), 0.0f);
      std::size_t at = 0;
      for (const TokenRange& r : made.kept.back())
        for (std::int32_t rank = r.begin; rank < r.end; ++rank)
          mass[static_cast<std::size_t>(rank)] = state.mass[h][at++];
    }
    return made;
  }

  void see_kept(const std::vector<TokenRange>& there, const std::vector<TokenRange>& here) {
    const auto ranks = [](const std::vector<TokenRange>& kept) {
      std::vector<std::int32_t> r;
      for (const TokenRange& x : kept)
        for (std::int32_t t = x.begin; t < x.end; ++t) r.push_back(t);
      return r;
    };
    const std::vector<std::int32_t> a = ranks(there), b = ranks(here);
    // A budget that heads share goes where the largest masses are: as many tokens of nearly equal mass may move.
    ASSERT_NEAR(static_cast<double>(a.size()), static_cast<double>(b.size()), heads_share_ ? 4 : 0);
    std::vector<std::int32_t> both;
    std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    kept_ += static_cast<std::int64_t>(a.size());
    same_ += static_cast<std::int64_t>(both.size());
  }

  // The CPU's decision becomes the device's, once it is seen to be nearly the same.
  void compare_pending(Sequence& s) {
    for (std::int32_t l = 0; l < 3; ++l) {
      MethodState::Pending &there = s.method_device.layer(l).pending, &here = s.method_here.layer(l).pending;
      ASSERT_EQ(there.prefill_end, here.prefill_end);
      ASSERT_EQ(there.mass.size(), here.mass.size());
      for (std::size_t h = 0; h < here.mass.size(); ++h) {
        ASSERT_EQ(there.mass[h].size(), here.mass[h].size());
        ASSERT_LE(relative_error(there.mass[h], here.mass[h]), 0.03) << "layer " << l << ", head " << h;
      }
      if (there.budget > 0) {
        ASSERT_LE(std::abs(there.budget - here.budget), 2 + s.here.length() / 20);
        here.budget = there.budget;
        here.kept = there.kept;
        budgets_.push_back(there.budget);
        continue;
      }
      ASSERT_EQ(there.stamps.size(), here.stamps.size());
      here.stamps = there.stamps;  // a mass near the threshold stamps on one of the two alone
      ASSERT_EQ(there.kept.size(), here.kept.size());
      for (std::size_t h = 0; h < here.kept.size(); ++h) {
        see_kept(there.kept[h], here.kept[h]);
        here.kept[h] = there.kept[h];
      }
    }
  }

  ThreadPool threads_{std::min(available_cpus(), 8)};
  CpuContext cpu_{.pool = &threads_};
  std::unique_ptr<Model> model_;
  double tolerance_ = kTolerance;
  std::unique_ptr<PagePool> pool_device_, pool_here_;  // outlive the forward passes' use of them
  std::unique_ptr<CudaForward> device_;
  std::unique_ptr<Forward> host_;
  std::vector<std::int32_t> tokens_;
  std::size_t next_ = 0;
  bool heads_share_ = false;  // HeadShare, or layers by PreferenceShare
  std::int64_t kept_ = 0, same_ = 0;
  std::vector<std::int32_t> budgets_;
};

constexpr Method kMethods[] = {{"snapkv", ""},
                               {"snapkv", "scope=layer,smooth=mean:5,sink=4,rows=40"},
                               {"h2o", ""},
                               {"h2o", "drop=prefill_end,dense=1"},
                               {"tova", ""},
                               {"tova", "scope=kv_head,sink=3"},
                               {"refreekv", "dense=none,loss=0.3"},
                               {"refreekv", "loss=0.4,first_in_norm=yes"},
                               {"refreekv", "loss=0.3,rows=5,dense=none"},
                               {"refreekv", "loss=0.3,rank=mass,dense=none"},
                               {"pyramidkv", ""},
                               {"cake", "rows=8"},
                               {"raas", "sink=16,recent=32,stamp_page=16"},
                               {"adakv", ""}};

// Prompts in pieces, the last one shorter than the observed rows; answers over the budget; a second turn; a fork.
TEST_F(CudaDropTest, KeepsAndAttendsWhatTheCpuDoes) {
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const Method& m : kMethods) {
      SCOPED_TRACE(::testing::Message() << m.name << " " << m.overrides
                                        << (store == KvStore::kHost ? ", host" : ", device"));
      next_ = 0, kept_ = same_ = 0, budgets_.clear();
      make(8, 2, store == KvStore::kHost ? 64 : 128, store);
      const auto plan = plan_for(*model_, m, 96);
      heads_share_ =
          plan->drop && (plan->drop->share == ShareKind::kHeads || plan->drop->share == ShareKind::kPreference);
      Sequence s = sequence(plan);
      step(s, 200, SequencePhase::kPrefill, 190);
      step(s, 170, SequencePhase::kPrefill, 20);
      step(s, 20, SequencePhase::kPrefill, 0);
      if (HasFatalFailure()) return;
      ASSERT_TRUE(s.there.dropped());
      for (int i = 0; i < 70; ++i) step(s, 1);
      step(s, 90, SequencePhase::kPrefill, 34);
      step(s, 33, SequencePhase::kPrefill, 1);
      step(s, 1, SequencePhase::kPrefill, 0);
      for (int i = 0; i < 3; ++i) step(s, 1);
      if (HasFatalFailure()) return;
      Sequence fork = s.fork();
      for (int i = 0; i < 6; ++i) step(s, 1), step(fork, 1);
      step(fork, 40, SequencePhase::kPrefill, 0);
      step(s, 1), step(fork, 1);
      if (HasFatalFailure()) return;
      EXPECT_GE(static_cast<double>(same_), 0.93 * static_cast<double>(kept_)) << "of " << kept_;
      const MethodStats &there = s.method_device.stats(), &here = s.method_here.stats();
      for (std::size_t l = 0; l < 3; ++l) {
        EXPECT_EQ(there.layers[l].attended_tokens, here.layers[l].attended_tokens);
        EXPECT_EQ(there.layers[l].retention.dropped_tokens, here.layers[l].retention.dropped_tokens);
        EXPECT_EQ(there.layers[l].steps, here.layers[l].steps);
        EXPECT_EQ(there.layers[l].sparse_steps, here.layers[l].sparse_steps);
      }
      EXPECT_GT(there.prefill_end_seconds, 0);
    }
}

TEST_F(CudaDropTest, EightBits) {
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const DType type : {DType::kInt8, DType::kFp8})
      for (const Method& m : {Method{"snapkv", ""}, Method{"h2o", ""}, Method{"tova", ""}}) {
        SCOPED_TRACE(::testing::Message()
                     << m.name << " " << dtype_name(type) << (store == KvStore::kHost ? ", host" : ", device"));
        next_ = 0, kept_ = same_ = 0, budgets_.clear();
        make(8, 2, type == DType::kFp8 ? 64 : 128, store, 6, type);
        Sequence s = sequence(plan_for(*model_, m, 96, type));
        step(s, 200, SequencePhase::kPrefill, 0);
        for (int i = 0; i < 30; ++i) step(s, 1);
        step(s, 50, SequencePhase::kPrefill, 0);
        for (int i = 0; i < 3; ++i) step(s, 1);
        if (HasFatalFailure()) return;
        ASSERT_TRUE(s.there.dropped());
        EXPECT_GE(static_cast<double>(same_), 0.9 * static_cast<double>(kept_)) << "of " << kept_;
      }
}

// Other groups, and as many query heads as KV heads.
TEST_F(CudaDropTest, EveryGroup) {
  for (const auto& [heads, kv_heads] : {std::pair{7, 1}, {4, 4}, {16, 2}})
    for (const Method& m : {kMethods[0], kMethods[2], kMethods[4], kMethods[6]}) {
      SCOPED_TRACE(::testing::Message() << m.name << ", " << heads << " heads of " << kv_heads);
      next_ = 0;
      make(heads, kv_heads, 64, KvStore::kDevice);
      Sequence s = sequence(plan_for(*model_, m, 64));
      step(s, 150, SequencePhase::kPrefill, 0);
      for (int i = 0; i < 5; ++i) step(s, 1);
      step(s, 50, SequencePhase::kPrefill, 0);
      for (int i = 0; i < 3; ++i) step(s, 1);
      if (HasFatalFailure()) return;
    }
}

// A step that is not committed drops nothing: recomputing the same tokens gives the same.
TEST_F(CudaDropTest, AStepThatIsTakenBackDropsNothing) {
  for (const Method& m : {kMethods[0], kMethods[2], kMethods[4], kMethods[6]}) {
    SCOPED_TRACE(m.name);
    next_ = 0;
    make(8, 2, 64, KvStore::kDevice);
    const auto plan = plan_for(*model_, m, 64);
    SequenceCache cache(*pool_device_);
    MethodState method(plan);
    const auto back = [&](std::int32_t n) {
      cache.truncate(cache.length() - n);
      method.step_back(cache.length());
    };
    const auto prompt = next(150), more = next(1);
    const auto first = step_of(*device_, cache, prompt, SequencePhase::kPrefill, &method);
    back(150);
    EXPECT_FALSE(cache.dropped());
    EXPECT_EQ(step_of(*device_, cache, prompt, SequencePhase::kPrefill, &method), first);
    method.commit(cache);
    ASSERT_TRUE(cache.dropped());
    const std::vector<TokenRange> stored = cache.stored(2, 1);
    const auto answer = step_of(*device_, cache, more, SequencePhase::kDecode, &method);
    back(1);
    EXPECT_EQ(cache.stored(2, 1), stored);
    EXPECT_EQ(step_of(*device_, cache, more, SequencePhase::kDecode, &method), answer);
    method.commit(cache);
    // After steps whose drops only the device knows; in between the pages may be compacted.
    for (int i = 0; i < 5; ++i)
      step_of(*device_, cache, next(1), SequencePhase::kDecode, &method), method.commit(cache);
    const auto last = next(1);
    const auto late = step_of(*device_, cache, last, SequencePhase::kDecode, &method);
    back(1);
    EXPECT_LE(relative_error(step_of(*device_, cache, last, SequencePhase::kDecode, &method), late), kTolerance);
    method.commit(cache);
    method.settle(cache);
    if (method.plan().drop->when != DropWhen::kOverBudget) continue;
    for (std::int32_t l = 0; l < 3; ++l)
      for (std::int32_t h = 0; h < 2; ++h) EXPECT_EQ(cache.n_stored(l, h), 63);
  }
}

// The host learns at every step, or when a fork asks and every 32 steps: as many tokens stay, of each kind as many, and
// nearly the same ones, because attention sums pages in another order once they are compacted at other times.
TEST_F(CudaDropTest, LearningLateChangesNothing) {
  for (const KvStore store : {KvStore::kDevice, KvStore::kHost})
    for (const Method& m : {kMethods[2], kMethods[3], kMethods[4], kMethods[5]}) {
      SCOPED_TRACE(::testing::Message() << m.name << " " << m.overrides
                                        << (store == KvStore::kHost ? ", host" : ", device"));
      make(8, 2, 64, store);
      const auto plan = plan_for(*model_, m, 96);
      struct Run {
        std::vector<std::vector<TokenRange>> stored;
        std::vector<float> answers;
        std::int64_t attended = 0, dropped = 0;
      };
      const auto run = [&](int prompt, int learn_every) {
        next_ = 0;
        SequenceCache cache(*pool_device_);
        MethodState method(plan);
        Run r;
        const auto answer = [&](int n) {
          const auto logits =
              step_of(*device_, cache, next(n), n > 1 ? SequencePhase::kPrefill : SequencePhase::kDecode, &method);
          r.answers.insert(r.answers.end(), logits.begin(), logits.end());
          method.commit(cache);
        };
        answer(prompt);
        for (int i = 1; i <= 110; ++i) {
          answer(1);
          if (learn_every > 0 && i % learn_every == 0) method.settle(cache);
          if (i == 41) {
            method.settle(cache);
            const SequenceCache fork = cache.fork();
            const MethodState of_fork = method;
          }
        }
        method.settle(cache);
        for (std::int32_t l = 0; l < 3; ++l) {
          for (std::int32_t h = 0; h < 2; ++h) r.stored.push_back(cache.stored(l, h));
          r.attended += method.stats().layers[static_cast<std::size_t>(l)].attended_tokens;
          r.dropped += method.stats().layers[static_cast<std::size_t>(l)].retention.dropped_tokens;
        }
        return r;
      };
      for (const int prompt : {40, 250}) {  // the budget is reached while decoding, or before
        const Run always = run(prompt, 1), late = run(prompt, 0), again = run(prompt, 0), now_and_then = run(prompt, 7);
        EXPECT_EQ(late.stored, again.stored);
        EXPECT_EQ(late.answers, again.answers);
        for (const Run* other : {&late, &now_and_then}) {
          EXPECT_EQ(other->attended, always.attended);
          EXPECT_EQ(other->dropped, always.dropped);
          kept_ = same_ = 0;
          for (std::size_t i = 0; i < always.stored.size(); ++i) see_kept(other->stored[i], always.stored[i]);
          EXPECT_GE(static_cast<double>(same_), 0.8 * static_cast<double>(kept_)) << "of " << kept_;
        }
      }
    }
}

// Budgets of two tokens, the least, and around a page; windows of nothing, and of everything.
TEST_F(CudaDropTest, SmallBudgets) {
  make(8, 2, 64, KvStore::kDevice);
  for (const char* name : {"h2o", "tova"})
    for (const std::int32_t budget : {2, 31, 32, 33})
      for (const std::int32_t recent : {0, budget}) {
        SCOPED_TRACE(::testing::Message() << name << ", budget " << budget << ", recent " << recent);
        next_ = 0;
        Sequence s =
            sequence(compile(make_recipe(name, {.budget = budget, .recent = recent}), method_shape(model_->config())));
        step(s, 70, SequencePhase::kPrefill, 0);
        for (int i = 0; i < 3; ++i) step(s, 1);
        if (HasFatalFailure()) return;
        for (int i = 0; i < 40; ++i)
          step_of(*device_, s.there, next(1), SequencePhase::kDecode, &s.method_device),
              s.method_device.commit(s.there);
        s.method_device.settle(s.there);
        for (std::int32_t l = 0; l < 3; ++l)
          for (std::int32_t h = 0; h < 2; ++h) {
            EXPECT_EQ(s.there.n_stored(l, h), budget - 1);
            if (recent < budget) continue;
            EXPECT_EQ(s.there.stored(l, h), (std::vector<TokenRange>{{113 - budget + 1, 113}}));
          }
      }
}

// Sequences of several methods, and of none, in the same steps: graphs of single rows, and rows with prompts.
TEST_F(CudaDropTest, WithOthersEachIsAsAlone) {
  make(8, 2, 64, KvStore::kDevice, 8);
  std::vector<std::shared_ptr<const Plan>> plans;
  for (const Method& m : {kMethods[2], kMethods[0], kMethods[4], kMethods[6]})
    plans.push_back(plan_for(*model_, m, 64));
  plans.push_back(nullptr);
  std::vector<SequenceCache> together, alone;
  std::vector<std::unique_ptr<MethodState>> with, by_itself;
  std::vector<std::vector<std::int32_t>> fed;
  std::vector<std::vector<MethodState::Pending>> pending(plans.size());  // what a sequence decided alone
  for (std::size_t i = 0; i < plans.size(); ++i) {
    fed.push_back(random_tokens(400, model_->config().vocab, 30 + i));
    for (auto* caches : {&together, &alone}) caches->emplace_back(*pool_device_);
    for (auto* methods : {&with, &by_itself})
      methods->push_back(plans[i] ? std::make_unique<MethodState>(plans[i]) : nullptr);
  }
  const auto piece = [&](std::size_t i, std::int32_t n) {
    return std::span<const std::int32_t>(fed[i]).subspan(static_cast<std::size_t>(together[i].length()),
                                                         static_cast<std::size_t>(n));
  };
  // Rows of each sequence: prompts come one after the other beside the answers of those before.
  std::vector<std::vector<std::int32_t>> steps = {
      {120, 0, 0, 0, 0}, {1, 130, 0, 0, 0}, {1, 1, 110, 90, 0}, {1, 1, 1, 1, 140}};
  for (int i = 0; i < 12; ++i) steps.push_back({1, 1, 1, 1, 1});
  for (int i = 0; i < 3; ++i) steps.push_back({0, 1, 0, 1, 1});
  steps.push_back({1, 1, 30, 1, 20});
  for (int i = 0; i < 3; ++i) steps.push_back({1, 1, 1, 1, 1});
  for (std::size_t at = 0; at < steps.size(); ++at) {
    std::vector<SequenceRows> rows;
    std::vector<std::int32_t> tokens;
    std::vector<std::vector<float>> want;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      const std::int32_t n = steps[at][i];
      if (n == 0) continue;
      const auto p = piece(i, n);
      const SequencePhase phase = n == 1 ? SequencePhase::kDecode : SequencePhase::kPrefill;
      want.push_back(step_of(*device_, alone[i], p, phase, by_itself[i].get()));
      pending[i].clear();
      for (std::int32_t l = 0; l < 3 && by_itself[i]; ++l) pending[i].push_back(by_itself[i]->layer(l).pending);
      std::vector<std::vector<TokenRange>> before;
      for (std::int32_t h = 0; h < 6; ++h) before.push_back(alone[i].stored(h / 2, h % 2));
      if (by_itself[i]) {
        by_itself[i]->commit(alone[i]);
        if (by_itself[i]->late().any()) {
          by_itself[i]->settle(alone[i]);
          for (std::int32_t l = 0; l < 3; ++l)
            pending[i][static_cast<std::size_t>(l)] = made_of(
                alone[i], by_itself[i]->layer(l), l, std::span(before).subspan(static_cast<std::size_t>(2 * l), 2));
        }
      }
      tokens.insert(tokens.end(), p.begin(), p.end());
      together[i].extend(n);
      rows.push_back(
          {.cache = &together[i], .n_rows = n, .want_logits = true, .method = with[i].get(), .phase = phase});
    }
    std::vector<float> got;
    SequenceRunner::append(device_->run({.tokens = tokens, .sequences = rows}), got);
    for (std::size_t i = 0; i < want.size(); ++i)
      ASSERT_LE(relative_error(std::span(got).subspan(i * want[i].size(), want[i].size()), want[i]),
                at + 3 > steps.size() ? 4 * kTolerance : kTolerance)
          << "step " << at << ", " << i;
    for (std::size_t i = 0; i < plans.size(); ++i) {
      if (!with[i] || steps[at][i] == 0) continue;
      // Rounding differs with the number of rows, and with it may who is dropped: the same for both, but in the last
      // steps, where each goes its own way.
      LateDrops* const late = with[i]->late().get();
      const bool drops_there = steps[at][i] == 1 && late != nullptr, free = drops_there && at + 3 >= steps.size();
      if (drops_there && !free) late->take_back();
      for (std::int32_t l = 0; l < 3 && !free; ++l) {
        MethodState::Pending &decided = with[i]->layer(l).pending, &other = pending[i][static_cast<std::size_t>(l)];
        if (!drops_there) {
          ASSERT_EQ(decided.kept.size(), other.kept.size());
          ASSERT_EQ(decided.mass.size(), other.mass.size());
        }
        decided = other;
      }
      with[i]->commit(together[i]);
      with[i]->settle(together[i]);
      for (std::int32_t h = 0; h < 6; ++h) {
        ASSERT_EQ(together[i].n_stored(h / 2, h % 2), alone[i].n_stored(h / 2, h % 2)) << "step " << at << ", " << i;
        if (free) see_kept(together[i].stored(h / 2, h % 2), alone[i].stored(h / 2, h % 2));
      }
    }
  }
  EXPECT_GE(static_cast<double>(same_), 0.9 * static_cast<double>(kept_)) << "of " << kept_;
}

}  // namespace
}  // namespace mneme
