// The fused selection of pages by sketches (sketch_pages_cuda.cu) against the reference and the unfused one, on entries of
// small integers.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "src/selection/pool/group_pool.h"
#include "src/selection/region/region.h"
#include "src/selection/summary/sketch.h"
#include "src/selection/summary/summary_cuda.h"
#include "src/selection/topk/topk.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {
namespace {

class CudaSketchPagesTest : public CudaSlotsTest {
 protected:
  // Random frames and entries, of which one in four equals another of its head, for all sequence slots.
  void prepare(World& w, std::int32_t rank, bool whole, std::mt19937& rng) {
    const std::int32_t d = w.s.head_dim;
    UnitEntries& e = w.v.index.entries;
    e = {.kind = EntryKind::kSketch,
         .tokens = kKvPageTokens,
         .bytes = static_cast<std::int32_t>(sketch_entry_bytes(d, kKvPageTokens, rank)),
         .most = w.s.max_pages,
         .rank = rank,
         .frame_floats = static_cast<std::int32_t>(sketch_frame_floats(d, rank))};
    const auto heads = static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads);
    w.take(&e.data, heads * static_cast<std::size_t>(e.most * e.bytes));
    w.take(reinterpret_cast<void**>(&e.frames), heads * static_cast<std::size_t>(e.frame_floats) * sizeof(float));
    w.v.selection.whole_attention = whole;
    plan_ = w.plan();
    plan_.scores.domain = whole ? Domain::kAttention : Domain::kCandidates;
    send_rules(w);
    scratch_ = DeviceArray<std::byte>(unfused_select_scratch_bytes(w.v, w.s.seq_slots), 0);
    frames_.clear(), entries_.clear();
    for (std::size_t head = 0; head < heads; ++head) draw_frame(e, d, rng), draw_entries(e, d, rng);
    copy_bytes(e.frames, frames_.data(), frames_.size() * sizeof(float), stream);
    copy_bytes(e.data, entries_.data(), entries_.size(), stream);
    stream.synchronize();
  }
  void send_rules(World& w) {
    const std::vector<SelectionPlan> of_all(static_cast<std::size_t>(w.s.seq_slots), plan_);
    copy_bytes(w.v.plans, of_all.data(), of_all.size() * sizeof(SelectionPlan), stream);
    stream.synchronize();
  }
  // Mean key, directions, covariance (diagonal), deviations.
  void draw_frame(const UnitEntries& e, std::int32_t d, std::mt19937& rng) {
    for (std::int32_t i = 0; i < (1 + e.rank) * d; ++i) frames_.push_back(whole_number(rng, 1));
    for (std::int32_t i = 0; i < d * d; ++i)
      frames_.push_back(i % (d + 1) == 0 ? static_cast<float>(rng() % 3) / static_cast<float>(d) : 0.0f);
    for (std::int32_t i = 0; i < e.rank; ++i) frames_.push_back(std::ldexp(1.0f, -static_cast<int>(rng() % 3)));
  }
  void draw_entries(const UnitEntries& e, std::int32_t d, std::mt19937& rng) {
    const std::size_t begin = entries_.size();
    for (std::int32_t page = 0; page < e.most; ++page) {
      if (page > 0 && rng() % 4 == 0) {
        const auto from = static_cast<std::ptrdiff_t>(begin) + static_cast<std::ptrdiff_t>(rng() % page) * e.bytes;
        std::vector<std::byte> other(entries_.begin() + from, entries_.begin() + from + e.bytes);
        entries_.insert(entries_.end(), other.begin(), other.end());
        continue;
      }
      const auto put = [&](unsigned long v) { entries_.push_back(static_cast<std::byte>(v)); };
      const auto put_half = [&](float v) { put(f16(v).bits & 0xff), put(f16(v).bits >> 8); };
      const int wide = page % 7 == 0 ? 127 : 3;  // all signed bytes occur
      for (std::int32_t c = 0; c < d; ++c) put(static_cast<unsigned>(static_cast<int>(whole_number(rng, wide))) & 0xff);
      for (std::int32_t i = 0; i < e.rank * kKvPageTokens / 2; ++i) put((1 + rng() % 15) | (1 + rng() % 15) << 4);
      put_half(wide == 127 ? 0x1p-6f : 0.25f), put_half(std::ldexp(1.0f, -1 - static_cast<int>(rng() % 4)));
      put(rng() % 3 == 0 ? 0ul : 100 + rng() % 40);
      while (entries_.size() < begin + static_cast<std::size_t>((page + 1) * e.bytes)) put(0);
    }
  }
  Region region_of(const World& w, std::int32_t length) const {
    return region_at({.budget = w.s.budget,
                      .sink = w.s.sink,
                      .recent = w.s.recent,
                      .unit_tokens = kKvPageTokens,
                      .entry_tokens = kKvPageTokens},
                     length);
  }
  // Of sinks and window: log(sum exp(alpha q . k)) / alpha.
  float fixed_score(const World& w, std::int32_t seq_slot, std::int32_t head, const Region& region, std::int32_t length,
                    const float* q) const {
    std::vector<double> scores;
    for (std::int32_t t = 0; t < length; ++t) {
      if (t >= region.sink && t < region.recent_from) continue;
      const auto* key = reinterpret_cast<const std::uint16_t*>(w.token(seq_slot, head, t));
      double dot = 0;
      for (std::int32_t c = 0; c < w.s.head_dim; ++c) {
        bf16 b;
        f16 h;
        b.bits = h.bits = key[c];
        dot += static_cast<double>(q[c]) *
               static_cast<double>(w.s.dtype == DType::kBF16 ? static_cast<float>(b) : static_cast<float>(h));
      }
      scores.push_back(static_cast<double>(plan_.scores.alpha) * dot);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double x : scores) sum += std::exp(x - most);
    return static_cast<float>((most + std::log(sum)) / static_cast<double>(plan_.scores.alpha));
  }
  // The selection by `score`: the reference, or the CPU's form, which takes a hundredth of its time.   q [group, D]
  using Score = void (*)(const SummaryScores&, std::int32_t, bool);
  Selection wanted(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const float* q,
                   Score score) const {
    const UnitEntries& e = w.v.index.entries;
    Selection s{.region = region_of(w, length), .ids = {}, .pooled = {}};
    const std::int32_t first = s.region.first_unit, n = s.region.last_unit - first, group = w.s.group,
                       at = seq_slot * w.s.kv_heads + head,
                       width = n + (plan_.scores.domain == Domain::kAttention ? 1 : 0);
    std::vector<float> scores(static_cast<std::size_t>(width * group));
    score({.q = q,
           .frame = frames_.data() + std::int64_t{at} * e.frame_floats,
           .entries = entries_.data() + (std::int64_t{at} * e.most + first) * e.bytes,
           .n = n,
           .group = group,
           .head_dim = w.s.head_dim,
           .page = kKvPageTokens,
           .alpha = plan_.scores.alpha,
           .scores = scores.data(),
           .stride = width},
          e.rank, false);
    for (std::int32_t g = 0; g < group && plan_.scores.domain == Domain::kAttention; ++g)
      scores[static_cast<std::size_t>(g * width + n)] =
          fixed_score(w, seq_slot, head, s.region, length, q + g * w.s.head_dim);
    s.pooled.resize(static_cast<std::size_t>(width));
    group_pool_ref(scores.data(), width, group, width, w.s.pool, plan_.scores.alpha, s.pooled.data());
    s.ids.resize(static_cast<std::size_t>(s.region.n_select));
    topk_ref(std::span(s.pooled).first(static_cast<std::size_t>(n)), s.region.n_select, s.ids.data());
    for (std::int32_t& id : s.ids) id += first;
    return s;
  }
  std::vector<Ids> selected_by(World& w, const Rows& r, SelectWhen when, bool fused) {
    const std::int32_t heads = w.s.seq_slots * w.s.kv_heads;
    set_bytes(w.v.selection.n[static_cast<int>(when)], 0, static_cast<std::size_t>(heads) * sizeof(std::int32_t),
              stream);
    select(w, r, when, fused);
    std::vector<Ids> all;
    for (std::int32_t i = 0; i < heads; ++i) all.push_back(selected_units(w, i / w.s.kv_heads, i % w.s.kv_heads, when));
    return all;
  }
  void select(World& w, const Rows& r, SelectWhen when, bool fused) {
    unfused_select_cuda(
        {.rows = r.rows(), .when = when, .pages = w.pages(), .sketch_pages = fused, .scratch = scratch_.data()}, w.v, 0,
        context());
  }
  void fill(World& w, const Ids& lengths) {
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      fill_slots_cuda(seq_slot, lengths[static_cast<std::size_t>(seq_slot)], plan_, w.v, w.pages(), 0, 0, context());
  }
  SelectionPlan plan_;
  std::vector<float> frames_;       // of all heads
  std::vector<std::byte> entries_;  // likewise
  DeviceArray<std::byte> scratch_{0};
};

TEST_F(CudaSketchPagesTest, SelectsWhatReferenceAndUnfusedSelectionSelect) {
  constexpr std::int32_t kPages = 75, kMost = kPages * kKvPageTokens, kRanks[] = {1, 5, 8, 12, 16};
  std::mt19937 rng(17);
  int cases = 0;
  for (const Pool pool : {Pool::kMaxQk, Pool::kMeanS, Pool::kMaxS})
    for (const std::int32_t group : {1, 4, 5, 7, 8})
      for (const std::int32_t head_dim : {64, 128}) {
        const bool whole = pool != Pool::kMaxQk && rng() % 4 > 0;
        const std::int32_t rank =
            kRanks[(static_cast<unsigned>(pool) + static_cast<unsigned>(group + head_dim / 64)) % 5];
        SCOPED_TRACE(::testing::Message() << "rank " << rank << ", pool " << static_cast<int>(pool) << ", group "
                                          << group << ", head_dim " << head_dim << (whole ? ", attention" : ""));
        World w({.head_dim = head_dim,
                 .group = group,
                 .kv_heads = 3,
                 .seq_slots = 4,
                 .max_pages = kPages,
                 .budget = 160 + kKvPageTokens * static_cast<std::int32_t>(rng() % 12),
                 .recent = 32 + kKvPageTokens * static_cast<std::int32_t>(rng() % 2),
                 .dtype = rng() % 2 == 0 ? DType::kBF16 : DType::kF16,
                 .pool = pool,
                 .own_arrays = false},
                static_cast<unsigned>(rng()), 3);
        prepare(w, rank, whole, rng);
        for (int round = 0; round < 30; ++round) {
          Ids lengths(static_cast<std::size_t>(w.s.seq_slots));
          for (std::int32_t& length : lengths)
            length = w.s.budget + 1 + static_cast<std::int32_t>(rng() % static_cast<unsigned>(kMost - w.s.budget));
          if (round == 0) lengths[0] = w.s.budget + 1;
          if (round == 1) lengths[1] = kMost;
          if (round == 2) lengths[2] = lengths[2] / kKvPageTokens * kKvPageTokens, lengths[3] = lengths[2] + 1;
          fill(w, lengths);
          const auto q = queries(w, rng, round == 3 ? 0 : 2);  // 0: scores differ by their pages' spread alone
          const Rows r = rows_of(lengths, 1);
          const std::vector<Ids> fused = selected_by(w, r, SelectWhen::kNow, true),
                                 unfused = selected_by(w, r, SelectWhen::kNow, false);
          for (std::size_t i = 0; i < fused.size(); ++i) {
            const auto seq_slot = static_cast<std::int32_t>(i) / w.s.kv_heads,
                       head = static_cast<std::int32_t>(i) % w.s.kv_heads;
            const std::int32_t length = lengths[static_cast<std::size_t>(seq_slot)];
            if (length <= w.s.budget) continue;
            const bool by_reference = round < 3 && i % 4 == static_cast<std::size_t>(round);
            const Selection want =
                wanted(w, seq_slot, head, length, q.data() + (seq_slot * w.v.n_heads + head * group) * head_dim,
                       by_reference ? sketch_score_ref : sketch_score_cpu);
            expect_selection(fused[i], want, false);
            expect_selection(unfused[i], want, false);
            if (HasFatalFailure() || HasNonfatalFailure()) return;
            ++cases;
          }
        }
      }
  EXPECT_GE(cases, 10000);
}

// Pages with equal entries: the last ones, in both; and a page whose keys were not finite is selected last.
TEST_F(CudaSketchPagesTest, EqualPagesAndNan) {
  std::mt19937 rng(23);
  World w({.max_pages = 200, .own_arrays = false}, 7, 2);
  prepare(w, 16, false, rng);
  const UnitEntries& e = w.v.index.entries;
  const auto bytes = static_cast<std::size_t>(e.bytes);
  for (std::size_t at = bytes; at < entries_.size(); at += bytes)
    std::copy_n(entries_.begin(), bytes, entries_.begin() + static_cast<std::ptrdiff_t>(at));
  const std::int32_t bad = 190;
  for (std::int32_t head = 0; head < w.s.seq_slots * w.s.kv_heads; ++head) {
    std::byte* scale =
        entries_.data() + (std::int64_t{head} * e.most + bad) * e.bytes + w.s.head_dim + 16 * kKvPageTokens / 2;
    scale[0] = std::byte{0}, scale[1] = std::byte{0x7e};  // NaN
  }
  copy_bytes(e.data, entries_.data(), entries_.size(), stream);
  for (float& x : frames_) x = 1.0f;
  copy_bytes(e.frames, frames_.data(), frames_.size() * sizeof(float), stream);
  fill(w, {200 * kKvPageTokens, 195 * kKvPageTokens});
  queries(w, rng, 2);
  const Rows r = rows_of({200 * kKvPageTokens, 195 * kKvPageTokens}, 1);
  for (const bool fused : {true, false}) {
    const std::vector<Ids> got = selected_by(w, r, SelectWhen::kNow, fused);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const std::int32_t last = i < 2 ? 198 : 193;  // two pages of window
      Ids want;
      for (std::int32_t u = last - 1; size32(want) < 8; --u)
        if (u != bad) want.push_back(u);
      std::reverse(want.begin(), want.end());
      EXPECT_EQ(got[i], want) << fused << ", " << i;
    }
  }
}

// One step ahead and under both mass gates: this step's selection and what the speculative one lacks, then the next step's
// where its region differs. Several rows of different lengths, more than the device has thread blocks for clusters.
TEST_F(CudaSketchPagesTest, GatesAndTheNextStepAreThoseOfTheUnfusedSelection) {
  std::mt19937 rng(5);
  using Gate = std::pair<GateKind, bool>;  // SelectionPlan::Gate::of_attended
  for (const auto& [gate, of_attended] :
       {Gate{GateKind::kCosine, false}, Gate{GateKind::kMass, false}, Gate{GateKind::kMass, true}})
    for (const auto& [seq_slots, kv_heads] : {std::pair{2, 3}, std::pair{9, 8}}) {
      World w({.kv_heads = kv_heads,
               .seq_slots = seq_slots,
               .max_pages = 150,
               .schedule = ScheduleKind::kSpeculative,
               .pool = Pool::kMeanS,
               .tau = 0.5f,
               .eps = 0.1f,
               .gate = gate,
               .of_attended = of_attended,
               .own_arrays = false},
              static_cast<unsigned>(rng()), 3);
      prepare(w, 16, gate == GateKind::kCosine || of_attended, rng);
      const auto heads = static_cast<std::size_t>(seq_slots * kv_heads);
      for (std::int32_t* n : w.v.selection.n) set_bytes(n, 0, heads * sizeof(std::int32_t), stream);
      int differ = 0, all = 0;
      for (int round = 0; round < 12; ++round) {
        Ids lengths;
        for (std::int32_t i = 0; i < seq_slots; ++i) lengths.push_back(400 + static_cast<std::int32_t>(rng() % 4200));
        if (round % 3 == 0) lengths[0] = lengths[0] / kKvPageTokens * kKvPageTokens;  // the next step's region differs
        fill(w, lengths);
        queries(w, rng, 2);
        draw_moves(w, rng, seq_slots * kv_heads, w.s.group, 3);
        const Rows r = rows_of(lengths, 0);
        for (const SelectWhen when : {SelectWhen::kNow, SelectWhen::kNext}) {
          const std::vector<Ids> fused = selected_by(w, r, when, true);
          const auto by_fused = fetch(w.v.selection.mass, heads);
          const std::vector<Ids> unfused = selected_by(w, r, when, false);
          const auto by_unfused = fetch(w.v.selection.mass, heads);
          for (std::size_t i = 0; i < heads; ++i) {
            ++all;
            if (fused[i] != unfused[i]) ++differ;
            if (when == SelectWhen::kNow && gate != GateKind::kCosine && fused[i] == unfused[i]) {
              EXPECT_NEAR(by_fused[i], by_unfused[i], 1e-4f * std::max(1.0f, by_unfused[i])) << i;
            }
          }
        }
        if (HasFailure()) return;
      }
      EXPECT_LE(differ, all / 200) << "of " << all;  // pages with nearly equal scores
    }
}

}  // namespace
}  // namespace mneme
