// Drops on the device against keep_largest(): rows of several rules beside each other, step after step.
#include "src/selection/mass/drop_least_cuda.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/cuda/cuda_testing.h"
#include "tests/selection/mass/drop_least_testing.h"

namespace mneme {
namespace {

using testing::DropHead;

constexpr std::int32_t kLayers = 3;

// Sequences on the device, and their heads here.
struct Sequences {
  std::int32_t n_kv, n, max_pages;
  std::int64_t stride;
  std::vector<DropTask> rows;               // by sequence
  std::vector<std::vector<DropHead>> sums;  // [sequence][layers * KV heads]; scores: received, or given last
  std::vector<std::int32_t> shifts, first_slots;
  std::vector<std::uint32_t> masks;

  std::size_t head(std::int32_t sequence, std::int32_t head) const {
    return static_cast<std::size_t>(sequence * kLayers * n_kv + head);
  }
};

class CudaDropLeastTest : public CudaTest {
 protected:
  // Rows of mass and slots of tables are not in the order of sequences.
  Sequences make(std::int32_t n_kv, const std::vector<DropTask>& rules, std::int32_t slots, std::mt19937& rng) {
    Sequences s{.n_kv = n_kv,
                .n = static_cast<std::int32_t>(rules.size()),
                .max_pages = (slots + 31) / 32 + 4,
                .stride = slots + 70,
                .rows = rules,
                .sums = {},
                .shifts = {},
                .first_slots = {},
                .masks = {}};
    const std::size_t heads = s.head(s.n, 0);
    s.sums.resize(rules.size());
    s.shifts.resize(heads);
    s.first_slots.resize(heads);
    s.masks.assign(heads * static_cast<std::size_t>(s.max_pages), ~0u);
    for (std::int32_t i = 0; i < s.n; ++i) {
      DropTask& row = s.rows[static_cast<std::size_t>(i)];
      row.mass_row = s.n - 1 - i, row.seq_slot = (i + 1) % s.n;
      row.length = slots + 40;
      for (std::int32_t h = 0; h < kLayers * n_kv; ++h) add_head(s, i, h, slots, rng);
    }
    return s;
  }

  void add_head(Sequences& s, std::int32_t i, std::int32_t h, std::int32_t slots, std::mt19937& rng) {
    const DropTask& row = s.rows[static_cast<std::size_t>(i)];
    auto& heads = s.sums[static_cast<std::size_t>(i)];
    const bool as_first = row.one_a_layer && h % s.n_kv > 0;
    DropHead head;
    head.place = {.n_slots = slots - (row.one_a_layer ? 0 : static_cast<std::int32_t>(rng() % 9)),
                  .first_slot = i % 2 == 0 ? 0 : 3,
                  .recent = row.recent,
                  .keep = row.keep};
    head.masks.assign(static_cast<std::size_t>(s.max_pages), ~0u);
    for (std::int32_t at = 0; at < head.place.n_slots - row.recent; ++at)
      if (rng() % 5 == 0) head.masks[static_cast<std::size_t>(at / 32)] &= ~(1u << at % 32);
    if (as_first) head.masks = heads[static_cast<std::size_t>(h / s.n_kv * s.n_kv)].masks;
    head.scores.assign(static_cast<std::size_t>(s.stride), 0.0f);
    for (float& v : head.scores) v = testing::drawn_score(rng);
    s.shifts[s.head(row.seq_slot, h)] = row.length - head.place.n_slots;
    s.first_slots[s.head(row.mass_row, h)] = h / s.n_kv == 1 ? -1 : head.place.first_slot;  // layer 1 drops nothing
    std::copy(head.masks.begin(), head.masks.end(),
              s.masks.begin() + static_cast<std::ptrdiff_t>(s.head(row.seq_slot, h)) * s.max_pages);
    heads.push_back(std::move(head));
  }

  // What the step leaves of sequence i, of which head h has received or was given `given`.
  static void drop_here(Sequences& s, std::int32_t i, const std::vector<float>& given) {
    const DropTask& row = s.rows[static_cast<std::size_t>(i)];
    auto& heads = s.sums[static_cast<std::size_t>(i)];
    for (std::int32_t h = 0; h < kLayers * s.n_kv; ++h) {
      if (h / s.n_kv == 1) continue;
      DropHead& head = heads[static_cast<std::size_t>(h)];
      for (std::int32_t at = 0; at < head.place.n_slots; ++at) {
        float& v = head.scores[static_cast<std::size_t>(at)];
        const float more =
            given[s.head(row.mass_row, h) * static_cast<std::size_t>(s.stride) + static_cast<std::size_t>(at)];
        v = row.adds && at + 1 < head.place.n_slots ? v + more : more;
      }
    }
    for (std::int32_t h = 0; h < kLayers * s.n_kv; h += row.one_a_layer ? s.n_kv : 1) {
      if (h / s.n_kv == 1) continue;
      DropHead one = heads[static_cast<std::size_t>(h)];
      const std::int32_t n_heads = row.one_a_layer ? s.n_kv : 1;
      for (std::size_t at = 0; at < one.scores.size(); ++at) {
        float sum = 0;
        for (std::int32_t m = 0; m < n_heads && row.by_mass; ++m)
          sum += heads[static_cast<std::size_t>(h + m)].scores[at];
        one.scores[at] = sum;
      }
      std::vector<std::uint32_t> masks(one.masks.size(), ~0u);
      for (std::int32_t at = 0; at < one.place.n_slots; ++at)
        masks[static_cast<std::size_t>(at / 32)] &= ~(1u << at % 32);
      for (const std::int32_t at : testing::kept_slots(one)) masks[static_cast<std::size_t>(at / 32)] |= 1u << at % 32;
      for (std::int32_t m = 0; m < n_heads; ++m) heads[static_cast<std::size_t>(h + m)].masks = masks;
    }
  }

  void check(Sequences& s, int n_steps, std::mt19937& rng) {
    const std::size_t floats = s.head(s.n, 0) * static_cast<std::size_t>(s.stride);
    std::vector<float> start(floats);
    for (std::int32_t i = 0; i < s.n; ++i)
      for (std::int32_t h = 0; h < kLayers * s.n_kv; ++h)
        std::copy_n(
            s.sums[static_cast<std::size_t>(i)][static_cast<std::size_t>(h)].scores.begin(), s.stride,
            start.begin() +
                static_cast<std::ptrdiff_t>(s.head(s.rows[static_cast<std::size_t>(i)].mass_row, h)) * s.stride);
    DeviceArray<float> received(start);
    DeviceArray<std::uint32_t> masks(s.masks);
    const DeviceArray<std::int32_t> shifts(s.shifts), firsts(s.first_slots);
    const KvTables tables{.sequence_stride = std::int64_t{kLayers} * s.n_kv * s.max_pages,
                          .max_pages = s.max_pages,
                          .n_kv_heads = s.n_kv,
                          .head_dim = 128,
                          .shifts = shifts.data(),
                          .masks = masks.data(),
                          .shift_stride = kLayers * s.n_kv};
    for (int step = 0; step < n_steps; ++step) {
      std::vector<float> given(floats);
      for (float& v : given) v = testing::drawn_score(rng);
      std::vector<DropTask> rows = s.rows;
      rows.push_back({});  // no work
      const DeviceArray<float> given_device(given);
      const DeviceArray<DropTask> rows_device(rows);
      drop_least_cuda({.rows = rows_device.data(),
                       .given = given_device.data(),
                       .received = received.data(),
                       .first_slots = firsts.data(),
                       .masks = masks.data(),
                       .stride = s.stride,
                       .n = static_cast<std::int32_t>(rows.size()),
                       .n_layers = kLayers},
                      tables, {.stream = stream.get()});
      const std::vector<std::uint32_t> got = masks.get(stream);
      for (std::int32_t i = 0; i < s.n; ++i) {
        drop_here(s, i, given);
        DropTask& row = s.rows[static_cast<std::size_t>(i)];
        for (std::int32_t h = 0; h < kLayers * s.n_kv; ++h) {
          DropHead& head = s.sums[static_cast<std::size_t>(i)][static_cast<std::size_t>(h)];
          const auto first = got.begin() + static_cast<std::ptrdiff_t>(s.head(row.seq_slot, h)) * s.max_pages;
          ASSERT_EQ(std::vector<std::uint32_t>(first, first + s.max_pages), head.masks)
              << "step " << step << ", sequence " << i << ", head " << h;
          ++head.place.n_slots;
        }
        ++row.length;
      }
    }
  }
};

DropTask rule(std::int32_t budget, std::int32_t recent, bool adds, bool one_a_layer = false, bool by_mass = true) {
  DropTask row;
  row.keep = budget - 1, row.recent = std::max(0, recent - 1);
  row.adds = adds, row.one_a_layer = one_a_layer, row.by_mass = by_mass;
  return row;
}

TEST_F(CudaDropLeastTest, EveryRuleBesideTheOthers) {
  std::mt19937 rng(3);
  for (const std::int32_t n_kv : {1, 2, 8})
    for (const std::int32_t slots : {1, 31, 33, 64, 1100}) {
      SCOPED_TRACE(::testing::Message() << n_kv << " KV heads, " << slots << " slots");
      const std::int32_t n = slots * 4 / 5;  // about what is stored
      std::vector<DropTask> rules = {
          rule(n, n / 2, true), rule(n, 0, false, true), rule(n, 0, false),      rule(1, 0, true),
          rule(n, n, true),     rule(n + 40, 8, true),   rule(n, 8, true, true), rule(n, 0, false, false, false)};
      rules.push_back(rule(std::numeric_limits<std::int32_t>::max(), 0, true));
      Sequences s = make(n_kv, rules, slots, rng);
      check(s, 60, rng);
      if (HasFatalFailure()) return;
    }
}

}  // namespace
}  // namespace mneme
