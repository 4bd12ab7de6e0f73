// Queries, keys and values of new tokens, and the gate that compares the queries.
#include "src/kv/append/append_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "src/ops/norm_rope/pointwise.h"
#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/ops/norm_rope/rope.h"
#include "src/selection/gate/gate.h"
#include "tests/cuda/bits_testing.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/gemm/gemm_testing.h"

namespace mneme {
namespace {

using Ids = std::vector<std::int32_t>;

class CudaAppendTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }
};

// Bias, per-head norm, RoPE and the destination of every row's key and value, against the references.
struct StoreCase {
  std::int32_t head_dim, n_heads, n_kv_heads;
  bool bf16_in, f16_kv, neighbours, norms, bias;
};

void check_store(const StoreCase& c, const Stream& stream) {
  const CudaContext context{.stream = stream.get()};
  const std::vector<std::int32_t> positions = {0, 31, 32, 1000, 130999}, slots = {0, 0, 1, 1, -1};
  const std::int32_t n = 5, max_pages = 40, layers = 2, layer = 1;
  const std::int64_t width = std::int64_t{c.n_heads + 2 * c.n_kv_heads} * c.head_dim, d = c.head_dim;
  const Tensor qkv = random_f32(n, width, 31), bias = random_f32(1, width, 32), q_norm = random_f32(1, d, 33),
               k_norm = random_f32(1, d, 34), rounded = converted(qkv, DType::kBF16);
  RopeConfig rope;
  rope.pairs = c.neighbours ? RopePairs::kNeighbours : RopePairs::kHalves;
  rope.theta = 500000;
  const RopeTable table = RopeTable::make(rope, d, 131072);

  const DeviceArray<std::int32_t> positions_device(positions), slots_device(slots);
  const DeviceArray<double> inv_freq(table.inv_freq);
  const DeviceArray<float> angles(static_cast<std::size_t>(n * d)), bias_device(floats_of(bias, width)),
      q_norm_device(floats_of(q_norm, d)), k_norm_device(floats_of(k_norm, d)), f32(floats_of(qkv, n * width));
  std::vector<std::uint16_t> bits(static_cast<std::size_t>(n * width));
  std::memcpy(bits.data(), rounded.view().data(), bits.size() * 2);
  const DeviceArray<std::uint16_t> narrow(bits), q_out(static_cast<std::size_t>(n * c.n_heads * d));
  // Two sequences' tables; pages in shuffled order.
  const std::int64_t stride = std::int64_t{layers} * c.n_kv_heads * max_pages, n_blocks = 2 * stride;
  std::vector<std::int32_t> blocks(static_cast<std::size_t>(n_blocks));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = static_cast<std::int32_t>((i * 37 + 5) % blocks.size());
  const DeviceArray<std::int32_t> blocks_device(blocks);
  const DeviceArray<std::uint16_t> memory(static_cast<std::size_t>(n_blocks * kKvPageTokens * 2 * d));
  const KvTables tables{.base = reinterpret_cast<std::byte*>(memory.data()),
                        .blocks = blocks_device.data(),
                        .sequence_stride = stride,
                        .max_pages = max_pages,
                        .n_kv_heads = c.n_kv_heads,
                        .head_dim = c.head_dim,
                        .f16 = c.f16_kv};
  rope_angles_cuda(positions_device.data(), n, inv_freq.data(), static_cast<int>(d / 2), table.scale, angles.data(),
                   context);
  store_qkv_cuda({.qkv = c.bf16_in ? static_cast<const void*>(narrow.data()) : f32.data(),
                  .qkv_bf16 = c.bf16_in,
                  .bias = c.bias ? bias_device.data() : nullptr,
                  .q_norm = c.norms ? q_norm_device.data() : nullptr,
                  .k_norm = c.norms ? k_norm_device.data() : nullptr,
                  .norm_eps = 1e-6f,
                  .angles = angles.data(),
                  .neighbours = c.neighbours,
                  .positions = positions_device.data(),
                  .slots = slots_device.data(),
                  .n = n,
                  .n_heads = c.n_heads},
                 tables, layer, q_out.data(), context);

  const Tensor x(DType::kF32, {n, c.n_heads + 2 * c.n_kv_heads, d});
  for (std::int64_t i = 0; i < n * width; ++i) {
    x.as<float>()[i] = c.bf16_in ? static_cast<float>(value(bits[static_cast<std::size_t>(i)])) : qkv.as<float>()[i];
    if (c.bias) x.as<float>()[i] += bias.as<float>()[i % width];
  }
  const auto heads = [&](std::int64_t first, std::int64_t count) {
    Tensor t(DType::kF32, {n, count, d});
    for (std::int64_t i = 0; i < n; ++i)
      std::copy_n(x.as<float>() + i * width + first * d, count * d, t.as<float>() + i * count * d);
    return t;
  };
  const Tensor q = heads(0, c.n_heads), k = heads(c.n_heads, c.n_kv_heads),
               v = heads(c.n_heads + c.n_kv_heads, c.n_kv_heads);
  const auto finish = [&](const Tensor& t, std::int64_t count, const Tensor& norm) {
    const TensorView rows(t.view().data(), DType::kF32, {n * count, d});
    if (c.norms) rms_norm_ref(rows, norm.as<float>(), 1e-6, rows);
    rope_ref(t, positions, table);
  };
  finish(q, c.n_heads, q_norm);
  finish(k, c.n_kv_heads, k_norm);

  const std::vector<std::uint16_t> got_q = q_out.get(stream), got_kv = memory.get(stream);
  for (std::size_t i = 0; i < got_q.size(); ++i) {
    const auto want = static_cast<double>(q.as<float>()[i]);
    ASSERT_LE(std::abs(value(got_q[i]) - want), std::abs(want) * 0.0040 + 2e-6) << i;
  }
  std::size_t written = 0;
  for (std::int32_t row = 0; row < n; ++row) {
    const auto r = static_cast<std::size_t>(row);
    if (slots[r] < 0) continue;
    for (std::int32_t head = 0; head < c.n_kv_heads; ++head) {
      const auto entry = static_cast<std::size_t>(
          slots[r] * stride + (std::int64_t{layer} * c.n_kv_heads + head) * max_pages + positions[r] / kKvPageTokens);
      const std::uint16_t* token = got_kv.data() + (static_cast<std::size_t>(blocks[entry]) * kKvPageTokens +
                                                    static_cast<std::size_t>(positions[r] % kKvPageTokens)) *
                                                       static_cast<std::size_t>(2 * d);
      for (std::int64_t i = 0; i < 2 * d; ++i, ++written) {
        const Tensor& from = i < d ? k : v;
        const auto want = static_cast<double>(from.as<float>()[(row * c.n_kv_heads + head) * d + i % d]);
        f16 h;
        h.bits = token[i];
        const double got = c.f16_kv ? static_cast<double>(static_cast<float>(h)) : value(token[i]);
        ASSERT_LE(std::abs(got - want), std::abs(want) * 0.0040 + 1e-5) << row << ", " << head << ", " << i;
      }
    }
  }
  std::size_t touched = 0;
  for (const std::uint16_t b : got_kv) touched += b != 0xffff ? 1 : 0;
  ASSERT_EQ(touched, written);  // nothing else, and nothing for the row without a sequence
}

TEST_F(CudaAppendTest, StoresQueriesKeysAndValues) {
  for (const StoreCase& c :
       {StoreCase{128, 8, 2, false, false, false, false, false}, StoreCase{64, 7, 1, true, false, true, false, true},
        StoreCase{128, 4, 4, true, true, false, true, false}, StoreCase{80, 5, 5, false, false, true, true, true},
        StoreCase{256, 2, 1, true, false, false, false, false}})
    check_store(c, stream);
}

// Two layers and three sequence slots of a device cache without slots, and the pages of three sequences.
struct GateCase {
  std::int32_t group;
  GatePool pool;
  bool by_query_head = false;  // every query head selects for itself (DeviceCache::shared)
};

class GateWorld {
 public:
  static constexpr std::int32_t kLayers = 2, kLayer = 1, kSeqSlots = 3, kKvHeads = 2, kDim = 64, kTokens = 4;

  GateWorld(const GateCase& c, const SelectionPlan& plan) : heads_(c.group * kKvHeads), plans_(of_all(plan)) {
    cache_.n_layers = kLayers, cache_.n_seq_slots = kSeqSlots;
    cache_.n_heads = heads_, cache_.head_dim = kDim;
    cache_.shared = c.by_query_head ? c.group : 1;
    cache_.n_kv_heads = kKvHeads * cache_.shared;
    cache_.unit_tokens = 1;
    cache_.max_pages = 1, cache_.max_listed = kTokens;
    last_q_ = DeviceArray<std::uint16_t>(static_cast<std::size_t>(states() * heads_ * kDim), 0);
    cosines_ = DeviceArray<float>(static_cast<std::size_t>(states() * heads_));
    flags_ = DeviceArray<std::int32_t>(static_cast<std::size_t>(states() * cache_.n_kv_heads));
    cache_.selection.last_q = last_q_.data(), cache_.selection.cosine = cosines_.data();
    cache_.selection.flags = flags_.data();
    cache_.plans = plans_.data();
  }

  // Stores one token of each row.   qkv [rows][heads + 2 KV heads][D]; seq_slots: of the rows, -1: none
  void append(const std::vector<float>& qkv, const Ids& seq_slots, std::int32_t position, const Stream& stream) {
    const auto n = static_cast<std::int32_t>(seq_slots.size());
    std::vector<float> angles;
    for (std::int32_t i = 0; i < n * kDim / 2; ++i) angles.push_back(1.0f), angles.push_back(0.0f);
    const DeviceArray<float> qkv_device(qkv), angles_device(angles);
    const DeviceArray<std::int32_t> positions(Ids(seq_slots.size(), position)), seq_slots_device(seq_slots),
        slots(Ids{0, 1, 2}), blocks(Ids{0, 1, 2, 3, 4, 5});
    const DeviceArray<std::uint16_t> memory(std::size_t{6} * kKvPageTokens * 2 * kDim);
    const DeviceArray<std::uint16_t> q_out(static_cast<std::size_t>(n * heads_ * kDim));
    store_qkv_cuda({.qkv = qkv_device.data(),
                    .angles = angles_device.data(),
                    .positions = positions.data(),
                    .slots = slots.data(),
                    .n = n,
                    .n_heads = heads_,
                    .store = {.kind = SlotStore::Kind::kSlots,
                              .seq_slots = seq_slots_device.data(),
                              .layer = kLayer,
                              .cache = cache_},
                    .local = {}},
                   {.base = reinterpret_cast<std::byte*>(memory.data()),
                    .blocks = blocks.data(),
                    .sequence_stride = kKvHeads,
                    .max_pages = 1,
                    .n_kv_heads = kKvHeads,
                    .head_dim = kDim},
                   0, q_out.data(), {.stream = stream.get()});
    stream.synchronize();
  }
  std::int32_t heads() const { return heads_; }
  std::int32_t shared() const { return cache_.shared; }
  // Of layer kLayer; the other layer's are the same as before.
  float cosine(std::int32_t seq_slot, std::int32_t head, const Stream& stream) const {
    return cosines_.get(stream)[static_cast<std::size_t>((kLayer * kSeqSlots + seq_slot) * heads_ + head)];
  }
  std::int32_t flag(std::int32_t seq_slot, std::int32_t head, const Stream& stream) const {
    return flags_.get(stream)[static_cast<std::size_t>((kLayer * kSeqSlots + seq_slot) * cache_.n_kv_heads + head)];
  }
  // Flags that no append has written.
  std::int64_t n_untouched(const Stream& stream) const {
    const Ids all = flags_.get(stream);
    return std::count(all.begin(), all.end(), -1);
  }

 private:
  static std::int32_t states() { return kLayers * kSeqSlots; }
  static DeviceArray<SelectionPlan> of_all(const SelectionPlan& plan) {
    return DeviceArray<SelectionPlan>(std::vector<SelectionPlan>(static_cast<std::size_t>(states()), plan));
  }

  std::int32_t heads_;
  DeviceCache cache_;
  DeviceArray<SelectionPlan> plans_;
  DeviceArray<std::uint16_t> last_q_{0};
  DeviceArray<float> cosines_{0};
  DeviceArray<std::int32_t> flags_{0};
};

// Queries of two steps, and keys and values, of rows [3]; cosines of the steps differ from head to head.
std::vector<std::vector<float>> two_steps(std::int32_t heads, std::mt19937& rng) {
  const std::size_t width = static_cast<std::size_t>((heads + 2 * GateWorld::kKvHeads) * GateWorld::kDim);
  std::vector<std::vector<float>> steps(2, std::vector<float>(3 * width));
  const auto normal = [&] { return static_cast<float>(rng() % 2001) / 1000 - 1; };
  for (std::size_t i = 0; i < steps[0].size(); ++i) {
    const float mix = static_cast<float>(i / GateWorld::kDim % 9) / 8;
    steps[0][i] = normal();
    steps[1][i] = mix * steps[0][i] + (1 - mix) * normal();
  }
  return steps;
}
double cosine_of(const std::vector<std::vector<float>>& steps, std::size_t first) {
  double dot = 0, norms[2] = {};
  for (std::size_t i = first; i < first + GateWorld::kDim; ++i) {
    const double a = value(bf16(steps[0][i]).bits), b = value(bf16(steps[1][i]).bits);
    dot += a * b, norms[0] += a * a, norms[1] += b * b;
  }
  return dot / std::sqrt(norms[0] * norms[1]);
}
double pooled(GatePool pool, const std::vector<double>& cosines) {
  if (pool == GatePool::kMax) return *std::max_element(cosines.begin(), cosines.end());
  if (pool == GatePool::kAny) return *std::min_element(cosines.begin(), cosines.end());
  double sum = 0;
  for (const double c : cosines) sum += c;
  return sum / static_cast<double>(cosines.size());
}

TEST_F(CudaAppendTest, FlagsKvHeadsWhoseQueriesMoved) {
  const Ids seq_slots = {2, -1, 0};
  std::mt19937 rng(7);
  int flagged = 0, all = 0;
  for (const std::int32_t group : {1, 3, 4, 8, 16})
    for (const GatePool pool : {GatePool::kMean, GatePool::kMax, GatePool::kAny})
      for (const bool by_query_head : {false, true})
        for (const float tau : {0.3f, 0.7f}) {
          const SelectionPlan plan{.schedule = ScheduleKind::kSpeculative,
                                   .units = {.tokens = 1},
                                   .gate = {.kind = GateKind::kCosine, .pool = pool, .tau = tau}};
          GateWorld w({group, pool, by_query_head}, plan);
          const auto steps = two_steps(w.heads(), rng);
          for (std::size_t i = 0; i < 2; ++i) w.append(steps[i], seq_slots, static_cast<std::int32_t>(i), stream);
          const std::size_t width = steps[0].size() / 3;
          for (std::size_t row : {0u, 2u})
            for (std::int32_t m = 0; m < GateWorld::kKvHeads; ++m) {
              std::vector<double> cosines;
              for (std::int32_t h = m * group; h < (m + 1) * group; ++h) {
                cosines.push_back(cosine_of(steps, row * width + static_cast<std::size_t>(h * GateWorld::kDim)));
                ASSERT_NEAR(static_cast<double>(w.cosine(seq_slots[row], h, stream)), cosines.back(), 1e-5);
              }
              const double c = pooled(pool, cosines);
              if (std::abs(c - static_cast<double>(tau)) < 1e-4) continue;
              ++all, flagged += c < static_cast<double>(tau) ? 1 : 0;
              for (std::int32_t i = 0; i < w.shared(); ++i)
                ASSERT_EQ(w.flag(seq_slots[row], m * w.shared() + i, stream), c < static_cast<double>(tau) ? 1 : 0)
                    << "group " << group << ", KV head " << m << ", cosine " << c << ", tau " << tau;
            }
          EXPECT_EQ(w.n_untouched(stream), (2 * 3 - 2) * GateWorld::kKvHeads * w.shared());
        }
  EXPECT_GT(flagged, all / 5);
  EXPECT_LT(flagged, all * 4 / 5);
}

TEST_F(CudaAppendTest, FlagsAtNaN) {
  for (const GatePool pool : {GatePool::kMean, GatePool::kMax, GatePool::kAny}) {
    const SelectionPlan plan{.schedule = ScheduleKind::kSpeculative,
                             .units = {.tokens = 1},
                             .gate = {.kind = GateKind::kCosine, .pool = pool, .tau = 0.5f}};
    GateWorld w({4, pool}, plan);
    // Queries stay, but one of the second KV head, which becomes NaN.
    std::vector<float> qkv(static_cast<std::size_t>((w.heads() + 2 * GateWorld::kKvHeads) * GateWorld::kDim), 0.0f);
    for (std::size_t i = 0; i < qkv.size(); i += GateWorld::kDim) qkv[i] = 2;
    w.append(qkv, {1}, 0, stream);
    qkv[std::size_t{6} * GateWorld::kDim + 3] = std::nanf("");
    w.append(qkv, {1}, 1, stream);
    EXPECT_EQ(w.flag(1, 0, stream), 0);
    EXPECT_EQ(w.flag(1, 1, stream), 1);
  }
}

TEST_F(CudaAppendTest, LeavesTheFlagsOfOtherGates) {
  SelectionPlan mass{.schedule = ScheduleKind::kSpeculative, .units = {.tokens = 1}, .gate = {.kind = GateKind::kMass}};
  SelectionPlan layer{.schedule = ScheduleKind::kBoundary, .units = {.tokens = 1}, .gate = {.kind = GateKind::kCosine}};
  for (const SelectionPlan& plan : {mass, layer, SelectionPlan{.schedule = ScheduleKind::kEveryStep}}) {
    GateWorld w({4, GatePool::kMean}, plan);
    std::mt19937 rng(3);
    w.append(two_steps(w.heads(), rng)[0], {0, 1, 2}, 0, stream);
    EXPECT_EQ(w.n_untouched(stream), GateWorld::kLayers * GateWorld::kSeqSlots * GateWorld::kKvHeads);
  }
}

}  // namespace
}  // namespace mneme
