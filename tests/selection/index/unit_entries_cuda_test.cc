// Entries of the unfused selection against the CPU's, byte for byte.
#include "src/selection/index/unit_entries_cuda.h"

#include <gtest/gtest.h>

#include <tuple>

#include "src/selection/index/box.h"
#include "src/selection/index/centroid.h"
#include "src/selection/index/one_bit.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {
namespace {

struct Form {
  EntryKind kind;
  std::int32_t tokens;
  std::size_t bytes(std::int32_t head_dim) const {
    if (is_one_bit(kind)) return one_bit_group_bytes(head_dim, tokens);
    return static_cast<std::size_t>(head_dim) * (kind == EntryKind::kCentroid ? 2 : 4);
  }
};

std::vector<std::byte> by_cpu(const Form& form, const World& w, std::int32_t seq_slot, std::int32_t head,
                              std::int32_t number) {
  const auto [kind, tokens] = form;
  std::vector<KvRun> runs;
  for (std::int32_t t = 0; t < tokens; ++t) runs.push_back({w.token(seq_slot, head, number * tokens + t), 1});
  std::vector<std::byte> entry(form.bytes(w.s.head_dim));
  switch (kind) {
    case EntryKind::kNone:
    case EntryKind::kKeys:
    case EntryKind::kRepresentative:
    case EntryKind::kCentroidSet:
    case EntryKind::kSketch:
    case EntryKind::kMoments:
      break;
    case EntryKind::kMinMaxBox:
      box_build_cpu(runs, w.shape(), BoxKind::kMinMax, entry.data());
      break;
    case EntryKind::kCuboidBox:
      box_build_cpu(runs, w.shape(), BoxKind::kCuboidMean, entry.data());
      break;
    case EntryKind::kOneBitMinMax:
      one_bit_build_cpu(runs, w.shape(), tokens, OneBitLevels::kMinMax, entry.data());
      break;
    case EntryKind::kOneBitMeanAbs:
      one_bit_build_cpu(runs, w.shape(), tokens, OneBitLevels::kMeanAbs, entry.data());
      break;
    case EntryKind::kCentroid:
      centroid_build_cpu(runs, w.shape(), entry.data());
      break;
  }
  return entry;
}

class CudaUnitEntriesTest : public CudaSlotsTest {};

// From pages of a prompt, and from the cache slots of the window as tokens come.
TEST_F(CudaUnitEntriesTest, AreTheCpus) {
  for (const Form& form : {Form{EntryKind::kMinMaxBox, 16},
                           {EntryKind::kMinMaxBox, 7},
                           {EntryKind::kCuboidBox, 32},
                           {EntryKind::kCuboidBox, 1},
                           {EntryKind::kOneBitMinMax, 32},
                           {EntryKind::kOneBitMinMax, 128},
                           {EntryKind::kOneBitMeanAbs, 64},
                           {EntryKind::kCentroid, 48}})
    for (const auto& [head_dim, dtype] : {std::tuple{64, DType::kBF16}, {128, DType::kF16}})
      for (const bool slots : {true, false}) {
        const auto [kind, tokens] = form;
        SCOPED_TRACE(::testing::Message() << "kind " << static_cast<int>(kind) << ", " << tokens << " tokens, heads of "
                                          << head_dim << (slots ? ", slots" : ", pages"));
        World w({.head_dim = head_dim,
                 .max_pages = 24,
                 .budget = 400,
                 .sink = 0,
                 .recent = 160,
                 .single = true,
                 .slots = slots,
                 .dtype = dtype},
                5, 4);
        const std::int32_t bytes = static_cast<std::int32_t>(form.bytes(head_dim)), most = 24 * kKvPageTokens / tokens;
        w.v.index.entries = {.kind = kind, .tokens = tokens, .bytes = bytes, .most = most, .data = nullptr};
        const std::size_t heads = static_cast<std::size_t>(w.s.seq_slots * w.s.kv_heads);
        w.take(&w.v.index.entries.data, heads * static_cast<std::size_t>(most) * static_cast<std::size_t>(bytes));
        SelectionPlan plan = w.plan();
        plan.units.entry_tokens = tokens;
        const std::vector<SelectionPlan> of_all(static_cast<std::size_t>(w.s.seq_slots), plan);
        copy_bytes(w.v.plans, of_all.data(), of_all.size() * sizeof(SelectionPlan), stream);
        const std::int32_t prompt = 500 / tokens * tokens, length = prompt + tokens;
        for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
          build_unit_entries_cuda({.of = {.seq_slot = seq_slot, .key_slot = seq_slot}, .stop = prompt / tokens}, w.v,
                                  w.pages(), context());
          fill_slots_cuda(seq_slot, length, plan, w.v, w.pages(), 0, 0, context());
        }
        const Rows open = rows_of(w, length - 1, 0), closed = rows_of(w, length, 0);
        const DeviceArray<std::int32_t> layers(Ids{0});
        if (tokens > 1)
          close_unit_entries_cuda({.rows = open.rows(), .stop = 1, .model_layers = layers.data()}, w.v, w.pages(),
                                  context());
        close_unit_entries_cuda({.rows = closed.rows(), .stop = 1, .model_layers = layers.data()}, w.v, w.pages(),
                                context());
        const std::vector<std::byte> got =
            fetch(w.v.index.entries.data, heads * static_cast<std::size_t>(most) * static_cast<std::size_t>(bytes));
        for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
          for (std::int32_t head = 0; head < w.s.kv_heads; ++head)
            for (std::int32_t number = 0; number < length / tokens; ++number) {
              const auto want = by_cpu(form, w, seq_slot, head, number);
              const std::byte* at = got.data() + (std::int64_t{seq_slot * w.s.kv_heads + head} * most + number) * bytes;
              ASSERT_EQ(std::memcmp(at, want.data(), want.size()), 0) << "entry " << number << ", head " << head;
            }
      }
}

}  // namespace
}  // namespace mneme
