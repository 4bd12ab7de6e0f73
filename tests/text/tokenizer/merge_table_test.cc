#include "src/text/tokenizer/merge_table.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace mneme {
namespace {

using Pairs = std::map<std::pair<Symbol, Symbol>, MergeTable::Merge>;

// Merges the pair with the lowest rank, leftmost first, and repeats.
std::vector<Symbol> naive(const Pairs& pairs, std::vector<Symbol> s) {
  for (;;) {
    std::size_t best = s.size();
    MergeTable::Merge merge;
    for (std::size_t i = 0; i + 1 < s.size(); ++i) {
      const auto it = pairs.find({s[i], s[i + 1]});
      if (it != pairs.end() && it->second.rank < merge.rank) best = i, merge = it->second;
    }
    if (best == s.size()) return s;
    s[best] = merge.result;
    s.erase(s.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

TEST(MergeTable, FindsWhatWasAddedAndNothingElse) {
  std::mt19937 random(1);
  MergeTable table;
  Pairs pairs;
  for (int i = 0; i < 5000; ++i) {
    const auto left = static_cast<Symbol>(random() % 200) - 100, right = static_cast<Symbol>(random() % 200) - 100;
    const MergeTable::Merge merge{static_cast<std::uint32_t>(random() % 1000), static_cast<Symbol>(i)};
    table.add(left, right, merge);
    auto [it, added] = pairs.emplace(std::pair{left, right}, merge);
    if (!added && merge.rank < it->second.rank) it->second = merge;
  }
  EXPECT_EQ(table.size(), pairs.size());
  for (Symbol l = -101; l <= 101; ++l) {
    for (Symbol r = -101; r <= 101; ++r) {
      const auto it = pairs.find({l, r});
      const auto found = table.find(l, r);
      ASSERT_EQ(found.rank, it == pairs.end() ? MergeTable::kNever : it->second.rank);
      if (it != pairs.end()) {
        ASSERT_EQ(found.result, it->second.result);
      }
    }
  }
}

// Lengths on both sides of the switch from the scan to the heap; few ranks, so that most are equal.
TEST(MergeTable, ReducesAsTheNaiveLoopDoes) {
  std::mt19937 random(2);
  for (int round = 0; round < 400; ++round) {
    const std::uint32_t ranks = round % 3 == 0 ? 2 : 1000;
    const Symbol alphabet = static_cast<Symbol>(2 + random() % 6);
    MergeTable table;
    Pairs pairs;
    const std::size_t count = random() % 40;
    for (std::size_t i = 0; i < count; ++i) {
      const auto pick = [&] { return static_cast<Symbol>(random() % static_cast<std::uint32_t>(alphabet + 10)) - 2; };
      const Symbol left = pick(), right = pick();
      const MergeTable::Merge merge{static_cast<std::uint32_t>(random()) % ranks,
                                    alphabet + static_cast<Symbol>(random() % 8)};
      if (pairs.emplace(std::pair{left, right}, merge).second) table.add(left, right, merge);
    }
    for (const std::size_t n : {0u, 1u, 2u, 3u, 31u, 32u, 33u, 34u, 65u, 257u}) {
      std::vector<Symbol> symbols(n);
      for (Symbol& s : symbols) s = static_cast<Symbol>(random() % static_cast<std::uint32_t>(alphabet)) - 1;
      std::vector<Symbol> reduced = symbols;
      table.reduce(reduced);
      ASSERT_EQ(reduced, naive(pairs, symbols)) << "round " << round << ", " << n << " symbols";
    }
  }
}

TEST(MergeTable, ReducesAMillionEqualSymbols) {
  MergeTable table;
  table.add(1, 1, {0, 2});
  table.add(2, 2, {1, 3});
  std::vector<Symbol> symbols(1'000'003, 1);
  table.reduce(symbols);
  EXPECT_EQ(symbols.size(), 250'002u);  // 250,000 of four, one of two, one left
}

}  // namespace
}  // namespace mneme
