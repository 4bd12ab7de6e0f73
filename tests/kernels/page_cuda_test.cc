// Pages chosen and brought on the device, against the references on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "src/kernels/box.h"
#include "src/kernels/group_pool.h"
#include "src/kernels/kv_slots_cuda.h"
#include "src/kernels/pointwise_cuda.h"
#include "src/kernels/topk.h"
#include "src/tensor/half.h"
#include "tests/device/cuda_testing.h"
#include "tests/kernels/attention_testing.h"

namespace mneme {
namespace {

using Ids = std::vector<std::int32_t>;

struct Setup {
  std::int32_t head_dim = 128, group = 4, kv_heads = 2, places = 2, max_pages = 64;
  std::int32_t budget = 384, sink = 64, recent = 64;  // tokens
  DType dtype = DType::kBF16;
  SlotSchedule schedule = SlotSchedule::kEveryStep;
  GroupPool pool = GroupPool::kMax;
  float tau = 1;
  std::int32_t n_select() const { return (budget - sink - recent) / kKvPageTokens; }
};

// One layer of some sequences: pages in pinned host memory in shuffled blocks, everything else on the device.
struct World {
  static constexpr std::int32_t kLayers = 1;
  Setup s;
  std::size_t block_bytes;
  PinnedBuffer host;
  Ids blocks;  // [places][KV heads][max_pages]
  DeviceArray<std::int32_t> blocks_there{0};
  KvSlots v;
  std::vector<DeviceBuffer> memory;
  DeviceArray<std::byte> scratch[2] = {DeviceArray<std::byte>(0), DeviceArray<std::byte>(0)};

  World(const Setup& setup, unsigned seed, int largest) : s(setup) {
    block_bytes = static_cast<std::size_t>(kKvPageTokens * 4 * s.head_dim);
    const auto n = static_cast<std::size_t>(s.places * s.kv_heads * s.max_pages);
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
    blocks_there = DeviceArray<std::int32_t>(blocks);
    v.n_layers = kLayers;
    v.n_places = s.places;
    v.n_kv_heads = s.kv_heads;
    v.n_heads = s.kv_heads * s.group;
    v.head_dim = s.head_dim;
    v.n_slots = (s.sink + s.recent) / kKvPageTokens + s.n_select() + 2;
    v.max_pages = s.max_pages;
    v.max_listed = s.budget / kKvPageTokens + 1;
    v.f16 = s.dtype == DType::kF16;
    const auto heads = static_cast<std::size_t>(s.places * s.kv_heads), pages = static_cast<std::size_t>(s.max_pages),
               slots = static_cast<std::size_t>(v.n_slots), listed = static_cast<std::size_t>(v.max_listed),
               q = static_cast<std::size_t>(s.places * v.n_heads);
    take(&v.slots, heads * slots * block_bytes);
    take(&v.boxes, (heads * pages + kBoxesBeyond) * v.token_bytes());
    take(&v.slot_of, heads * pages * 4);
    take(&v.page_of, heads * slots * 4);
    take(&v.used_at, heads * slots * 4);
    for (int i = 0; i < 2; ++i) take(&v.chosen[i], heads * listed * 4), take(&v.n_chosen[i], heads * 4);
    take(&v.listed, heads * listed * 4);
    take(&v.last_q, q * static_cast<std::size_t>(s.head_dim) * 2);
    take(&v.cosine, q * 4);
    take(&v.rules, static_cast<std::size_t>(s.places) * sizeof(SlotRules));
    take(&v.counts, static_cast<std::size_t>(s.places) * sizeof(SlotCounts));
    const std::vector<SlotRules> rules(static_cast<std::size_t>(s.places), this->rules());
    const Stream stream = Stream::make();
    copy_bytes(v.rules, rules.data(), rules.size() * sizeof(SlotRules), stream);
    set_bytes(v.counts, 0, static_cast<std::size_t>(s.places) * sizeof(SlotCounts), stream);
    stream.synchronize();
    for (auto& x : scratch) x = DeviceArray<std::byte>(choose_scratch_bytes(v, s.places), 0);
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
  SlotRules rules() const {
    return {.budget = s.budget,
            .sink = s.sink,
            .recent = s.recent,
            .n_select = s.n_select(),
            .schedule = s.schedule,
            .pool = s.pool,
            .alpha = 0.125f,
            .tau = s.tau};
  }
  KvTables pages() const {
    return {.base = host.device_data(),
            .blocks = blocks_there.data(),
            .sequence_stride = std::int64_t{kLayers} * s.kv_heads * s.max_pages,
            .max_pages = s.max_pages,
            .n_kv_heads = s.kv_heads,
            .head_dim = s.head_dim,
            .f16 = v.f16};
  }
  std::byte* page(std::int32_t place, std::int32_t head, std::int32_t p) const {
    const auto entry = static_cast<std::size_t>((place * s.kv_heads + head) * s.max_pages + p);
    return host.data() + static_cast<std::size_t>(blocks[entry]) * block_bytes;
  }
  AttentionShape shape() const { return {s.group, s.head_dim, s.dtype, 1.0f}; }

  // The reference: pages that a KV head chooses at `length`, with queries q [group, D].
  Ids chosen(std::int32_t place, std::int32_t head, std::int32_t length, const float* q) const {
    const std::int32_t first = s.sink / kKvPageTokens, stop = (length + kKvPageTokens - 1) / kKvPageTokens,
                       n = stop - s.recent / kKvPageTokens - first;
    std::vector<std::byte> boxes(static_cast<std::size_t>(n * 4 * s.head_dim));
    for (std::int32_t u = 0; u < n; ++u) {
      const KvRun run{page(place, head, first + u), kKvPageTokens};
      box_build_ref({&run, 1}, shape(), BoxKind::kMinMax, boxes.data() + u * 4 * s.head_dim);
    }
    std::vector<float> scores(static_cast<std::size_t>(n * s.group)), pooled(static_cast<std::size_t>(n));
    box_score_ref(q, shape(), boxes.data(), n, scores.data(), n);
    group_pool_ref(scores.data(), n, s.group, n, s.pool, rules().alpha, pooled.data());
    Ids ids(static_cast<std::size_t>(s.n_select()));
    topk_ref(pooled, s.n_select(), ids.data());
    for (std::int32_t& id : ids) id += first;
    return ids;
  }
};

class CudaPageTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }

  // Queries of small integers for every place, where the kernels look for them.
  std::vector<float> queries(World& w, std::mt19937& rng, int largest) {
    std::vector<float> q(static_cast<std::size_t>(w.s.places * w.v.n_heads * w.s.head_dim));
    std::vector<std::uint16_t> bits;
    for (float& x : q) {
      x = static_cast<float>(static_cast<int>(rng() % static_cast<unsigned>(2 * largest + 1)) - largest);
      bits.push_back(bf16(x).bits);
    }
    copy_bytes(w.v.last_q, bits.data(), bits.size() * 2, stream);
    stream.synchronize();
    return q;
  }
  void set_cosines(World& w, const std::vector<float>& c) {
    copy_bytes(w.v.cosine, c.data(), c.size() * 4, stream);
    stream.synchronize();
  }
  void begin(World& w, std::int32_t length) {
    for (std::int32_t place = 0; place < w.s.places; ++place) {
      build_boxes_cuda(
          {.place = place, .first = 0, .stop = length / kKvPageTokens, .n_tokens = length, .key_slot = place}, w.v,
          w.pages(), context());
      fill_slots_cuda(place, length, w.rules(), w.v, w.pages(), 0, 0, context());
    }
  }
  struct Rows {
    DeviceArray<std::int32_t> places, lengths, anew;
    SlotRows rows() const {
      return {places.data(), lengths.data(), anew.data(), static_cast<std::int32_t>(places.size())};
    }
  };
  static Rows rows_of(const World& w, std::int32_t length, std::int32_t anew) {
    Ids places(static_cast<std::size_t>(w.s.places));
    std::iota(places.begin(), places.end(), 0);
    return {DeviceArray<std::int32_t>(places), DeviceArray<std::int32_t>(Ids(places.size(), length)),
            DeviceArray<std::int32_t>(Ids(places.size(), anew))};
  }
  void run(World& w, const Rows& r, SelectWhen when) {
    choose_pages_cuda({.rows = r.rows(), .when = when, .scratch = w.scratch[static_cast<int>(when)].data()}, w.v, 0,
                      context());
    recall_pages_cuda(r.rows(), when, w.v, w.pages(), 0, 0, 3, context());
  }
  template <typename T>
  std::vector<T> fetch(const T* from, std::size_t n) {
    std::vector<T> out(n);
    copy_bytes(out.data(), from, n * sizeof(T), stream);
    stream.synchronize();
    return out;
  }
  // Every listed slot holds the page that stands there, byte for byte: sinks, `selected`, window.
  void expect_listed(World& w, std::int32_t place, std::int32_t head, std::int32_t length, const Ids& selected) {
    const std::int32_t stop = (length + kKvPageTokens - 1) / kKvPageTokens;
    Ids want;
    for (std::int32_t p = 0; p < w.s.sink / kKvPageTokens; ++p) want.push_back(p);
    want.insert(want.end(), selected.begin(), selected.end());
    for (std::int32_t p = stop - w.s.recent / kKvPageTokens; p < stop; ++p) want.push_back(p);
    const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
    const auto listed = fetch(w.v.listed + index * static_cast<std::size_t>(w.v.max_listed), want.size());
    for (std::size_t i = 0; i < want.size(); ++i) {
      const auto slot = static_cast<std::size_t>(listed[i]);
      ASSERT_GE(slot, index * static_cast<std::size_t>(w.v.n_slots));
      ASSERT_LT(slot, (index + 1) * static_cast<std::size_t>(w.v.n_slots));
      const auto got = fetch(w.v.slots + slot * w.block_bytes, w.block_bytes);
      ASSERT_EQ(std::memcmp(got.data(), w.page(place, head, want[i]), w.block_bytes), 0)
          << "entry " << i << ", page " << want[i] << " of place " << place << ", head " << head;
    }
  }
};

TEST_F(CudaPageTest, ChoosesWhatTheReferenceChoosesAndBringsIt) {
  std::mt19937 rng(11);
  for (const GroupPool pool : {GroupPool::kMax, GroupPool::kMean, GroupPool::kMaxProb, GroupPool::kMeanProb})
    for (const std::int32_t group : {1, 4, 7, 16})
      for (const std::int32_t head_dim : {64, 128})
        for (const DType dtype : {DType::kBF16, DType::kF16}) {
          World w({.head_dim = head_dim, .group = group, .max_pages = 300, .dtype = dtype, .pool = pool},
                  static_cast<unsigned>(rng()), 3);
          for (const std::int32_t length : {385, 416, 417, 2079, 9599}) {
            begin(w, length);
            const auto q = queries(w, rng, 2);
            const Rows r = rows_of(w, length, 1);
            run(w, r, SelectWhen::kNow);
            for (std::int32_t place = 0; place < w.s.places; ++place)
              for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
                const Ids want =
                    w.chosen(place, head, length, q.data() + (place * w.v.n_heads + head * group) * head_dim);
                const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
                const auto got = fetch(w.v.chosen[0] + index * static_cast<std::size_t>(w.v.max_listed), want.size());
                // Sums of integers are exact; logarithms are not, so that units apart by rounding may change places.
                if (pool == GroupPool::kMax || group == 1) {
                  ASSERT_EQ(got, want) << "pool " << static_cast<int>(pool) << ", group " << group << ", length "
                                       << length;
                }
                expect_listed(w, place, head, length, got);
              }
          }
        }
}

// Many cases of equal scores: the larger page first, on the device as on the host.
TEST_F(CudaPageTest, EqualScoresGiveEqualSets) {
  std::mt19937 rng(5);
  World w({.head_dim = 64, .group = 2, .kv_heads = 8, .max_pages = 500}, 77, 1);
  const std::int32_t length = 15000;
  begin(w, length);
  const Rows r = rows_of(w, length, 1);
  for (int round = 0; round < 60; ++round) {
    const auto q = queries(w, rng, round % 2);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t place = 0; place < w.s.places; ++place)
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const Ids want = w.chosen(place, head, length, q.data() + (place * w.v.n_heads + head * 2) * 64);
        const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
        ASSERT_EQ(fetch(w.v.chosen[0] + index * static_cast<std::size_t>(w.v.max_listed), want.size()), want);
      }
  }
}

// A sequence that decodes: heads that the gate flags attend what this step's query chooses, the others what the last
// step's did; nothing that is attended is ever overwritten before.
TEST_F(CudaPageTest, SpeculatesAndCorrectsByHead) {
  std::mt19937 rng(3);
  World w({.max_pages = 200, .schedule = SlotSchedule::kAhead, .tau = 0.5f}, 4, 3);
  std::int32_t length = 4090;
  begin(w, 6000);
  for (std::int32_t place = 0; place < w.s.places; ++place)
    fill_slots_cuda(place, length, w.rules(), w.v, w.pages(), 0, 0, context());
  std::vector<Ids> ahead(static_cast<std::size_t>(w.s.places * w.s.kv_heads));
  std::uint64_t corrections = 0;
  for (int step = 0; step < 80; ++step, ++length) {
    // The window's newest page is written by the step itself; here it is brought.
    if (length % kKvPageTokens == 1)
      for (std::int32_t place = 0; place < w.s.places; ++place)
        for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
          const std::int32_t page = length / kKvPageTokens, window = w.s.recent / kKvPageTokens;
          const auto index = static_cast<std::size_t>(place * w.s.kv_heads + head);
          const auto slot = index * static_cast<std::size_t>(w.v.n_slots) +
                            static_cast<std::size_t>(w.s.sink / kKvPageTokens + page % window);
          copy_bytes(w.v.slots + slot * w.block_bytes, w.page(place, head, page), w.block_bytes, stream);
        }
    const auto q = queries(w, rng, 2);
    std::vector<float> cosines;
    std::vector<bool> moved;
    for (std::size_t i = 0; i < ahead.size(); ++i) {
      moved.push_back(rng() % 3 == 0);
      for (std::int32_t g = 0; g < w.s.group; ++g) cosines.push_back(moved.back() ? 0.4f : 0.6f);
    }
    set_cosines(w, cosines);
    const Rows r = rows_of(w, length, step == 0 ? 1 : 0);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t place = 0; place < w.s.places; ++place) {
      for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
        const auto i = static_cast<std::size_t>(place * w.s.kv_heads + head);
        const float* own = q.data() + (place * w.v.n_heads + head * w.s.group) * w.s.head_dim;
        const bool now = step == 0 || moved[i];
        if (step > 0) corrections += moved[i] ? 1 : 0;
        expect_listed(w, place, head, length, now ? w.chosen(place, head, length, own) : ahead[i]);
      }
    }
    run(w, r, SelectWhen::kNext);
    for (std::size_t i = 0; i < ahead.size(); ++i) {
      const auto place = static_cast<std::int32_t>(i) / w.s.kv_heads,
                 head = static_cast<std::int32_t>(i) % w.s.kv_heads;
      ahead[i] = w.chosen(place, head, length + 1, q.data() + (place * w.v.n_heads + head * w.s.group) * w.s.head_dim);
    }
  }
  const auto counts = fetch(w.v.counts, static_cast<std::size_t>(w.s.places));
  std::uint64_t counted = 0, checks = 0;
  for (const SlotCounts& c : counts) counted += c.corrections, checks += c.checks;
  EXPECT_EQ(counted, corrections);
  EXPECT_EQ(checks, 79u * ahead.size());
}

// Up to the budget, page p is in slot p and nothing is selected.
TEST_F(CudaPageTest, AttendsEverythingUpToTheBudget) {
  World w({.max_pages = 64}, 9, 3);
  for (const std::int32_t length : {1, 31, 32, 33, 383, 384}) {
    begin(w, length);
    const Rows r = rows_of(w, length, 1);
    run(w, r, SelectWhen::kNow);
    for (std::int32_t head = 0; head < w.s.kv_heads; ++head) {
      const auto index = static_cast<std::size_t>(head);
      const auto n = static_cast<std::size_t>((length + kKvPageTokens - 1) / kKvPageTokens);
      const auto listed = fetch(w.v.listed + index * static_cast<std::size_t>(w.v.max_listed), n);
      for (std::size_t p = 0; p < n; ++p) {
        const auto got = fetch(w.v.slots + static_cast<std::size_t>(listed[p]) * w.block_bytes, w.block_bytes);
        ASSERT_EQ(std::memcmp(got.data(), w.page(0, head, static_cast<std::int32_t>(p)), w.block_bytes), 0);
      }
    }
  }
}

// Drawn outcomes replace the share that they should.
TEST_F(CudaPageTest, DrawnTurnoverIsWhatWasAskedFor) {
  World w({.max_pages = 300, .budget = 64 + 64 + 32 * 10}, 9, 3);
  SlotRules rules = w.rules();
  rules.turnover = 0.2f;
  for (std::int32_t place = 0; place < w.s.places; ++place)
    copy_bytes(w.v.rules + place, &rules, sizeof(rules), stream);
  std::mt19937 rng(1);
  queries(w, rng, 2);
  begin(w, 9000);
  for (std::int32_t length = 9000; length < 9020; ++length) run(w, rows_of(w, length, 0), SelectWhen::kNow);
  const auto before = fetch(w.v.counts, 1);
  for (std::int32_t length = 9020; length < 9120; ++length) run(w, rows_of(w, length, 0), SelectWhen::kNow);
  const auto after = fetch(w.v.counts, 1);
  const auto selected = static_cast<double>(after[0].selected - before[0].selected),
             replaced = static_cast<double>(after[0].replaced - before[0].replaced);
  EXPECT_EQ(selected, 100 * 2 * 10);
  EXPECT_NEAR(replaced / selected, 0.2, 0.03);  // all of them while the candidates change, every 32 steps
}

}  // namespace
}  // namespace mneme
