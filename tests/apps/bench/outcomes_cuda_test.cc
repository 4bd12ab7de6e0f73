// Injected outcomes: selections and gates at the rates that were asked for.
#include "apps/bench/device/outcomes_cuda.h"

#include <cstdio>
#include <numeric>

#include "tests/model/cuda/cuda_on_device.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {
namespace {

class CudaOutcomesTest : public CudaSlotsTest {
 protected:
  // Selects and recalls for `length` tokens.
  void step(World& w, std::int32_t length, float turnover) {
    const Rows r = rows_of(w, length, 0);
    const KvTables pages = w.pages();
    const SelectWhen when = SelectWhen::kNow;
    if (w.s.group_tokens > 0) {
      select_tokens_cuda(
          {.rows = r.rows(), .when = when, .scratch = w.scratch[0].data(), .pages = w.s.slots ? nullptr : &pages}, w.v,
          0, context());
    } else {
      select_pages_cuda({.rows = r.rows(), .when = when, .scratch = w.scratch[0].data()}, w.v, 0, context());
    }
    inject_selection_cuda({.cache = w.v, .rows = r.rows(), .pages = pages, .listed = !w.s.slots}, when,
                          {.turnover = turnover}, context());
    if (w.s.slots) recall_units_cuda(r.rows(), when, w.v, pages, 0, 0, 1, context());
    stream.synchronize();
  }
  double turnover_of(World& w, std::int32_t first, float asked) {
    std::mt19937 rng(1);
    queries(w, rng, 2);
    begin(w, first);
    for (std::int32_t length = first; length < first + 20; ++length) step(w, length, asked);
    const auto before = fetch(w.v.counts, 1);
    for (std::int32_t length = first + 20; length < first + 80; ++length) step(w, length, asked);
    const auto after = fetch(w.v.counts, 1);
    EXPECT_EQ(after[0].selected - before[0].selected, static_cast<std::uint64_t>(60 * w.s.kv_heads * w.s.n_select()));
    return static_cast<double>(after[0].replaced - before[0].replaced) /
           static_cast<double>(after[0].selected - before[0].selected);
  }
};

TEST_F(CudaOutcomesTest, PagesAreReplacedAtTheRate) {
  World w({.max_pages = 300, .budget = 64 + 64 + 32 * 10}, 9, 3);
  EXPECT_NEAR(turnover_of(w, 9000, 0.2f), 0.2, 0.03);  // all of them when the candidates change, every 32 steps
}

TEST_F(CudaOutcomesTest, TokensAreReplacedAtTheRate) {
  World w({.max_pages = 300, .budget = 64 + 64 + 200, .group_tokens = 32}, 9, 3);
  // The number of candidates is not a multiple of 128 in between.
  EXPECT_NEAR(turnover_of(w, 9000 + 64 + 64 + 10, 0.1f), 0.1, 0.035);
}

// Attention reads what was injected.
TEST_F(CudaOutcomesTest, TokensInTheirPagesAreListed) {
  World w({.max_pages = 300, .budget = 64 + 64 + 200, .group_tokens = 32, .slots = false}, 9, 3);
  std::mt19937 rng(1);
  queries(w, rng, 2);
  begin(w, 9000);
  for (std::int32_t length = 9000; length < 9003; ++length) step(w, length, 0.1f);
  const auto listed = static_cast<std::size_t>(w.v.max_listed);
  for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
    const auto at = static_cast<std::size_t>(head) * listed;
    const Ids ids = fetch(w.v.selection.ids[0] + at, 200);
    const Ids pages = fetch(w.v.slots.listed + at, listed);
    ASSERT_TRUE(std::is_sorted(ids.begin(), ids.end()));
    for (std::size_t i = 0; i < ids.size(); ++i)
      ASSERT_EQ(std::memcmp(w.host.data() + static_cast<std::size_t>(pages[64 + i]) * w.v.token_bytes(),
                            w.token(0, head, ids[i]), w.v.token_bytes()),
                0)
          << i;
  }
}

// This share of a window's pages differs from the previous window's.
TEST_F(CudaOutcomesTest, WindowsReplaceAtTheRate) {
  constexpr std::int32_t kWindows = 20, kSelect = 10, kFirst = 2, kStride = 12, kRows = 512;
  std::vector<SelectionWindow> windows;
  for (std::int32_t w = 0; w < kWindows; ++w)
    windows.push_back({.row = w * kRows, .n_rows = kRows, .n_candidates = 66 + w, .n_select = kSelect});
  const DeviceArray<SelectionWindow> there(windows);
  const DeviceArray<std::int32_t> units(static_cast<std::size_t>(kWindows) * kStride),
      n_units(Ids(static_cast<std::size_t>(kWindows), kSelect));
  for (const float turnover : {0.0f, 0.1f, 0.25f, 1.0f}) {
    inject_windows_cuda({.windows = there.data(),
                         .n_windows = kWindows,
                         .first_unit = kFirst,
                         .n_candidates = 66 + kWindows,
                         .units = units.data(),
                         .n_units = n_units.data(),
                         .unit_stride = kStride},
                        3 * kRows, turnover, context());
    const Ids got = units.get(stream);
    std::int32_t fresh = 0;
    for (std::int32_t w = 0; w < kWindows; ++w) {
      const Ids now(got.begin() + w * kStride, got.begin() + w * kStride + kSelect);
      ASSERT_TRUE(std::is_sorted(now.begin(), now.end()));
      ASSERT_GE(now.front(), kFirst);
      ASSERT_LT(now.back(), kFirst + 66 + w);
      const Ids before(got.begin() + std::max(w - 1, 0) * kStride,
                       got.begin() + std::max(w - 1, 0) * kStride + kSelect);
      for (const std::int32_t u : now) fresh += std::find(before.begin(), before.end(), u) == before.end() ? 1 : 0;
    }
    EXPECT_NEAR(static_cast<float>(fresh) / static_cast<float>((kWindows - 1) * kSelect), turnover, 0.01);
  }
}

// Steps of whole models, most of them replays of a graph: the rates that their statistics show.
class CudaInjectedStepsTest : public CudaModelTest {};

TEST_F(CudaInjectedStepsTest, HaveTheRates) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1400, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  struct Case {
    const char *name, *overrides;
    KvStore store;
    bool replaces, corrects;  // has units to replace; has a gate
  };
  constexpr auto kDevice = KvStore::kDevice, kHost = KvStore::kHost;
  for (const Case& c : {Case{"quest", "unit=page:32", kHost, true, false},
                        {"quest", "unit=page:16", kHost, true, false},
                        {"fier", "", kHost, true, false},
                        {"freekv", "unit=page:32", kHost, true, true},
                        {"freekv", "unit=page:32", kDevice, true, true},
                        {"mneme", "", kHost, true, true},
                        {"freekv", "unit=token,index=one_bit", kDevice, false, true},
                        {"louiskv", "", kHost, true, true}}) {
    const auto plan = plan_for(*model, c.name, 512, c.overrides);
    for (const float correction : {0.0f, 0.3f, 1.0f}) {
      InjectedOutcomes outcomes({.turnover = 0.2f, .correction = c.corrects ? correction : -1});
      OnDevice on(*model, c.store);
      on.forward.observe(&outcomes);
      SequenceCache cache(*on.pool);
      MethodState method(plan);
      for (int i = 0; i < 160; ++i)
        on.step(cache, all.subspan(static_cast<std::size_t>(cache.length()), i < 3 ? 400 : 1), &method);
      std::int64_t checks = 0, corrections = 0, selected = 0, replaced = 0;
      for (const LayerStats& l : method.stats().layers) {
        selected += l.selected_units, replaced += l.replaced_units;
        checks += std::accumulate(l.gate_checks.begin(), l.gate_checks.end(), std::int64_t{0});
        corrections += std::accumulate(l.corrections.begin(), l.corrections.end(), std::int64_t{0});
      }
      const auto share = [](std::int64_t a, std::int64_t b) { return static_cast<double>(a) / static_cast<double>(b); };
      std::printf("  %s %s: %.3f of %lld units replaced, %.3f of %lld gates flagged\n", c.name, c.overrides,
                  share(replaced, selected), static_cast<long long>(selected), share(corrections, checks),
                  static_cast<long long>(checks));
      SCOPED_TRACE(::testing::Message() << c.name << " " << c.overrides << ", correction " << correction);
      if (c.corrects) {
        ASSERT_GT(checks, 200);
        EXPECT_NEAR(share(corrections, checks), correction, 0.1);
      }
      // A layer that keeps its selection selects only when its gate flags.
      if (c.replaces && (std::string_view(c.name) != "louiskv" || correction > 0)) {
        EXPECT_NEAR(share(replaced, selected), 0.2, 0.1);
      }
      if (!c.corrects) break;
    }
  }
}

}  // namespace
}  // namespace mneme
