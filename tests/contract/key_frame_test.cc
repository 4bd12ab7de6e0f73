// Entries of an index with a frame are a function of the stored keys alone: however a prompt was cut into chunks, and
// after truncation, forks and prefixes.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "src/methods/decode_attention.h"
#include "src/recipes/recipe.h"
#include "tests/contract/random_sequence.h"

namespace mneme {
namespace {

constexpr MethodShape kShape{.n_layers = kLayers, .n_heads = 8, .n_kv_heads = 2, .head_dim = kHeadDim};

class KeyFrameIndex : public ::testing::TestWithParam<const char*> {
 protected:
  std::shared_ptr<const Plan> plan() const { return compile(parse_recipe(GetParam()), kShape); }
  ThreadPool pool_{1};
  DecodeAttention attention_{{.pool = &pool_, .rounding = Rounding::kFixed}, kRope};
};

std::vector<std::vector<std::byte>> entries_of(const MethodState& method) {
  std::vector<std::vector<std::byte>> all;
  for (std::int32_t l = 0; l < kLayers; ++l)
    for (const EntryStore& entries : method.layer(l).entries) {
      all.emplace_back();
      for (std::int32_t i = 0; i < entries.size(); ++i)
        all.back().insert(all.back().end(), entries.entry(i), entries.entry(i) + entries.entry_bytes());
    }
  return all;
}

TEST_P(KeyFrameIndex, ChunksOfAPromptChangeNoEntry) {
  Sequence whole(kShape, plan(), Values::kReal, 3), pieces(kShape, plan(), Values::kReal, 3);
  whole.append(530);
  whole.close_units(attention_);
  for (const std::int32_t n : {1, 30, 97, 2, 200, 200}) {
    pieces.append(n);
    pieces.close_units(attention_);
  }
  EXPECT_EQ(entries_of(*whole.method()), entries_of(*pieces.method()));
}

TEST_P(KeyFrameIndex, ATruncatedSequenceIsAShorterOne) {
  for (const std::int32_t length : {500, 260, 255, 65, 31, 0}) {
    Sequence a(kShape, plan(), Values::kReal, 3), b(kShape, plan(), Values::kReal, 3);
    a.append(530);
    a.close_units(attention_);
    const MethodState prefix = a.method()->index_of_prefix(length);
    a.cache().truncate(length);
    a.method()->truncate(length);
    b.append(530);  // the same keys
    b.cache().truncate(length);
    for (Sequence* s : {&a, &b}) s->close_units(attention_);
    EXPECT_EQ(entries_of(*a.method()), entries_of(*b.method())) << length;
    a.set_method(std::make_unique<MethodState>(prefix));
    a.close_units(attention_);
    EXPECT_EQ(entries_of(*a.method()), entries_of(*b.method())) << length;
  }
}

// A fork that grows past the next frame leaves its original's entries alone.
TEST_P(KeyFrameIndex, AForkThatRefitsLeavesItsOriginal) {
  Sequence a(kShape, plan(), Values::kReal, 3);
  a.append(250);
  a.close_units(attention_);
  const MethodState original = *a.method();
  const auto before = entries_of(original);
  a.append(300);
  a.close_units(attention_);
  EXPECT_EQ(entries_of(original), before);
  EXPECT_NE(entries_of(*a.method())[2], before[2]);
}

INSTANTIATE_TEST_SUITE_P(Indexes, KeyFrameIndex,
                         ::testing::Values("mneme:budget=96,sink=8,recent=16,unit=page:8,index=centroids:4",
                                           "mneme:budget=96,sink=16,recent=16,unit=page:16,index=sketch:3",
                                           "mneme:budget=128,sink=0,recent=32,unit=token,index=sketch:3"));

}  // namespace
}  // namespace mneme
