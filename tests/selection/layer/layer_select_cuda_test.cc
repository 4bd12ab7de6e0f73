// Selection of pages for a whole layer, on the device, against plain forms in f64.
#include "src/selection/layer/layer_select_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "src/ops/attention/attention.h"
#include "src/selection/layer/channel_moments.h"
#include "src/selection/layer/entropy_cut.h"
#include "src/selection/layer/row_moments.h"
#include "src/selection/layer/window_probe.h"
#include "src/selection/layer/window_probe_cuda.h"
#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

using Ids = std::vector<std::int32_t>;

// Keys of one layer of two sequences, small integers, in shuffled pages and in chunks of keys.
struct Keys {
  static constexpr std::int32_t kSequences = 2, kPages = 90, kLayers = 2, kLayer = 1;
  AttentionShape shape;
  std::int32_t heads;
  Ids blocks;
  std::vector<std::byte> memory;
  DeviceArray<std::int32_t> blocks_device{0};
  DeviceArray<std::byte> memory_device{0}, chunks{0};
  DeviceArray<std::byte*> table{0};
  static constexpr std::int32_t kChunks = (kPages + kKeyChunkPages - 1) / kKeyChunkPages;

  Keys(const AttentionShape& s, std::int32_t kv_heads, unsigned seed, int most) : shape(s), heads(kv_heads) {
    std::mt19937 rng(seed);
    blocks.resize(static_cast<std::size_t>(kSequences * stride()));
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), rng);
    memory.resize(blocks.size() * kKvPageTokens * shape.token_bytes());
    std::vector<float> kv(static_cast<std::size_t>(2 * shape.head_dim));
    for (std::size_t at = 0; at < memory.size(); at += shape.token_bytes()) {
      for (float& v : kv) v = static_cast<float>(static_cast<int>(rng() % static_cast<unsigned>(2 * most + 1)) - most);
      if (rng() % 50 == 0) std::fill(kv.begin(), kv.end(), 0.0f);
      store_kv(kv.data(), kv.data() + shape.head_dim, shape, memory.data() + at);
    }
    blocks_device = DeviceArray<std::int32_t>(blocks);
    memory_device = DeviceArray<std::byte>(memory);
    const std::size_t bytes = key_chunk_bytes(kLayers, heads, shape.head_dim);
    chunks = DeviceArray<std::byte>(bytes * kSequences * kChunks);
    std::vector<std::byte*> pointers;
    for (std::size_t i = 0; i < kSequences * kChunks; ++i) pointers.push_back(chunks.data() + i * bytes);
    table = DeviceArray<std::byte*>(pointers);
  }
  static constexpr std::int32_t stride_of(std::int32_t heads) { return kLayers * heads * kPages; }
  std::int32_t stride() const { return stride_of(heads); }
  KvTables tables() const {
    return {.base = memory_device.data(),
            .blocks = blocks_device.data(),
            .sequence_stride = stride(),
            .max_pages = kPages,
            .n_kv_heads = heads,
            .head_dim = shape.head_dim,
            .f16 = shape.kv_dtype == DType::kF16};
  }
  LayerKeys in_pages() const { return {.pages = tables(), .layer = kLayer}; }
  LayerKeys in_chunks() const {
    return {.pages = tables(), .layer = kLayer, .chunks = table.data(), .max_chunks = kChunks};
  }
  double key(std::int32_t sequence, std::int32_t head, std::int32_t token, std::int32_t c) const {
    const auto entry = static_cast<std::size_t>(sequence * stride() + (kLayer * heads + head) * kPages + token / 32);
    const std::byte* at =
        memory.data() +
        (static_cast<std::size_t>(blocks[entry]) * 32 + static_cast<std::size_t>(token % 32)) * shape.token_bytes() +
        2 * c;
    std::uint16_t bits;
    std::memcpy(&bits, at, 2);
    if (shape.kv_dtype == DType::kF16) {
      f16 v;
      v.bits = bits;
      return static_cast<double>(static_cast<float>(v));
    }
    bf16 v;
    v.bits = bits;
    return static_cast<double>(static_cast<float>(v));
  }
  // The best of a page's tokens: probe . key / |key| / sqrt(group).
  double score(std::int32_t sequence, std::int32_t page, std::span<const float> probe) const {
    double best = -INFINITY;
    for (std::int32_t t = page * 32; t < (page + 1) * 32; ++t) {
      double dot = 0, square = 0;
      for (std::int32_t h = 0; h < heads; ++h)
        for (std::int32_t c = 0; c < shape.head_dim; ++c) {
          const double k = key(sequence, h, t, c);
          dot += k * static_cast<double>(probe[static_cast<std::size_t>(h * shape.head_dim + c)]);
          square += k * k;
        }
      best = std::max(best, square > 0 ? dot / std::sqrt(square) / std::sqrt(static_cast<double>(shape.group)) : 0.0);
    }
    return best;
  }
};

// The k best, ascending; empty where rounding may decide between the last one and the next.
Ids best_of(const std::vector<double>& scores, std::int32_t k, std::int32_t first) {
  Ids order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  const auto at = [&](std::int32_t i) { return scores[static_cast<std::size_t>(i)]; };
  std::sort(order.begin(), order.end(),
            [&](std::int32_t a, std::int32_t b) { return at(a) != at(b) ? at(a) > at(b) : a > b; });
  const auto n = static_cast<std::size_t>(k);
  if (n < order.size() && at(order[n - 1]) - at(order[n]) <= 1e-5 * (1 + std::abs(at(order[n])))) return {};
  order.resize(n);
  std::sort(order.begin(), order.end());
  for (std::int32_t& u : order) u += first;
  return order;
}

class CudaLayerSelectTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }
};

TEST_F(CudaLayerSelectTest, WindowsSelectWhatTheReferenceSelects) {
  std::int32_t decided = 0, all = 0;
  for (const auto& [group, heads, head_dim, type] : {std::tuple{4, 2, 64, DType::kBF16},
                                                     {1, 3, 128, DType::kBF16},
                                                     {5, 1, 64, DType::kF16},
                                                     {4, 8, 128, DType::kBF16}}) {
    const AttentionShape shape{group, head_dim, type, 1.0f};
    for (unsigned seed = 1; seed <= 3; ++seed) {
      Keys keys(shape, heads, seed, 6);
      copy_keys_cuda(keys.tables(), 1, Keys::kLayer, keys.in_chunks(), 1, 0, Keys::kPages, context());
      std::mt19937 rng(seed);
      const auto width = static_cast<std::size_t>(heads * head_dim);
      for (const std::int32_t n_windows : {1, 3, 17, 40}) {
        std::vector<float> probes(static_cast<std::size_t>(n_windows) * width);
        for (float& v : probes) v = static_cast<float>(static_cast<int>(rng() % 401) - 200);
        constexpr std::int32_t kFirst = 2, kMost = Keys::kPages - kFirst, kStride = 50;
        std::vector<SelectionWindow> windows;
        for (std::int32_t w = 0; w < n_windows; ++w) {
          const std::int32_t n = w % 7 == 3 ? 1 : 1 + static_cast<std::int32_t>(rng() % kMost);
          windows.push_back({.n_candidates = n,
                             .n_select = w % 5 == 2 ? 0 : std::min(n, 1 + static_cast<std::int32_t>(rng() % kStride))});
        }
        const DeviceArray<SelectionWindow> windows_device(windows);
        const DeviceArray<float> probes_device(probes);
        const DeviceArray<std::uint32_t> ranks(static_cast<std::size_t>(n_windows) * 92);
        for (const LayerKeys& from : {keys.in_pages(), keys.in_chunks()}) {
          const DeviceArray<std::int32_t> units(static_cast<std::size_t>(n_windows * kStride)),
              n_units(static_cast<std::size_t>(n_windows));
          select_windows_cuda({.keys = from,
                               .probes = probes_device.data(),
                               .windows = windows_device.data(),
                               .n_windows = n_windows,
                               .n_heads = heads * group,
                               .seq_slot = 1,
                               .first_unit = kFirst,
                               .n_candidates = kMost,
                               .ranks = ranks.data(),
                               .rank_stride = 92,
                               .units = units.data(),
                               .n_units = n_units.data(),
                               .unit_stride = kStride},
                              context());
          const Ids got = units.get(stream), n_got = n_units.get(stream);
          for (std::int32_t w = 0; w < n_windows; ++w) {
            const SelectionWindow& window = windows[static_cast<std::size_t>(w)];
            ASSERT_EQ(n_got[static_cast<std::size_t>(w)], window.n_select);
            if (window.n_select == 0) continue;
            std::vector<double> scores;
            for (std::int32_t u = 0; u < window.n_candidates; ++u)
              scores.push_back(
                  keys.score(1, kFirst + u, std::span(probes).subspan(static_cast<std::size_t>(w) * width, width)));
            const Ids want = best_of(scores, window.n_select, kFirst);
            ++all;
            if (want.empty()) continue;
            ++decided;
            const auto at = got.begin() + w * kStride;
            ASSERT_EQ(Ids(at, at + window.n_select), want)
                << w << " of " << n_windows << ", " << window.n_candidates << " pages";
          }
        }
      }
    }
  }
  std::printf("%d of %d selections decided\n", decided, all);
  EXPECT_GE(decided, 900);
}

// Decode rows, layer after layer and step after step: as many pages as the CPU's shared layer budget gives.
TEST_F(CudaLayerSelectTest, RowsSelectWhatTheReferenceSelects) {
  std::int32_t decided = 0, all = 0;
  for (const auto& [group, heads, head_dim, shares] :
       {std::tuple{4, 2, 64, true}, {1, 3, 128, true}, {5, 1, 64, false}, {4, 8, 128, true}}) {
    const AttentionShape shape{group, head_dim, DType::kBF16, 1.0f};
    constexpr std::int32_t kLayers = 3, kUnits = 6, kListed = 40;
    const std::int32_t n_heads = heads * group;
    const auto width = static_cast<std::size_t>(n_heads * head_dim);
    DeviceCache s{.n_layers = kLayers,
                  .n_seq_slots = 2,
                  .n_kv_heads = heads,
                  .n_heads = n_heads,
                  .head_dim = head_dim,
                  .max_pages = Keys::kPages,
                  .max_listed = kListed};
    SelectionPlan plan{
        .schedule = ScheduleKind::kEveryStep,
        .region = {
            .budget = 64 + 96 + 32 * kUnits, .sink = 64, .recent = 96, .n_select = shares ? 2 * kUnits : kUnits}};
    const DeviceArray<SelectionPlan> rules_device(std::vector(kLayers * 2, plan));
    const DeviceArray<std::int32_t> selected_ids(static_cast<std::size_t>(kLayers * 2 * heads * kListed)),
        n_selected(static_cast<std::size_t>(kLayers * 2 * heads)), seq_slots(std::vector{1, -1, 0}),
        reset(std::vector{0, 0, 0}), remote_to(3);
    s.plans = rules_device.data(), s.selection.ids[0] = selected_ids.data(), s.selection.n[0] = n_selected.data();
    // With cache slots recall writes the list.
    const DeviceArray<std::int32_t> listed(static_cast<std::size_t>(kLayers * 2 * heads * kListed));
    const DeviceArray<SlotCounts> counts(kLayers * 2);
    s.n_slots = group == 4 ? 0 : 1, s.slots.listed = listed.data(), s.counts = counts.data();
    const LayerCut cut{.k = shares ? kUnits : 0, .n_layers = kLayers, .reversed = head_dim == 128};
    const DeviceArray<LayerCut> cuts(std::vector{cut, cut});
    DeviceArray<double> later(2 * kLayers), pools(2), thetas(2 * kLayers);
    const DeviceArray<std::uint32_t> ranks(3 * 92);
    std::vector<EntropyCut> wanted(2, EntropyCut(kLayers, kUnits, cut.reversed)), known = wanted;
    std::vector<Keys> layers;
    for (unsigned l = 0; l < kLayers; ++l) layers.emplace_back(shape, heads, 10 + l, 1 + static_cast<int>(l) * 3);
    std::mt19937 rng(5);
    for (std::int32_t step = 0; step < 60; ++step) {
      // Occasionally a row within its budget.
      const Ids lengths = {step % 9 == 4 ? 300 : 700 + step * 33, 5, 2000 + step};
      const DeviceArray<std::int32_t> lengths_device(lengths);
      std::vector<double> owed;
      for (const EntropyCut& k : known)
        for (std::int32_t l = 0; l < kLayers; ++l) owed.push_back(k.later(l));
      later.put(owed);
      for (std::int32_t l = 0; l < kLayers; ++l) {
        const Keys& keys = layers[static_cast<std::size_t>(l)];
        std::vector<float> q(3 * width);
        std::vector<std::uint16_t> bits;
        for (float& v : q) v = static_cast<float>(static_cast<int>(rng() % 17) - 8), bits.push_back(bf16(v).bits);
        const DeviceArray<std::uint16_t> q_device(bits);
        select_layer_cuda({.keys = keys.in_pages(),
                           .rows = {seq_slots.data(), lengths_device.data(), reset.data(), 3},
                           .remote_q = q_device.data(),
                           .ranks = ranks.data(),
                           .rank_stride = 92,
                           .remote_to = remote_to.data(),
                           .cuts = cuts.data(),
                           .later = later.data(),
                           .pools = pools.data(),
                           .thetas = thetas.data()},
                          s, l, context());
        const Ids got = selected_ids.get(stream), n_got = n_selected.get(stream), remote = remote_to.get(stream);
        const std::vector<double> theta = thetas.get(stream);
        const Ids blocks = listed.get(stream);
        const auto expect_listed = [&](std::int32_t seq_slot, const Ids& pages) {
          for (std::int32_t h = 0; s.n_slots == 0 && h < heads; ++h)
            for (std::size_t i = 0; i < pages.size(); ++i) {
              const auto entry = seq_slot * keys.stride() + (Keys::kLayer * heads + h) * Keys::kPages + pages[i];
              ASSERT_EQ(blocks[static_cast<std::size_t>(((l * 2 + seq_slot) * heads + h) * kListed) + i],
                        keys.blocks[static_cast<std::size_t>(entry)])
                  << "step " << step << ", head " << h << ", page " << pages[i];
            }
        };
        for (const std::int32_t row : {0, 2}) {
          const std::int32_t seq_slot = row == 0 ? 1 : 0, length = lengths[static_cast<std::size_t>(row)];
          const auto at_theta = theta[static_cast<std::size_t>(seq_slot * kLayers + l)];
          if (length <= plan.region.budget) {
            ASSERT_EQ(at_theta, -1);
            Ids pages(static_cast<std::size_t>((length + 31) / 32));
            std::iota(pages.begin(), pages.end(), 0);
            expect_listed(seq_slot, pages);
            continue;
          }
          const std::int32_t n = (length + 31) / 32 - 3 - 2;
          std::vector<float> probe(static_cast<std::size_t>(heads * head_dim));
          double square = 0;
          for (std::int32_t h = 0; h < n_heads; ++h)
            for (std::int32_t c = 0; c < head_dim; ++c) {
              const float v = q[static_cast<std::size_t>(row) * width + static_cast<std::size_t>(h * head_dim + c)];
              probe[static_cast<std::size_t>(h / group * head_dim + c)] += v;
              square += static_cast<double>(v) * static_cast<double>(v);
            }
          std::vector<double> scores;
          std::vector<float> cosines;
          for (std::int32_t u = 0; u < n; ++u) {
            scores.push_back(keys.score(seq_slot, 2 + u, probe));
            cosines.push_back(static_cast<float>(scores.back() / std::sqrt(square)));
          }
          std::int32_t k = kUnits;
          if (shares) {
            const double entropy = score_entropy(cosines);
            k = wanted[static_cast<std::size_t>(seq_slot)].take(0, l, entropy, n);
            ASSERT_LE(std::abs(at_theta - entropy / std::log(static_cast<double>(n))), 1e-6);
            known[static_cast<std::size_t>(seq_slot)].add(l, at_theta);
          }
          k = std::min(k, n);
          ASSERT_EQ(remote[static_cast<std::size_t>(row)], 64 + 32 * k) << "step " << step << ", layer " << l;
          const Ids want = best_of(scores, k, 2);
          ++all;
          for (std::int32_t h = 0; h < heads; ++h) {
            const auto index = static_cast<std::size_t>((l * 2 + seq_slot) * heads + h);
            ASSERT_EQ(n_got[index], k);
            if (want.empty()) continue;
            const auto at = got.begin() + static_cast<std::ptrdiff_t>(index * kListed);
            ASSERT_EQ(Ids(at, at + k), want) << "step " << step << ", layer " << l << ", head " << h;
          }
          if (want.empty()) continue;
          ++decided;
          Ids pages = {0, 1};
          pages.insert(pages.end(), want.begin(), want.end());
          expect_listed(seq_slot, pages);
        }
      }
    }
  }
  std::printf("%d of %d selections decided\n", decided, all);
  EXPECT_GE(decided, 800);
}

// Probes of windows, chunk after chunk, including rows that are counted already.
TEST_F(CudaLayerSelectTest, ProbesAreTheCpus) {
  for (const auto& [group, heads, head_dim] : {std::tuple{4, 2, 64}, {1, 1, 128}, {4, 8, 128}})
    for (const WindowProbe form : {WindowProbe::kActivation, WindowProbe::kMean, WindowProbe::kReversed}) {
      const std::int32_t n_heads = group * heads, width = n_heads * head_dim;
      ChannelMoments moments(width);
      DeviceArray<double> mean(static_cast<std::size_t>(width), 0), m2(static_cast<std::size_t>(width), 0);
      std::mt19937 rng(3);
      std::normal_distribution<float> normal;
      for (const auto& [n_rows, each, known] : {std::tuple{1, 256, 0}, {300, 128, 0}, {100, 33, 40}, {65, 256, 65}}) {
        std::vector<float> x(static_cast<std::size_t>(n_rows * width));
        std::vector<std::uint16_t> bits;
        for (std::size_t i = 0; i < x.size(); ++i) {
          const bf16 v(normal(rng) * static_cast<float>(i % 7) + static_cast<float>(i % 3));
          x[i] = static_cast<float>(v), bits.push_back(v.bits);
        }
        std::vector<SelectionWindow> windows;
        for (std::int32_t at = 0; at < n_rows; at += each)
          windows.push_back({.row = at, .n_rows = std::min(each, n_rows - at)});
        const auto n_windows = static_cast<std::int32_t>(windows.size());
        const DeviceArray<std::uint16_t> x_device(bits);
        const DeviceArray<SelectionWindow> windows_device(windows);
        const DeviceArray<std::byte> scratch(window_probe_scratch_bytes(n_windows, n_rows, width));
        const auto folded = static_cast<std::size_t>(heads * head_dim);
        const DeviceArray<float> probes(static_cast<std::size_t>(n_windows) * folded);
        window_probes_cuda({.x = x_device.data(),
                            .windows = windows_device.data(),
                            .n_windows = n_windows,
                            .n_rows = n_rows,
                            .n_heads = n_heads,
                            .n_kv_heads = heads,
                            .head_dim = head_dim,
                            .mean = mean.data(),
                            .m2 = m2.data(),
                            .count = moments.count(),
                            .known = known,
                            .weights = static_cast<ProbeWeights>(form),
                            .scratch = scratch.data(),
                            .probes = probes.data()},
                           context());
        const std::vector<float> got = probes.get(stream);
        for (std::int32_t w = 0; w < n_windows; ++w) {
          const SelectionWindow& window = windows[static_cast<std::size_t>(w)];
          const auto channels = static_cast<std::size_t>(width);
          std::vector<float> a(channels), b(channels), sum(channels);
          const std::int32_t from = std::max(window.row, known), end = window.row + window.n_rows;
          ChannelBlock rows{.x = x.data() + from * width, .n = end - from, .stride = width, .begin = 0, .end = width};
          if (from < end) {
            row_moments_ref(rows, a.data(), b.data());
            moments.add(end - from, a, b);
          }
          rows.x = x.data() + window.row * width, rows.n = window.n_rows;
          std::vector<float> bias(static_cast<std::size_t>(window.n_rows), 1.0f), weights(bias.size());
          moments.bias_form(a, b);
          if (form != WindowProbe::kMean) row_bias_ref(rows, a.data(), b.data(), bias.data());
          window_weights(form, bias, weights);
          row_sum_ref(rows, weights.data(), sum.data());
          double difference = 0, size = 0;
          for (std::size_t c = 0; c < folded; ++c) {
            double want = 0;
            for (std::int32_t g = 0; g < group; ++g)
              want +=
                  static_cast<double>(sum[(c / static_cast<std::size_t>(head_dim) * static_cast<std::size_t>(group) +
                                           static_cast<std::size_t>(g)) *
                                              static_cast<std::size_t>(head_dim) +
                                          c % static_cast<std::size_t>(head_dim)]);
            const double d = static_cast<double>(got[static_cast<std::size_t>(w) * folded + c]) - want;
            difference += d * d, size += want * want;
          }
          ASSERT_LE(std::sqrt(difference), 1e-4 * std::sqrt(size)) << n_rows << " rows, window " << w;
        }
        const std::vector<double> m = mean.get(stream), v = m2.get(stream);
        for (std::int32_t c = 0; c < width; ++c) {
          ASSERT_LE(std::abs(m[static_cast<std::size_t>(c)] - moments.mean(c)), 1e-4);
          ASSERT_LE(std::abs(v[static_cast<std::size_t>(c)] - moments.squares()[static_cast<std::size_t>(c)]),
                    1e-4 * moments.squares()[static_cast<std::size_t>(c)] + 1e-3);
        }
      }
    }
}

}  // namespace
}  // namespace mneme
