// Summaries on the device: frames, entries and selections by them, against the CPU's.
#include "src/selection/summary/summary_cuda.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <tuple>

#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/summary/key_frame.h"
#include "src/selection/summary/moments.h"
#include "src/selection/summary/sketch.h"
#include "src/selection/topk/topk.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {
namespace {

struct Form {
  EntryKind kind;
  std::int32_t rank = 0, head_dim = 64, group = 4;
  bool by_token = false;
  Pool pool = Pool::kMeanS;
  DType dtype = DType::kBF16;
};

constexpr std::int32_t kPage = 32, kLength = 40 * kPage;

std::int32_t entry_bytes(const Form& f) {
  return static_cast<std::int32_t>(f.kind == EntryKind::kCentroidSet ? centroids_entry_bytes(f.head_dim, f.rank)
                                   : f.kind == EntryKind::kSketch    ? sketch_entry_bytes(f.head_dim, kPage, f.rank)
                                                                     : moments_entry_bytes(f.head_dim));
}
std::int32_t frame_floats(const Form& f) {
  return static_cast<std::int32_t>(f.kind == EntryKind::kCentroidSet ? centroids_frame_floats(f.head_dim)
                                   : f.kind == EntryKind::kSketch    ? sketch_frame_floats(f.head_dim, f.rank)
                                                                     : 0);
}

mneme::Setup setup_of(const Form& f) {
  return {.head_dim = f.head_dim,
          .group = f.group,
          .max_pages = 64,
          .budget = f.by_token ? 37 + 160 + 100 : 384,
          .sink = f.by_token ? 37 : 64,
          .recent = f.by_token ? 160 : 64,
          .single = f.by_token,
          .dtype = f.dtype,
          .pool = f.pool,
          .own_arrays = false};
}

class CudaSummaryTest : public CudaSlotsTest {
 protected:
  // Keys of pages around means of their own, some channels 20 times as wide as others; and the arrays of their entries.
  void prepare(World& w, const Form& f, unsigned seed) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal;
    const std::int32_t d = f.head_dim;
    std::vector<float> mean(static_cast<std::size_t>(d));
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head)
        for (std::int32_t t = 0; t < w.s.max_pages * kPage; ++t) {
          auto* key = reinterpret_cast<std::uint16_t*>(const_cast<std::byte*>(w.token(seq_slot, head, t)));
          for (std::int32_t c = 0; c < d; ++c) {
            if (t % kPage == 0) mean[static_cast<std::size_t>(c)] = normal(rng);
            const float x = (c % 5 == 0 ? 4.0f : 0.2f) * (mean[static_cast<std::size_t>(c)] + normal(rng));
            key[c] = f.dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits;
          }
        }
    UnitEntries& e = w.v.index.entries;
    e = {.kind = f.kind,
         .tokens = kPage,
         .bytes = entry_bytes(f),
         .most = w.s.max_pages,
         .rank = f.rank,
         .frame_floats = frame_floats(f)};
    const std::size_t heads = static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads);
    w.take(&e.data, heads * static_cast<std::size_t>(e.most * e.bytes));
    w.take(reinterpret_cast<void**>(&e.frames), heads * static_cast<std::size_t>(e.frame_floats) * sizeof(float) + 4);
    w.v.selection.whole_attention = true;
    plan_ = w.plan();
    plan_.units.entry_tokens = kPage;
    send_rules(w);
    fit_scratch_ = DeviceArray<std::byte>(fit_frames_scratch_bytes(w.v), 0);
    select_scratch_ = DeviceArray<std::byte>(unfused_select_scratch_bytes(w.v, w.s.seq_slots), 0);
    token_scratch_ = DeviceArray<std::byte>(select_tokens_scratch_bytes(w.v, w.s.seq_slots), 0);
  }
  void send_rules(World& w) {
    const std::vector<SelectionPlan> of_all(static_cast<std::size_t>(w.s.seq_slots), plan_);
    copy_bytes(w.v.plans, of_all.data(), of_all.size() * sizeof(SelectionPlan), stream);
    stream.synchronize();
  }
  // Frames and entries of all sequence slots, for `length` tokens.
  void build(World& w, std::int32_t length) {
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
      if (w.v.index.entries.frame_floats > 0)
        fit_frames_cuda({.of = {.seq_slot = seq_slot, .key_slot = seq_slot},
                         .pages = KeyFrame::pages_for(length / kPage),
                         .scratch = fit_scratch_.data()},
                        w.v, w.pages(), context());
      build_summaries_cuda({.of = {.seq_slot = seq_slot, .key_slot = seq_slot}, .stop = length / kPage}, w.v, w.pages(),
                           context());
    }
  }
  std::vector<float> frame_of(const World& w, std::int32_t seq_slot, std::int32_t head) {
    const UnitEntries& e = w.v.index.entries;
    return fetch(e.frames + std::int64_t{seq_slot * w.s.kv_heads + head} * e.frame_floats,
                 static_cast<std::size_t>(e.frame_floats));
  }
  std::vector<std::byte> entries_of(const World& w, std::int32_t seq_slot, std::int32_t head) {
    const UnitEntries& e = w.v.index.entries;
    return fetch(e.data + std::int64_t{seq_slot * w.s.kv_heads + head} * e.most * e.bytes,
                 static_cast<std::size_t>(e.most * e.bytes));
  }
  static float value_of(std::uint16_t bits, DType dtype) {
    bf16 b;
    f16 h;
    b.bits = h.bits = bits;
    return dtype == DType::kBF16 ? static_cast<float>(b) : static_cast<float>(h);
  }
  // Keys of pages [first, first + n), f32.
  static std::vector<float> keys_of(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t first,
                                    std::int32_t n) {
    std::vector<float> keys;
    for (std::int32_t t = first * kPage; t < (first + n) * kPage; ++t) {
      const auto* key = reinterpret_cast<const std::uint16_t*>(w.token(seq_slot, head, t));
      for (std::int32_t c = 0; c < w.s.head_dim; ++c) keys.push_back(value_of(key[c], w.s.dtype));
    }
    return keys;
  }
  static std::vector<std::byte> by_cpu(const Form& f, const std::vector<float>& keys, const std::vector<float>& frame) {
    const std::size_t bytes = static_cast<std::size_t>(entry_bytes(f)),
                      page = static_cast<std::size_t>(kPage * f.head_dim), n = keys.size() / page;
    std::vector<std::byte> entries(n * bytes);
    for (std::size_t p = 0; p < n; ++p) {
      const float* from = keys.data() + p * page;
      std::byte* to = entries.data() + p * bytes;
      if (f.kind == EntryKind::kCentroidSet)
        centroids_build_cpu(from, kPage, f.head_dim, f.rank, frame.data(), to);
      else if (f.kind == EntryKind::kSketch)
        sketch_build_cpu(from, kPage, f.head_dim, f.rank, frame.data(), to);
      else
        moments_build_cpu(from, kPage, f.head_dim, to);
    }
    return entries;
  }
  static void score(const Form& f, const SummaryScores& task) {
    if (f.kind == EntryKind::kCentroidSet)
      centroids_score_cpu(task, f.rank);
    else if (f.kind == EntryKind::kSketch)
      sketch_score_cpu(task, f.rank, f.by_token);
    else
      moments_score_cpu(task);
  }
  // Pooled scores of the candidates, by the CPU from the device's entries; fixed: of sinks and window, behind them.
  std::vector<float> pooled_by_cpu(const World& w, const Form& f, std::int32_t seq_slot, std::int32_t head,
                                   const Region& region, const float* q, bool fixed) {
    const std::int32_t each = f.by_token ? kPage : 1, begin = region.first_unit / each,
                       stop = (region.last_unit + each - 1) / each, n = region.last_unit - region.first_unit;
    const std::vector<std::byte> entries = entries_of(w, seq_slot, head);
    const std::vector<float> frame = frame_of(w, seq_slot, head);
    const std::int64_t all = std::int64_t{stop - begin} * each;
    std::vector<float> scores(static_cast<std::size_t>(all * f.group));
    score(f, {.q = q,
              .frame = frame.data(),
              .entries = entries.data() + std::int64_t{begin} * w.v.index.entries.bytes,
              .n = stop - begin,
              .group = f.group,
              .head_dim = f.head_dim,
              .page = kPage,
              .alpha = plan_.scores.alpha,
              .scores = scores.data(),
              .stride = all});
    const std::int32_t width = n + (fixed ? 1 : 0);
    std::vector<float> cut(static_cast<std::size_t>(width * f.group)), pooled(static_cast<std::size_t>(width));
    for (std::int32_t g = 0; g < f.group; ++g) {
      std::copy_n(scores.begin() + g * all + (region.first_unit - begin * each), n, cut.begin() + g * width);
      if (fixed)
        cut[static_cast<std::size_t>(g * width + n)] = fixed_by_cpu(w, seq_slot, head, region, q + g * f.head_dim);
    }
    group_pool_cpu(cut.data(), width, f.group, width, f.pool, plan_.scores.alpha, pooled.data());
    return pooled;
  }
  float fixed_by_cpu(const World& w, std::int32_t seq_slot, std::int32_t head, const Region& region, const float* q) {
    const std::vector<float> keys = keys_of(w, seq_slot, head, 0, kLength / kPage);
    std::vector<double> scores;
    for (std::int32_t t = 0; t < kLength; ++t) {
      if (t >= region.sink && t < region.recent_from) continue;
      double dot = 0;
      for (std::int32_t c = 0; c < w.s.head_dim; ++c)
        dot += static_cast<double>(q[c]) * static_cast<double>(keys[static_cast<std::size_t>(t * w.s.head_dim + c)]);
      scores.push_back(static_cast<double>(plan_.scores.alpha) * dot);
    }
    const double most = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (const double x : scores) sum += std::exp(x - most);
    return static_cast<float>((most + std::log(sum)) / static_cast<double>(plan_.scores.alpha));
  }
  Region region_of(const World& w) const {
    return region_at({.budget = w.s.budget,
                      .sink = w.s.sink,
                      .recent = w.s.recent,
                      .unit_tokens = w.s.unit(),
                      .entry_tokens = kPage},
                     kLength);
  }
  // by_scan: single tokens by the scan of sketches, where it takes them.
  void select(World& w, const Rows& rows, bool by_scan) {
    const bool scans = by_scan && w.s.single && plan_.scores.domain == Domain::kCandidates;
    unfused_select_cuda({.rows = rows.rows(),
                         .when = SelectWhen::kNow,
                         .pages = w.pages(),
                         .layer = 0,
                         .token_scratch = scans ? token_scratch_.data() : nullptr,
                         .scratch = select_scratch_.data()},
                        w.v, 0, context());
  }
  SelectionPlan plan_;
  DeviceArray<std::byte> fit_scratch_{0}, select_scratch_{0}, token_scratch_{0};
};

const Form kForms[] = {{EntryKind::kCentroidSet, 8},
                       {EntryKind::kCentroidSet, 8, 128, 1},
                       {EntryKind::kCentroidSet, 8, 128, 4},
                       {EntryKind::kCentroidSet, 8, 64, 3, false, Pool::kMaxQk, DType::kF16},
                       {EntryKind::kCentroidSet, 3, 128, 7, false, Pool::kMaxQk},
                       {EntryKind::kCentroidSet, 16, 64, 16, false, Pool::kMaxS},
                       {EntryKind::kCentroidSet, 1, 128, 8, false, Pool::kMeanQk, DType::kF16},
                       {EntryKind::kSketch, 12},
                       {EntryKind::kSketch, 5, 128, 7, false, Pool::kMaxQk},
                       {EntryKind::kSketch, 12, 128, 1, true, Pool::kMaxQk},
                       {EntryKind::kSketch, 12, 64, 8, true},
                       {EntryKind::kSketch, 20, 128, 4, true, Pool::kMaxS, DType::kF16},
                       {EntryKind::kMoments},
                       {EntryKind::kMoments, 0, 128, 7, false, Pool::kMeanQk, DType::kF16}};

// Codes differ only where a value lies within rounding of the middle between two.
TEST_F(CudaSummaryTest, EntriesAreTheCpusButForRounding) {
  for (const Form& f : kForms) {
    SCOPED_TRACE(::testing::Message() << "kind " << static_cast<int>(f.kind) << ", " << f.rank << ", heads of "
                                      << f.head_dim);
    World w(setup_of(f), 5, 4);
    prepare(w, f, 7);
    build(w, kLength);
    for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
      const std::vector<std::byte> got = entries_of(w, 1, head),
                                   want = by_cpu(f, keys_of(w, 1, head, 0, kLength / kPage), frame_of(w, 1, head));
      std::size_t same = 0;
      for (std::size_t i = 0; i < want.size(); ++i) same += got[i] == want[i] ? 1 : 0;
      EXPECT_GE(static_cast<double>(same), 0.97 * static_cast<double>(want.size()));
    }
  }
}

// Mean, covariance and deviations; the basis of a sketch may turn within its subspace, so of it only what it leaves.
TEST_F(CudaSummaryTest, FramesAreTheCpus) {
  for (const Form& f : kForms) {
    if (frame_floats(f) == 0) continue;
    SCOPED_TRACE(::testing::Message() << "kind " << static_cast<int>(f.kind) << ", " << f.rank << ", heads of "
                                      << f.head_dim);
    World w(setup_of(f), 5, 4);
    prepare(w, f, 7);
    build(w, kLength);
    const std::int32_t pages = KeyFrame::pages_for(kLength / kPage);
    const std::vector<float> keys = keys_of(w, 0, 1, 1, pages - 1), got = frame_of(w, 0, 1);
    std::vector<float> want(got.size());
    const bool sketch = f.kind == EntryKind::kSketch;
    if (sketch)
      sketch_fit_cpu(keys.data(), pages - 1, kPage, f.head_dim, f.rank, want.data());
    else
      centroids_fit_cpu(keys.data(), pages - 1, kPage, f.head_dim, f.rank, want.data());
    const std::int32_t d = f.head_dim, covariance = d * (sketch ? 1 + f.rank : 1);
    double error = 0, size = 0;
    for (std::int32_t i = 0; i < d * d; ++i) {
      const auto at = static_cast<std::size_t>(covariance + i);
      error += std::pow(static_cast<double>(got[at] - want[at]), 2);
      size += std::pow(static_cast<double>(want[at]), 2);
    }
    EXPECT_LE(std::sqrt(error / size), sketch ? 0.05 : 0.02);
    for (std::int32_t c = 0; c < d; ++c)
      ASSERT_NEAR(got[static_cast<std::size_t>(c)], want[static_cast<std::size_t>(c)], 1e-4);
    for (std::size_t at = static_cast<std::size_t>(covariance + d * d); at < got.size(); ++at)
      ASSERT_NEAR(got[at], want[at], 0.02f * std::abs(want[at]));
  }
}

TEST_F(CudaSummaryTest, TheNewestTokenClosesItsEntry) {
  for (const Form& f : kForms) {
    World w(setup_of(f), 5, 4);
    prepare(w, f, 7);
    build(w, kLength);
    const std::vector<std::byte> want = entries_of(w, 1, 1);
    const std::int64_t last = (kLength / kPage - 1) * std::int64_t{w.v.index.entries.bytes};
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
      set_bytes(w.v.index.entries.data +
                    std::int64_t{seq_slot * w.s.kv_heads + 1} * w.v.index.entries.most * w.v.index.entries.bytes + last,
                0xff, static_cast<std::size_t>(w.v.index.entries.bytes), stream);
      fill_slots_cuda(seq_slot, kLength, plan_, w.v, w.pages(), 0, 0, context());
    }
    const DeviceArray<std::int32_t> layers(Ids{0});
    close_summaries_cuda({.rows = rows_of(w, kLength - 1, 0).rows(), .stop = 1, .model_layers = layers.data()}, w.v,
                         w.pages(), context());
    EXPECT_NE(entries_of(w, 1, 1), want);
    close_summaries_cuda({.rows = rows_of(w, kLength, 0).rows(), .stop = 1, .model_layers = layers.data()}, w.v,
                         w.pages(), context());
    EXPECT_EQ(entries_of(w, 1, 1), want);
  }
}

TEST_F(CudaSummaryTest, SelectsWhatTheCpuSelects) {
  for (const Form& f : kForms)
    for (const auto& [whole, by_scan] : {std::pair{false, false}, {true, false}, {false, true}}) {
      if (by_scan && !f.by_token) continue;
      SCOPED_TRACE(::testing::Message() << "kind " << static_cast<int>(f.kind) << ", " << f.rank << ", heads of "
                                        << f.head_dim << ", group " << f.group << (f.by_token ? ", tokens" : "")
                                        << (by_scan ? ", scan" : ""));
      World w(setup_of(f), 5, 4);
      prepare(w, f, 11);
      plan_.scores.domain = whole ? Domain::kAttention : Domain::kCandidates;
      send_rules(w);
      build(w, kLength);
      for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
        fill_slots_cuda(seq_slot, kLength, plan_, w.v, w.pages(), 0, 0, context());
      std::mt19937 rng(3);
      const std::vector<float> q = queries(w, rng, 1);
      select(w, rows_of(w, kLength, 1), by_scan);
      const Region region = region_of(w);
      for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
        for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
          Selection want{.region = region, .ids = Ids(static_cast<std::size_t>(region.n_select)), .pooled = {}};
          want.pooled = pooled_by_cpu(w, f, seq_slot, head, region,
                                      q.data() + (seq_slot * w.v.n_heads + head * f.group) * f.head_dim, whole);
          topk_ref(std::span(want.pooled).first(static_cast<std::size_t>(region.last_unit - region.first_unit)),
                   region.n_select, want.ids.data());
          for (std::int32_t& id : want.ids) id += region.first_unit;
          // Products of rounded values: 16 bits of a query, f32 sums in another order.
          const Ids got = selected_units(w, seq_slot, head);
          ASSERT_EQ(got.size(), want.ids.size());
          float least = testing::kInf;
          const auto of = [&](std::int32_t id) {
            return want.pooled[static_cast<std::size_t>(id - region.first_unit)];
          };
          for (const std::int32_t id : want.ids) least = std::min(least, of(id));
          for (const std::int32_t id : got) ASSERT_GE(of(id), least - 2e-3f * std::max(1.0f, std::abs(least)));
        }
    }
}

// Mass that a wrong selection lacks, as a share of what it attends with sinks and window.
TEST_F(CudaSummaryTest, MissingMassIsAShareOfWhatIsAttended) {
  const Form f{EntryKind::kCentroidSet, 8, 128, 4};
  World w(setup_of(f), 5, 4);
  prepare(w, f, 13);
  plan_.schedule = ScheduleKind::kSpeculative, plan_.scores.domain = Domain::kAttention;
  std::mt19937 rng(3);
  plan_.gate.kind = GateKind::kMass, plan_.gate.eps = 0.1f;
  for (const bool of_attended : {false, true}) {
    plan_.gate.of_attended = of_attended;
    send_rules(w);
    build(w, kLength);
    const Region region = region_of(w);
    Ids speculative(static_cast<std::size_t>(region.n_select));
    for (std::size_t i = 0; i < speculative.size(); ++i)
      speculative[i] = region.first_unit + 3 * static_cast<std::int32_t>(i);
    const std::vector<float> q = queries(w, rng, 1);
    for (std::int32_t i = 0; i < w.s.seq_slots * w.s.kv_heads; ++i) {
      fill_slots_cuda(i % w.s.seq_slots, kLength, plan_, w.v, w.pages(), 0, 0, context());
    }
    for (std::int32_t i = 0; i < w.s.seq_slots * w.s.kv_heads; ++i) {
      copy_bytes(w.v.selection.ids[1] + std::int64_t{i} * w.v.max_listed, speculative.data(), speculative.size() * 4,
                 stream);
      copy_bytes(w.v.selection.n[1] + i, &region.n_select, 4, stream);
    }
    stream.synchronize();
    select(w, rows_of(w, kLength, 0), false);
    const std::vector<float> mass = fetch(w.v.selection.mass, static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads));
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const std::vector<float> all = pooled_by_cpu(
            w, f, seq_slot, head, region, q.data() + (seq_slot * w.v.n_heads + head * f.group) * f.head_dim, true);
        Ids wanted = selected_units(w, seq_slot, head), there = speculative;
        for (std::int32_t& u : wanted) u -= region.first_unit;
        for (std::int32_t& u : there) u -= region.first_unit;
        float want = missing_mass_ref(all, 1.0f, wanted, there);
        there.push_back(static_cast<std::int32_t>(all.size()) - 1);
        if (of_attended) want /= missing_mass_ref(all, 1.0f, there, {});
        EXPECT_NEAR(mass[static_cast<std::size_t>(seq_slot * w.s.kv_heads + head)], want, 2e-3f * std::max(1.0f, want));
      }
  }
}

}  // namespace
}  // namespace mneme
