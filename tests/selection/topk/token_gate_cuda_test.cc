// Speculative selection of tokens on the device, and its correction.
#include <algorithm>

#include "tests/selection/topk/token_select_testing.h"

namespace mneme {
namespace {

// A sequence that decodes with the previous step's query, and the reference.
struct Prefetch {
  Pool pool;
  bool slots;
  std::int32_t recent;
  std::int32_t group = 4;
  GateKind gate = GateKind::kCosine;
  std::int32_t kv_heads = 2;
  int steps = 36;
};

class CudaTokenGateTest : public CudaTokenTest {
 protected:
  static constexpr std::int32_t kBegin = 1100;

  static World world(const Prefetch& c) {
    return World({.group = c.group,
                  .kv_heads = c.kv_heads,
                  .max_pages = 40,
                  .budget = 300,
                  .recent = c.recent,
                  .group_tokens = 32,
                  .slots = c.slots,
                  .schedule = ScheduleKind::kSpeculative,
                  .pool = c.pool,
                  .tau = 0.5f,
                  .gate = c.gate},
                 4, 3);
  }
  // Small integer queries of every step. For a gate on mass they change slowly, so that some steps miss little.
  static std::vector<std::vector<float>> draw_queries(const World& w, std::mt19937& rng, const Prefetch& c) {
    const bool slowly = c.gate == GateKind::kMass;
    std::vector<std::vector<float>> steps(static_cast<std::size_t>(c.steps));
    for (std::size_t i = 0; i < steps.size(); ++i) {
      if (slowly && i > 0) steps[i] = steps[i - 1];
      steps[i].resize(static_cast<std::size_t>(w.s.seq_slots * w.v.n_heads * w.s.head_dim));
      for (float& x : steps[i])
        if (!slowly || i == 0 || rng() % 40 == 0) x = whole_number(rng, 2);
    }
    return steps;
  }
  static const float* query(const World& w, const std::vector<float>& q, std::size_t head) {
    return q.data() + head * static_cast<std::size_t>(w.s.group * w.s.head_dim);
  }
  static Selection selected_by_reference(const World& w, std::size_t head, std::int32_t length,
                                         const std::vector<float>& q) {
    const auto i = static_cast<std::int32_t>(head);
    return select(w, i / w.s.kv_heads, i % w.s.kv_heads, length, query(w, q, head));
  }
  // Mass of the tokens in `now` that `speculative` lacks, among the candidates of `of`.
  static float missing_mass(const World& w, const Selection& of, Ids now, Ids speculative) {
    const bool logs = w.s.pool == Pool::kMaxS || w.s.pool == Pool::kMeanS;
    for (Ids* ids : {&now, &speculative})
      for (std::int32_t& id : *ids) id -= of.region.first_unit;
    return missing_mass_ref(of.pooled, logs ? 1.0f : w.plan().scores.alpha, now, speculative);
  }
  // About the median of the reference's masses.
  static float middle_mass(const World& w, const std::vector<std::vector<float>>& steps) {
    std::vector<float> masses;
    for (std::size_t i = 1; i < steps.size(); i += 7)
      for (std::size_t h = 0; h < static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads); ++h) {
        const std::int32_t length = kBegin + static_cast<std::int32_t>(i);
        const Selection now = selected_by_reference(w, h, length, steps[i]);
        masses.push_back(missing_mass(w, now, now.ids, selected_by_reference(w, h, length, steps[i - 1]).ids));
      }
    const auto middle = masses.begin() + static_cast<std::ptrdiff_t>(masses.size() / 2);
    std::nth_element(masses.begin(), middle, masses.end());
    return *middle;
  }
  void set_eps(World& w, float eps) {
    w.s.eps = eps;
    const std::vector<SelectionPlan> plan(static_cast<std::size_t>(w.s.seq_slots), w.plan());
    copy_bytes(w.v.plans, plan.data(), plan.size() * sizeof(SelectionPlan), stream);
    stream.synchronize();
  }
  void follow(const Prefetch& c);
};

// Groups close during the run; flagged heads attend what this step's query selects, the others the speculative
// selection; nothing that is attended is overwritten before.
void CudaTokenGateTest::follow(const Prefetch& c) {
  std::mt19937 rng(3);
  World w = world(c);
  const bool by_mass = c.gate == GateKind::kMass;
  const auto steps = draw_queries(w, rng, c);
  if (by_mass) set_eps(w, middle_mass(w, steps));
  std::int32_t length = kBegin;
  begin(w, length - 1);
  for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
    fill_slots_cuda(seq_slot, length - 1, w.plan(), w.v, w.pages(), 0, 0, context());
  const DeviceArray<std::int32_t> layers(Ids{0});
  const auto n_heads = static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads);
  std::vector<Ids> speculative(n_heads);
  std::uint64_t corrections = 0;
  for (const std::vector<float>& q : steps) {
    const bool begins = length == kBegin;
    know_pages(w, length);
    write_newest(w, length);
    set_queries(w, q);
    std::vector<bool> moved = draw_moves(w, rng, w.s.seq_slots * w.s.kv_heads, w.s.group, 3);
    const Rows r = rows_of(w, length, begins ? 1 : 0);
    const auto close = [&] {
      close_unit_entries_cuda({.rows = r.rows(), .first = 0, .stop = 1, .model_layers = layers.data()}, w.v, w.pages(),
                              context());
    };
    const bool first = c.recent <= w.s.group_tokens;  // the next step may select from the group that this one closes
    if (first) close();
    run(w, r, SelectWhen::kNow);
    const auto masses = fetch(w.v.selection.mass, n_heads);
    const auto expect_selected = [&](std::size_t i, SelectWhen when, const Selection& want) {
      const auto head = static_cast<std::int32_t>(i);
      const Ids got = selected_units(w, head / w.s.kv_heads, head % w.s.kv_heads, when);
      expect_selection(got, want, c.pool == Pool::kMaxQk || c.group == 1);
      return got;
    };
    for (std::size_t i = 0; i < n_heads; ++i) {
      const auto head = static_cast<std::int32_t>(i);
      Ids now;
      if (begins || by_mass || moved[i]) {
        const Selection want = selected_by_reference(w, i, length, q);
        now = expect_selected(i, SelectWhen::kNow, want);
        if (by_mass && !begins) {
          ASSERT_NEAR(masses[i], missing_mass(w, want, now, speculative[i]), 1e-4f)
              << "length " << length << ", head " << i;
          moved[i] = masses[i] > w.s.eps;
        }
      }
      corrections += moved[i] && !begins ? 1 : 0;
      expect_listed(w, head / w.s.kv_heads, head % w.s.kv_heads, length, begins || moved[i] ? now : speculative[i]);
      if (HasFatalFailure()) return;
    }
    if (!first) close();
    run(w, r, SelectWhen::kNext);
    for (std::size_t i = 0; i < n_heads; ++i)
      speculative[i] = expect_selected(i, SelectWhen::kNext, selected_by_reference(w, i, length + 1, q));
    if (HasFatalFailure()) return;
    ++length;
  }
  const std::uint64_t asked = n_heads * static_cast<std::uint64_t>(c.steps - 1);
  EXPECT_GT(corrections, asked / 8);
  EXPECT_LT(corrections, asked * 7 / 8);
  std::uint64_t checks = 0, counted = 0;
  for (const SlotCounts& counts : fetch(w.v.counts, static_cast<std::size_t>(w.s.seq_slots)))
    checks += counts.checks, counted += counts.corrections;
  EXPECT_EQ(checks, asked);
  EXPECT_EQ(counted, corrections);
}

// With and without cache slots; with more KV heads than a warp has lanes.
TEST_F(CudaTokenGateTest, SpeculatesAndCorrectsByHead) {
  for (const Prefetch& c :
       {Prefetch{Pool::kMaxQk, true, 0}, Prefetch{Pool::kMaxQk, false, 32}, Prefetch{Pool::kMeanS, true, 70},
        Prefetch{Pool::kMeanS, false, 0}, Prefetch{Pool::kMaxQk, true, 0, 1, GateKind::kCosine, 40, 5}}) {
    SCOPED_TRACE(::testing::Message() << "pool " << static_cast<int>(c.pool) << ", slots " << c.slots << ", recent "
                                      << c.recent << ", KV heads " << c.kv_heads);
    follow(c);
    if (HasFatalFailure()) return;
  }
}

TEST_F(CudaTokenGateTest, CorrectsWhereWhatIsMissingWeighsEnough) {
  constexpr GateKind kMass = GateKind::kMass;
  for (const Prefetch& c : {Prefetch{Pool::kMaxQk, true, 0, 4, kMass}, Prefetch{Pool::kMeanQk, false, 70, 7, kMass},
                            Prefetch{Pool::kMaxS, false, 32, 4, kMass}, Prefetch{Pool::kMeanS, true, 32, 8, kMass},
                            Prefetch{Pool::kMeanS, false, 0, 1, kMass}}) {
    SCOPED_TRACE(::testing::Message() << "pool " << static_cast<int>(c.pool) << ", slots " << c.slots << ", recent "
                                      << c.recent << ", group " << c.group);
    follow(c);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace mneme
