// Fixture for selection of tokens by 1-bit keys on the device: the host reference over a World (device_cache_testing.h),
// and checks of lists and cache slots.
#pragma once

#include <set>

#include "src/base/size32.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/selection/pool/group_pool.h"
#include "src/selection/region/region.h"
#include "src/selection/topk/topk.h"
#include "tests/offload/device_cache_testing.h"

namespace mneme {

inline RegionRules region_rules(const Setup& s) {
  return {.budget = s.budget, .sink = s.sink, .recent = s.recent, .unit_tokens = 1, .entry_tokens = s.group_tokens};
}

// Selection of one KV head at `length` with queries q [group, D]: ids, and pooled scores of all candidates.
inline Selection select(const World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const float* q) {
  const Setup& s = w.s;
  Selection c{.region = region_at(region_rules(s), length), .ids = {}, .pooled = {}};
  const std::size_t bytes = one_bit_group_bytes(s.head_dim, s.group_tokens);
  const std::int32_t n_groups = (c.region.last_unit + s.group_tokens - 1) / s.group_tokens;
  std::vector<std::byte> groups(static_cast<std::size_t>(n_groups) * bytes);
  for (std::int32_t g = 0; g < n_groups; ++g) {
    std::vector<KvRun> runs;
    for (std::int32_t t = 0; t < s.group_tokens; t += kKvPageTokens)
      runs.push_back({w.page(seq_slot, head, (g * s.group_tokens + t) / kKvPageTokens), kKvPageTokens});
    one_bit_build_ref(runs, w.shape(), s.group_tokens, s.levels, groups.data() + static_cast<std::size_t>(g) * bytes);
  }
  const std::int32_t n = n_groups * s.group_tokens, first = c.region.first_unit, last = c.region.last_unit;
  std::vector<float> scores(static_cast<std::size_t>(n * s.group));
  one_bit_score_cpu(q, w.shape(), groups.data(), n_groups, s.group_tokens, scores.data(), n);
  c.pooled.resize(static_cast<std::size_t>(last - first));
  group_pool_ref(scores.data() + first, n, s.group, last - first, s.pool, w.plan().scores.alpha, c.pooled.data());
  c.ids.resize(static_cast<std::size_t>(c.region.n_select));
  topk_ref(c.pooled, c.region.n_select, c.ids.data());
  for (std::int32_t& id : c.ids) id += first;
  return c;
}

// What steps attended, to count newly selected units.
struct Attended {
  explicit Attended(const World& w)
      : kv_heads(w.s.kv_heads),
        before(static_cast<std::size_t>(w.s.seq_slots * kv_heads)),
        counts(static_cast<std::size_t>(w.s.seq_slots)) {}
  void add(std::int32_t seq_slot, std::int32_t head, const Ids& ids) {
    std::set<std::int32_t>& last = before[seq_slot * kv_heads + head];
    SlotCounts& c = counts[seq_slot];
    c.selected += ids.size();
    for (const std::int32_t id : ids) c.replaced += last.contains(id) ? 0 : 1;
    last = {ids.begin(), ids.end()};
  }
  void expect(const std::vector<SlotCounts>& got, bool slots) const {
    for (std::size_t i = 0; i < counts.size(); ++i) {
      ASSERT_EQ(got[i].selected, counts[i].selected) << "sequence slot " << i;
      ASSERT_EQ(got[i].replaced, slots ? counts[i].replaced : 0) << "sequence slot " << i;
    }
  }
  std::int32_t kv_heads;
  std::vector<std::set<std::int32_t>> before;
  std::vector<SlotCounts> counts;
};

class CudaTokenTest : public CudaSlotsTest {
 protected:
  // Every listed entry holds its token, byte for byte: sinks, `selected`, window.
  void expect_listed(World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t length, const Ids& selected) {
    const Region region = region_at(region_rules(w.s), length);
    Ids want;
    for (std::int32_t t = 0; t < region.sink; ++t) want.push_back(t);
    want.insert(want.end(), selected.begin(), selected.end());
    for (std::int32_t t = region.recent_from; t < length; ++t) want.push_back(t);
    ASSERT_EQ(size32(want), std::min(length, w.s.budget));
    expect_entries(w, seq_slot, head, length, want);
  }
  // A page has a block once it has a token; before that its entry is arbitrary.
  void know_pages(World& w, std::int32_t length) {
    Ids blocks = w.blocks;
    for (std::size_t i = 0; i < blocks.size(); ++i)
      if (static_cast<std::int32_t>(i) % w.s.max_pages * kKvPageTokens >= length) blocks[i] = 0;
    copy_bytes(w.blocks_device.data(), blocks.data(), blocks.size() * sizeof(std::int32_t), stream);
    stream.synchronize();
  }
  // A step stores its newest token in its cache slot; here it is copied.
  void write_newest(World& w, std::int32_t length) {
    for (std::int32_t seq_slot = 0; w.s.slots && seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const std::int32_t at = w.s.sink + (length - 1) % w.s.window(), index = seq_slot * w.s.kv_heads + head;
        copy_bytes(w.v.slots.data + static_cast<std::size_t>(index * w.v.n_slots + at) * w.v.token_bytes(),
                   w.token(seq_slot, head, length - 1), w.v.token_bytes(), stream);
      }
  }
  // A cache slot holds its unit, byte for byte, and the token maps to no other slot.
  void expect_slots(World& w) {
    const auto slots = static_cast<std::size_t>(w.v.n_slots), units = static_cast<std::size_t>(w.v.max_units()),
               bytes = static_cast<std::size_t>(w.v.token_bytes());
    const std::int32_t fixed = w.s.sink + w.s.window();
    for (std::int32_t seq_slot = 0; seq_slot < w.s.seq_slots; ++seq_slot)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const auto index = static_cast<std::size_t>(seq_slot * w.s.kv_heads + head);
        const Ids unit_of = fetch(w.v.slots.unit_of + index * slots, slots),
                  slot_of = fetch(w.v.slots.slot_of + index * units, units);
        const std::vector<std::byte> there = fetch(w.v.slots.data + index * slots * bytes, slots * bytes);
        std::int32_t held = 0;
        for (std::size_t slot = static_cast<std::size_t>(fixed); slot < slots; ++slot) {
          const std::int32_t unit = unit_of[slot];
          if (unit < 0) continue;
          ++held;
          ASSERT_EQ(slot_of[unit], static_cast<std::int32_t>(slot) - fixed) << unit;
          ASSERT_EQ(std::memcmp(there.data() + slot * bytes, w.token(seq_slot, head, unit), bytes), 0) << unit;
        }
        ASSERT_EQ(std::count_if(slot_of.begin(), slot_of.end(), [](std::int32_t s) { return s >= 0; }), held);
        ASSERT_EQ(std::count_if(slot_of.begin(), slot_of.end(), [](std::int32_t s) { return s < -1; }), 0);
      }
  }
  // Attention of the rows with last_q, over the listed tokens.
  std::vector<std::uint16_t> attend(const World& w, const Rows& rows) {
    const auto n = static_cast<std::size_t>(w.s.seq_slots),
               width = static_cast<std::size_t>(w.v.n_heads * w.s.head_dim);
    const DeviceArray<std::int32_t> lengths(Ids(n, w.s.budget));
    const DeviceArray<std::uint16_t> out(n * width);
    const DeviceArray<std::byte> scratch(decode_attention_scratch_bytes(w.s.seq_slots, w.s.kv_heads, w.s.head_dim), 0);
    attend_decode_cuda({.q = w.v.selection.last_q,
                        .slots = rows.seq_slots.data(),
                        .lengths = lengths.data(),
                        .out = out.data(),
                        .n = w.s.seq_slots,
                        .n_heads = w.v.n_heads,
                        .scale = 0.1f,
                        .tables_late = true,
                        .scratch = scratch.data()},
                       w.v.tables(), 0, context());
    return out.get(stream);
  }
  // Codes and levels of a group in the reference's layout.
  std::vector<std::byte> group(World& w, std::int32_t seq_slot, std::int32_t head, std::int32_t number) {
    const auto& s = w.s;
    const auto index = static_cast<std::size_t>(seq_slot * s.kv_heads + head),
               row = static_cast<std::size_t>(4 * s.head_dim),
               groups = static_cast<std::size_t>((s.max_pages * kKvPageTokens + s.group_tokens - 1) / s.group_tokens);
    std::vector<std::byte> out =
        fetch(w.v.index.keys.levels + (index * groups + static_cast<std::size_t>(number)) * row, row);
    out.resize(one_bit_group_bytes(s.head_dim, s.group_tokens));
    const std::int32_t first_page = number * s.group_tokens / kKvPageTokens;
    const auto codes =
        fetch(w.v.index.keys.codes +
                  (index * static_cast<std::size_t>(s.max_pages) + static_cast<std::size_t>(first_page)) * row,
              row * static_cast<std::size_t>(s.group_tokens / kKvPageTokens));
    const int pairs = s.head_dim / 8, per_word = 16 / pairs, words = 4 / per_word;
    for (int token = 0; token < s.group_tokens; ++token)
      for (int c = 0; c < s.head_dim; ++c) {
        const int page = token / 32, g = token % 8, n = token % 32 / 8;
        const int t = c % 32 / 8, pair = c / 32 * 4 + c % 8 / 2, bit = n % per_word * pairs + pair + c % 2 * 16;
        std::uint32_t word;
        std::memcpy(&word,
                    codes.data() + static_cast<std::size_t>(page) * row +
                        static_cast<std::size_t>(((g * 4 + t) * words + n / per_word) * 4),
                    4);
        const float z = level(out, c);
        if ((word >> bit & 1) == 0 && !std::isnan(z))
          out[row + static_cast<std::size_t>((c / 4 * s.group_tokens + token) / 2)] |= std::byte{1}
                                                                                       << (token % 2 * 4 + c % 4);
      }
    return out;
  }
  static float level(const std::vector<std::byte>& group, int i) {
    bf16 v;
    std::memcpy(&v, group.data() + 2 * i, 2);
    return static_cast<float>(v);
  }
};

}  // namespace mneme
