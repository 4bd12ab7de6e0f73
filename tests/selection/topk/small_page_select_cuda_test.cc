// The fused selection of pages of another size than 32 (SelectPages::scored), against the references and the unfused one.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "src/selection/index/box.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/region/region.h"
#include "src/selection/topk/topk.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {
namespace {

// The selection of a KV head at `length`, in pages, by queries q [group, D].
Selection by_boxes(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const float* q) {
  const Setup& s = w.s;
  Selection c{
      .region = region_at(
          {.budget = s.budget, .sink = s.sink, .recent = s.recent, .unit_tokens = s.page, .entry_tokens = s.page},
          length),
      .ids = {},
      .pooled = {}};
  const std::int32_t n = c.region.last_unit - c.region.first_unit, bytes = 4 * s.head_dim;
  std::vector<std::byte> boxes(static_cast<std::size_t>(n * bytes));
  for (std::int32_t u = 0; u < n; ++u) {
    std::vector<KvRun> runs;
    for (std::int32_t t = 0; t < s.page; ++t)
      runs.push_back({w.token(seq_slot, head, (c.region.first_unit + u) * s.page + t), 1});
    box_build_ref(runs, w.shape(), BoxKind::kMinMax, boxes.data() + std::int64_t{u} * bytes);
  }
  std::vector<float> scores(static_cast<std::size_t>(n * s.group));
  c.pooled.resize(static_cast<std::size_t>(n));
  box_score_ref(q, w.shape(), boxes.data(), n, scores.data(), n);
  group_pool_ref(scores.data(), n, s.group, n, s.pool, w.plan().scores.alpha, c.pooled.data());
  c.ids.resize(static_cast<std::size_t>(c.region.n_select));
  topk_ref(c.pooled, c.region.n_select, c.ids.data());
  for (std::int32_t& id : c.ids) id += c.region.first_unit;
  return c;
}

// Pages whose tokens, all of them and in order, are listed.
Ids pages_of(const Ids& tokens, std::int32_t page) {
  Ids pages;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto in_page = static_cast<std::int32_t>(i) % page;
    if (in_page == 0) pages.push_back(tokens[i] / page);
    EXPECT_EQ(tokens[i], pages.back() * page + in_page);
  }
  return pages;
}

class CudaSmallPageTest : public CudaSlotsTest {
 protected:
  void select(World& w, const Rows& r, SelectWhen when, bool fused) {
    std::byte* scratch = w.scratch[static_cast<int>(when)].data();
    if (fused) {
      select_pages_cuda({.rows = r.rows(), .when = when, .scratch = scratch, .of_entries = true}, w.v, 0, context());
    } else {
      unfused_select_cuda({.rows = r.rows(), .when = when, .pages = w.pages(), .scratch = scratch}, w.v, 0, context());
    }
  }
  // What both select, of all KV heads.
  std::vector<Ids> selected_by(World& w, const Rows& r, SelectWhen when, bool fused) {
    set_bytes(w.v.selection.n[static_cast<int>(when)], 0,
              static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads) * sizeof(std::int32_t), stream);
    select(w, r, when, fused);
    std::vector<Ids> all;
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head)
        all.push_back(pages_of(selected_units(w, seq_slot, head, when), w.s.page));
    return all;
  }
};

TEST_F(CudaSmallPageTest, SelectsWhatReferenceAndUnfusedSelectionSelect) {
  constexpr std::int32_t kPages = 30, kMost = kPages * kKvPageTokens;
  std::mt19937 rng(17);
  int cases = 0;
  for (const std::int32_t page : {8, 16, 32, 48})
    for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS})
      for (const std::int32_t group : {1, 4, 7, 8, 16})
        for (const std::int32_t head_dim : {64, 128}) {
          SCOPED_TRACE(::testing::Message() << "pages of " << page << ", pool " << static_cast<int>(pool) << ", group "
                                            << group << ", head_dim " << head_dim);
          const auto sink = static_cast<std::int32_t>(rng() % 3) * page,
                     recent = static_cast<std::int32_t>(rng() % 3) * page;
          const std::int32_t budget = sink + std::max(recent, page) + page + static_cast<std::int32_t>(rng() % 400);
          World w({.head_dim = head_dim,
                   .group = group,
                   .kv_heads = 3,
                   .seq_slots = 4,
                   .max_pages = kPages,
                   .budget = budget,
                   .sink = sink,
                   .recent = recent,
                   .page = page,
                   .slots = rng() % 2 == 0,
                   .dtype = rng() % 2 == 0 ? DType::kBF16 : DType::kF16,
                   .pool = pool,
                   .own_arrays = false},
                  static_cast<unsigned>(rng()), 3);
          begin(w, kMost);
          const auto rows = static_cast<std::size_t>(w.s.seq_slots);
          for (int round = 0; round < 6; ++round) {
            Ids lengths(rows);
            for (std::int32_t& length : lengths)
              length = budget + 1 + static_cast<std::int32_t>(rng() % static_cast<unsigned>(kMost - budget - 1));
            if (round == 0) lengths[0] = budget + 1;
            if (round == 1) lengths[1] = kMost;
            if (round == 2) lengths[2] = lengths[2] / page * page, lengths[3] = lengths[2] + 1;
            const auto q = queries(w, rng, round == 3 ? 0 : 2);  // 0: all scores are equal
            const Rows r = rows_of(lengths, 1);
            const std::vector<Ids> fused = selected_by(w, r, SelectWhen::kNow, true),
                                   unfused = selected_by(w, r, SelectWhen::kNow, false);
            const bool exact = round == 3 || pool == Pool::kMaxQk || pool == Pool::kMeanQk;
            for (std::size_t i = 0; i < fused.size(); ++i) {
              const auto seq_slot = static_cast<std::int32_t>(i) / w.s.kv_heads,
                         head = static_cast<std::int32_t>(i) % w.s.kv_heads;
              const std::int32_t length = lengths[static_cast<std::size_t>(seq_slot)];
              if (length <= budget) continue;
              const Selection want =
                  by_boxes(w, seq_slot, head, length, q.data() + (seq_slot * w.v.n_heads + head * group) * head_dim);
              expect_selection(fused[i], want, exact);
              expect_selection(unfused[i], want, exact);
              if (HasFatalFailure() || HasNonfatalFailure()) return;
              ++cases;
            }
          }
        }
  EXPECT_GE(cases, 10000);
}

// One step ahead: the region of one more token, for rows of which no KV head is flagged; with a gate by mass, this step's
// selection first.
TEST_F(CudaSmallPageTest, SelectsForTheNextStepWhatTheUnfusedSelectionSelects) {
  std::mt19937 rng(5);
  for (const GateKind gate : {GateKind::kCosine, GateKind::kMass})
    for (const std::int32_t page : {8, 16}) {
      World w({.group = 4,
               .max_pages = 40,
               .budget = 384,
               .sink = 2 * page,
               .recent = 2 * page,
               .page = page,
               .schedule = ScheduleKind::kSpeculative,
               .tau = 0.5f,
               .eps = 0.1f,
               .gate = gate,
               .own_arrays = false},
              static_cast<unsigned>(rng()), 3);
      begin(w, 40 * 32);
      const auto heads = static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads);
      for (std::int32_t* n : w.v.selection.n) set_bytes(n, 0, heads * sizeof(std::int32_t), stream);
      for (int round = 0; round < 40; ++round) {
        const auto length = static_cast<std::int32_t>(400 + rng() % 800);
        queries(w, rng, 2);
        draw_moves(w, rng, w.s.seq_slots * w.s.kv_heads, w.s.group, 3);
        const Rows r = rows_of(w, length, 0);
        EXPECT_EQ(selected_by(w, r, SelectWhen::kNow, true), selected_by(w, r, SelectWhen::kNow, false));
        if (gate == GateKind::kMass) {
          select(w, r, SelectWhen::kNow, true);
          const auto by_fused = fetch(w.v.selection.mass, heads);
          select(w, r, SelectWhen::kNow, false);
          const auto by_unfused = fetch(w.v.selection.mass, heads);
          for (std::size_t h = 0; h < heads; ++h) EXPECT_NEAR(by_fused[h], by_unfused[h], 1e-5);
        }
        EXPECT_EQ(selected_by(w, r, SelectWhen::kNext, true), selected_by(w, r, SelectWhen::kNext, false));
        if (HasFailure()) return;
      }
    }
}

// A page with a key that is no number is selected only when nothing else is left.
TEST_F(CudaSmallPageTest, NanIsWorst) {
  std::mt19937 rng(5);
  World w({.group = 4,
           .max_pages = 40,
           .budget = 704,
           .sink = 32,
           .recent = 32,
           .page = 16,
           .pool = Pool::kMeanS,
           .own_arrays = false},
          7, 2);
  const std::uint16_t nan = bf16(testing::kNaN).bits;
  const Ids bad = {100, 500, 501, 900};
  for (const std::int32_t position : bad)
    std::memcpy(w.page(0, 1, position / 32) + static_cast<std::size_t>(position % 32) * w.v.token_bytes() + 34, &nan,
                2);
  begin(w, 1200);
  const auto q = queries(w, rng, 2);
  const Rows r = rows_of(w, 1200, 1);
  const Ids got = selected_by(w, r, SelectWhen::kNow, true)[1];
  expect_selection(got, by_boxes(w, 0, 1, 1200, q.data() + 4 * 128), false);
  for (const std::int32_t page : got)
    for (const std::int32_t position : bad) ASSERT_NE(page, position / 16);
}

// Recall fetches the tokens of what was selected.
TEST_F(CudaSmallPageTest, TokensOfSelectedPagesAreFetched) {
  std::mt19937 rng(9);
  World w({.group = 4, .max_pages = 40, .budget = 400, .sink = 32, .recent = 48, .page = 16, .own_arrays = false}, 7,
          2);
  begin(w, 1100);
  queries(w, rng, 2);
  const Rows r = rows_of(w, 1100, 1);
  select(w, r, SelectWhen::kNow, true);
  recall_units_cuda(r.rows(), SelectWhen::kNow, w.v, w.pages(), 0, 0, 1, context());
  for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
    for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
      Ids want;
      for (std::int32_t t = 0; t < 32; ++t) want.push_back(t);
      const Ids selected = selected_units(w, seq_slot, head);
      ASSERT_EQ(size32(selected), 320);
      want.insert(want.end(), selected.begin(), selected.end());
      for (std::int32_t t = 1056; t < 1100; ++t) want.push_back(t);
      expect_entries(w, seq_slot, head, 1100, want);
    }
}

}  // namespace
}  // namespace mneme
