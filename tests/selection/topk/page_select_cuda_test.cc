// Pages chosen and brought on the device, against the references on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "src/device/device.h"
#include "src/kernels/attention_cuda.h"
#include "src/kernels/box.h"
#include "src/kernels/group_pool.h"
#include "src/kernels/kv_slots_cuda.h"
#include "src/kernels/pointwise_cuda.h"
#include "src/kernels/topk.h"
#include "tests/kernels/slots_testing.h"

namespace mneme {
namespace {

// The reference: pooled scores of the pages that a KV head may choose at `length`, with queries q [group, D].
std::vector<float> pooled_scores(const World& w, std::int32_t place, std::int32_t head, std::int32_t length,
                                 const float* q) {
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
  return pooled;
}

// And what it chooses.
Ids best_of(const World& w, const std::vector<float>& pooled) {
  Ids ids(static_cast<std::size_t>(w.s.n_select()));
  topk_ref(pooled, w.s.n_select(), ids.data());
  for (std::int32_t& id : ids) id += w.s.sink / kKvPageTokens;
  return ids;
}
Ids chosen(const World& w, std::int32_t place, std::int32_t head, std::int32_t length, const float* q) {
  return best_of(w, pooled_scores(w, place, head, length, q));
}

// A step of a sequence whose queries turn slowly, by the reference. By (place, head): scores of all candidates, what it
// would choose, and what the next step may attend of that.
struct TurningStep {
  std::vector<float> q;
  std::vector<std::vector<float>> scores;
  std::vector<Ids> now, next;
};

// The mass that `now` has and `ahead` has not.
float missing_mass(const World& w, const std::vector<float>& scores, Ids now, Ids ahead) {
  const bool logs = w.s.pool == GroupPool::kMaxProb || w.s.pool == GroupPool::kMeanProb;
  for (Ids* ids : {&now, &ahead})
    for (std::int32_t& id : *ids) id -= w.s.sink / kKvPageTokens;
  return missing_mass_ref(scores, logs ? 1.0f : w.rules().alpha, now, ahead);
}

// Half of the reference's masses are above it.
float middle_mass(const World& w, const std::vector<TurningStep>& steps) {
  std::vector<float> masses;
  for (std::size_t i = 1; i < steps.size(); ++i)
    for (std::size_t h = 0; h < steps[i].now.size(); ++h)
      masses.push_back(missing_mass(w, steps[i].scores[h], steps[i].now[h], steps[i - 1].next[h]));
  const auto middle = masses.begin() + static_cast<std::ptrdiff_t>(masses.size() / 2);
  std::nth_element(masses.begin(), middle, masses.end());
  return *middle;
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
      const auto slot = static_cast<std::size_t>(static_cast<std::uint32_t>(listed[i]) & ~kOnItsWay);
      ASSERT_GE(slot, index * static_cast<std::size_t>(w.v.n_slots));
      ASSERT_LT(slot, (index + 1) * static_cast<std::size_t>(w.v.n_slots));
      const auto got = fetch(w.v.slots + slot * w.block_bytes, w.block_bytes);
      ASSERT_EQ(std::memcmp(got.data(), w.page(place, head, want[i]), w.block_bytes), 0)
          << "entry " << i << ", page " << want[i] << " of place " << place << ", head " << head;
    }
  }
  // A sequence that has just grown to `length`: the step itself writes the window's newest page; here it is brought.
  void grow(World& w, std::int32_t length) {
    if (length % kKvPageTokens != 1) return;
    for (std::int32_t place = 0; place < w.s.places; ++place)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const std::int32_t page = length / kKvPageTokens, window = w.s.recent / kKvPageTokens;
        const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
        const auto slot = index * static_cast<std::size_t>(w.v.n_slots) +
                          static_cast<std::size_t>(w.s.sink / kKvPageTokens + page % window);
        copy_bytes(w.v.slots + slot * w.block_bytes, w.page(place, head, page), w.block_bytes, stream);
      }
  }
  // Boxes of all tokens up to `stop`, slots as at `length`.
  void begin_at(World& w, std::int32_t length, std::int32_t stop) {
    begin(w, stop);
    for (std::int32_t place = 0; place < w.s.places; ++place)
      fill_slots_cuda(place, length, w.rules(), w.v, w.pages(), 0, 0, context());
  }
  Ids chosen_there(const World& w, std::size_t index, SelectWhen when) {
    return fetch(w.v.chosen[static_cast<int>(when)] + index * static_cast<std::size_t>(w.v.max_listed),
                 static_cast<std::size_t>(w.s.n_select()));
  }
  std::vector<TurningStep> turning_steps(World& w, std::int32_t length, int n, std::mt19937& rng);
  void follow_masses(World& w, std::int32_t length, const std::vector<TurningStep>& steps);
  std::uint64_t corrected_ = 0, kept_ = 0;  // of all that follow_masses() saw, where eps decides
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
  begin_at(w, length, 6000);
  std::vector<Ids> ahead(static_cast<std::size_t>(w.s.places * w.s.kv_heads));
  std::uint64_t corrections = 0;
  for (int step = 0; step < 80; ++step, ++length) {
    grow(w, length);
    const auto q = queries(w, rng, 2);
    const std::vector<bool> moved = draw_moves(w, rng, w.s.places * w.s.kv_heads, w.s.group, 3);
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

std::vector<TurningStep> CudaPageTest::turning_steps(World& w, std::int32_t length, int n, std::mt19937& rng) {
  std::vector<TurningStep> steps;
  std::vector<float> q = queries(w, rng, 2);
  for (const std::int32_t stop = length + n; length < stop; ++length) {
    for (float& x : q)
      if (rng() % 8 == 0) x = whole_number(rng, 2);
    TurningStep& step = steps.emplace_back(TurningStep{.q = q, .scores = {}, .now = {}, .next = {}});
    for (std::int32_t i = 0; i < w.s.places * w.s.kv_heads; ++i) {
      const std::int32_t place = i / w.s.kv_heads, head = i % w.s.kv_heads;
      const float* own = q.data() + std::ptrdiff_t{i} * w.s.group * w.s.head_dim;
      step.scores.push_back(pooled_scores(w, place, head, length, own));
      step.now.push_back(best_of(w, step.scores.back()));
      step.next.push_back(length % kKvPageTokens != 0 ? step.now.back() : chosen(w, place, head, length + 1, own));
    }
  }
  return steps;
}

// What the gate looks at is the reference's, and heads attend this step's choice where that is above eps, the selection
// ahead elsewhere.
void CudaPageTest::follow_masses(World& w, std::int32_t length, const std::vector<TurningStep>& steps) {
  const bool exact = w.s.pool == GroupPool::kMax || w.s.group == 1;  // as above, where the same is chosen
  const auto n_heads = static_cast<std::size_t>(w.s.places * w.s.kv_heads);
  std::vector<Ids> ahead(n_heads);
  std::uint64_t corrections = 0, twice = 0;
  for (const TurningStep& step : steps) {
    const bool first = &step == steps.data(), page_ends = length % kKvPageTokens == 0;
    grow(w, length);
    set_queries(w, step.q);
    const Rows r = rows_of(w, length, first ? 1 : 0);
    run(w, r, SelectWhen::kNow);
    const auto masses = fetch(w.v.mass, n_heads);
    std::vector<Ids> now(n_heads);
    for (std::size_t i = 0; i < n_heads; ++i) {
      now[i] = chosen_there(w, i, SelectWhen::kNow);
      if (exact) {
        ASSERT_EQ(now[i], step.now[i]);
      }
      bool moved = true;
      if (!first) {
        ASSERT_NEAR(masses[i], missing_mass(w, step.scores[i], now[i], ahead[i]), 1e-4f)
            << "length " << length << ", head " << i;
        moved = masses[i] > w.s.eps;
        corrections += moved ? 1 : 0;
      }
      twice += moved && page_ends ? 1 : 0;
      expect_listed(w, static_cast<std::int32_t>(i) / w.s.kv_heads, static_cast<std::int32_t>(i) % w.s.kv_heads, length,
                    moved ? now[i] : ahead[i]);
    }
    run(w, r, SelectWhen::kNext);
    for (std::size_t i = 0; i < n_heads; ++i) {
      ahead[i] = chosen_there(w, i, SelectWhen::kNext);
      if (exact || !page_ends) {
        ASSERT_EQ(ahead[i], page_ends ? step.next[i] : now[i]) << "length " << length;
      }
    }
    ++length;
  }
  std::uint64_t counted_corrections = 0, checks = 0, selected = 0;
  for (const SlotCounts& c : fetch(w.v.counts, static_cast<std::size_t>(w.s.places)))
    counted_corrections += c.corrections, checks += c.checks, selected += c.selected;
  EXPECT_EQ(counted_corrections, corrections);
  EXPECT_EQ(checks, (steps.size() - 1) * n_heads);
  EXPECT_EQ(selected, (steps.size() * n_heads + twice) * static_cast<std::uint64_t>(w.s.n_select()));
  if (w.s.eps < 0) {
    EXPECT_EQ(corrections, checks);
  } else if (w.s.eps >= 1) {
    EXPECT_EQ(corrections, 0u);
  }
  if (w.s.eps > 0 && w.s.eps < 1) corrected_ += corrections, kept_ += checks - corrections;
}

TEST_F(CudaPageTest, CorrectsWhereWhatIsMissingWeighsEnough) {
  std::mt19937 rng(8);
  for (const GroupPool pool : {GroupPool::kMax, GroupPool::kMean, GroupPool::kMaxProb, GroupPool::kMeanProb})
    for (const auto& [group, head_dim, fixed] : {std::tuple{1, 64, std::optional<float>()},
                                                 {4, 128, std::nullopt},
                                                 {7, 64, std::nullopt},
                                                 {8, 128, std::nullopt},
                                                 {16, 64, std::nullopt},
                                                 {4, 64, -1.0f},
                                                 {4, 64, 1.0f}}) {
      World w({.head_dim = head_dim,
               .group = group,
               .max_pages = 80,
               .dtype = group == 7 ? DType::kF16 : DType::kBF16,
               .schedule = SlotSchedule::kAhead,
               .pool = pool,
               .gate = SlotGate::kMass},
              static_cast<unsigned>(rng()), 3);
      begin_at(w, 2040, 2200);
      const std::vector<TurningStep> steps = turning_steps(w, 2040, 45, rng);  // over two pages' ends
      w.s.eps = fixed.value_or(middle_mass(w, steps));
      SCOPED_TRACE(::testing::Message() << "pool " << static_cast<int>(pool) << ", group " << group << ", " << w.s.eps);
      const std::vector<SlotRules> rules(static_cast<std::size_t>(w.s.places), w.rules());
      copy_bytes(w.v.rules, rules.data(), rules.size() * sizeof(SlotRules), stream);
      follow_masses(w, 2040, steps);
      if (HasFatalFailure()) return;
    }
  EXPECT_GT(corrected_, 0u);
  EXPECT_GT(kept_, 0u);
}

// Units all the same, and queries that are no numbers: what is missing weighs its share, or is all there is.
TEST_F(CudaPageTest, MassesOfEqualScoresAndOfNone) {
  World w({.group = 4,
           .max_pages = 80,
           .schedule = SlotSchedule::kAhead,
           .pool = GroupPool::kMeanProb,
           .eps = 0.5f,
           .gate = SlotGate::kMass},
          3, 3);
  begin_at(w, 2041, 2200);
  std::mt19937 rng(2);
  queries(w, rng, 2);
  const auto heads = static_cast<std::size_t>(w.s.places * w.s.kv_heads);
  std::int32_t length = 2041;
  for (const auto& [value, mass] : {std::pair{0.0f, -1.0f}, {std::numeric_limits<float>::quiet_NaN(), 1.0f}}) {
    for (const SelectWhen when : {SelectWhen::kNow, SelectWhen::kNext}) run(w, rows_of(w, length, 1), when);
    std::vector<Ids> ahead;
    for (std::size_t i = 0; i < heads; ++i) ahead.push_back(chosen_there(w, i, SelectWhen::kNext));
    set_queries(w, std::vector<float>(static_cast<std::size_t>(w.s.places * w.v.n_heads * w.s.head_dim), value));
    run(w, rows_of(w, ++length, 0), SelectWhen::kNow);
    const auto masses = fetch(w.v.mass, heads);
    for (std::size_t i = 0; i < heads; ++i) {
      const Ids now = chosen_there(w, i, SelectWhen::kNow);
      Ids missing;
      std::set_difference(now.begin(), now.end(), ahead[i].begin(), ahead[i].end(), std::back_inserter(missing));
      const float share = static_cast<float>(missing.size()) / 60.0f;  // 64 pages, two of sinks and two of window
      EXPECT_NEAR(masses[i], missing.empty() ? 0.0f : mass < 0 ? share : mass, 1e-5f);
    }
    queries(w, rng, 2);
    ++length;
  }
}

// Attention that begins with the pages that are there gives the bits of attention after the recall, however late the
// others come, and whatever was left of the step before.
TEST_F(CudaPageTest, PagesThatAreThereAreAttendedWhileOthersCome) {
  const CudaContext overlapped{
      .stream = stream.get(),
      .order = device_info(0).compute_major >= 9 ? LaunchOrder::kOverlapped : LaunchOrder::kSerial};
  for (const auto& [schedule, head_dim, group, kv_heads, places, budget] :
       {std::tuple{SlotSchedule::kEveryStep, 128, 4, 8, 1, 2048},
        {SlotSchedule::kEveryStep, 64, 7, 2, 3, 384},
        {SlotSchedule::kAhead, 128, 8, 8, 4, 1024},
        {SlotSchedule::kAhead, 64, 1, 2, 2, 384}})
    for (const std::int32_t delay_us : {0, 40, 400}) {
      SCOPED_TRACE(::testing::Message() << head_dim << ", " << places << " places, up to " << delay_us << " us");
      const struct Setup setup {
        .head_dim = head_dim, .group = group, .kv_heads = kv_heads, .places = places, .max_pages = 100,
        .budget = budget, .dtype = group == 7 ? DType::kF16 : DType::kBF16, .schedule = schedule, .tau = 0.5f
      };
      World after(setup, 21, 3), meanwhile(setup, 21, 3);
      meanwhile.v.delay_us = delay_us;
      const std::int32_t first = 2977, sink = setup.sink, stop_page = (first + kKvPageTokens - 1) / kKvPageTokens;
      for (World* w : {&after, &meanwhile}) begin(*w, first + 31);
      const auto n_q = static_cast<std::size_t>(places * after.v.n_heads);
      DeviceArray<std::byte> scratch(decode_attention_scratch_bytes(places, kv_heads, head_dim), 0);
      DeviceArray<std::uint16_t> outs[2] = {DeviceArray<std::uint16_t>(n_q * static_cast<std::size_t>(head_dim)),
                                            DeviceArray<std::uint16_t>(n_q * static_cast<std::size_t>(head_dim))};
      DeviceArray<float> lses[2] = {DeviceArray<float>(n_q), DeviceArray<float>(n_q)};
      std::mt19937 rng(5), of_gates(6);
      for (std::int32_t step = 0; step < 20; ++step) {
        const std::int32_t length = first + step;
        const Rows r = rows_of(after, length, step == 0 ? 1 : 0);
        const std::int32_t window = stop_page - setup.recent / kKvPageTokens;
        const DeviceArray<std::int32_t> attended(
            Ids(static_cast<std::size_t>(places),
                sink + setup.n_select() * kKvPageTokens + length - window * kKvPageTokens));
        // The same number for all rows, as a step has it; not in order, because the order does not matter.
        const DeviceArray<std::int32_t> tickets(Ids(static_cast<std::size_t>(places), step % 2 == 0 ? step + 7 : 3));
        std::vector<float> cosines;
        for (std::size_t i = 0; i < n_q; ++i) cosines.push_back(of_gates() % 3 == 0 ? 0.4f : 0.6f);
        const std::mt19937 same = rng;
        for (World* w : {&after, &meanwhile}) {
          rng = same;
          queries(*w, rng, 2);
          set_cosines(*w, cosines);
          const bool arriving = w == &meanwhile;
          const std::size_t to = arriving ? 1 : 0;
          SlotRows rows = r.rows();
          if (arriving) rows.tickets = tickets.data();
          choose_pages_cuda({.rows = rows, .scratch = w->scratch[0].data()}, w->v, 0, overlapped);
          recall_units_cuda(rows, SelectWhen::kNow, w->v, w->pages(), 0, 0, 1, overlapped);
          DecodeAttentionCuda a{.q = w->v.last_q,
                                .slots = rows.places,
                                .lengths = attended.data(),
                                .out = outs[to].data(),
                                .lse = lses[to].data(),
                                .n = places,
                                .n_heads = w->v.n_heads,
                                .scale = 0.05f,
                                .tables_late = true,
                                .lengths_early = true,
                                .scratch = scratch.data()};
          if (arriving) a.arriving = {rows.tickets, w->v.listed_for, w->v.arrived_for};
          attend_decode_cuda(a, w->v.tables(), 0, overlapped);
          if (schedule == SlotSchedule::kAhead) run(*w, r, SelectWhen::kNext);
        }
        ASSERT_EQ(outs[1].get(stream), outs[0].get(stream)) << "step " << step;
        ASSERT_EQ(lses[1].get(stream), lses[0].get(stream)) << "step " << step;
        for (std::int32_t head = 0; schedule == SlotSchedule::kEveryStep && head < kv_heads; ++head)
          expect_listed(meanwhile, 0, head, length,
                        chosen_there(meanwhile, static_cast<std::size_t>(head), SelectWhen::kNow));
      }
    }
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
