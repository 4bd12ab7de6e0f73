// Selection of tokens by 1-bit keys and their recall on the device, against the references on the host.
#include <cmath>

#include "tests/selection/topk/token_select_testing.h"

namespace mneme {
namespace {

using testing::kInf;
using testing::kNaN;

// Zero points, steps and bits of normal values, some not finite; the means of meanabs up to one ulp.
TEST_F(CudaTokenTest, BuildsWhatTheReferenceBuilds) {
  std::mt19937 rng(8);
  for (const OneBitLevels levels : {OneBitLevels::kMinMax, OneBitLevels::kMeanAbs})
    for (const std::int32_t group_tokens : {32, 64, 128, 256})
      for (const std::int32_t head_dim : {64, 128})
        for (const DType dtype : {DType::kBF16, DType::kF16}) {
          SCOPED_TRACE(::testing::Message() << group_tokens << " " << head_dim << " " << dtype_name(dtype));
          World w(
              {.head_dim = head_dim, .max_pages = 24, .group_tokens = group_tokens, .levels = levels, .dtype = dtype},
              static_cast<unsigned>(rng()), 3);
          auto* values = w.host.as<std::uint16_t>();
          std::normal_distribution<float> normal;
          for (std::size_t i = 0; i < w.host.size() / 2; ++i) {
            float x = normal(rng) * std::exp2(static_cast<float>(i % 7) - 3.0f);
            if (rng() % 20000 == 0) x = rng() % 2 == 0 ? kNaN : -kInf;
            values[i] = dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits;
          }
          begin(w, 24 * kKvPageTokens);
          stream.synchronize();
          for (std::int32_t number = 0; number < 24 * kKvPageTokens / group_tokens; ++number) {
            std::vector<KvRun> runs;
            for (std::int32_t t = 0; t < group_tokens; t += kKvPageTokens)
              runs.push_back({w.page(1, 0, (number * group_tokens + t) / kKvPageTokens), kKvPageTokens});
            std::vector<std::byte> want(one_bit_group_bytes(head_dim, group_tokens));
            one_bit_build_ref(runs, w.shape(), group_tokens, levels, want.data());
            const std::vector<std::byte> got = group(w, 1, 0, number);
            if (levels == OneBitLevels::kMinMax) {
              for (int i = 0; i < 2 * head_dim; ++i) {
                const float a = level(got, i), b = level(want, i);
                ASSERT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << i << ": " << a << ", not " << b;
              }
              ASSERT_EQ(std::memcmp(got.data() + 4 * head_dim, want.data() + 4 * head_dim,
                                    want.size() - static_cast<std::size_t>(4 * head_dim)),
                        0);
              continue;
            }
            float largest = 0;
            for (int i = head_dim; i < 2 * head_dim; ++i)
              if (!std::isnan(level(want, i))) largest = std::max(largest, level(want, i));
            for (int i = 0; i < 2 * head_dim; ++i) {
              const float a = level(got, i), b = level(want, i);
              if (std::isnan(b)) {
                ASSERT_TRUE(std::isnan(a));
              } else {
                ASSERT_LE(std::abs(a - b), i < head_dim ? 0.0079f * std::max(std::abs(b), 0.02f) : largest / 100);
              }
            }
          }
        }
}

// Thousands of cases: rows of several lengths, sinks and windows that are multiples of nothing.
TEST_F(CudaTokenTest, SelectsWhatTheReferenceSelects) {
  std::mt19937 rng(11);
  int cases = 0;
  for (const Pool pool : {Pool::kMaxQk, Pool::kMeanQk, Pool::kMaxS, Pool::kMeanS})
    for (const std::int32_t group : {1, 4, 7, 8, 16})
      for (const std::int32_t head_dim : {64, 128})
        for (const std::int32_t group_tokens : {32, 64, 128, 256}) {
          SCOPED_TRACE(::testing::Message() << "pool " << static_cast<int>(pool) << ", group " << group << ", head_dim "
                                            << head_dim << ", groups of " << group_tokens);
          const auto sink = static_cast<std::int32_t>(rng() % 3 * 37),
                     recent = static_cast<std::int32_t>(rng() % 2 * 90);
          World w({.head_dim = head_dim,
                   .group = group,
                   .max_pages = 44,
                   .budget = sink + std::max(recent, group_tokens) + 1 + static_cast<std::int32_t>(rng() % 100),
                   .sink = sink,
                   .recent = recent,
                   .group_tokens = group_tokens,
                   .slots = rng() % 2 == 0,
                   .dtype = rng() % 2 == 0 ? DType::kBF16 : DType::kF16,
                   .pool = pool},
                  static_cast<unsigned>(rng()), 3);
          for (int round = 0; round < 4; ++round) {
            Ids lengths;
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              lengths.push_back(w.s.budget + 1 + static_cast<std::int32_t>(rng() % (44 * 32 - w.s.budget - 1)));
            if (round == 0) lengths[0] = w.s.budget + 1;
            begin(w, 44 * kKvPageTokens);
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              fill_slots_cuda(seq_slot, lengths[static_cast<std::size_t>(seq_slot)], w.plan(), w.v, w.pages(), 0, 0,
                              context());
            const auto q = queries(w, rng, 2);
            run(w, rows_of(lengths, 1), SelectWhen::kNow);
            for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
              for (std::int32_t head = 0; head < w.s.kv_heads; ++head, ++cases) {
                const std::int32_t length = lengths[static_cast<std::size_t>(seq_slot)];
                const Ids got = selected_units(w, seq_slot, head, SelectWhen::kNow);
                const Selection want =
                    select(w, seq_slot, head, length, q.data() + (seq_slot * w.v.n_heads + head * group) * head_dim);
                expect_selection(got, want, pool == Pool::kMaxQk || pool == Pool::kMeanQk || group == 1);
                expect_listed(w, seq_slot, head, length, got);
                if (HasFatalFailure()) return;
              }
          }
        }
  EXPECT_GE(cases, 2500);
}

// Queries of zeros and a few ones: equal scores, the larger position wins, on the device as on the host.
TEST_F(CudaTokenTest, EqualScoresGiveEqualSets) {
  std::mt19937 rng(5);
  World w({.head_dim = 64, .group = 2, .kv_heads = 8, .max_pages = 200, .group_tokens = 32}, 77, 1);
  const std::int32_t length = 6371;
  begin(w, 6368);
  for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
    fill_slots_cuda(seq_slot, length, w.plan(), w.v, w.pages(), 0, 0, context());
  for (int round = 0; round < 40; ++round) {
    const auto q = queries(w, rng, round % 2);
    run(w, rows_of(w, length, 1), SelectWhen::kNow);
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const Selection want = select(w, seq_slot, head, length, q.data() + (seq_slot * w.v.n_heads + head * 2) * 64);
        ASSERT_EQ(selected_units(w, seq_slot, head, SelectWhen::kNow), want.ids) << "round " << round;
      }
  }
}

// A group with a non-finite key is selected only when nothing else is left.
TEST_F(CudaTokenTest, NanIsWorst) {
  std::mt19937 rng(5);
  for (const Pool pool : {Pool::kMaxQk, Pool::kMeanS}) {
    World w({.group = 4, .max_pages = 40, .budget = 700, .group_tokens = 32, .pool = pool}, 7, 2);
    const std::uint16_t nan = bf16(kNaN).bits;
    for (const std::int32_t position : {100, 500, 501, 900})
      std::memcpy(w.page(0, 1, position / 32) + static_cast<std::size_t>(position % 32) * w.v.token_bytes() + 34, &nan,
                  2);
    begin(w, 1184);
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      fill_slots_cuda(seq_slot, 1200, w.plan(), w.v, w.pages(), 0, 0, context());
    const auto q = queries(w, rng, 2);
    run(w, rows_of(w, 1200, 1), SelectWhen::kNow);
    const Selection want = select(w, 0, 1, 1200, q.data() + 4 * 128);
    const Ids got = selected_units(w, 0, 1, SelectWhen::kNow);
    expect_selection(got, want, pool == Pool::kMaxQk);
    for (const std::int32_t id : got) ASSERT_TRUE(id / 32 != 3 && id / 32 != 15 && id / 32 != 28) << id;
  }
}

// A context whose values do not fit shared memory; a cluster of the largest size.
TEST_F(CudaTokenTest, SelectsFromLongContexts) {
  std::mt19937 rng(7);
  const std::int32_t length = 300'000;
  for (const std::int32_t group : {1, 4}) {
    World w({.head_dim = 64,
             .group = group,
             .kv_heads = 1,
             .seq_slots = 1,
             .max_pages = length / 32 + 1,
             .budget = 2048,
             .group_tokens = 32,
             .slots = false,
             .pool = group == 1 ? Pool::kMaxQk : Pool::kMeanS},
            static_cast<unsigned>(rng()), 3);
    begin(w, length);
    const auto q = queries(w, rng, 2);
    run(w, rows_of(w, length, 1), SelectWhen::kNow);
    expect_selection(selected_units(w, 0, 0), select(w, 0, 0, length, q.data()), group == 1);
    if (HasFatalFailure()) return;
  }
}

// Newly selected units are counted where there are cache slots (last-used stamps), and elsewhere not; after a reset all
// units are new.
TEST_F(CudaTokenTest, CountsWhatIsNew) {
  std::mt19937 rng(21);
  for (const bool slots : {true, false})
    for (const std::int32_t sink : {0, 64, 133}) {
      World w({.kv_heads = 3, .max_pages = 75, .budget = 500, .sink = sink, .group_tokens = 32, .slots = slots}, 8, 3);
      std::int32_t length = 2250;
      begin(w, length);
      const DeviceArray<std::int32_t> layers(Ids{0});
      Attended attended(w);
      auto q = queries(w, rng, 3);
      for (int step = 0; step < 70; ++step, ++length) {
        const bool reselected = step == 0 || step == 40;
        if (reselected)
          for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
            fill_slots_cuda(seq_slot, length, w.plan(), w.v, w.pages(), 0, 0, context());
        write_newest(w, length);
        if (step % 5 != 0) {  // nearly the query of the previous step
          for (std::size_t i = 0; i < q.size(); i += 9) q[i] = static_cast<float>(static_cast<int>(rng() % 7) - 3);
          set_queries(w, q);
        } else {
          q = queries(w, rng, 3);
        }
        const Rows r = rows_of(w, length, reselected ? 1 : 0);
        run(w, r, SelectWhen::kNow);
        if (step == 40) attended.before = Attended(w).before;
        for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
          for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
            const float* of_head = q.data() + (seq_slot * w.v.n_heads + head * w.s.group) * w.s.head_dim;
            attended.add(seq_slot, head, select(w, seq_slot, head, length, of_head).ids);
          }
        attended.expect(fetch(w.v.counts, static_cast<std::size_t>(w.s.seq_slots)), slots);
        if (HasFatalFailure()) return;
        close_unit_entries_cuda({.rows = r.rows(), .first = 0, .stop = 1, .model_layers = layers.data()}, w.v,
                                w.pages(), context());
      }
    }
}

// Recall lists that need shared memory between the default limit and the limit less the static part.
TEST_F(CudaTokenTest, ListsOfEverySizeFit) {
  std::mt19937 rng(7);
  for (const std::int32_t budget : {4096, 4288, 4416, 4640}) {
    World w({.head_dim = 64,
             .group = 1,
             .kv_heads = 1,
             .seq_slots = 1,
             .max_pages = 160,
             .budget = budget,
             .group_tokens = 32},
            static_cast<unsigned>(rng()), 3);
    const std::int32_t length = 5000;
    begin(w, length);
    const auto q = queries(w, rng, 2);
    run(w, rows_of(w, length, 1), SelectWhen::kNow);
    const Ids got = selected_units(w, 0, 0);
    expect_selection(got, select(w, 0, 0, length, q.data()), true);
    expect_listed(w, 0, 0, length, got);
    if (HasFatalFailure()) return;
  }
}

// Up to the budget, all tokens are attended.
TEST_F(CudaTokenTest, AttendsEverythingUpToTheBudget) {
  for (const bool slots : {true, false}) {
    World w({.max_pages = 64, .group_tokens = 32, .slots = slots}, 9, 3);
    for (const std::int32_t length : {1, 31, 32, 33, 383, 384}) {
      begin(w, length);
      run(w, rows_of(w, length, 1), SelectWhen::kNow);
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const auto index = static_cast<std::size_t>(head);
        const auto listed = fetch(w.v.slots.listed + index * static_cast<std::size_t>(w.v.max_listed),
                                  static_cast<std::size_t>(length));
        for (std::int32_t t = 0; t < length; ++t) {
          const auto at = static_cast<std::size_t>(listed[static_cast<std::size_t>(t)]) * w.v.token_bytes();
          const auto got = slots ? fetch(w.v.slots.data + at, w.v.token_bytes())
                                 : std::vector<std::byte>(w.host.data() + at, w.host.data() + at + w.v.token_bytes());
          ASSERT_EQ(std::memcmp(got.data(), w.token(0, head, t), w.v.token_bytes()), 0) << t << " of " << length;
        }
      }
    }
  }
}

}  // namespace
}  // namespace mneme
