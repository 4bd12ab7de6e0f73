// Controls on the device (random units, and units by the keys themselves) against the CPU.
#include <gtest/gtest.h>

#include <cmath>
#include <tuple>

#include "src/selection/index/unit_index.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/region/region.h"
#include "src/selection/topk/topk.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {
namespace {

using testing::kInf;
using testing::kNaN;

Region region_of(const Setup& s, std::int32_t length) {
  return region_at(
      {.budget = s.budget, .sink = s.sink, .recent = s.recent, .unit_tokens = s.unit(), .entry_tokens = s.unit()},
      length);
}

// Selection of one KV head from scores [group, candidates].
Selection best_of(const Setup& s, const Region& region, float alpha, std::vector<float> scores) {
  Selection c{.region = region, .ids = Ids(static_cast<std::size_t>(region.n_select)), .pooled = {}};
  const std::int32_t n = region.last_unit - region.first_unit;
  c.pooled.resize(static_cast<std::size_t>(n));
  group_pool_cpu(scores.data(), n, s.group, n, s.pool, alpha, c.pooled.data());
  topk_ref(c.pooled, region.n_select, c.ids.data());
  for (std::int32_t& id : c.ids) id += region.first_unit;
  return c;
}

// By the keys of the World's pages with queries q [group, D]; a page's score is log(sum exp(alpha q . k)) / alpha.
Selection by_keys(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const float* q) {
  const Setup& s = w.s;
  const Region region = region_of(s, length);
  const std::int32_t unit = s.unit(), n = region.last_unit - region.first_unit, first = region.first_unit * unit;
  std::vector<KvRun> runs;
  for (std::int32_t t = first; t < region.last_unit * unit; ++t) runs.push_back({w.token(seq_slot, head, t), 1});
  const std::int64_t n_tokens = std::int64_t{n} * unit;
  std::vector<float> tokens(static_cast<std::size_t>(n_tokens * s.group)),
      scores(static_cast<std::size_t>(n * s.group));
  key_score_cpu(q, w.shape(), runs, tokens.data(), n_tokens);
  const auto alpha = static_cast<double>(w.plan().scores.alpha);
  for (std::int32_t i = 0; i < n * s.group; ++i) {
    const float* of = tokens.data() + std::int64_t{i} * unit;
    double sum = 0;
    const float most = *std::max_element(of, of + unit);
    for (std::int32_t t = 0; t < unit; ++t) sum += std::exp(alpha * static_cast<double>(of[t] - most));
    scores[static_cast<std::size_t>(i)] =
        unit == 1 ? of[0] : static_cast<float>(static_cast<double>(most) + std::log(sum) / alpha);
  }
  return best_of(s, region, w.plan().scores.alpha, std::move(scores));
}

class CudaUnfusedSelectTest : public CudaSlotsTest {
 protected:
  // Every listed entry holds its unit, byte for byte: sinks, `selected`, window.
  void expect_listed(World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const Ids& selected) {
    const Region region = region_of(w.s, length);
    const std::int32_t unit = w.s.unit(), stop = (length + unit - 1) / unit;
    Ids want;
    for (std::int32_t u = 0; u < region.sink / unit; ++u) want.push_back(u);
    want.insert(want.end(), selected.begin(), selected.end());
    for (std::int32_t u = region.recent_from / unit; u < stop; ++u) want.push_back(u);
    const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head),
               slots = static_cast<std::size_t>(w.v.n_slots);
    const auto listed = fetch(w.v.slots.listed + index * static_cast<std::size_t>(w.v.max_listed), want.size());
    const std::size_t bytes = w.v.unit_bytes();
    const std::vector<std::byte> there =
        slots > 0 ? fetch(w.v.slots.data + index * slots * bytes, slots * bytes) : std::vector<std::byte>();
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto entry = static_cast<std::size_t>(listed[i]);
      const std::byte* got = w.host.data() + entry * bytes;
      if (slots > 0) {
        ASSERT_GE(entry, index * slots);
        ASSERT_LT(entry - index * slots, slots);
        got = there.data() + (entry - index * slots) * bytes;
      }
      ASSERT_EQ(std::memcmp(got, w.token(seq_slot, head, want[i] * unit), bytes), 0)
          << "entry " << i << ", unit " << want[i] << " of sequence slot " << seq_slot << ", head " << head << ", "
          << length;
    }
  }
};

// The CPU's random scores of a (layer, KV head) at `length`, ranked.
Selection random_selection(const Setup& s, std::uint64_t seed, std::int32_t layer, std::int32_t head,
                           std::int32_t length, float alpha) {
  PagePool pool({.n_layers = 1, .n_kv_heads = 1, .head_dim = 8}, length / kPageTokens + 1);
  SequenceCache cache(pool);
  cache.extend(length);
  const Region region = region_of(s, length);
  const std::int32_t n = region.last_unit - region.first_unit;
  std::vector<float> scores(static_cast<std::size_t>(n * s.group));
  ScoreScratch scratch;
  make_random_index(seed)->score({.head = {.cache = &cache, .entries = nullptr, .layer = layer, .kv_head = head},
                                  .q = nullptr,
                                  .shape = {.group = s.group, .head_dim = 8},
                                  .first_unit = region.first_unit,
                                  .last_unit = region.last_unit,
                                  .alpha = alpha,
                                  .scores = scores.data(),
                                  .score_stride = n},
                                 scratch);
  return best_of(s, region, alpha, std::move(scores));
}

TEST_F(CudaUnfusedSelectTest, SamplesWhatTheCpuSamples) {
  int cases = 0;
  for (const auto& [group, kv_heads, head_dim] : {std::tuple{1, 2, 64}, {4, 3, 128}, {7, 2, 64}, {16, 2, 128}})
    for (const Pool pool : {Pool::kMeanQk, Pool::kMaxQk})
      for (const std::uint64_t seed : {std::uint64_t{1}, std::uint64_t{0xdeadbeefcafef00d}}) {
        World w({.head_dim = head_dim,
                 .group = group,
                 .kv_heads = kv_heads,
                 .max_pages = 300,
                 .budget = 64 + 64 + 32 * 30,
                 .pool = pool,
                 .scored = EntryKind::kNone,
                 .own_arrays = false,
                 .seed = seed},
                9, 1);
        for (const Ids& lengths : {Ids{1089, 9599}, Ids{1120, 1121}, Ids{9600, 4001}, Ids{3000, 500}})
          for (const std::int32_t layer : {0, 5}) {
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              fill_slots_cuda(seq_slot, lengths[static_cast<std::size_t>(seq_slot)], w.plan(), w.v, w.pages(), 0, 0,
                              context());
            const Rows r = rows_of(lengths, 1);
            unfused_select_cuda({.rows = r.rows(), .pages = w.pages(), .layer = layer, .scratch = w.scratch[0].data()},
                                w.v, 0, context());
            recall_units_cuda(r.rows(), SelectWhen::kNow, w.v, w.pages(), 0, 0, 1, context());
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              for (std::int32_t head = 0; head < kv_heads; ++head) {
                const std::int32_t length = lengths[static_cast<std::size_t>(seq_slot)];
                if (length <= w.s.budget) continue;
                const Selection want = random_selection(w.s, seed, layer, head, length, w.plan().scores.alpha);
                ASSERT_EQ(selected_units(w, seq_slot, head), want.ids)
                    << "group " << group << ", length " << length << ", layer " << layer;
                expect_listed(w, seq_slot, head, length, want.ids);
                if (HasFatalFailure()) return;
                ++cases;
              }
          }
      }
  EXPECT_GE(cases, 250);
}

TEST_F(CudaUnfusedSelectTest, SelectsByKeysWhatTheReferenceSelects) {
  std::mt19937 rng(11);
  for (const bool single : {true, false})
    for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS})
      for (const std::int32_t group : {1, 4, 7, 8, 16})
        for (const std::int32_t head_dim : {64, 128}) {
          SCOPED_TRACE(::testing::Message() << (single ? "tokens" : "pages") << ", pool " << static_cast<int>(pool)
                                            << ", group " << group << ", head_dim " << head_dim);
          const auto sink = single ? static_cast<std::int32_t>(rng() % 3 * 37) : 64,
                     recent = single ? static_cast<std::int32_t>(rng() % 2 * 90) : 64;
          World w({.head_dim = head_dim,
                   .group = group,
                   .max_pages = 44,
                   .budget = single ? sink + std::max(recent, 1) + 1 + static_cast<std::int32_t>(rng() % 400) : 384,
                   .sink = sink,
                   .recent = recent,
                   .single = single,
                   .slots = !single || rng() % 2 == 0,
                   .dtype = rng() % 2 == 0 ? DType::kBF16 : DType::kF16,
                   .pool = pool,
                   .scored = EntryKind::kKeys,
                   .own_arrays = false},
                  static_cast<unsigned>(rng()), 3);
          for (int round = 0; round < 4; ++round) {
            Ids lengths;
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              lengths.push_back(w.s.budget + 1 + static_cast<std::int32_t>(rng() % (44 * 32 - w.s.budget - 1)));
            if (round == 0) lengths[0] = w.s.budget + 1;
            if (round == 1) lengths[1] = 44 * 32;
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              fill_slots_cuda(seq_slot, lengths[static_cast<std::size_t>(seq_slot)], w.plan(), w.v, w.pages(), 0, 0,
                              context());
            const auto q = queries(w, rng, round == 2 ? 0 : 2);  // 0: all scores are equal
            run(w, rows_of(lengths, 1), SelectWhen::kNow);
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
                const std::int32_t length = lengths[static_cast<std::size_t>(seq_slot)];
                const Ids got = selected_units(w, seq_slot, head);
                const Selection want =
                    by_keys(w, seq_slot, head, length, q.data() + (seq_slot * w.v.n_heads + head * group) * head_dim);
                const bool sums = pool == Pool::kMaxQk || pool == Pool::kMeanQk || group == 1;
                expect_selection(got, want, round == 2 || (single && sums));
                expect_listed(w, seq_slot, head, length, got);
                if (HasFatalFailure()) return;
              }
          }
        }
}

// More tokens than a thread block marks at once, than are compared one by one, and (60,011) than fit its shared memory;
// many of them equal, or all.
TEST_F(CudaUnfusedSelectTest, SelectsFromLongContexts) {
  std::mt19937 rng(7);
  for (const std::int32_t budget : {128 + 150, 128 + 5000}) {
    World w({.head_dim = 64,
             .group = 2,
             .kv_heads = 1,
             .seq_slots = 1,
             .max_pages = 1900,
             .budget = budget,
             .single = true,
             .slots = false,
             .scored = EntryKind::kKeys,
             .own_arrays = false},
            21, 1);
    for (const std::int32_t length : {16384 + 128, 16384 + 133, 2 * 16384 + 129, 60011})
      for (const int largest : {0, 1, 2}) {
        fill_slots_cuda(0, length, w.plan(), w.v, w.pages(), 0, 0, context());
        const auto q = queries(w, rng, largest);
        run(w, rows_of(w, length, 1), SelectWhen::kNow);
        const Selection want = by_keys(w, 0, 0, length, q.data());
        ASSERT_EQ(selected_units(w, 0, 0), want.ids) << length << ", budget " << budget << ", queries to " << largest;
      }
  }
}

// A token with a non-finite key, and its page, are selected only when nothing else is left.
TEST_F(CudaUnfusedSelectTest, NanIsWorst) {
  std::mt19937 rng(5);
  for (const bool single : {true, false}) {
    World w({.group = 4,
             .max_pages = 40,
             .budget = 704,
             .single = single,
             .pool = Pool::kMeanS,
             .scored = EntryKind::kKeys,
             .own_arrays = false},
            7, 2);
    const std::uint16_t nan = bf16(kNaN).bits;
    const Ids bad = {100, 500, 501, 900};
    for (const std::int32_t position : bad)
      std::memcpy(w.page(0, 1, position / 32) + static_cast<std::size_t>(position % 32) * w.v.token_bytes() + 34, &nan,
                  2);
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      fill_slots_cuda(seq_slot, 1200, w.plan(), w.v, w.pages(), 0, 0, context());
    const auto q = queries(w, rng, 2);
    run(w, rows_of(w, 1200, 1), SelectWhen::kNow);
    const Ids got = selected_units(w, 0, 1);
    expect_selection(got, by_keys(w, 0, 1, 1200, q.data() + 4 * 128), false);
    for (const std::int32_t id : got)
      for (const std::int32_t position : bad) ASSERT_NE(id, single ? position : position / 32);
  }
}

// Rows of one launch follow their own rules.
TEST_F(CudaUnfusedSelectTest, RowsOfIndexesAreLeftAlone) {
  World w({.max_pages = 60, .scored = EntryKind::kNone, .own_arrays = false, .seed = 3}, 9, 1);
  SelectionPlan other = w.plan();
  other.scores.own_arrays = true;
  copy_bytes(w.v.plans + 1, &other, sizeof(other), stream);
  for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
    fill_slots_cuda(seq_slot, 1500, w.plan(), w.v, w.pages(), 0, 0, context());
  run(w, rows_of(w, 1500, 1), SelectWhen::kNow);
  EXPECT_EQ(selected_units(w, 0, 1), random_selection(w.s, 3, 0, 1, 1500, 0.125f).ids);
  EXPECT_EQ(selected_units(w, 1, 0).size(), 0u);  // unchanged since fill_slots_cuda
}

}  // namespace
}  // namespace mneme
