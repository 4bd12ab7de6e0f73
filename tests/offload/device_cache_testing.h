// Fixture for tests of device_cache_cuda.h and one_bit_cuda.h: one layer of some sequences whose units are selected and
// fetched on the device.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "src/base/size32.h"
#include "src/selection/gate/gate.h"
#include "src/selection/index/one_bit.h"
#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/index/unit_entries_cuda.h"
#include "src/selection/region/region.h"
#include "src/selection/topk/unfused_select_cuda.h"
#include "src/tensor/half.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/attention/attention_testing.h"

namespace mneme {

using Ids = std::vector<std::int32_t>;

struct Setup {
  std::int32_t head_dim = 128, group = 4, kv_heads = 2, seq_slots = 2, max_pages = 64;
  std::int32_t budget = 384, sink = 64, recent = 64;  // tokens
  std::int32_t group_tokens = 0;  // nonzero: units are tokens, 1-bit keys in groups of this size; 0: pages
  bool single = false;            // units are tokens, without an index
  std::int32_t page = 0;          // nonzero: units are pages of this size by their boxes, attended token by token
  std::int32_t largest = 0;       // nonzero: units are lists, segments of at most this many tokens; 0: pages
  OneBitLevels levels = OneBitLevels::kMinMax;
  bool slots = true;       // false: tokens are attended in their pages
  std::int32_t spare = 2;  // cache slots beyond one selection
  DType dtype = DType::kBF16;
  ScheduleKind schedule = ScheduleKind::kEveryStep;
  Pool pool = Pool::kMaxQk;
  float tau = 1, eps = 1;
  GateKind gate = GateKind::kCosine;
  bool of_attended = false;  // SelectionPlan::Gate
  EntryKind scored = EntryKind::kMinMaxBox;
  bool own_arrays = true;  // SelectionPlan::Scores
  std::uint64_t seed = 0;
  bool tokens() const { return group_tokens > 0 || single || page > 0 || largest > 0; }
  std::int32_t unit() const { return tokens() ? 1 : kKvPageTokens; }
  std::int32_t window() const { return std::max({recent, page, single ? 1 : group_tokens}); }
  std::int32_t n_select() const {
    if (page > 0) return (budget - sink - window()) / page * page;
    if (largest > 0) return budget - sink - std::max(1, recent - largest + 1);
    return (budget - sink - std::max(recent, group_tokens > 0 || single ? 1 : 0)) / unit();
  }
};

// Pages in pinned host memory in shuffled blocks, everything else on the device. Keys and values are integers of
// magnitude at most `largest`.
struct World {
  static constexpr std::int32_t kLayers = 1;
  Setup s;
  std::size_t block_bytes;
  PinnedBuffer host;
  Ids blocks;  // [seq slots][KV heads][max_pages]
  DeviceArray<std::int32_t> blocks_device{0};
  DeviceCache v;
  std::vector<DeviceBuffer> memory;
  DeviceArray<std::byte> scratch[2] = {DeviceArray<std::byte>(0), DeviceArray<std::byte>(0)};

  World(const Setup& setup, unsigned seed, int largest) : s(setup) {
    block_bytes = static_cast<std::size_t>(kKvPageTokens * 4 * s.head_dim);
    const auto n = static_cast<std::size_t>(s.seq_slots * s.kv_heads * s.max_pages);
    host = PinnedBuffer(n * block_bytes);
    blocks.resize(n);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::mt19937 rng(seed);
    std::shuffle(blocks.begin(), blocks.end(), rng);
    auto* values = host.as<std::uint16_t>();
    for (std::size_t i = 0; i < host.size() / 2; ++i) {
      const auto x = static_cast<float>(static_cast<int>(rng() % static_cast<unsigned>(2 * largest + 1)) - largest);
      values[i] = s.dtype == DType::kBF16 ? bf16(x).bits : f16(x).bits;
    }
    blocks_device = DeviceArray<std::int32_t>(blocks);
    v.n_layers = kLayers;
    v.n_seq_slots = s.seq_slots;
    v.n_kv_heads = s.kv_heads;
    v.n_heads = s.kv_heads * s.group;
    v.head_dim = s.head_dim;
    v.unit_tokens = s.unit();
    v.n_slots =
        s.slots ? std::max((s.sink + s.window()) / s.unit() + s.n_select() + s.spare + (s.largest > 0 ? s.recent : 0),
                           s.budget / s.unit())
                : 0;
    v.max_pages = s.max_pages;
    v.max_listed = s.budget / s.unit() + 1;
    v.f16 = s.dtype == DType::kF16;
    if (s.page > 0) v.select_tokens = s.page;
    const auto heads = static_cast<std::size_t>(s.seq_slots * s.kv_heads),
               pages = static_cast<std::size_t>(s.max_pages), slots = static_cast<std::size_t>(v.n_slots),
               listed = static_cast<std::size_t>(v.max_listed), q = static_cast<std::size_t>(s.seq_slots * v.n_heads);
    take(&v.slots.data, heads * slots * v.unit_bytes());
    if (s.largest > 0) {
      v.index.lists.max_units = v.index.lists.max_tokens = s.max_pages * kKvPageTokens;
      const auto units = static_cast<std::size_t>(v.index.lists.max_units);
      take(&v.index.lists.centroids, heads * units * v.token_bytes() / 2);
      take(&v.index.lists.ends, heads * units * 4);
      take(&v.index.lists.members, heads * units * 4);
      take(&v.index.lists.n_units, heads * 4);
      take(&v.index.lists.grouped, static_cast<std::size_t>(s.seq_slots) * 4);
    } else if (s.group_tokens > 0) {
      v.index.entries = {
          .kind = s.levels == OneBitLevels::kMeanAbs ? EntryKind::kOneBitMeanAbs : EntryKind::kOneBitMinMax,
          .tokens = s.group_tokens,
          .most = (s.max_pages * kKvPageTokens + s.group_tokens - 1) / s.group_tokens};
      take(&v.index.keys.codes, one_bit_code_bytes(v, heads));
      take(&v.index.keys.levels, one_bit_level_bytes(v, heads));
    } else if (s.page > 0) {
      v.index.entries = {.kind = EntryKind::kMinMaxBox,
                         .tokens = s.page,
                         .bytes = 4 * s.head_dim,
                         .most = (s.max_pages * kKvPageTokens + s.page - 1) / s.page};
      take(&v.index.entries.data,
           (heads * static_cast<std::size_t>(v.index.entries.most) + kBoxesBeyond) * v.token_bytes());
    } else if (!s.single) {
      take(&v.index.boxes, (heads * pages + kBoxesBeyond) * v.token_bytes());
      v.index.entries = {.kind = EntryKind::kMinMaxBox,
                         .tokens = kKvPageTokens,
                         .bytes = 4 * s.head_dim,
                         .most = s.max_pages,
                         .data = v.index.boxes};
    }
    take(&v.slots.slot_of, heads * static_cast<std::size_t>(v.max_units()) * 4);
    take(&v.slots.unit_of, heads * slots * 4);
    take(&v.slots.last_used, heads * slots * 4);
    for (int i = 0; i < 2; ++i) take(&v.selection.ids[i], heads * listed * 4), take(&v.selection.n[i], heads * 4);
    take(&v.slots.listed, heads * listed * 4);
    take(&v.slots.listed_for, heads * 4);
    take(&v.slots.arrived_for, heads * 4);
    take(&v.selection.mass, heads * 4);
    take(&v.selection.flags, heads * 4);
    take(&v.selection.last_q, q * static_cast<std::size_t>(s.head_dim) * 2);
    take(&v.selection.cosine, q * 4);
    take(&v.plans, static_cast<std::size_t>(s.seq_slots) * sizeof(SelectionPlan));
    take(&v.counts, static_cast<std::size_t>(s.seq_slots) * sizeof(SlotCounts));
    const bool keeps = s.schedule == ScheduleKind::kBoundary;
    if (keeps) take(&v.selection.kept, static_cast<std::size_t>(s.seq_slots) * sizeof(KeptSelection));
    const std::vector<SelectionPlan> plan(static_cast<std::size_t>(s.seq_slots), this->plan());
    const Stream stream = Stream::make();
    copy_bytes(v.plans, plan.data(), plan.size() * sizeof(SelectionPlan), stream);
    set_bytes(v.counts, 0, static_cast<std::size_t>(s.seq_slots) * sizeof(SlotCounts), stream);
    set_bytes(v.selection.flags, 0, heads * 4, stream);
    if (keeps) set_bytes(v.selection.kept, 0, static_cast<std::size_t>(s.seq_slots) * sizeof(KeptSelection), stream);
    for (std::int32_t* flags : {v.slots.listed_for, v.slots.arrived_for}) set_bytes(flags, 0, heads * 4, stream);
    if (s.largest > 0) set_bytes(v.index.lists.n_units, 0, heads * 4, stream);
    stream.synchronize();
    const std::size_t bytes = !s.own_arrays        ? unfused_select_scratch_bytes(v, s.seq_slots)
                              : s.largest > 0      ? select_lists_scratch_bytes(v, s.seq_slots)
                              : s.group_tokens > 0 ? select_tokens_scratch_bytes(v, s.seq_slots)
                                                   : select_scratch_bytes(v, s.seq_slots);
    const std::size_t fused = s.page > 0 ? select_scratch_bytes(v, s.seq_slots, true) : 0;
    for (auto& x : scratch) x = DeviceArray<std::byte>(std::max(bytes, fused), s.group_tokens > 0 ? 0xff : 0);
  }
  template <typename T>
  void take(T** to, std::size_t bytes) {
    memory.emplace_back(bytes, "a test");
    *to = reinterpret_cast<T*>(memory.back().data());
  }
  void take(void** to, std::size_t bytes) {
    memory.emplace_back(bytes, "a test");
    *to = memory.back().data();
  }
  SelectionPlan plan() const {
    return {.schedule = s.schedule,
            .units = {.tokens = s.unit(),
                      .select_tokens = std::max(s.page, 1),
                      .entry_tokens = s.page > 0           ? s.page
                                      : s.group_tokens > 0 ? s.group_tokens
                                                           : s.unit()},
            .region = {.budget = s.budget, .sink = s.sink, .recent = s.recent, .n_select = s.n_select()},
            .scores = {.index = s.scored, .own_arrays = s.own_arrays, .pool = s.pool, .alpha = 0.125f},
            .gate = {.kind = s.gate, .tau = s.tau, .eps = s.eps, .of_attended = s.of_attended},
            .seed = s.seed};
  }
  KvTables pages() const {
    return {.base = host.device_data(),
            .blocks = blocks_device.data(),
            .sequence_stride = std::int64_t{kLayers} * s.kv_heads * s.max_pages,
            .max_pages = s.max_pages,
            .n_kv_heads = s.kv_heads,
            .head_dim = s.head_dim,
            .f16 = v.f16};
  }
  std::byte* page(std::int32_t seq_slot, std::int32_t head, std::int32_t p) const {
    const auto entry = static_cast<std::size_t>((seq_slot * s.kv_heads + head) * s.max_pages + p);
    return host.data() + static_cast<std::size_t>(blocks[entry]) * block_bytes;
  }
  AttentionShape shape() const { return {s.group, s.head_dim, s.dtype, 1.0f}; }

  const std::byte* token(std::int32_t seq_slot, std::int32_t head, std::int32_t position) const {
    return page(seq_slot, head, position / kKvPageTokens) +
           static_cast<std::size_t>(position % kKvPageTokens) * v.token_bytes();
  }
};

// A KV head's selection by the reference, and the scores of its candidates.
struct Selection {
  Region region;
  Ids ids;
  std::vector<float> pooled;
};
// `exact`: integer scores. Logarithms round: units with nearly equal scores may be swapped.
inline void expect_selection(const Ids& got, const Selection& want, bool exact) {
  if (exact) {
    ASSERT_EQ(got, want.ids);
    return;
  }
  ASSERT_EQ(got.size(), want.ids.size());
  const auto score = [&](std::int32_t id) { return want.pooled[id - want.region.first_unit]; };
  float least = testing::kInf;
  for (const std::int32_t id : want.ids) least = std::min(least, score(id));
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(i == 0 || got[i] > got[i - 1]);
    ASSERT_GE(got[i], want.region.first_unit);
    ASSERT_LT(got[i], want.region.last_unit);
    ASSERT_GE(score(got[i]), least - 2e-5f * std::max(1.0f, std::abs(least)));
  }
}

class CudaSlotsTest : public CudaTest {
 protected:
  // The device's selection.
  Ids selected_units(World& w, std::int32_t seq_slot, std::int32_t head, SelectWhen when = SelectWhen::kNow) {
    const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head), at = static_cast<std::size_t>(when);
    const auto n = fetch(w.v.selection.n[at] + index, 1);
    return fetch(w.v.selection.ids[at] + index * static_cast<std::size_t>(w.v.max_listed),
                 static_cast<std::size_t>(n[0]));
  }
  CudaContext context() const { return {.stream = stream.get()}; }

  // Small integer queries for every sequence slot, copied to last_q.
  std::vector<float> queries(World& w, std::mt19937& rng, int largest) {
    std::vector<float> q(static_cast<std::size_t>(w.s.seq_slots * w.v.n_heads * w.s.head_dim));
    for (float& x : q) x = whole_number(rng, largest);
    set_queries(w, q);
    return q;
  }
  static float whole_number(std::mt19937& rng, int largest) {
    return static_cast<float>(static_cast<int>(rng() % static_cast<unsigned>(2 * largest + 1)) - largest);
  }
  void set_queries(World& w, const std::vector<float>& q) {
    std::vector<std::uint16_t> bits;
    for (const float x : q) bits.push_back(bf16(x).bits);
    copy_bytes(w.v.selection.last_q, bits.data(), bits.size() * 2, stream);
    stream.synchronize();
  }
  // Cosines of all heads, and the flags of KV heads that the append makes of them.
  void set_cosines(World& w, const std::vector<float>& c) {
    copy_bytes(w.v.selection.cosine, c.data(), c.size() * 4, stream);
    Ids flags;
    for (auto head = c.begin(); head != c.end(); head += w.s.group)
      flags.push_back(queries_moved(w.plan().gate, std::accumulate(head, head + w.s.group, 0.0f) / w.s.group) ? 1 : 0);
    copy_bytes(w.v.selection.flags, flags.data(), flags.size() * 4, stream);
    stream.synchronize();
  }
  // For n gates of `heads` heads each: cosines below a tau of 0.5 for one in `one_in`, above it for the others. Returns
  // which gates moved.
  std::vector<bool> draw_moves(World& w, std::mt19937& rng, std::int32_t n, std::int32_t heads, unsigned one_in) {
    std::vector<float> cosines;
    std::vector<bool> moved;
    for (std::int32_t i = 0; i < n; ++i) {
      moved.push_back(rng() % one_in == 0);
      cosines.insert(cosines.end(), static_cast<std::size_t>(heads), moved.back() ? 0.4f : 0.6f);
    }
    set_cosines(w, cosines);
    return moved;
  }
  void begin(World& w, std::int32_t length) {
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot) {
      if (const std::int32_t tokens = w.v.index.entries.tokens; tokens > 0)
        build_unit_entries_cuda({.of = {.seq_slot = seq_slot, .key_slot = seq_slot}, .stop = length / tokens}, w.v,
                                w.pages(), context());
      fill_slots_cuda(seq_slot, length, w.plan(), w.v, w.pages(), 0, 0, context());
    }
  }
  struct Rows {
    DeviceArray<std::int32_t> seq_slots, lengths, reset;
    SlotRows rows() const { return {seq_slots.data(), lengths.data(), reset.data(), size32(seq_slots)}; }
  };
  static Rows rows_of(const World& w, std::int32_t length, std::int32_t reset) {
    return rows_of(Ids(static_cast<std::size_t>(w.s.seq_slots), length), reset);
  }
  static Rows rows_of(const Ids& lengths, std::int32_t reset) {
    Ids seq_slots(lengths.size());
    std::iota(seq_slots.begin(), seq_slots.end(), 0);
    return {DeviceArray<std::int32_t>(seq_slots), DeviceArray<std::int32_t>(lengths),
            DeviceArray<std::int32_t>(Ids(seq_slots.size(), reset))};
  }
  void run(World& w, const Rows& r, SelectWhen when) {
    std::byte* scratch = w.scratch[static_cast<int>(when)].data();
    if (!w.s.own_arrays) {
      unfused_select_cuda({.rows = r.rows(), .when = when, .pages = w.pages(), .layer = 0, .scratch = scratch}, w.v, 0,
                          context());
    } else if (w.s.group_tokens > 0) {
      const KvTables pages = w.pages();
      select_tokens_cuda(
          {.rows = r.rows(), .when = when, .scratch = w.scratch[0].data(), .pages = w.s.slots ? nullptr : &pages}, w.v,
          0, context());
      if (when == SelectWhen::kNow && !w.s.slots) return;
    } else {
      select_pages_cuda({.rows = r.rows(), .when = when, .scratch = scratch}, w.v, 0, context());
    }
    // One thread block, so that it handles several KV heads.
    recall_units_cuda(r.rows(), when, w.v, w.pages(), 0, 0, 1, context());
  }
  // Every listed entry holds token want[i], byte for byte.
  void expect_entries(World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const Ids& want) {
    const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
    const auto listed = fetch(w.v.slots.listed + index * static_cast<std::size_t>(w.v.max_listed), want.size());
    const std::size_t bytes = w.v.token_bytes(), slots = static_cast<std::size_t>(w.v.n_slots);
    const std::vector<std::byte> there =
        slots > 0 ? fetch(w.v.slots.data + index * slots * bytes, slots * bytes) : std::vector<std::byte>();
    for (std::size_t i = 0; i < want.size(); ++i) {
      auto entry = static_cast<std::size_t>(listed[i]);
      const std::byte* got = w.host.data() + entry * bytes;
      if (slots > 0) {
        ASSERT_GE(entry, index * slots);
        entry -= index * slots;
        ASSERT_LT(entry, slots);
        got = there.data() + entry * bytes;
      }
      ASSERT_EQ(std::memcmp(got, w.token(seq_slot, head, want[i]), bytes), 0)
          << "entry " << i << ", token " << want[i] << " of sequence slot " << seq_slot << ", head " << head << ", "
          << length;
    }
  }
  template <typename T>
  std::vector<T> fetch(const T* from, std::size_t n) {
    std::vector<T> out(n);
    copy_bytes(out.data(), from, n * sizeof(T), stream);
    stream.synchronize();
    return out;
  }
};

}  // namespace mneme
