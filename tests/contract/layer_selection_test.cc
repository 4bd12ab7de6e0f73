// Contract of methods with selection per layer, in prefill windows and decode steps, on the CPU: selection and
// attention of the f64 specification.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "reference/methods/layer_selection_ref.h"
#include "reference/methods/positions_ref.h"
#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/methods/decode_attention.h"
#include "src/methods/window_attention.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "src/tensor/half.h"
#include "tests/contract/contract_case.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

constexpr std::int32_t kHeadDim = 16, kRows = 16;
const RopeTable kRope = RopeTable::make({.theta = 1000.0}, kHeadDim, 4096);

// One sequence of several layers, each with its own random keys, values and queries.
class Sequence {
 public:
  Sequence(std::shared_ptr<const Plan> plan, const CpuContext& context, std::uint64_t seed = 7)
      : plan_(std::move(plan)),
        shape_(plan_->shape),
        pool_({shape_.n_layers, shape_.n_kv_heads, kHeadDim, shape_.kv_dtype}, 8192),
        cache_(pool_),
        method_(plan_),
        windows_(context, kRope),
        decode_(context, kRope),
        seed_(seed) {
    cache_.set_key_basis(plan_->key_basis);
  }

  std::size_t width() const { return shape_.n_heads * kHeadDim; }
  void make_equal(bool keys, bool queries) { equal_keys_ = keys, equal_queries_ = queries; }

  // The next n tokens, as prefill or as decode steps; [layer][rows, n_heads * D].
  std::vector<std::vector<float>> read(std::int32_t n, bool prefill) {
    const std::int32_t first = cache_.length();
    cache_.extend(n);
    std::vector<std::vector<float>> outs;
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      for (std::int32_t t = first; t < first + n; ++t)
        for (std::int32_t m = 0; m < shape_.n_kv_heads; ++m) {
          const auto kv = numbers(t, l * 100 + m, 2 * kHeadDim, equal_keys_);
          store_kv(kv.data(), kv.data() + kHeadDim, shape_.attention(), cache_.token(l, m, t));
        }
      std::vector<float> out(n * width());
      const std::vector<float> q = queries(l, first, n);
      if (prefill) {
        const std::int64_t stride = width();
        const WindowRows rows{.cache = &cache_,
                              .method = &method_,
                              .q = q.data(),
                              .q_stride = stride,
                              .out = reinterpret_cast<std::byte*>(out.data()),
                              .out_stride = stride,
                              .n_rows = n};
        windows_.run(l, std::span(&rows, 1), shape_.attention());
      } else {
        const DecodeRow row{.cache = &cache_, .method = &method_, .q = q.data(), .out = out.data()};
        decode_.run(l, std::span(&row, 1), shape_.attention());
      }
      outs.push_back(std::move(out));
    }
    return outs;
  }
  std::vector<float> queries(std::int32_t layer, std::int32_t first, std::int32_t n) const {
    std::vector<float> q;
    for (std::int32_t t = first; t < first + n; ++t) {
      const auto row = numbers(equal_queries_ ? 0 : t, 1000 + layer, static_cast<std::int32_t>(width()), false);
      q.insert(q.end(), row.begin(), row.end());
    }
    return q;
  }
  SequenceCache& cache() { return cache_; }
  MethodState& method() { return method_; }
  const std::vector<std::int32_t>& units(std::int32_t layer) { return method_.layer(layer).attended[0]; }

 private:
  std::vector<float> numbers(std::int32_t t, std::int32_t what, std::int32_t n, bool equal) const {
    Rng rng(seed_ + static_cast<std::uint64_t>(what) * 7919, static_cast<std::uint64_t>(equal ? 0 : t) << 20);
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>(rng.normal());
    return v;
  }
  std::shared_ptr<const Plan> plan_;
  MethodShape shape_;
  PagePool pool_;
  SequenceCache cache_;
  MethodState method_;
  WindowAttention windows_;
  DecodeAttention decode_;
  std::uint64_t seed_;
  bool equal_keys_ = false, equal_queries_ = false;
};

class LayerSelectionContract : public ::testing::TestWithParam<std::tuple<const char*, std::int32_t>> {
 protected:
  std::shared_ptr<const Plan> plan(std::int32_t budget, std::int32_t n_layers = 1) const {
    const std::int32_t group = std::get<1>(GetParam());
    Recipe r = make_recipe("actqkv", {.budget = budget, .sink = 8, .recent = 32});
    apply_overrides(fmt::format("unit=page:8,prefill=window:{},match=mean,top=2", kRows), r);
    apply_overrides(std::get<0>(GetParam()), r);
    return compile(
        r,
        {.n_layers = n_layers, .n_heads = 2 * group, .n_kv_heads = 2, .head_dim = kHeadDim, .kv_dtype = DType::kF16});
  }
  ThreadPool pool_{kTestThreads};
  CpuContext context_{.pool = &pool_, .rounding = Rounding::kFixed};
};

void expect_same_units(const LayerSelectionRef::Selection& expected, const std::vector<std::int32_t>& actual) {
  if (expected.units == actual) return;
  std::vector<std::int32_t> odd;
  std::set_symmetric_difference(expected.units.begin(), expected.units.end(), actual.begin(), actual.end(),
                                std::back_inserter(odd));
  const auto score = [&](std::int32_t u) { return expected.scores[u - expected.first_unit]; };
  double kth = INFINITY;
  for (std::int32_t u : expected.units) kth = std::min(kth, score(u));
  // Representatives are stored in f16: each of up to 256 terms has a relative error of 2^-11.
  for (std::int32_t u : odd) EXPECT_LE(std::abs(score(u) - kth), 5e-4) << "unit " << u;
}

TEST_P(LayerSelectionContract, SelectsAndAttendsAsTheReference) {
  for (const auto& [budget, question] : {std::pair(76, true), std::pair(76, false), std::pair(1000, false)}) {
    if (!question && std::get<0>(GetParam())[0] != 0) continue;  // the reference is slow
    const auto plan = this->plan(budget);
    Sequence seq(plan, context_);
    LayerSelectionRef reference(plan, kRope, 0);
    if (question) {
      seq.method().set_question_span(10, 21);
      reference.set_question_span(10, 21);
    }
    std::int32_t n_selected = 0;
    for (std::int32_t at = 0; at < 190;) {
      const bool prefill = at < 120 || (at >= 136 && at < 176);  // another turn
      std::int32_t n = prefill ? kRows - at % kRows : 1;
      if (at < 120) n = std::min(n, 120 - at);
      if (at < budget) n = std::min(n, budget - at);  // a window ends there too
      const std::vector<float> out = seq.read(n, prefill)[0], q = seq.queries(0, at, n);
      const std::vector<std::int32_t>& units = seq.units(0);
      LayerSelectionRef::Selection selection =
          reference.select(seq.cache(), at, at + n, q.data(), prefill, size32(units));
      ASSERT_EQ(selection.everything, units.empty()) << at;
      expect_same_units(selection, units);
      ASSERT_FALSE(HasFailure()) << "position " << at << " budget " << budget;
      const std::int32_t filed = seq.method().layer(0).memory->units.size();
      ASSERT_LE(first_unit(plan->rules) + filed, reference.filed() + (filed == 0 ? 1 : 0));
      for (std::int32_t i = std::max(0, filed - 2); i < filed; ++i) {
        const auto* entry = reinterpret_cast<const f16*>(seq.method().layer(0).memory->units.entry(i));
        const std::vector<double>& rep = reference.representative(first_unit(plan->rules) + i);
        for (std::size_t c = 0; c < rep.size(); ++c)
          ASSERT_LE(std::abs(static_cast<double>(static_cast<float>(entry[c])) - rep[c]),
                    2.5e-4 * std::max(1.0, 2 * std::abs(rep[c])))  // half a step of f16
              << "unit " << i << " channel " << c << " at " << at;
      }
      selection.units = units;  // equal, or equally good
      n_selected += size32(units);
      std::vector<float> expected(out.size());
      reference.attend(seq.cache(), selection, at, at + n, q.data(), expected.data());
      for (std::size_t i = 0; i < out.size(); ++i)
        ASSERT_LE(std::abs(out[i] - expected[i]), 2e-4f * (1 + std::abs(expected[i])))
            << "position " << at + static_cast<std::int32_t>(i / seq.width()) << " budget " << budget;
      at += n;
    }
    EXPECT_EQ(n_selected > 0, budget < 190);
  }
}

// With room for all tokens, a step attends everything, with tokens outside of the window at its far end: dense
// attention with those distances.
TEST_P(LayerSelectionContract, WithRoomForAllDistancesAreFlattened) {
  const auto plan = this->plan(1000);
  if (!plan->remote_position) GTEST_SKIP() << "distances are the true ones";
  Sequence s(plan, context_);
  s.read(100, true);
  const auto number = [&](std::int32_t head, std::int32_t t, std::int32_t i) {
    return double{
        static_cast<float>(reinterpret_cast<const f16*>(s.cache().token(0, head / plan->shape.group(), t))[i])};
  };
  for (std::int32_t at = 100; at < 130; ++at) {
    const std::vector<float> out = s.read(1, false)[0], q = s.queries(0, at, 1);
    for (std::int32_t h = 0; h < plan->shape.n_heads; ++h) {
      const std::vector<double> head(q.begin() + h * kHeadDim, q.begin() + (h + 1) * kHeadDim);
      std::vector<double> sum(kHeadDim);
      double total = 0;
      for (std::int32_t t = 0; t <= at; ++t) {
        const std::vector<double> seen = rotated(head, std::min(at - t, plan->rules.recent - 1) - at, kRope);
        double dot_product = 0;
        for (std::int32_t c = 0; c < kHeadDim; ++c) dot_product += seen[c] * number(h, t, c);
        const double p = std::exp(dot_product / std::sqrt(kHeadDim));
        total += p;
        for (std::int32_t c = 0; c < kHeadDim; ++c) sum[c] += p * number(h, t, kHeadDim + c);
      }
      for (std::int32_t c = 0; c < kHeadDim; ++c)
        ASSERT_NEAR(out[h * kHeadDim + c], sum[c] / total, 1e-3)
            << "position " << at << " head " << h;  // local keys are rounded to f16 when rotated
    }
  }
}

TEST_P(LayerSelectionContract, ChunksOfWholeWindowsChangeNoBits) {
  const auto plan = this->plan(80, 2);
  Sequence whole(plan, context_), pieces(plan, context_);
  const auto expected = whole.read(10 * kRows + 5, true);
  std::vector<std::vector<float>> actual(2);
  for (const std::int32_t n : {kRows, 4 * kRows, 5 * kRows, 5}) {
    const auto outs = pieces.read(n, true);
    for (std::size_t l = 0; l < 2; ++l) actual[l].insert(actual[l].end(), outs[l].begin(), outs[l].end());
  }
  EXPECT_EQ(actual, expected);
  for (int step = 0; step < 10; ++step) ASSERT_EQ(whole.read(1, false), pieces.read(1, false));
}

TEST_P(LayerSelectionContract, AForkGoesOnAsItsOriginal) {
  const auto plan = this->plan(80, 2);
  Sequence a(plan, context_), b(plan, context_);
  for (Sequence* s : {&a, &b}) s->read(10 * kRows, true);
  b.method() = MethodState(a.method());
  for (int i = 0; i < 12; ++i) ASSERT_EQ(a.read(1, false), b.read(1, false));
  b.method() = MethodState(a.method());
  std::vector<std::vector<std::vector<float>>> first_fork;
  for (int i = 0; i < 20; ++i) first_fork.push_back(a.read(1, false));  // and a's steps do not affect b
  for (int i = 0; i < 20; ++i) ASSERT_EQ(b.read(1, false), first_fork[i]) << i;
}

// A state that is written and read continues as the original: it holds everything besides keys and values.
TEST_P(LayerSelectionContract, AStateThatWasSavedGoesOnAsItsOriginal) {
  const auto plan = this->plan(80, 2);
  Sequence a(plan, context_), b(plan, context_);
  for (Sequence* s : {&a, &b}) s->method().set_question_span(40, 45);
  for (Sequence* s : {&a, &b}) s->read(10 * kRows + 3, true);
  for (int turn = 0; turn < 3; ++turn) {
    ByteWriter saved;
    a.method().write(saved);
    MethodState read(plan);
    ByteReader in(saved.get(), "state");
    read.read(in, a.cache().length());
    EXPECT_EQ(in.remaining(), 0u);
    ByteWriter again;
    read.write(again);
    EXPECT_TRUE(std::ranges::equal(again.get(), saved.get()));
    b.method() = read;
    for (int i = 0; i < 9; ++i) ASSERT_EQ(b.read(1, false), a.read(1, false)) << turn << ' ' << i;
    ASSERT_EQ(b.read(3 * kRows, true), a.read(3 * kRows, true)) << turn;
    ASSERT_EQ(b.units(1), a.units(1));
  }
}

// A truncated state is rejected, and so is one of another length; nothing accepted may be read out of bounds.
TEST_P(LayerSelectionContract, ADamagedStateIsRefusedOrHarmless) {
  const auto plan = this->plan(80);
  Sequence a(plan, context_);
  a.read(10 * kRows, true);
  ByteWriter saved;
  a.method().write(saved);
  const auto accepted = [&](std::span<const std::byte> bytes, std::int32_t length) {
    try {
      ByteReader in(bytes, "state");
      MethodState state(plan);
      state.read(in, length);
      a.method() = state;
      return true;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kFormat) << e.what();
      return false;
    }
  };
  const std::int32_t n = a.cache().length();
  ASSERT_TRUE(accepted(saved.get(), n));
  EXPECT_FALSE(accepted(saved.get(), n + 1));
  EXPECT_FALSE(accepted(saved.get(), n - 2));
  Rng rng(3);
  for (int i = 0; i < 200; ++i) EXPECT_FALSE(accepted(saved.get().first(rng.below(saved.get().size())), n));
  for (int i = 0; i < 40; ++i) {
    std::vector<std::byte> bytes(saved.get().begin(), saved.get().end());
    bytes[rng.below(i % 2 == 0 ? 32 : bytes.size())] = static_cast<std::byte>(rng.next());
    if (accepted(bytes, n)) a.read(2, false);
    a.cache().truncate(n);
  }
}

// The mean over layers is at most the budget, and no layer takes more than twice its share.
TEST_P(LayerSelectionContract, KeepsItsBudget) {
  const auto plan = this->plan(120, 3);
  Sequence s(plan, context_);
  s.read(20 * kRows, true);
  for (int i = 0; i < 30; ++i) {
    s.read(1, false);
    std::int32_t units = 0;
    for (std::int32_t l = 0; l < 3; ++l) {
      const auto& u = s.units(l);
      units += size32(u);
      ASSERT_TRUE(std::is_sorted(u.begin(), u.end(), std::less_equal<>()));
      ASSERT_GE(u.front(), 1);
      ASSERT_LT(u.back(), region_at(plan->rules, s.cache().length()).last_unit);
      ASSERT_LE(size32(u), 2 * plan->layer_selection->n_units);
    }
    ASSERT_LE(units, 3 * plan->layer_selection->n_units);
  }
  std::int64_t tokens = 0, heads = 0;
  for (const LayerStats& stats : s.method().stats().layers) {
    tokens += stats.attended_tokens;
    heads += stats.attended_heads;
    EXPECT_EQ(stats.steps, 30);
    EXPECT_EQ(stats.sparse_steps, 30);
    EXPECT_EQ(stats.selections, 2 * 30);
    // Cosines of random keys are nearly alike; dot products are not.
    const bool cosine = std::get<Representative>(plan->recipe.decode->index).similarity == Similarity::kCosine;
    EXPECT_GT(stats.score_perplexity / static_cast<double>(stats.scored), cosine ? 0.5 : 0.0);
    EXPECT_LE(stats.score_perplexity / static_cast<double>(stats.scored), 1.0 + 1e-9);
  }
  EXPECT_LE(tokens, 120 * heads);
  EXPECT_GE(tokens, (120 - 16) * heads);
}

TEST_P(LayerSelectionContract, EqualUnitsAreTakenFromTheEnd) {
  if (std::string_view(std::get<0>(GetParam())).find("positions=absolute") != std::string_view::npos)
    GTEST_SKIP() << "keys after RoPE are not equal everywhere";
  const auto plan = this->plan(80);
  Sequence s(plan, context_);
  s.make_equal(true, false);
  s.read(10 * kRows, true);
  s.read(1, false);
  const Region r = region_at(plan->rules, s.cache().length());
  const std::vector<std::int32_t>& units = s.units(0);
  ASSERT_FALSE(units.empty());
  for (std::size_t i = 0; i < units.size(); ++i)
    EXPECT_EQ(units[i], r.last_unit - static_cast<std::int32_t>(units.size() - i));
}

// Recomputed rows count once.
TEST_P(LayerSelectionContract, AStepBackIsTheSameStep) {
  const auto plan = this->plan(80);
  Sequence a(plan, context_), b(plan, context_);
  for (Sequence* s : {&a, &b}) s->read(10 * kRows, true);
  for (int i = 0; i < 30; ++i) {
    const auto expected = a.read(1, false);
    ASSERT_EQ(b.read(1, false), expected);
    b.cache().truncate(b.cache().length() - 1);
    b.method().step_back(b.cache().length());
    ASSERT_EQ(b.read(1, false), expected) << i;
  }
}

std::string variant_name(const ::testing::TestParamInfo<std::tuple<const char*, std::int32_t>>& test) {
  std::string name = fmt::format("A{}_G{}", std::get<0>(test.param), std::get<1>(test.param));
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

constexpr const char* kVariants[] = {"",
                                     "positions=absolute",
                                     "window_probe=mean",
                                     "window_probe=reversed",
                                     "cutoff=constant",
                                     "cutoff=reversed",
                                     "cutoff_in=all",
                                     "positions=absolute,question_weight=0",
                                     "match=best",
                                     "match=best,top=8,positions=absolute"};
INSTANTIATE_TEST_SUITE_P(Variants, LayerSelectionContract, with_groups(kVariants), variant_name);
INSTANTIATE_TEST_SUITE_P(DotProducts, LayerSelectionContract,
                         ::testing::Combine(::testing::Values("similarity=dot,window_probe=mean,cutoff=constant",
                                                              "similarity=dot,question_in=all,cutoff=constant"),
                                            ::testing::Values(4, 5)),
                         variant_name);

}  // namespace
}  // namespace mneme
