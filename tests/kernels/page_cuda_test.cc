// Pages chosen and brought on the device, against the references on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "src/kernels/box.h"
#include "src/kernels/group_pool.h"
#include "src/kernels/kv_slots_cuda.h"
#include "src/kernels/pointwise_cuda.h"
#include "src/kernels/topk.h"
#include "tests/kernels/slots_testing.h"

namespace mneme {
namespace {

// The reference: pages that a KV head chooses at `length`, with queries q [group, D].
Ids chosen(const World& w, std::int32_t place, std::int32_t head, std::int32_t length, const float* q) {
  const Setup& s = w.s;
  const std::int32_t first = s.sink / kKvPageTokens, stop = (length + kKvPageTokens - 1) / kKvPageTokens,
                     n = stop - s.recent / kKvPageTokens - first;
  std::vector<std::byte> boxes(static_cast<std::size_t>(n * 4 * s.head_dim));
  for (std::int32_t u = 0; u < n; ++u) {
    const KvRun run{w.page(place, head, first + u), kKvPageTokens};
    box_build_ref({&run, 1}, w.shape(), BoxKind::kMinMax, boxes.data() + u * 4 * s.head_dim);
  }
  std::vector<float> scores(static_cast<std::size_t>(n * s.group)), pooled(static_cast<std::size_t>(n));
  box_score_ref(q, w.shape(), boxes.data(), n, scores.data(), n);
  group_pool_ref(scores.data(), n, s.group, n, s.pool, w.rules().alpha, pooled.data());
  Ids ids(static_cast<std::size_t>(s.n_select()));
  topk_ref(pooled, s.n_select(), ids.data());
  for (std::int32_t& id : ids) id += first;
  return ids;
}

class CudaPageTest : public CudaSlotsTest {
 protected:
  // Every listed slot holds the page that stands there, byte for byte: sinks, `selected`, window.
  void expect_listed(World& w, std::int32_t place, std::int32_t head, std::int32_t length, const Ids& selected) {
    const std::int32_t stop = (length + kKvPageTokens - 1) / kKvPageTokens;
    Ids want;
    for (std::int32_t p = 0; p < w.s.sink / kKvPageTokens; ++p) want.push_back(p);
    want.insert(want.end(), selected.begin(), selected.end());
    for (std::int32_t p = stop - w.s.recent / kKvPageTokens; p < stop; ++p) want.push_back(p);
    const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
    const auto listed = fetch(w.v.listed + index * static_cast<std::size_t>(w.v.max_listed), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto slot = static_cast<std::size_t>(listed[i]);
      ASSERT_GE(slot, index * static_cast<std::size_t>(w.v.n_slots));
      ASSERT_LT(slot, (index + 1) * static_cast<std::size_t>(w.v.n_slots));
      const auto got = fetch(w.v.slots + slot * w.block_bytes, w.block_bytes);
      ASSERT_EQ(std::memcmp(got.data(), w.page(place, head, want[i]), w.block_bytes), 0)
          << "entry " << i << ", page " << want[i] << " of place " << place << ", head " << head;
    }
  }
};

TEST_F(CudaPageTest, ChoosesWhatTheReferenceChoosesAndBringsIt) {
  std::mt19937 rng(11);
  for (const GroupPool pool : {GroupPool::kMax, GroupPool::kMean, GroupPool::kMaxProb, GroupPool::kMeanProb})
    for (const std::int32_t group : {1, 4, 7, 16})
      for (const std::int32_t head_dim : {64, 128})
        for (const DType dtype : {DType::kBF16, DType::kF16}) {
          World w({.head_dim = head_dim, .group = group, .max_pages = 300, .dtype = dtype, .pool = pool},
                  static_cast<unsigned>(rng()), 3);
          for (const std::int32_t length : {385, 416, 417, 2079, 9599}) {
            begin(w, length);
            const auto q = queries(w, rng, 2);
            const Rows r = rows_of(w, length, 1);
            run(w, r, SelectWhen::kNow);
            for (std::int32_t place = 0; place < w.s.places; ++place)
              for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
                const Ids want =
                    chosen(w, place, head, length, q.data() + (place * w.v.n_heads + head * group) * head_dim);
                const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
                const auto got = fetch(w.v.chosen[0] + index * static_cast<std::size_t>(w.v.max_listed), want.size());
                // Sums of integers are exact; logarithms are not, so that units apart by rounding may change places.
                if (pool == GroupPool::kMax || group == 1) {
                  ASSERT_EQ(got, want) << "pool " << static_cast<int>(pool) << ", group " << group << ", length "
                                       << length;
                }
                expect_listed(w, place, head, length, got);
              }
          }
        }
}

// Many cases of equal scores: the larger page first, on the device as on the host.
TEST_F(CudaPageTest, EqualScoresGiveEqualSets) {
  std::mt19937 rng(5);
  World w({.head_dim = 64, .group = 2, .kv_heads = 8, .max_pages = 500}, 77, 1);
  const std::int32_t length = 15000;
  begin(w, length);
  const Rows r = rows_of(w, length, 1);
  for (int round = 0; round < 60; ++round) {
    const auto q = queries(w, rng, round % 2);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t place = 0; place < w.s.places; ++place)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const Ids want = chosen(w, place, head, length, q.data() + (place * w.v.n_heads + head * 2) * 64);
        const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
        ASSERT_EQ(fetch(w.v.chosen[0] + index * static_cast<std::size_t>(w.v.max_listed), want.size()), want);
      }
  }
}

// A sequence that decodes: heads that the gate flags attend what this step's query chooses, the others what the last
// step's did; nothing that is attended is ever overwritten before.
TEST_F(CudaPageTest, SpeculatesAndCorrectsByHead) {
  std::mt19937 rng(3);
  World w({.max_pages = 200, .schedule = SlotSchedule::kAhead, .tau = 0.5f}, 4, 3);
  std::int32_t length = 4090;
  begin(w, 6000);
  for (std::int32_t place = 0; place < w.s.places; ++place)
    fill_slots_cuda(place, length, w.rules(), w.v, w.pages(), 0, 0, context());
  std::vector<Ids> ahead(static_cast<std::size_t>(w.s.places * w.s.kv_heads));
  std::uint64_t corrections = 0;
  for (int step = 0; step < 80; ++step, ++length) {
    // The window's newest page is written by the step itself; here it is brought.
    if (length % kKvPageTokens == 1)
      for (std::int32_t place = 0; place < w.s.places; ++place)
        for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
          const std::int32_t page = length / kKvPageTokens, window = w.s.recent / kKvPageTokens;
          const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
          const auto slot = index * static_cast<std::size_t>(w.v.n_slots) +
                            static_cast<std::size_t>(w.s.sink / kKvPageTokens + page % window);
          copy_bytes(w.v.slots + slot * w.block_bytes, w.page(place, head, page), w.block_bytes, stream);
        }
    const auto q = queries(w, rng, 2);
    std::vector<float> cosines;
    std::vector<bool> moved;
    for (std::size_t i = 0; i < ahead.size(); ++i) {
      moved.push_back(rng() % 3 == 0);
      for (std::int32_t g = 0; g < w.s.group; ++g) cosines.push_back(moved.back() ? 0.4f : 0.6f);
    }
    set_cosines(w, cosines);
    const Rows r = rows_of(w, length, step == 0 ? 1 : 0);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t place = 0; place < w.s.places; ++place) {
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const auto i = static_cast<std::size_t>(place * w.s.kv_heads + head);
        const float* own = q.data() + (place * w.v.n_heads + head * w.s.group) * w.s.head_dim;
        const bool now = step == 0 || moved[i];
        if (step > 0) corrections += moved[i] ? 1 : 0;
        expect_listed(w, place, head, length, now ? chosen(w, place, head, length, own) : ahead[i]);
      }
    }
    run(w, r, SelectWhen::kNext);
    for (std::size_t i = 0; i < ahead.size(); ++i) {
      const auto place = static_cast<std::int32_t>(i) / w.s.kv_heads,
                 head = static_cast<std::int32_t>(i) % w.s.kv_heads;
      ahead[i] = chosen(w, place, head, length + 1, q.data() + (place * w.v.n_heads + head * w.s.group) * w.s.head_dim);
    }
  }
  const auto counts = fetch(w.v.counts, static_cast<std::size_t>(w.s.places));
  std::uint64_t counted = 0, checks = 0;
  for (const SlotCounts& c : counts) counted += c.corrections, checks += c.checks;
  EXPECT_EQ(counted, corrections);
  EXPECT_EQ(checks, 79u * ahead.size());
}

// Up to the budget, page p is in slot p and nothing is selected.
TEST_F(CudaPageTest, AttendsEverythingUpToTheBudget) {
  World w({.max_pages = 64}, 9, 3);
  for (const std::int32_t length : {1, 31, 32, 33, 383, 384}) {
    begin(w, length);
    const Rows r = rows_of(w, length, 1);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
      const auto index = static_cast<std::size_t>(head);
      const auto n = static_cast<std::size_t>((length + kKvPageTokens - 1) / kKvPageTokens);
      const auto listed = fetch(w.v.listed + index * static_cast<std::size_t>(w.v.max_listed), n);
      for (std::size_t p = 0; p < n; ++p) {
        const auto got = fetch(w.v.slots + static_cast<std::size_t>(listed[p]) * w.block_bytes, w.block_bytes);
        ASSERT_EQ(std::memcmp(got.data(), w.page(0, head, static_cast<std::int32_t>(p)), w.block_bytes), 0);
      }
    }
  }
}

// Drawn outcomes replace the share that they should.
TEST_F(CudaPageTest, DrawnTurnoverIsWhatWasAskedFor) {
  World w({.max_pages = 300, .budget = 64 + 64 + 32 * 10}, 9, 3);
  SlotRules rules = w.rules();
  rules.turnover = 0.2f;
  for (std::int32_t place = 0; place < w.s.places; ++place)
    copy_bytes(w.v.rules + place, &rules, sizeof(rules), stream);
  std::mt19937 rng(1);
  queries(w, rng, 2);
  begin(w, 9000);
  for (std::int32_t length = 9000; length < 9020; ++length) run(w, rows_of(w, length, 0), SelectWhen::kNow);
  const auto before = fetch(w.v.counts, 1);
  for (std::int32_t length = 9020; length < 9120; ++length) run(w, rows_of(w, length, 0), SelectWhen::kNow);
  const auto after = fetch(w.v.counts, 1);
  const auto selected = static_cast<double>(after[0].selected - before[0].selected),
             replaced = static_cast<double>(after[0].replaced - before[0].replaced);
  EXPECT_EQ(selected, 100 * 2 * 10);
  EXPECT_NEAR(replaced / selected, 0.2, 0.03);  // all of them while the candidates change, every 32 steps
}

}  // namespace
}  // namespace mneme
