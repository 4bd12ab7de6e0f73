// Kept selections and units that are lists: what LouisKV adds to the contract.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/contract/random_sequence.h"

namespace mneme {
namespace {

constexpr MethodShape kShape{.n_layers = kLayers, .n_heads = 8, .n_kv_heads = 2, .head_dim = kHeadDim};
constexpr const char* kLists = "unit=cluster:4,block=64,sink=4,recent=24,segment=4-16,dense=none,";

std::shared_ptr<const Plan> plan_of(const std::string& overrides, const char* method = "louiskv") {
  Recipe r = make_recipe(method, {.budget = 96, .sink = 0, .recent = 0});
  apply_overrides(overrides, r);
  return compile(r, kShape);
}

class Boundaries : public ::testing::Test {
 protected:
  std::vector<float> step(Sequence& s, DecodeAttention& attention, std::int32_t layer = 0) {
    std::vector<float> out(s.width());
    const DecodeRow row{.cache = &s.cache(), .method = s.method(), .q = s.query(layer).data(), .out = out.data()};
    attention.run(layer, std::span(&row, 1), kShape.attention());
    return out;
  }
  // Steps of all layers after a prompt; true where layer 0 selected.
  std::vector<bool> decode(Sequence& s, int n_steps) {
    std::vector<bool> selected;
    for (int i = 0; i < n_steps; ++i) {
      s.append(1);
      s.new_queries();
      const std::int64_t before = s.method()->stats().layers[0].selections;
      for (std::int32_t l = 0; l < kLayers; ++l) step(s, attention_, l);
      selected.push_back(s.method()->stats().layers[0].selections > before);
    }
    return selected;
  }

  ThreadPool pool_{2};
  DecodeAttention attention_{{.pool = &pool_, .rounding = Rounding::kFixed}, kRope};
};

// After the first step of an answer a gate that never fires never selects, one that always fires always does, and
// without a gate max_reuse makes a fixed interval.
TEST_F(Boundaries, TauAndMaxReuseAtTheirEnds) {
  for (const std::string& units : {std::string(kLists), std::string("unit=page:8,sink=8,recent=16,dense=none,")}) {
    Sequence never(kShape, plan_of(units + "tau=-1,max_reuse=0"), Values::kReal, 3);
    never.append(300);
    never.close_units(attention_);
    std::vector<bool> selected = decode(never, 100);
    EXPECT_TRUE(selected[0]);
    EXPECT_EQ(std::count(selected.begin(), selected.end(), true), 1) << units;
    never.append(40);  // another turn
    never.close_units(attention_);
    selected = decode(never, 20);
    EXPECT_TRUE(selected[0]);
    EXPECT_EQ(std::count(selected.begin(), selected.end(), true), 1) << units;

    Sequence always(kShape, plan_of(units + "tau=2"), Values::kReal, 3);
    always.append(300);
    always.close_units(attention_);
    EXPECT_THAT(decode(always, 50), testing::Each(true));

    Sequence fixed(kShape, plan_of(units + "tau=-1,max_reuse=4"), Values::kReal, 3);
    fixed.append(300);
    fixed.close_units(attention_);
    selected = decode(fixed, 50);
    for (std::size_t i = 0; i < selected.size(); ++i) EXPECT_EQ(selected[i], i % 5 == 0) << i;
  }
}

// The gate of one sequence does not affect another in the batch.
TEST_F(Boundaries, SequencesTriggerIndependently) {
  const auto plan = plan_of(std::string(kLists) + "tau=0.9,max_reuse=0");
  Sequence still(kShape, plan, Values::kReal, 1), moving(kShape, plan, Values::kReal, 2);
  for (Sequence* s : {&still, &moving}) {
    s->append(200);
    s->close_units(attention_);
    s->new_queries();
  }
  std::vector<float> a(still.width()), b(a), moved(a);
  for (int i = 0; i < 12; ++i) {
    for (Sequence* s : {&still, &moving}) s->append(1);
    for (std::size_t c = 0; c < moved.size(); ++c) moved[c] = i % 2 == 0 ? moving.query(0)[c] : -moving.query(0)[c];
    const DecodeRow rows[] = {
        {.cache = &still.cache(), .method = still.method(), .q = still.query(0).data(), .out = a.data()},
        {.cache = &moving.cache(), .method = moving.method(), .q = moved.data(), .out = b.data()}};
    attention_.run(0, rows, kShape.attention());
  }
  const LayerStats &s = still.method()->stats().layers[0], &m = moving.method()->stats().layers[0];
  EXPECT_EQ(s.selections, 1 * 2);
  EXPECT_EQ(s.reused, 11 * 2);
  EXPECT_EQ(m.selections, 12 * 2);
  EXPECT_EQ(m.corrections[0], 11);
}

// Slow drift is invisible against the previous step, and visible against the query that made the selection.
TEST_F(Boundaries, ReferenceLastRetrievalSeesDrift) {
  for (const auto& [reference, expected] : {std::pair{"previous", 1}, std::pair{"last_retrieval", 4}}) {
    Sequence s(kShape, plan_of(std::string(kLists) + "tau=0.7,max_reuse=0,reference=" + reference), Values::kReal, 1);
    s.append(200);
    s.close_units(attention_);
    std::vector<float> q(s.width(), 0.0f), out(q);
    for (int i = 0; i < 19; ++i) {  // 10 degrees a step: 0.7 is passed after 46 of them, at every fifth step
      s.append(1);
      for (std::size_t c = 0; c < q.size(); c += kHeadDim) {
        q[c] = std::cos(static_cast<float>(i) * 0.1745f);
        q[c + 1] = std::sin(static_cast<float>(i) * 0.1745f);
      }
      const DecodeRow row{.cache = &s.cache(), .method = s.method(), .q = q.data(), .out = out.data()};
      attention_.run(0, std::span(&row, 1), kShape.attention());
    }
    EXPECT_EQ(s.method()->stats().layers[0].selections, expected * 2) << reference;
  }
}

// All positions of a head's units.
std::vector<std::int32_t> members(const UnitTable& table) {
  std::vector<std::int32_t> tokens;
  for (std::int32_t u = 0; u < table.size(); ++u)
    for (std::int32_t i = 0; i < table.n_tokens(u); ++i) {
      tokens.push_back(table.token(u, i));
      if (i > 0) {
        EXPECT_LT(table.token(u, i - 1), table.token(u, i)) << "ascending within a unit";
      }
    }
  return tokens;
}

TEST_F(Boundaries, EveryTokenOutsideSinksAndBufferIsInOneUnit) {
  Sequence s(kShape, plan_of(std::string(kLists) + "tau=0.8"), Values::kReal, 6);
  for (int turn = 0; turn < 4; ++turn) {
    s.append(turn == 2 ? 3 : 150);
    s.close_units(attention_);
    for (int i = 0; i < 30; ++i) {
      decode(s, 1);
      for (std::int32_t l = 0; l < kLayers; ++l) {
        const MethodState::Layer& layer = s.method()->layer(l);
        for (const UnitTable& table : layer.tables) {
          std::vector<std::int32_t> tokens = members(table), expected(tokens.size());
          std::sort(tokens.begin(), tokens.end());
          std::iota(expected.begin(), expected.end(), 4);
          ASSERT_EQ(tokens, expected);
          ASSERT_EQ(4 + table.n_tokens(), layer.partition.grouped());
        }
        ASSERT_LE(s.cache().length() - layer.partition.grouped(), 24);
      }
    }
  }
  // Clusters of 4 on average, ceil(n / 4) of them at most; keys decide, so heads differ.
  const auto& tables = s.method()->layer(0).tables;
  EXPECT_NE(members(tables[0]), members(tables[1]));
}

// Units of one token are the oracle: its selection, and its bits.
TEST_F(Boundaries, ClustersOfOneTokenAreTheOracle) {
  Sequence lists(kShape, plan_of("unit=cluster:1,segment=1-1,sink=5,recent=20,dense=none,schedule=every_step"),
                 Values::kReal, 8);
  Sequence oracle(kShape, plan_of("sink=5,recent=20,dense=none", "oracle"), Values::kReal, 8);
  for (Sequence* s : {&lists, &oracle}) {
    s->append(200);
    s->close_units(attention_);
  }
  for (int i = 0; i < 60; ++i) {
    for (Sequence* s : {&lists, &oracle}) {
      s->append(1);
      s->new_queries();
    }
    for (std::int32_t l = 0; l < kLayers; ++l) {
      const std::vector<float> a = step(lists, attention_, l), b = step(oracle, attention_, l);
      for (std::int32_t head = 0; head < 2; ++head)
        ASSERT_EQ(attended_tokens(*lists.method(), l, head, lists.cache().length()),
                  attended_tokens(*oracle.method(), l, head, oracle.cache().length()));
      ASSERT_EQ(a, b);
    }
  }
}

// The order of keys and values in memory changes nothing: neither the selection nor a bit of the output.
TEST_F(Boundaries, ACopyInTheOrderOfTheUnitsChangesNothing) {
  Sequence a(kShape, plan_of(std::string(kLists) + "tau=0.8"), Values::kReal, 4);
  Sequence b(kShape, plan_of(std::string(kLists) + "tau=0.8,order=unit"), Values::kReal, 4);
  for (Sequence* s : {&a, &b}) {
    s->append(500);
    s->close_units(attention_);
  }
  EXPECT_EQ(a.method()->copy_bytes(), 0u);
  // All but sinks and buffer, in chunks of 256 tokens: two a head.
  EXPECT_EQ(b.method()->copy_bytes(), kLayers * 2 * 512 * kShape.attention().token_bytes());
  for (int i = 0; i < 40; ++i) {
    for (Sequence* s : {&a, &b}) {
      s->append(1);
      s->new_queries();
    }
    for (std::int32_t l = 0; l < kLayers; ++l) ASSERT_EQ(step(a, attention_, l), step(b, attention_, l)) << i;
  }
}

// A prompt in chunks, or whole, has the same units.
TEST_F(Boundaries, ChunksOfAPromptChangeNothing) {
  const auto plan = plan_of(std::string(kLists) + "tau=0.8");
  std::vector<std::vector<std::int32_t>> expected;
  for (const std::int32_t chunk : {333, 100, 32, 1}) {
    Sequence s(kShape, plan, Values::kReal, 12);
    for (std::int32_t at = 0; at < 333; at += chunk) {
      s.append(std::min(chunk, 333 - at));
      const DecodeRow row{.cache = &s.cache(), .method = s.method(), .prefill_left = 333 - s.cache().length()};
      for (std::int32_t l = 0; l < kLayers; ++l) attention_.close_units(l, std::span(&row, 1));
    }
    std::vector<std::vector<std::int32_t>> units;
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (const UnitTable& table : s.method()->layer(l).tables) units.push_back(members(table));
    if (expected.empty()) expected = units;
    EXPECT_EQ(units, expected) << chunk;
    EXPECT_EQ(expected[0].size(), 333u - 4 - 24);
  }
}

// Tokens removed and recomputed: every token is in a unit again, and the method continues.
// What a server's prefix cache does: a prompt that begins as an earlier conversation gets the units that it would have
// had alone, wherever the earlier prompt and its answer ended.
TEST_F(Boundaries, APrefixOfAnotherConversationHasTheUnitsOfAFreshPrompt) {
  const auto plan = plan_of(kLists);
  const auto lists = [&](Sequence& s) {
    std::vector<std::vector<std::int32_t>> all;
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (const UnitTable& table : s.method()->layer(l).tables)
        for (std::int32_t u = 0; u < table.size(); ++u) {
          all.emplace_back();
          for (std::int32_t i = 0; i < table.n_tokens(u); ++i) all.back().push_back(table.token(u, i));
        }
    return all;
  };
  // Within the prompt (block boundaries at 68 and 132), at its end, inside the answer, after all of it, and below the
  // sinks.
  for (const auto& [shared, more] : {std::pair{3, 70},
                                     {60, 70},
                                     {100, 70},
                                     {150, 70},
                                     {150, 3},
                                     {175, 70},
                                     {200, 70},
                                     {200, 3},
                                     {230, 70},
                                     {260, 70}}) {
    Sequence s(kShape, plan, Values::kReal, 3);
    s.append(200);
    s.close_units(attention_);
    decode(s, 60);
    s.set_method(std::make_unique<MethodState>(s.method()->index_of_prefix(shared)));
    s.cache().truncate(shared);
    s.append(more);
    s.close_units(attention_);
    const auto cached = lists(s);
    s.set_method(std::make_unique<MethodState>(plan));
    s.close_units(attention_);
    ASSERT_FALSE(cached.empty() && shared > 3) << shared;
    EXPECT_EQ(cached, lists(s)) << shared << " shared tokens, " << more << " of its own";
  }
}

TEST_F(Boundaries, GoesOnAfterItWasCut) {
  const auto plan = plan_of(std::string(kLists) + "tau=0.8,order=unit");
  for (const std::int32_t cut : {339, 320, 250, 130, 90, 3, 0}) {
    Sequence s(kShape, plan, Values::kReal, 12);
    s.append(300);
    s.close_units(attention_);
    decode(s, 40);
    s.cache().truncate(cut);
    s.method()->truncate(cut);
    s.append(339 - cut);
    s.close_units(attention_);
    const std::vector<bool> selected = decode(s, 10);
    EXPECT_TRUE(selected[0]) << cut;
    for (const UnitTable& table : s.method()->layer(1).tables) {
      std::vector<std::int32_t> tokens = members(table), expected(tokens.size());
      std::sort(tokens.begin(), tokens.end());
      std::iota(expected.begin(), expected.end(), 4);
      ASSERT_EQ(tokens, expected) << cut;
    }
    ASSERT_EQ(attended_tokens(*s.method(), 1, 0, s.cache().length()).size(), 96u);
  }
}

// Equal keys form one cluster, larger than the budget: its first tokens are taken.
TEST_F(Boundaries, AUnitLargerThanTheBudgetIsCut) {
  Sequence s(kShape, plan_of(std::string(kLists) + "tau=0.8,block=1000"), Values::kReal, 1);
  s.cache().extend(300);
  const std::vector<float> same(kHeadDim, 0.5f);
  for (std::int32_t t = 0; t < 300; ++t)
    for (std::int32_t l = 0; l < kLayers; ++l)
      for (std::int32_t m = 0; m < 2; ++m)
        store_kv(same.data(), same.data(), kShape.attention(), s.cache().token(l, m, t));
  s.new_queries();
  step(s, attention_);
  std::vector<std::int32_t> expected(96);
  // The window is what is left when the prompt's tail [275, 299) lost its first 16 tokens: those are a unit of equal
  // score and larger index, so they are taken whole, then the first of the cluster.
  std::iota(expected.begin(), expected.begin() + 4 + 67, 0);
  std::iota(expected.begin() + 4 + 67, expected.end(), 275);
  EXPECT_EQ(attended_tokens(*s.method(), 0, 0, 300), expected);
}

}  // namespace
}  // namespace mneme
