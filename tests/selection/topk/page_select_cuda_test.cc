// Selection and recall of pages on the device, against the references on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <random>

#include "src/cuda/device.h"
#include "src/offload/device_cache_cuda.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/selection/index/box.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/topk/topk.h"
#include "tests/cuda/delays.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {
namespace {

// Reference: pooled scores of a KV head's candidates at `length`, with queries q [group, D].
std::vector<float> pooled_scores(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length,
                                 const float* q) {
  const Setup& s = w.s;
  const std::int32_t first = s.sink / kKvPageTokens, stop = (length + kKvPageTokens - 1) / kKvPageTokens,
                     n = stop - s.recent / kKvPageTokens - first;
  std::vector<std::byte> boxes(static_cast<std::size_t>(n * 4 * s.head_dim));
  for (std::int32_t u = 0; u < n; ++u) {
    const KvRun run{w.page(seq_slot, head, first + u), kKvPageTokens};
    box_build_ref({&run, 1}, w.shape(), BoxKind::kMinMax, boxes.data() + u * 4 * s.head_dim);
  }
  std::vector<float> scores(static_cast<std::size_t>(n * s.group)), pooled(static_cast<std::size_t>(n));
  box_score_ref(q, w.shape(), boxes.data(), n, scores.data(), n);
  group_pool_ref(scores.data(), n, s.group, n, s.pool, w.plan().scores.alpha, pooled.data());
  return pooled;
}

// The reference's selection.
Ids best_of(const World& w, const std::vector<float>& pooled) {
  Ids ids(static_cast<std::size_t>(w.s.n_select()));
  topk_ref(pooled, w.s.n_select(), ids.data());
  for (std::int32_t& id : ids) id += w.s.sink / kKvPageTokens;
  return ids;
}
Ids selected_ids(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const float* q) {
  return best_of(w, pooled_scores(w, seq_slot, head, length, q));
}

// One step of a sequence with slowly changing queries, by the reference. By (sequence slot, head): scores of all
// candidates, the selection, and what the next step may attend of it.
struct DriftingStep {
  std::vector<float> q;
  std::vector<std::vector<float>> scores;
  std::vector<Ids> now, next;
};

// Mass of the units in `now` that `speculative` lacks.
float missing_mass(const World& w, const std::vector<float>& scores, Ids now, Ids speculative) {
  const bool logs = w.s.pool == Pool::kMaxS || w.s.pool == Pool::kMeanS;
  for (Ids* ids : {&now, &speculative})
    for (std::int32_t& id : *ids) id -= w.s.sink / kKvPageTokens;
  return missing_mass_ref(scores, logs ? 1.0f : w.plan().scores.alpha, now, speculative);
}

// The median of the reference's masses.
float middle_mass(const World& w, const std::vector<DriftingStep>& steps) {
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
  // Every listed cache slot holds its page, byte for byte: sinks, `selected`, window.
  void expect_listed(World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const Ids& selected) {
    const std::int32_t stop = (length + kKvPageTokens - 1) / kKvPageTokens;
    Ids want;
    for (std::int32_t p = 0; p < w.s.sink / kKvPageTokens; ++p) want.push_back(p);
    want.insert(want.end(), selected.begin(), selected.end());
    for (std::int32_t p = stop - w.s.recent / kKvPageTokens; p < stop; ++p) want.push_back(p);
    const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
    const auto listed = fetch(w.v.slots.listed + index * static_cast<std::size_t>(w.v.max_listed), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto slot = static_cast<std::size_t>(static_cast<std::uint32_t>(listed[i]) & ~kInFlight);
      ASSERT_GE(slot, index * static_cast<std::size_t>(w.v.n_slots));
      ASSERT_LT(slot, (index + 1) * static_cast<std::size_t>(w.v.n_slots));
      const auto got = fetch(w.v.slots.data + slot * w.block_bytes, w.block_bytes);
      ASSERT_EQ(std::memcmp(got.data(), w.page(seq_slot, head, want[i]), w.block_bytes), 0)
          << "entry " << i << ", page " << want[i] << " of sequence slot " << seq_slot << ", head " << head;
    }
  }
  // A sequence that has just grown to `length`: a step itself stores the window's newest page; here it is copied.
  void grow(World& w, std::int32_t length) {
    if (length % kKvPageTokens != 1) return;
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const std::int32_t page = length / kKvPageTokens, window = w.s.recent / kKvPageTokens;
        const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
        const auto slot = index * static_cast<std::size_t>(w.v.n_slots) +
                          static_cast<std::size_t>(w.s.sink / kKvPageTokens + page % window);
        copy_bytes(w.v.slots.data + slot * w.block_bytes, w.page(seq_slot, head, page), w.block_bytes, stream);
      }
  }
  // Boxes of all tokens up to `stop`; cache slots as at `length`.
  void begin_at(World& w, std::int32_t length, std::int32_t stop) {
    begin(w, stop);
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      fill_slots_cuda(seq_slot, length, w.plan(), w.v, w.pages(), 0, 0, context());
  }
  Ids selected_device(const World& w, std::size_t index, SelectWhen when) {
    return fetch(w.v.selection.ids[static_cast<int>(when)] + index * static_cast<std::size_t>(w.v.max_listed),
                 static_cast<std::size_t>(w.s.n_select()));
  }
  std::vector<DriftingStep> drifting_steps(World& w, std::int32_t length, int n, std::mt19937& rng);
  void follow_masses(World& w, std::int32_t length, const std::vector<DriftingStep>& steps);
  std::uint64_t corrected_ = 0, kept_ = 0;  // over all calls of follow_masses(), where eps decides
};

TEST_F(CudaPageTest, SelectsWhatTheReferenceSelectsAndFetchesIt) {
  std::mt19937 rng(11);
  for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS})
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
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
                const Ids want = selected_ids(w, seq_slot, head, length,
                                              q.data() + (seq_slot * w.v.n_heads + head * group) * head_dim);
                const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
                const auto got =
                    fetch(w.v.selection.ids[0] + index * static_cast<std::size_t>(w.v.max_listed), want.size());
                // Sums of integers are exact; logarithms round, so units with nearly equal scores may be swapped.
                if (pool == Pool::kMaxQk || group == 1) {
                  ASSERT_EQ(got, want) << "pool " << static_cast<int>(pool) << ", group " << group << ", length "
                                       << length;
                }
                expect_listed(w, seq_slot, head, length, got);
              }
          }
        }
}

// More KV heads than half of the SMs: clusters of two thread blocks select, and a thread block recalls several.
TEST_F(CudaPageTest, ManyKvHeadsSelectWhatTheReferenceSelects) {
  std::mt19937 rng(12);
  World w({.head_dim = 64, .group = 2, .kv_heads = 8, .seq_slots = 10, .max_pages = 70, .pool = Pool::kMaxQk}, 21, 3);
  for (const std::int32_t length : {385, 1000, 2079}) {
    begin(w, length);
    const auto q = queries(w, rng, 2);
    const Rows r = rows_of(w, length, 1);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t i = 0; i < w.s.seq_slots * w.s.kv_heads; ++i) {
      const std::int32_t seq_slot = i / w.s.kv_heads, head = i % w.s.kv_heads;
      const Ids want = selected_ids(w, seq_slot, head, length, q.data() + std::ptrdiff_t{i} * w.s.group * w.s.head_dim);
      ASSERT_EQ(selected_device(w, static_cast<std::size_t>(i), SelectWhen::kNow), want) << "length " << length;
      expect_listed(w, seq_slot, head, length, want);
    }
  }
}

// Many cases of equal scores: the larger page wins, on the device as on the host.
TEST_F(CudaPageTest, EqualScoresGiveEqualSets) {
  std::mt19937 rng(5);
  World w({.head_dim = 64, .group = 2, .kv_heads = 8, .max_pages = 500}, 77, 1);
  const std::int32_t length = 15000;
  begin(w, length);
  const Rows r = rows_of(w, length, 1);
  for (int round = 0; round < 60; ++round) {
    const auto q = queries(w, rng, round % 2);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const Ids want = selected_ids(w, seq_slot, head, length, q.data() + (seq_slot * w.v.n_heads + head * 2) * 64);
        const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
        ASSERT_EQ(fetch(w.v.selection.ids[0] + index * static_cast<std::size_t>(w.v.max_listed), want.size()), want);
      }
  }
}

// A decoding sequence: flagged heads attend what this step's query selects, the others the speculative selection;
// nothing that is attended is overwritten before.
TEST_F(CudaPageTest, SpeculatesAndCorrectsByHead) {
  std::mt19937 rng(3);
  World w({.max_pages = 200, .schedule = ScheduleKind::kSpeculative, .tau = 0.5f}, 4, 3);
  std::int32_t length = 4090;
  begin_at(w, length, 6000);
  std::vector<Ids> speculative(static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads));
  std::uint64_t corrections = 0;
  for (int step = 0; step < 80; ++step, ++length) {
    grow(w, length);
    const auto q = queries(w, rng, 2);
    const std::vector<bool> moved = draw_moves(w, rng, w.s.seq_slots * w.s.kv_heads, w.s.group, 3);
    const Rows r = rows_of(w, length, step == 0 ? 1 : 0);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const auto i = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
        const float* own = q.data() + (seq_slot * w.v.n_heads + head * w.s.group) * w.s.head_dim;
        const bool now = step == 0 || moved[i];
        if (step > 0) corrections += moved[i] ? 1 : 0;
        expect_listed(w, seq_slot, head, length, now ? selected_ids(w, seq_slot, head, length, own) : speculative[i]);
      }
    }
    run(w, r, SelectWhen::kNext);
    for (std::size_t i = 0; i < speculative.size(); ++i) {
      const auto seq_slot = static_cast<std::int32_t>(i) / w.s.kv_heads,
                 head = static_cast<std::int32_t>(i) % w.s.kv_heads;
      speculative[i] = selected_ids(w, seq_slot, head, length + 1,
                                    q.data() + (seq_slot * w.v.n_heads + head * w.s.group) * w.s.head_dim);
    }
  }
  const auto counts = fetch(w.v.counts, static_cast<std::size_t>(w.s.seq_slots));
  std::uint64_t counted = 0, checks = 0;
  for (const SlotCounts& c : counts) counted += c.corrections, checks += c.checks;
  EXPECT_EQ(counted, corrections);
  EXPECT_EQ(checks, 79u * speculative.size());
}

std::vector<DriftingStep> CudaPageTest::drifting_steps(World& w, std::int32_t length, int n, std::mt19937& rng) {
  std::vector<DriftingStep> steps;
  std::vector<float> q = queries(w, rng, 2);
  for (const std::int32_t stop = length + n; length < stop; ++length) {
    for (float& x : q)
      if (rng() % 8 == 0) x = whole_number(rng, 2);
    DriftingStep& step = steps.emplace_back(DriftingStep{.q = q, .scores = {}, .now = {}, .next = {}});
    for (std::int32_t i = 0; i < w.s.seq_slots * w.s.kv_heads; ++i) {
      const std::int32_t seq_slot = i / w.s.kv_heads, head = i % w.s.kv_heads;
      const float* own = q.data() + std::ptrdiff_t{i} * w.s.group * w.s.head_dim;
      step.scores.push_back(pooled_scores(w, seq_slot, head, length, own));
      step.now.push_back(best_of(w, step.scores.back()));
      step.next.push_back(length % kKvPageTokens != 0 ? step.now.back()
                                                      : selected_ids(w, seq_slot, head, length + 1, own));
    }
  }
  return steps;
}

// The gate's mass equals the reference's, and heads attend this step's selection where it is above eps, the speculative
// selection elsewhere.
void CudaPageTest::follow_masses(World& w, std::int32_t length, const std::vector<DriftingStep>& steps) {
  const bool exact = w.s.pool == Pool::kMaxQk || w.s.group == 1;  // as above, for the selections
  const auto n_heads = static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads);
  std::vector<Ids> speculative(n_heads);
  std::uint64_t corrections = 0, twice = 0;
  for (const DriftingStep& step : steps) {
    const bool first = &step == steps.data(), page_ends = length % kKvPageTokens == 0;
    grow(w, length);
    set_queries(w, step.q);
    const Rows r = rows_of(w, length, first ? 1 : 0);
    run(w, r, SelectWhen::kNow);
    const auto masses = fetch(w.v.selection.mass, n_heads);
    std::vector<Ids> now(n_heads);
    for (std::size_t i = 0; i < n_heads; ++i) {
      now[i] = selected_device(w, i, SelectWhen::kNow);
      if (exact) {
        ASSERT_EQ(now[i], step.now[i]);
      }
      bool moved = true;
      if (!first) {
        ASSERT_NEAR(masses[i], missing_mass(w, step.scores[i], now[i], speculative[i]), 1e-4f)
            << "length " << length << ", head " << i;
        moved = masses[i] > w.s.eps;
        corrections += moved ? 1 : 0;
      }
      twice += moved && page_ends ? 1 : 0;
      expect_listed(w, static_cast<std::int32_t>(i) / w.s.kv_heads, static_cast<std::int32_t>(i) % w.s.kv_heads, length,
                    moved ? now[i] : speculative[i]);
    }
    run(w, r, SelectWhen::kNext);
    for (std::size_t i = 0; i < n_heads; ++i) {
      speculative[i] = selected_device(w, i, SelectWhen::kNext);
      if (exact || !page_ends) {
        ASSERT_EQ(speculative[i], page_ends ? step.next[i] : now[i]) << "length " << length;
      }
    }
    ++length;
  }
  std::uint64_t counted_corrections = 0, checks = 0, selected = 0;
  for (const SlotCounts& c : fetch(w.v.counts, static_cast<std::size_t>(w.s.seq_slots)))
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
  for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS})
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
               .schedule = ScheduleKind::kSpeculative,
               .pool = pool,
               .gate = GateKind::kMass},
              static_cast<unsigned>(rng()), 3);
      begin_at(w, 2040, 2200);
      const std::vector<DriftingStep> steps = drifting_steps(w, 2040, 45, rng);  // past the ends of two pages
      w.s.eps = fixed.value_or(middle_mass(w, steps));
      SCOPED_TRACE(::testing::Message() << "pool " << static_cast<int>(pool) << ", group " << group << ", " << w.s.eps);
      const std::vector<SelectionPlan> plan(static_cast<std::size_t>(w.s.seq_slots), w.plan());
      copy_bytes(w.v.plans, plan.data(), plan.size() * sizeof(SelectionPlan), stream);
      follow_masses(w, 2040, steps);
      if (HasFatalFailure()) return;
    }
  EXPECT_GT(corrected_, 0u);
  EXPECT_GT(kept_, 0u);
}

// Equal units, and NaN queries: missing mass is the units' share, or 1.
TEST_F(CudaPageTest, MassesOfEqualScoresAndOfNone) {
  World w({.group = 4,
           .max_pages = 80,
           .schedule = ScheduleKind::kSpeculative,
           .pool = Pool::kMeanS,
           .eps = 0.5f,
           .gate = GateKind::kMass},
          3, 3);
  begin_at(w, 2041, 2200);
  std::mt19937 rng(2);
  queries(w, rng, 2);
  const auto heads = static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads);
  std::int32_t length = 2041;
  for (const auto& [value, mass] : {std::pair{0.0f, -1.0f}, {std::numeric_limits<float>::quiet_NaN(), 1.0f}}) {
    for (const SelectWhen when : {SelectWhen::kNow, SelectWhen::kNext}) run(w, rows_of(w, length, 1), when);
    std::vector<Ids> speculative;
    for (std::size_t i = 0; i < heads; ++i) speculative.push_back(selected_device(w, i, SelectWhen::kNext));
    set_queries(w, std::vector<float>(static_cast<std::size_t>(w.s.seq_slots * w.v.n_heads * w.s.head_dim), value));
    run(w, rows_of(w, ++length, 0), SelectWhen::kNow);
    const auto masses = fetch(w.v.selection.mass, heads);
    for (std::size_t i = 0; i < heads; ++i) {
      const Ids now = selected_device(w, i, SelectWhen::kNow);
      Ids missing;
      std::set_difference(now.begin(), now.end(), speculative[i].begin(), speculative[i].end(),
                          std::back_inserter(missing));
      const float share = static_cast<float>(missing.size()) / 60.0f;  // 64 pages, two of sinks and two of window
      EXPECT_NEAR(masses[i], missing.empty() ? 0.0f : mass < 0 ? share : mass, 1e-5f);
    }
    queries(w, rng, 2);
    ++length;
  }
}

// Attention that starts with the hits gives the bits of attention after the recall, however late the misses arrive, and
// whatever the previous step left.
TEST_F(CudaPageTest, PagesThatAreThereAreAttendedWhileOthersCome) {
  const CudaContext overlapped{
      .stream = stream.get(),
      .order = device_info(0).compute_major >= 9 ? LaunchOrder::kOverlapped : LaunchOrder::kSerial};
  SlowLink link;
  for (const auto& [schedule, head_dim, group, kv_heads, seq_slots, budget] :
       {std::tuple{ScheduleKind::kEveryStep, 128, 4, 8, 1, 2048},
        {ScheduleKind::kEveryStep, 64, 7, 2, 3, 384},
        {ScheduleKind::kSpeculative, 128, 8, 8, 4, 1024},
        {ScheduleKind::kSpeculative, 64, 1, 2, 2, 384}})
    for (const bool busy : {false, true}) {
      SCOPED_TRACE(::testing::Message() << head_dim << ", " << seq_slots << " places" << (busy ? ", a busy link" : ""));
      const struct Setup setup {
        .head_dim = head_dim, .group = group, .kv_heads = kv_heads, .seq_slots = seq_slots, .max_pages = 100,
        .budget = budget, .dtype = group == 7 ? DType::kF16 : DType::kBF16, .schedule = schedule, .tau = 0.5f
      };
      World after(setup, 21, 3), meanwhile(setup, 21, 3);
      const std::int32_t first = 2977, sink = setup.sink, stop_page = (first + kKvPageTokens - 1) / kKvPageTokens;
      for (World* w : {&after, &meanwhile}) begin(*w, first + 31);
      const auto n_q = static_cast<std::size_t>(seq_slots * after.v.n_heads);
      DeviceArray<std::byte> scratch(decode_attention_scratch_bytes(seq_slots, kv_heads, head_dim), 0);
      DeviceArray<std::uint16_t> outs[2] = {DeviceArray<std::uint16_t>(n_q * static_cast<std::size_t>(head_dim)),
                                            DeviceArray<std::uint16_t>(n_q * static_cast<std::size_t>(head_dim))};
      DeviceArray<float> lses[2] = {DeviceArray<float>(n_q), DeviceArray<float>(n_q)};
      std::mt19937 rng(5), of_gates(6);
      for (std::int32_t step = 0; step < 20; ++step) {
        const std::int32_t length = first + step;
        const Rows r = rows_of(after, length, step == 0 ? 1 : 0);
        const std::int32_t window = stop_page - setup.recent / kKvPageTokens;
        const DeviceArray<std::int32_t> attended(
            Ids(static_cast<std::size_t>(seq_slots),
                sink + setup.n_select() * kKvPageTokens + length - window * kKvPageTokens));
        // The same ticket for all rows, as in a step; not increasing, because order does not matter.
        const DeviceArray<std::int32_t> tickets(Ids(static_cast<std::size_t>(seq_slots), step % 2 == 0 ? step + 7 : 3));
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
          if (arriving && busy) link.keep_busy();
          select_pages_cuda({.rows = rows, .scratch = w->scratch[0].data()}, w->v, 0, overlapped);
          recall_units_cuda(rows, SelectWhen::kNow, w->v, w->pages(), 0, 0, 1, overlapped);
          DecodeAttentionCuda a{.q = w->v.selection.last_q,
                                .slots = rows.seq_slots,
                                .lengths = attended.data(),
                                .out = outs[to].data(),
                                .lse = lses[to].data(),
                                .n = seq_slots,
                                .n_heads = w->v.n_heads,
                                .scale = 0.05f,
                                .tables_late = true,
                                .lengths_early = true,
                                .scratch = scratch.data()};
          if (arriving) a.arriving = {rows.tickets, w->v.slots.listed_for, w->v.slots.arrived_for};
          attend_decode_cuda(a, w->v.tables(), 0, overlapped);
          if (schedule == ScheduleKind::kSpeculative) run(*w, r, SelectWhen::kNext);
        }
        ASSERT_EQ(outs[1].get(stream), outs[0].get(stream)) << "step " << step;
        ASSERT_EQ(lses[1].get(stream), lses[0].get(stream)) << "step " << step;
        for (std::int32_t head = 0; schedule == ScheduleKind::kEveryStep && head < kv_heads; ++head)
          expect_listed(meanwhile, 0, head, length,
                        selected_device(meanwhile, static_cast<std::size_t>(head), SelectWhen::kNow));
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
      const auto listed = fetch(w.v.slots.listed + index * static_cast<std::size_t>(w.v.max_listed), n);
      for (std::size_t p = 0; p < n; ++p) {
        const auto got = fetch(w.v.slots.data + static_cast<std::size_t>(listed[p]) * w.block_bytes, w.block_bytes);
        ASSERT_EQ(std::memcmp(got.data(), w.page(0, head, static_cast<std::int32_t>(p)), w.block_bytes), 0);
      }
    }
  }
}

}  // namespace
}  // namespace mneme
