// k-means on the device, and the units built from its clusters, against the references on the host.
#include "src/selection/cluster/kmeans_cuda.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <map>
#include <random>

#include "src/selection/cluster/list_units_cuda.h"
#include "src/selection/cluster/partition.h"
#include "src/selection/index/centroid.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/topk/rank.h"
#include "tests/offload/device_cache_testing.h"
#include "tests/selection/index/key_testing.h"

namespace mneme {
namespace {

using testing::kNaN;
using Clusters = std::vector<std::int32_t>;

class CudaKmeansTest : public CudaSlotsTest {
 protected:
  // Several heads, each with its own keys.
  std::vector<Clusters> clusters(const std::vector<Keys>& heads, std::int32_t n, std::int32_t dim, DType dtype,
                                 const KmeansTask& task) {
    const std::size_t row = static_cast<std::size_t>(list_dim(dim)) * 2, head_bytes = static_cast<std::size_t>(n) * row;
    std::vector<std::byte> keys(heads.size() * head_bytes);
    for (std::size_t h = 0; h < heads.size(); ++h)
      for (std::int32_t t = 0; t < n; ++t)
        std::memcpy(keys.data() + h * head_bytes + static_cast<std::size_t>(t) * row, heads[h].run(t, 1).kv,
                    static_cast<std::size_t>(dim) * 2);
    const DeviceArray<std::byte> there(keys);
    DeviceArray<std::byte> scratch(
        kmeans_scratch_bytes(static_cast<std::int32_t>(heads.size()), n, dim, task.n_clusters), 0xff);
    DeviceArray<std::uint16_t> out(heads.size() * static_cast<std::size_t>(n), 0xff);
    kmeans_cuda({.keys = there.data(),
                 .n_heads = static_cast<std::int32_t>(heads.size()),
                 .n = n,
                 .head_dim = dim,
                 .f16 = dtype == DType::kF16,
                 .n_clusters = task.n_clusters,
                 .iterations = task.iterations,
                 .metric = task.metric,
                 .cluster = out.data(),
                 .scratch = scratch.data()},
                context());
    const auto all = fetch(out.data(), out.size());
    std::vector<Clusters> result;
    for (std::size_t h = 0; h < heads.size(); ++h)
      result.emplace_back(all.begin() + static_cast<std::ptrdiff_t>(h) * n,
                          all.begin() + static_cast<std::ptrdiff_t>(h + 1) * n);
    return result;
  }
};

// Integer arithmetic: random keys too give the host's clusters, bit for bit.
TEST_F(CudaKmeansTest, IsTheHostsBitForBit) {
  std::mt19937 rng(3);
  int cases = 0;
  for (const auto& [n, k, dim] : {std::array{1, 1, 64},
                                  {2, 2, 128},
                                  {3, 1, 64},
                                  {31, 2, 128},
                                  {32, 32, 64},
                                  {33, 3, 128},
                                  {97, 7, 64},
                                  {127, 8, 128},
                                  {129, 9, 128},
                                  {256, 16, 128},
                                  {263, 17, 64},
                                  {33, 3, 256},
                                  {127, 8, 80},
                                  {129, 9, 96},
                                  {515, 33, 256},
                                  {1021, 64, 128},
                                  {1024, 65, 128},
                                  {2053, 129, 64},
                                  {8192, 512, 128}})
    for (const KmeansMetric metric : {KmeansMetric::kDistance, KmeansMetric::kCosine})
      for (const DType dtype : {DType::kBF16, DType::kF16})
        for (const int kind : {0, 1, 2, 3}) {
          if (n == 8192 && (dtype == DType::kF16 || kind == 3)) continue;
          const AttentionShape shape{.group = 1, .head_dim = dim, .kv_dtype = dtype, .scale = 1.0f};
          std::vector<Keys> heads;
          std::normal_distribution<float> normal;
          for (int h = 0; h < (n == 8192 ? 1 : 3); ++h) {
            heads.emplace_back(n, shape);
            // Small integers; normal values; a few directions and a dominant channel; with some non-finite values.
            const float large = std::exp2(static_cast<float>(static_cast<int>(rng() % 9) - 4));
            heads.back().fill([&] {
              if (kind == 0) return static_cast<float>(static_cast<int>(rng() % 3) - 1);
              if (kind == 1) return normal(rng) * large;
              if (kind == 2) return rng() % 16 == 0 ? 50.0f * normal(rng) : normal(rng);
              return rng() % 700 == 0 ? (rng() % 2 == 0 ? kNaN : testing::kInf) : normal(rng);
            });
          }
          for (const int iterations : n == 8192 ? std::vector{3} : std::vector{1, 2, 10}) {
            SCOPED_TRACE(::testing::Message()
                         << n << " tokens, " << k << " clusters, D " << dim << " " << dtype_name(dtype) << ", metric "
                         << static_cast<int>(metric) << ", kind " << kind << ", iterations " << iterations);
            KmeansTask task{.runs = {}, .shape = shape, .n_clusters = k, .iterations = iterations, .metric = metric};
            const std::vector<Clusters> got = clusters(heads, n, dim, dtype, task);
            for (std::size_t h = 0; h < heads.size(); ++h, ++cases) {
              const KvRun all[] = {heads[h].run(0, n)};
              task.runs = all;
              Clusters want(static_cast<std::size_t>(n), -1);
              KmeansScratch scratch;
              kmeans_cpu(task, want.data(), scratch);
              ASSERT_EQ(got[h], want) << "head " << h;
            }
          }
        }
  EXPECT_GE(cases, 900);
}

TEST_F(CudaKmeansTest, EqualKeysGoToOneCluster) {
  for (const KmeansMetric metric : {KmeansMetric::kDistance, KmeansMetric::kCosine}) {
    const AttentionShape shape{.group = 1, .head_dim = 128, .kv_dtype = DType::kBF16, .scale = 1.0f};
    std::vector<Keys> heads;
    heads.emplace_back(500, shape);
    heads.back().fill([] { return 1.5f; });
    const auto got = clusters(heads, 500, 128, DType::kBF16,
                              {.runs = {}, .shape = shape, .n_clusters = 32, .iterations = 4, .metric = metric});
    EXPECT_EQ(got[0], Clusters(500, 0));
  }
}

// ---- units built from pages

// Units of one KV head, of the same ranges, by the references.
struct HostUnits {
  std::vector<std::int32_t> members, ends;
  std::vector<std::byte> centroids;
};

class CudaListTest : public CudaSlotsTest {
 protected:
  static constexpr std::int32_t kBlock = 512, kCluster = 16;

  static KvRun token(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t t) {
    return {w.token(seq_slot, head, t), 1};
  }
  static void append(const World& w, std::int32_t seq_slot, std::int32_t head, const Ids& tokens, HostUnits& to) {
    if (tokens.empty()) return;
    std::vector<KvRun> runs;
    for (const std::int32_t t : tokens) runs.push_back(token(w, seq_slot, head, t));
    to.members.insert(to.members.end(), tokens.begin(), tokens.end());
    to.ends.push_back(static_cast<std::int32_t>(to.members.size()));
    to.centroids.resize(to.centroids.size() + static_cast<std::size_t>(2 * w.s.head_dim));
    centroid_build_ref(runs, w.shape(), to.centroids.data() + to.centroids.size() - 2 * w.s.head_dim);
  }
  static HostUnits host_units(const World& w, std::int32_t seq_slot, std::int32_t head,
                              std::span<const UnitRange> ranges) {
    HostUnits out;
    for (const UnitRange& r : ranges) {
      const std::int32_t n = r.end - r.begin;
      if (!r.clusters) {
        Ids tokens(static_cast<std::size_t>(n));
        std::iota(tokens.begin(), tokens.end(), r.begin);
        append(w, seq_slot, head, tokens, out);
        continue;
      }
      std::vector<KvRun> runs;
      for (std::int32_t t = r.begin; t < r.end; ++t) runs.push_back(token(w, seq_slot, head, t));
      const std::int32_t k = (n + kCluster - 1) / kCluster;
      Clusters of(static_cast<std::size_t>(n));
      KmeansScratch scratch;
      kmeans_cpu(
          {.runs = runs, .shape = w.shape(), .n_clusters = k, .iterations = 3, .metric = KmeansMetric::kDistance},
          of.data(), scratch);
      for (std::int32_t c = 0; c < k; ++c) {
        Ids tokens;
        for (std::int32_t t = 0; t < n; ++t)
          if (of[static_cast<std::size_t>(t)] == c) tokens.push_back(r.begin + t);
        append(w, seq_slot, head, tokens, out);
      }
    }
    return out;
  }
  void build(World& w, std::int32_t seq_slot, std::span<const UnitRange> ranges) {
    const std::int32_t heads = w.s.kv_heads, k = kBlock / kCluster;
    const IndexedLayer of{.seq_slot = seq_slot, .key_slot = seq_slot};
    const DeviceBuffer keys(static_cast<std::size_t>(heads * kBlock * w.s.head_dim * 2), "a test"),
        kmeans(kmeans_scratch_bytes(heads, kBlock, w.s.head_dim, k), "a test"),
        counts(append_clusters_scratch_bytes(heads, k), "a test"),
        clusters(static_cast<std::size_t>(heads * kBlock * 2), "a test");
    for (const UnitRange& r : ranges) {
      const std::int32_t n = r.end - r.begin, n_clusters = (n + kCluster - 1) / kCluster;
      if (!r.clusters) {
        const Segment one{.of = of, .sink = w.s.sink, .begin = r.begin, .end = r.end};
        append_segments_cuda({&one, 1}, w.v, w.pages(), context());
        continue;
      }
      gather_keys_cuda({.of = of, .first = r.begin, .n = n, .to = keys.data()}, w.pages(), context());
      kmeans_cuda({.keys = keys.data(),
                   .n_heads = heads,
                   .n = n,
                   .head_dim = w.s.head_dim,
                   .f16 = w.v.f16,
                   .n_clusters = n_clusters,
                   .iterations = 3,
                   .cluster = clusters.as<std::uint16_t>(),
                   .scratch = kmeans.data()},
                  context());
      append_clusters_cuda({.of = of,
                            .sink = w.s.sink,
                            .first = r.begin,
                            .n = n,
                            .n_clusters = n_clusters,
                            .keys = keys.data(),
                            .cluster = clusters.as<std::uint16_t>(),
                            .scratch = counts.data()},
                           w.v, context());
    }
    stream.synchronize();
  }
  void expect_units(World& w, std::int32_t seq_slot, std::int32_t head, const HostUnits& want) {
    const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head),
               units = static_cast<std::size_t>(w.v.index.lists.max_units);
    ASSERT_EQ(fetch(w.v.index.lists.n_units + index, 1)[0], static_cast<std::int32_t>(want.ends.size()));
    ASSERT_EQ(fetch(w.v.index.lists.ends + index * units, want.ends.size()), want.ends);
    ASSERT_EQ(fetch(w.v.index.lists.members + index * static_cast<std::size_t>(w.v.index.lists.max_tokens),
                    want.members.size()),
              want.members);
    ASSERT_TRUE(fetch(w.v.index.lists.centroids + index * units * static_cast<std::size_t>(2 * w.s.head_dim),
                      want.centroids.size()) == want.centroids);
  }
  // Selection of a head among these units, best first: at most `wanted` tokens.
  struct Selection {
    Ids tokens;
    std::vector<float> of_unit;
  };
  static Selection select(const World& w, const HostUnits& u, const float* q, std::int32_t wanted) {
    const auto n = static_cast<std::int32_t>(u.ends.size());
    std::vector<float> scores(static_cast<std::size_t>(n * w.s.group)), pooled(static_cast<std::size_t>(n));
    centroid_score_ref(q, w.shape(), u.centroids.data(), n, scores.data(), n);
    group_pool_ref(scores.data(), n, w.s.group, n, w.s.pool, w.plan().scores.alpha, pooled.data());
    const auto begin = [&](std::int32_t i) { return i == 0 ? 0 : u.ends[static_cast<std::size_t>(i) - 1]; };
    const auto size = [&](std::int32_t i) { return u.ends[static_cast<std::size_t>(i)] - begin(i); };
    Ids ids;
    rank_ref(pooled, size, wanted, ids);
    Selection c{.tokens = {}, .of_unit = pooled};
    for (const std::int32_t id : ids)
      for (std::int32_t i = 0; i < size(id) && std::ssize(c.tokens) < wanted; ++i)
        c.tokens.push_back(u.members[static_cast<std::size_t>(begin(id) + i)]);
    return c;
  }
  // Sinks, the first tokens of a selection, the window from the newest: byte for byte.
  void expect_listed(World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, std::int32_t grouped,
                     const Ids& selected) {
    Ids want;
    for (std::int32_t t = 0; t < w.s.sink; ++t) want.push_back(t);
    const std::int32_t n = w.s.budget - w.s.sink - (length - grouped);
    ASSERT_LE(n, std::ssize(selected));
    want.insert(want.end(), selected.begin(), selected.begin() + n);
    for (std::int32_t t = length - 1; t >= grouped; --t) want.push_back(t);
    expect_entries(w, seq_slot, head, length, want);
  }
  // A ranking by scores with rounding error: whole units in order, each no better than the previous one, and none left
  // out that is better than the last.
  static void expect_selection(const Ids& got, const HostUnits& u, const Selection& want) {
    ASSERT_EQ(got.size(), want.tokens.size());
    Ids unit_of(u.members.size()), at_of(u.members.size());
    std::map<std::int32_t, std::size_t> index;  // by token
    for (std::size_t i = 0, unit = 0; i < u.members.size(); ++i) {
      if (static_cast<std::int32_t>(i) == u.ends[unit]) ++unit;
      unit_of[i] = static_cast<std::int32_t>(unit);
      index[u.members[i]] = i;
    }
    std::vector<bool> taken(u.ends.size());
    float last = testing::kInf;
    for (std::size_t i = 0; i < got.size();) {
      ASSERT_TRUE(index.contains(got[i]));
      const std::size_t first = index[got[i]];
      const auto unit = static_cast<std::size_t>(unit_of[first]);
      ASSERT_TRUE(!taken[unit] && (first == 0 || unit_of[first - 1] != unit_of[first])) << "token " << got[i];
      taken[unit] = true;
      for (std::size_t k = first; k < u.members.size() && unit_of[k] == unit_of[first] && i < got.size(); ++k, ++i)
        ASSERT_EQ(got[i], u.members[k]);
      const float score = want.of_unit[unit];
      ASSERT_LE(score, last + kOff * std::max(1.0f, std::abs(last)));
      last = std::min(last, score);
    }
    for (std::size_t unit = 0; unit < taken.size(); ++unit)
      ASSERT_TRUE(taken[unit] || !(want.of_unit[unit] > last + kOff * std::max(1.0f, std::abs(last))));
  }
  static constexpr float kOff = 3e-5f;
};

std::vector<UnitRange> ranges_of(std::mt19937& rng, std::int32_t sink, std::int32_t stop, std::int32_t most_segment) {
  std::vector<UnitRange> out;
  for (std::int32_t at = sink; at < stop;) {
    const bool clusters = rng() % 3 == 0;
    const std::int32_t most = clusters ? 512 : most_segment;
    const std::int32_t n = std::min(stop - at, 1 + static_cast<std::int32_t>(rng() % static_cast<unsigned>(most)));
    out.push_back({at, at + n, clusters});
    at += n;
  }
  return out;
}

// Thousands of cases: clusters and segments in any order, gates forced, then kept selections while the window grows.
TEST_F(CudaListTest, SelectsWhatTheReferenceSelectsAndKeepsIt) {
  std::mt19937 rng(11);
  int cases = 0, made = 0, same = 0;
  for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS})
    for (const std::int32_t group : {1, 4, 5, 8, 16})
      for (const std::int32_t head_dim : {64, 128})
        for (int round = 0; round < 5; ++round) {
          SCOPED_TRACE(::testing::Message() << "pool " << static_cast<int>(pool) << ", group " << group << ", head_dim "
                                            << head_dim << ", round " << round);
          const auto sink = static_cast<std::int32_t>(rng() % 3 * 21),
                     recent = 64 + static_cast<std::int32_t>(rng() % 40);
          World w({.head_dim = head_dim,
                   .group = group,
                   .max_pages = 44,
                   .budget = sink + recent + 1 + static_cast<std::int32_t>(rng() % 500),
                   .sink = sink,
                   .recent = recent,
                   .largest = 48,
                   .slots = rng() % 2 == 0,
                   .dtype = rng() % 2 == 0 ? DType::kBF16 : DType::kF16,
                   .schedule = ScheduleKind::kBoundary,
                   .pool = pool,
                   .tau = 0.5f},
                  static_cast<unsigned>(rng()), round % 4 == 0 ? 1 : 3);
          Ids lengths, grouped;
          std::vector<HostUnits> units;
          for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
            const std::int32_t length =
                w.s.budget + 1 + static_cast<std::int32_t>(rng() % static_cast<unsigned>(44 * 32 - w.s.budget - 20));
            const std::int32_t from =
                length - 1 - static_cast<std::int32_t>(rng() % static_cast<unsigned>(recent - 20));
            lengths.push_back(length), grouped.push_back(from);
            const auto ranges = ranges_of(rng, sink, from, 64);
            build(w, seq_slot, ranges);
            for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
              units.push_back(host_units(w, seq_slot, head, ranges));
              expect_units(w, seq_slot, head, units.back());
              if (HasFatalFailure()) return;
            }
            fill_slots_cuda(seq_slot, length, w.plan(), w.v, w.pages(), 0, 0, context());
          }
          std::vector<Ids> kept(units.size());
          for (int step = 0; step < 4; ++step) {
            // A step stores its token; here it is copied. The window grows up to its limit.
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
              const auto p = static_cast<std::size_t>(seq_slot);
              if (step > 0 && lengths[p] - grouped[p] < recent) ++lengths[p];
              for (std::int32_t head = 0; w.s.slots && head < w.s.kv_heads; ++head)
                copy_bytes(w.v.slots.data + static_cast<std::size_t>((seq_slot * w.s.kv_heads + head) * w.v.n_slots +
                                                                     sink + (lengths[p] - 1) % recent) *
                                                w.v.token_bytes(),
                           w.token(seq_slot, head, lengths[p] - 1), w.v.token_bytes(), stream);
            }
            const auto q = queries(w, rng, 2);
            const std::vector<bool> moved = draw_moves(w, rng, w.s.seq_slots, w.v.n_heads, 2);
            const Rows rows = rows_of(lengths, step == 0 ? kNoSelection | kNoQuery : 0);
            select_lists_cuda({.rows = rows.rows(), .scratch = w.scratch[0].data()}, w.v, 0, context());
            recall_units_cuda(rows.rows(), SelectWhen::kNow, w.v, w.pages(), 0, 0, 1, context());
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              for (std::int32_t head = 0; head < w.s.kv_heads; ++head, ++cases) {
                const auto at = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head),
                           p = static_cast<std::size_t>(seq_slot);
                if (step == 0 || moved[p]) {
                  const std::int32_t total = grouped[p] - sink, room = w.s.budget - sink - (lengths[p] - grouped[p]),
                                     wanted = std::min(total, std::max(room, w.plan().region.n_select));
                  const Selection want =
                      select(w, units[at], q.data() + at * static_cast<std::size_t>(group * head_dim), wanted);
                  kept[at] = selected_units(w, seq_slot, head);
                  expect_selection(kept[at], units[at], want);
                  ++made, same += kept[at] == want.tokens;
                }
                expect_listed(w, seq_slot, head, lengths[p], grouped[p], kept[at]);
                if (HasFatalFailure()) return;
              }
          }
        }
  EXPECT_GE(cases, 2500);
  EXPECT_GE(same, made * 9 / 10) << "the very same tokens, but for what rounding decides";
}

// A unit with a NaN key is selected only when nothing else is left. Zero queries give equal scores: the later unit
// wins.
TEST_F(CudaListTest, NanIsWorstAndEqualsGoByTheirNumber) {
  std::mt19937 rng(5);
  World w({.group = 4,
           .max_pages = 40,
           .budget = 500,
           .sink = 16,
           .recent = 64,
           .largest = 48,
           .schedule = ScheduleKind::kBoundary,
           .pool = Pool::kMaxQk},
          7, 1);
  const std::uint16_t nan = bf16(kNaN).bits;
  for (const std::int32_t position : {100, 500, 501, 900})
    std::memcpy(const_cast<std::byte*>(w.token(0, 1, position)) + 34, &nan, 2);
  const auto ranges = ranges_of(rng, 16, 1140, 40);
  for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
    build(w, seq_slot, ranges);
    fill_slots_cuda(seq_slot, 1200, w.plan(), w.v, w.pages(), 0, 0, context());
  }
  for (const int largest : {2, 0}) {
    const auto q = queries(w, rng, largest);
    const Rows rows = rows_of(w, 1200, kNoSelection);
    select_lists_cuda({.rows = rows.rows(), .scratch = w.scratch[0].data()}, w.v, 0, context());
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const HostUnits u = host_units(w, seq_slot, head, ranges);
        expect_units(w, seq_slot, head, u);
        if (HasFatalFailure()) return;
        const Selection want = select(w, u, q.data() + (seq_slot * w.v.n_heads + head * 4) * 128,
                                      std::max(w.plan().region.n_select, 500 - 16 - 60));
        ASSERT_EQ(selected_units(w, seq_slot, head), want.tokens) << seq_slot << " " << head << " " << largest;
      }
  }
}

// More candidates than fit a block's shared memory; some of the units, and all of them.
TEST_F(CudaListTest, SortsInDeviceMemoryWhatIsTooMuchForABlock) {
  std::mt19937 rng(17);
  for (const auto& [slots, budget] : {std::pair{false, 9300}, {true, 7900}}) {
    SCOPED_TRACE(::testing::Message() << budget);
    World w({.head_dim = 64,
             .max_pages = 320,
             .budget = budget,
             .sink = 16,
             .recent = 64,
             .largest = 48,
             .slots = slots,
             .schedule = ScheduleKind::kBoundary},
            9, 3);
    const Ids lengths = {10200, budget + 1};
    constexpr std::int32_t kWindow = 60;
    std::vector<HostUnits> units;
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
      const std::int32_t length = lengths[static_cast<std::size_t>(seq_slot)];
      const auto ranges = ranges_of(rng, w.s.sink, length - kWindow, 64);
      build(w, seq_slot, ranges);
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) units.push_back(host_units(w, seq_slot, head, ranges));
      fill_slots_cuda(seq_slot, length, w.plan(), w.v, w.pages(), 0, 0, context());
    }
    for (const int largest : {2, 0}) {
      const auto q = queries(w, rng, largest);
      const Rows rows = rows_of(lengths, kNoSelection);
      select_lists_cuda({.rows = rows.rows(), .scratch = w.scratch[0].data()}, w.v, 0, context());
      recall_units_cuda(rows.rows(), SelectWhen::kNow, w.v, w.pages(), 0, 0, 1, context());
      for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
        for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
          const std::int32_t length = lengths[static_cast<std::size_t>(seq_slot)], total = length - kWindow - w.s.sink;
          const auto at = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
          const Selection want =
              select(w, units[at], q.data() + at * static_cast<std::size_t>(w.s.group * w.s.head_dim),
                     std::min(total, w.plan().region.n_select));
          const Ids got = selected_units(w, seq_slot, head);
          expect_selection(got, units[at], want);
          ASSERT_TRUE(largest > 0 || got == want.tokens) << "equal scores";
          expect_listed(w, seq_slot, head, length, length - kWindow, got);
          if (HasFatalFailure()) return;
        }
    }
  }
}

// Units of a truncated sequence.
TEST_F(CudaListTest, TruncatesUnits) {
  std::mt19937 rng(6);
  World w(
      {.max_pages = 40, .budget = 500, .sink = 16, .recent = 64, .largest = 48, .schedule = ScheduleKind::kBoundary}, 7,
      2);
  auto ranges = ranges_of(rng, 16, 1100, 40);
  build(w, 1, ranges);
  while (ranges.size() > 1) {
    ranges.resize(ranges.size() / 2);
    truncate_units_cuda({.seq_slot = 1}, ranges.back().end, 16, w.v, context());
    EXPECT_EQ(fetch(w.v.index.lists.grouped + 1, 1)[0], ranges.back().end);
    expect_units(w, 1, 0, host_units(w, 1, 0, ranges));
    const UnitRange more{ranges.back().end, ranges.back().end + 30, true};
    build(w, 1, {&more, 1});
    ranges.push_back(more);
    expect_units(w, 1, 1, host_units(w, 1, 1, ranges));
    if (HasFatalFailure()) return;
    ranges.pop_back();
    if (ranges.size() == 1) break;
  }
}

}  // namespace
}  // namespace mneme
