#include "apps/eval/slot_hits.h"

#include <gtest/gtest.h>

#include "src/methods/decode_attention.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"
#include "tests/apps/cut_texts.h"

namespace mneme::eval {
namespace {

constexpr MethodShape kShape{.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8};

// A sequence of one layer and head whose selections are set by hand.
class Steps {
 public:
  explicit Steps(const std::vector<double>& slots) : observer_(slots) {
    Recipe recipe = make_recipe("quest", {});
    apply_overrides("unit=page:8,dense=none", recipe);
    method_.emplace(compile(recipe, kShape));
    method_->layer(0).attended.resize(1);
  }
  void step(std::vector<std::int32_t> units) {
    cache_.extend(1);
    method_->layer(0).attended[0] = std::move(units);
    const DecodeRow row{.cache = &cache_, .method = &*method_};
    observer_.see(0, row, kShape.attention());
  }
  SequenceCache& cache() { return cache_; }
  std::vector<std::int64_t> hits() const {
    std::vector<std::int64_t> n;
    for (const SlotHits& h : observer_.hits()) n.push_back(h.hits);
    return n;
  }
  std::int64_t selected() const { return observer_.hits().front().selected; }

 private:
  PagePool pool_{KvShape{1, 1, 8}, 64};
  SequenceCache cache_{pool_};
  std::optional<MethodState> method_;
  SlotHitsObserver observer_;
};

TEST(SlotHits, ACacheOfOneSelectionHoldsTheStepBefore) {
  Steps s({1, 2});
  s.step({1, 2, 3, 4});  // fills
  EXPECT_EQ(s.selected(), 0);
  s.step({1, 2, 5, 6});
  EXPECT_EQ(s.hits(), (std::vector<std::int64_t>{2, 2}));
  s.step({3, 4, 5, 6});  // 3 and 4 were evicted from four slots, not from eight
  EXPECT_EQ(s.hits(), (std::vector<std::int64_t>{4, 6}));
  EXPECT_EQ(s.selected(), 8);
}

TEST(SlotHits, TheLeastRecentlySelectedGoesFirst) {
  Steps s({1.5});
  s.step({1, 2});
  s.step({3, 4});  // three slots: 3, 4 and 1
  s.step({1, 2});
  EXPECT_EQ(s.hits(), (std::vector<std::int64_t>{1}));
}

TEST(SlotHits, ASequenceThatDoesNotFollowStartsEmpty) {
  Steps s({8});
  s.step({1, 2});
  s.cache().extend(5);  // another turn's prompt
  s.step({1, 2});
  EXPECT_EQ(s.selected(), 0);
  s.step({1, 2});
  EXPECT_EQ(s.hits(), (std::vector<std::int64_t>{2}));
}

TEST(SlotHits, TableAndPicture) {
  const std::vector<MethodHits> all = {{.method = "quest", .hits = {{.slots = 1.25, .selected = 8, .hits = 2}}}};
  EXPECT_EQ(slot_hits_table(all), "| method | 1.25 selections |\n|---|---|\n| quest | 25.0 % |\n");
  EXPECT_NE(slot_hits_svg(all).find("Hits in the device cache"), std::string::npos);
  EXPECT_EQ(cut_texts(slot_hits_svg(all)), std::vector<std::string>());
  EXPECT_EQ(slot_hits_json(all)[0]["hits"], 2);
}

}  // namespace
}  // namespace mneme::eval
