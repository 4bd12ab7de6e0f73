// Routing and grouped GEMMs on the device against plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "src/base/rng.h"
#include "src/cuda/memory.h"
#include "src/model/routing.h"
#include "src/ops/experts/grouped_gemm_cuda.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/gemm/gemm.h"
#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

class CudaExpertsTest : public CudaTest {
 protected:
  CudaContext context;

  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped()) context.stream = stream.get();
  }

  template <typename T>
  DeviceBuffer on_device(const std::vector<T>& v) {
    DeviceBuffer b(std::max<std::size_t>(v.size(), 1) * sizeof(T), "test");
    copy_bytes(b.data(), v.data(), v.size() * sizeof(T), stream);
    stream.synchronize();
    return b;
  }
  template <typename T>
  std::vector<T> on_host(const DeviceBuffer& b, std::size_t n) {
    std::vector<T> v(n);
    copy_bytes(reinterpret_cast<std::byte*>(v.data()), b.data(), n * sizeof(T), stream);
    stream.synchronize();
    return v;
  }
  // Random weights, stored as `type`: on the device, and what they are.
  struct Matrix {
    DeviceBuffer memory;
    DeviceMatrix device;
    std::vector<float> values;
  };
  Matrix matrix(DType type, std::int64_t n_out, std::int64_t k, double scale) {
    Matrix m;
    m.values = normals(n_out * k, 6, scale);
    std::vector<std::byte> stored(n_out * row_bytes(type, k));
    quantise_rows(view_of(m.values.data(), {n_out, k}), {stored.data(), type, {n_out, k}});
    const ConstTensorView all(stored.data(), type, {n_out, k});
    for (std::int64_t i = 0; i < n_out; ++i) dequantise_row(all, i, m.values.data() + i * k);
    m.device = {.values = nullptr, .dtype = type, .n_out = n_out, .n_in = k};
    m.memory = DeviceBuffer(m.device.bytes(), "t");
    m.device.values = m.memory.data();
    const DeviceBuffer raw = on_device(stored);
    if (is_quantised(type)) {
      set_bytes(m.memory.data(), 0, m.memory.size(), stream);
      repack_cuda(raw.data(), 0, n_out, m.device, context);
    } else {
      copy_bytes(m.memory.data(), stored.data(), stored.size(), stream);
    }
    stream.synchronize();
    return m;
  }
  struct Sorted {
    DeviceBuffer order, slots, tiles, count;
    SortedPairs pairs;
    Sorted(int n, int tile_rows) : order(n * 4, "t"), slots(n * 4, "t"), tiles(n * 12, "t"), count(4, "t") {
      pairs = {.order = order.as<std::int32_t>(),
               .slots = slots.as<std::int32_t>(),
               .tiles = tiles.as<std::int32_t>(),
               .n_tiles = count.as<std::int32_t>(),
               .tile_rows = tile_rows};
    }
  };
  static std::vector<float> normals(std::size_t n, std::uint64_t seed, double scale) {
    Rng rng(seed);
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>(scale * rng.normal());
    return v;
  }
};

TEST_F(CudaExpertsTest, RoutesAsTheSpecification) {
  for (const auto& [n, hidden, experts, used] :
       {std::tuple{1, 64, 4, 1}, {3, 96, 6, 2}, {33, 128, 128, 8}, {5, 64, 1000, 16}})
    for (const bool normalise : {false, true}) {
      SCOPED_TRACE(::testing::Message() << n << " rows, " << experts << " experts");
      const std::vector<float> x = normals(n * hidden, 1, 1.0), w = normals(experts * hidden, 2, 0.3),
                               norm = normals(hidden, 3, 1.0), bias = normals(experts, 4, 1.0);
      const DeviceBuffer dx = on_device(x), dw = on_device(w), dn = on_device(norm), db = on_device(bias);
      DeviceBuffer logits(n * experts * 4, "t"), ids(n * used * 4, "t"), shares(n * used * 4, "t");
      route_cuda({.weights = dw.as<float>(),
                  .bias = db.as<float>(),
                  .norm_weight = dn.as<float>(),
                  .eps = 1e-5f,
                  .hidden = hidden,
                  .n_experts = experts,
                  .n_used = used,
                  .normalise = normalise},
                 dx.as<float>(), n, logits.as<float>(), ids.as<std::int32_t>(), shares.as<float>(), context);
      const auto got_logits = on_host<float>(logits, n * experts), got_shares = on_host<float>(shares, n * used);
      const auto got_ids = on_host<std::int32_t>(ids, n * used);
      std::vector<RoutedExpert> want(used);
      for (int i = 0; i < n; ++i) {
        double squares = 0;
        for (int j = 0; j < hidden; ++j) squares += double{x[i * hidden + j]} * x[i * hidden + j];
        const double scale = 1.0 / std::sqrt(squares / hidden + 1e-5);
        for (int e = 0; e < experts; ++e) {
          double dot = bias[e];
          for (int j = 0; j < hidden; ++j) dot += scale * x[i * hidden + j] * norm[j] * w[e * hidden + j];
          ASSERT_NEAR(got_logits[i * experts + e], dot, 1e-4);
        }
        route({got_logits.data() + i * experts, static_cast<std::size_t>(experts)}, used, normalise, want);
        for (int k = 0; k < used; ++k) {
          EXPECT_EQ(got_ids[i * used + k], want[k].expert);
          EXPECT_NEAR(got_shares[i * used + k], want[k].share, 1e-5);
        }
      }
    }
}

TEST_F(CudaExpertsTest, TiesTakeTheLowerNumberAndNanComesLast) {
  // The norm of a row of ones is a row of ones: logits are the sums of the router's rows.
  const int hidden = 32, experts = 40, used = 4;
  std::vector<float> w(experts * hidden, 0.0f);
  const auto set = [&](int e, float v) { w[e * hidden] = v; };
  set(3, 2.0f), set(37, 2.0f), set(35, 1.0f), set(4, NAN);
  const DeviceBuffer dx = on_device(std::vector<float>(hidden, 1.0f)), dw = on_device(w),
                     dn = on_device(std::vector<float>(hidden, 1.0f));
  DeviceBuffer logits(experts * 4, "t"), ids(used * 4, "t"), shares(used * 4, "t");
  route_cuda({.weights = dw.as<float>(),
              .norm_weight = dn.as<float>(),
              .hidden = hidden,
              .n_experts = experts,
              .n_used = used},
             dx.as<float>(), 1, logits.as<float>(), ids.as<std::int32_t>(), shares.as<float>(), context);
  EXPECT_EQ(on_host<std::int32_t>(ids, used), (std::vector<std::int32_t>{3, 37, 35, 0}));
}

// Every pair's product, and the sum of a row's, for every type, few rows and many.
TEST_F(CudaExpertsTest, MultipliesEachRowWithItsExpert) {
  const int experts = 6, used = 3, n_out = 88;
  for (const DType type :
       {DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ2_K, DType::kQ3_K,
        DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kMXFP4})
    for (const int n : {1, 5, 70}) {
      SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << n << " rows");
      const int k = dtype_info(type).block > 32 ? 512 : 160;
      std::vector<bf16> x;
      for (const float v : normals(n * k, 5, 1.0)) x.push_back(bf16(v));
      const std::vector<float> values = normals(experts * n_out * k, 6, 0.1), bias = normals(experts * n_out, 7, 1.0);
      std::vector<std::byte> stored(experts * n_out * row_bytes(type, k));
      quantise_rows(view_of(values.data(), {experts * n_out, k}), {stored.data(), type, {experts * n_out, k}});
      DeviceMatrix w{.values = nullptr, .dtype = type, .n_out = experts * n_out, .n_in = k};
      const DeviceBuffer raw = on_device(stored), memory(w.bytes(), "t");
      w.values = memory.data();
      if (is_quantised(type)) {
        set_bytes(memory.data(), 0, memory.size(), stream);
        repack_cuda(raw.data(), 0, w.n_out, w, context);
      } else {
        copy_bytes(memory.data(), stored.data(), stored.size(), stream);
      }
      std::vector<std::int32_t> routed;
      Rng rng(n);
      for (int i = 0; i < n; ++i) {  // a row's experts differ; expert 5 has none
        std::vector<std::int32_t> all{0, 1, 2, 3, 4};
        for (int j = 0; j < used; ++j) std::swap(all[j], all[j + rng.below(all.size() - j)]);
        routed.insert(routed.end(), all.begin(), all.begin() + used);
      }
      const int pairs = n * used;
      const DeviceBuffer dx = on_device(x), dr = on_device(routed), db = on_device(bias);
      DeviceBuffer order(pairs * 4, "t"), slots(pairs * 4, "t"), tiles(pairs * 12, "t"), count(4, "t"),
          y(pairs * n_out * 4, "t");
      const SortedPairs sorted{.order = order.as<std::int32_t>(),
                               .slots = slots.as<std::int32_t>(),
                               .tiles = tiles.as<std::int32_t>(),
                               .n_tiles = count.as<std::int32_t>(),
                               .tile_rows = expert_tile_rows(pairs, experts)};
      sort_pairs_cuda(dr.as<std::int32_t>(), pairs, experts, sorted, context);
      grouped_gemm_cuda({.x = dx.data(),
                         .n_used = used,
                         .w = w,
                         .bias = db.as<float>(),
                         .y = y.data(),
                         .y_f32 = true,
                         .n_pairs = pairs,
                         .n_experts = experts},
                        sorted, context);
      const auto got_order = on_host<std::int32_t>(order, pairs), got_slots = on_host<std::int32_t>(slots, pairs);
      std::vector<std::int32_t> want_order(pairs);
      std::iota(want_order.begin(), want_order.end(), 0);
      std::stable_sort(want_order.begin(), want_order.end(), [&](int a, int b) { return routed[a] < routed[b]; });
      ASSERT_EQ(got_order, want_order);
      const auto got = on_host<float>(y, pairs * n_out);
      std::vector<float> row(k);
      const ConstTensorView all(stored.data(), type, {experts * n_out, k});
      for (int p = 0; p < pairs; ++p)
        for (int o = 0; o < n_out; ++o) {
          dequantise_row(all, routed[p] * n_out + o, row.data());
          double dot = bias[routed[p] * n_out + o];
          for (int j = 0; j < k; ++j) dot += double{row[j]} * float(x[p / used * k + j]);
          ASSERT_NEAR(got[got_slots[p] * n_out + o], dot, 5e-4) << "pair " << p << " output " << o;
        }
      const std::vector<float> residual = normals(n * n_out, 8, 1.0), shares = normals(pairs, 9, 1.0),
                               norm = normals(n_out, 10, 1.0);
      const DeviceBuffer dres = on_device(residual), ds = on_device(shares), dn = on_device(norm);
      DeviceBuffer next(n * n_out * 2, "t"), sums(std::max(n, 8) * 4, "t");
      combine_experts_cuda({.y = y.as<float>(),
                            .slots = sorted.slots,
                            .experts = dr.as<std::int32_t>(),
                            .shares = ds.as<float>(),
                            .n_used = used,
                            .hidden = n_out,
                            .residual = dres.as<float>(),
                            .norm_weight = dn.as<float>(),
                            .x_next = next.data(),
                            .sums = sums.as<float>()},
                           n, context);
      const auto combined = on_host<float>(dres, n * n_out), got_sums = on_host<float>(sums, n);
      const auto got_next = on_host<bf16>(next, n * n_out);
      for (int i = 0; i < n; ++i) {
        double squares = 0;
        for (int o = 0; o < n_out; ++o) {
          double want = residual[i * n_out + o];
          for (int j = 0; j < used; ++j)
            want += double{shares[i * used + j]} * got[got_slots[i * used + j] * n_out + o];
          ASSERT_NEAR(combined[i * n_out + o], want, 1e-4);
          EXPECT_NEAR(float(got_next[i * n_out + o]), combined[i * n_out + o] * norm[o],
                      std::abs(combined[i * n_out + o] * norm[o]) / 200);
          squares += want * want;
        }
        EXPECT_NEAR(got_sums[i], squares, 1e-3 * squares);
      }
    }
}

// Two ranks with two and four of six experts, and one without a pair: what each adds up is a part of the whole.
TEST_F(CudaExpertsTest, SumsOfRanksExpertsAreTheWholeSum) {
  const int experts = 6, used = 2, n_out = 88, k = 160, n = 17, pairs = n * used;
  std::vector<bf16> x, w;
  for (const float v : normals(n * k, 5, 1.0)) x.push_back(bf16(v));
  for (const float v : normals(experts * n_out * k, 6, 0.1)) w.push_back(bf16(v));
  std::vector<std::int32_t> routed;
  for (int i = 0; i < n; ++i) routed.insert(routed.end(), {i % 5, (i + 2) % 5});  // expert 5 has none
  const DeviceBuffer dx = on_device(x), dw = on_device(w), dr = on_device(routed),
                     db = on_device(normals(experts * n_out, 7, 1.0)), ds = on_device(normals(pairs, 8, 1.0));
  const auto sum_of = [&](int first, int end) {
    DeviceBuffer order(pairs * 4, "t"), slots(pairs * 4, "t"), tiles(pairs * 12, "t"), count(4, "t"),
        y(pairs * n_out * 4, "t"), sum(n * n_out * 4, "t");
    set_bytes(y.data(), 0xff, y.size(), stream);  // NaN, for whoever reads another's
    const SortedPairs sorted{.order = order.as<std::int32_t>(),
                             .slots = slots.as<std::int32_t>(),
                             .tiles = tiles.as<std::int32_t>(),
                             .n_tiles = count.as<std::int32_t>(),
                             .tile_rows = expert_tile_rows(pairs, experts),
                             .first_expert = first};
    const int mine = end - first;
    sort_pairs_cuda(dr.as<std::int32_t>(), pairs, mine, sorted, context);
    DeviceMatrix part{.values = dw.data() + std::int64_t{first} * n_out * k * 2,
                      .dtype = DType::kBF16,
                      .n_out = mine * n_out,
                      .n_in = k};
    grouped_gemm_cuda({.x = dx.data(),
                       .n_used = used,
                       .w = part,
                       .bias = db.as<float>() + first * n_out,
                       .y = y.data(),
                       .y_f32 = true,
                       .n_pairs = pairs,
                       .n_experts = mine},
                      sorted, context);
    combine_experts_cuda({.y = y.as<float>(),
                          .slots = sorted.slots,
                          .experts = dr.as<std::int32_t>(),
                          .shares = ds.as<float>(),
                          .n_used = used,
                          .hidden = n_out,
                          .partial = sum.as<float>()},
                         n, context);
    return on_host<float>(sum, n * n_out);
  };
  const std::vector<float> whole = sum_of(0, 6), a = sum_of(0, 2), b = sum_of(2, 6), none = sum_of(5, 6);
  for (int i = 0; i < n * n_out; ++i) {
    ASSERT_NEAR(a[i] + b[i], whole[i], 1e-4) << i;
    ASSERT_EQ(none[i], 0.0f) << i;
  }
}

// Few rows in one launch: the same experts, shares, order and tiles as by route_cuda() and sort_pairs_cuda().
TEST_F(CudaExpertsTest, FewRowsAreRoutedAsMany) {
  for (const auto& [n, hidden, experts, used, first, sorted_experts] : {std::tuple{1, 64, 4, 1, 0, 4},
                                                                        {3, 96, 6, 2, 0, 6},
                                                                        {4, 2880, 32, 4, 0, 32},
                                                                        {1, 2048, 128, 8, 0, 128},
                                                                        {4, 128, 250, 16, 0, 250},
                                                                        {3, 64, 12, 3, 4, 5}})
    for (const bool normalise : {false, true}) {
      SCOPED_TRACE(::testing::Message() << n << " rows, " << experts << " experts");
      const int pairs = n * used;
      const DeviceBuffer dx = on_device(normals(n * hidden, 1, 1.0)), dw = on_device(normals(experts * hidden, 2, 0.3)),
                         dn = on_device(normals(hidden, 3, 1.0)), db = on_device(normals(experts, 4, 1.0));
      const RouterCuda router{.weights = dw.as<float>(),
                              .bias = db.as<float>(),
                              .norm_weight = dn.as<float>(),
                              .eps = 1e-5f,
                              .hidden = hidden,
                              .n_experts = experts,
                              .n_used = used,
                              .normalise = normalise};
      struct Result {
        std::vector<float> logits, shares;
        std::vector<std::int32_t> experts, slots, order, tiles;
      };
      DeviceBuffer arrived(4, "t"), scales(n * 4, "t");
      set_bytes(arrived.data(), 0, 4, stream);
      const auto routed = [&](bool few) {
        DeviceBuffer logits(n * experts * 4, "t"), ids(pairs * 4, "t"), shares(pairs * 4, "t"), order(pairs * 4, "t"),
            slots(pairs * 4, "t"), tiles(pairs * 12, "t"), count(4, "t");
        const SortedPairs sorted{.order = order.as<std::int32_t>(),
                                 .slots = slots.as<std::int32_t>(),
                                 .tiles = tiles.as<std::int32_t>(),
                                 .n_tiles = count.as<std::int32_t>(),
                                 .tile_rows = 8,
                                 .first_expert = first};
        set_bytes(order.data(), 0xff, order.size(), stream);
        if (few) {
          route_few_cuda(router, dx.as<float>(), n, sorted_experts,
                         {.logits = logits.as<float>(),
                          .experts = ids.as<std::int32_t>(),
                          .shares = shares.as<float>(),
                          .scales = scales.as<float>(),
                          .arrived = arrived.as<std::int32_t>()},
                         sorted, context);
        } else {
          route_cuda(router, dx.as<float>(), n, logits.as<float>(), ids.as<std::int32_t>(), shares.as<float>(),
                     context);
          sort_pairs_cuda(ids.as<std::int32_t>(), pairs, sorted_experts, sorted, context);
        }
        const auto n_tiles = on_host<std::int32_t>(count, 1)[0];
        return Result{on_host<float>(logits, n * experts), on_host<float>(shares, pairs),
                      on_host<std::int32_t>(ids, pairs),   on_host<std::int32_t>(slots, pairs),
                      on_host<std::int32_t>(order, pairs), on_host<std::int32_t>(tiles, 3 * n_tiles)};
      };
      const Result want = routed(false), got = routed(true), again = routed(true);  // which needs the count at zero
      for (int i = 0; i < n * experts; ++i) ASSERT_NEAR(got.logits[i], want.logits[i], 1e-4);
      for (int i = 0; i < pairs; ++i) ASSERT_NEAR(got.shares[i], want.shares[i], 1e-4);
      EXPECT_EQ(got.experts, want.experts);
      EXPECT_EQ(got.slots, want.slots);
      EXPECT_EQ(got.order, want.order);
      EXPECT_EQ(got.tiles, want.tiles);
      EXPECT_EQ(again.logits, got.logits);
      EXPECT_EQ(again.order, got.order);
      const auto x = on_host<float>(dx, n * hidden), got_scales = on_host<float>(scales, n);
      for (int i = 0; i < n; ++i) {
        double squares = 0;
        for (int j = 0; j < hidden; ++j) squares += double{x[i * hidden + j]} * x[i * hidden + j];
        EXPECT_NEAR(got_scales[i], 1 / std::sqrt(squares / hidden + 1e-5), 1e-4 * got_scales[i]);
      }
    }
}

TEST_F(CudaExpertsTest, TiesOfFewRowsTakeTheLowerNumberAndNanComesLast) {
  const int hidden = 32, experts = 40, used = 4;
  std::vector<float> w(experts * hidden, 0.0f);
  const auto set = [&](int e, float v) { w[e * hidden] = v; };
  set(3, 2.0f), set(37, 2.0f), set(35, 1.0f), set(4, NAN), set(1, -0.0f);
  const DeviceBuffer dx = on_device(std::vector<float>(hidden, 1.0f)), dw = on_device(w),
                     dn = on_device(std::vector<float>(hidden, 1.0f));
  DeviceBuffer logits(experts * 4, "t"), ids(used * 4, "t"), shares(used * 4, "t"), scales(4, "t"),
      arrived = on_device(std::vector<std::int32_t>{0}), order(used * 4, "t"), slots(used * 4, "t"),
      tiles(used * 12, "t"), count(4, "t");
  route_few_cuda({.weights = dw.as<float>(),
                  .norm_weight = dn.as<float>(),
                  .hidden = hidden,
                  .n_experts = experts,
                  .n_used = used},
                 dx.as<float>(), 1, experts,
                 {.logits = logits.as<float>(),
                  .experts = ids.as<std::int32_t>(),
                  .shares = shares.as<float>(),
                  .scales = scales.as<float>(),
                  .arrived = arrived.as<std::int32_t>()},
                 {.order = order.as<std::int32_t>(),
                  .slots = slots.as<std::int32_t>(),
                  .tiles = tiles.as<std::int32_t>(),
                  .n_tiles = count.as<std::int32_t>(),
                  .tile_rows = 8},
                 context);
  EXPECT_EQ(on_host<std::int32_t>(ids, used), (std::vector<std::int32_t>{3, 37, 35, 0}));
  EXPECT_EQ(on_host<std::int32_t>(order, used), (std::vector<std::int32_t>{3, 0, 2, 1}));
}

// Gate and up of every pair against plain loops: silu and the clamped gate, with a norm's scale and bias, and without.
TEST_F(CudaExpertsTest, GatesEachRowByItsExpert) {
  const int experts = 5, used = 2, ffn = 40, k = 512;
  for (const DType type : {DType::kBF16, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kMXFP4})
    for (const int n : {1, 5, 90})
      for (const float limit : {0.0f, 3.0f}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << n << " rows, limit " << limit);
        const int pairs = n * used, n_out = 2 * ffn;
        const Matrix w = matrix(type, experts * n_out, k, 0.1);
        std::vector<bf16> x;
        for (const float v : normals(n * k, 5, 1.0)) x.push_back(bf16(v));
        const std::vector<float> bias = normals(experts * n_out, 7, 1.0);
        std::vector<float> scales;
        for (const float v : normals(n, 8, 0.2)) scales.push_back(1 + v);
        std::vector<std::int32_t> routed;
        for (int i = 0; i < n; ++i) routed.insert(routed.end(), {i % experts, (i + 2) % experts});
        const DeviceBuffer dx = on_device(x), dr = on_device(routed), db = on_device(bias), ds = on_device(scales);
        Sorted sorted(pairs, expert_tile_rows(pairs, experts));
        sort_pairs_cuda(dr.as<std::int32_t>(), pairs, experts, sorted.pairs, context);
        DeviceBuffer y(pairs * ffn * 2, "t");
        for (const bool with : {false, true}) {
          grouped_swiglu_cuda({.x = dx.data(),
                               .n_used = used,
                               .w = w.device,
                               .bias = with ? db.as<float>() : nullptr,
                               .y = y.data(),
                               .n_pairs = pairs,
                               .n_experts = experts},
                              with ? ds.as<float>() : nullptr, limit, sorted.pairs, context);
          const auto got = on_host<bf16>(y, pairs * ffn);
          const auto slots = on_host<std::int32_t>(sorted.slots, pairs);
          for (int p = 0; p < pairs; ++p)
            for (int o = 0; o < ffn; ++o) {
              double both[2];
              for (int half = 0; half < 2; ++half) {
                const int row = routed[p] * n_out + half * ffn + o;
                double dot = 0;
                for (int j = 0; j < k; ++j) dot += double{w.values[row * k + j]} * float(x[p / used * k + j]);
                both[half] = with ? dot * scales[p / used] + bias[row] : dot;
              }
              const double g = limit == 0 ? both[0] : std::min<double>(both[0], limit),
                           u = limit == 0 ? both[1] : std::clamp<double>(both[1], -limit, limit);
              const double want = limit == 0 ? g / (1 + std::exp(-g)) * u : g / (1 + std::exp(-1.702 * g)) * (u + 1);
              ASSERT_NEAR(float(got[slots[p] * ffn + o]), want, std::abs(want) / 100 + 1e-3);
            }
        }
      }
}

// One row's down product and sum in one launch are those of two.
TEST_F(CudaExpertsTest, OneRowIsCombinedAsItIsMultiplied) {
  for (const auto& [type, hidden, ffn, experts, used] : {std::tuple{DType::kBF16, 88, 160, 6, 3},
                                                         {DType::kQ8_0, 256, 160, 6, 6},
                                                         {DType::kQ4_K, 2048, 768, 9, 8},
                                                         {DType::kQ6_K, 136, 512, 16, 16},
                                                         {DType::kMXFP4, 2880, 2880, 6, 4},
                                                         {DType::kIQ4_NL, 64, 96, 2, 1}}) {
    SCOPED_TRACE(::testing::Message() << dtype_name(type) << ", " << hidden << " by " << ffn << ", " << used);
    const Matrix w = matrix(type, experts * hidden, ffn, 0.1);
    std::vector<bf16> x;
    for (const float v : normals(used * ffn, 5, 1.0)) x.push_back(bf16(v));
    std::vector<std::int32_t> routed(used);
    for (int i = 0; i < used; ++i) routed[i] = (i * 5 + 1) % experts;
    std::vector<std::int32_t> distinct = routed;
    std::sort(distinct.begin(), distinct.end());
    ASSERT_EQ(std::unique(distinct.begin(), distinct.end()), distinct.end());
    const DeviceBuffer dx = on_device(x), dr = on_device(routed), db = on_device(normals(experts * hidden, 7, 1.0)),
                       ds = on_device(normals(used, 8, 1.0)), dn = on_device(normals(hidden, 9, 1.0));
    Sorted sorted(used, 8);
    sort_pairs_cuda(dr.as<std::int32_t>(), used, experts, sorted.pairs, context);
    DeviceBuffer y(used * hidden * 4, "t");
    const auto sum_of = [&](bool combined) {
      const DeviceBuffer residual = on_device(normals(hidden, 10, 1.0));
      DeviceBuffer next(hidden * 2, "t"), sums(combined_parts(hidden) * 4, "t");
      const GroupedGemmCuda down{.x = dx.data(),
                                 .by_slot = true,
                                 .n_used = used,
                                 .w = w.device,
                                 .bias = db.as<float>(),
                                 .y = y.data(),
                                 .y_f32 = true,
                                 .n_pairs = used,
                                 .n_experts = experts};
      const CombineExpertsCuda to{.y = y.as<float>(),
                                  .slots = sorted.pairs.slots,
                                  .experts = dr.as<std::int32_t>(),
                                  .shares = ds.as<float>(),
                                  .n_used = used,
                                  .hidden = hidden,
                                  .residual = residual.as<float>(),
                                  .norm_weight = dn.as<float>(),
                                  .x_next = next.data(),
                                  .sums = sums.as<float>()};
      if (combined) {
        grouped_gemm_combined_cuda(down, to, context);
      } else {
        grouped_gemm_cuda(down, sorted.pairs, context);
        combine_experts_cuda(to, 1, context);
      }
      const auto parts = on_host<float>(sums, combined ? combined_parts(hidden) : 1);
      return std::tuple{on_host<float>(residual, hidden), on_host<bf16>(next, hidden),
                        std::accumulate(parts.begin(), parts.end(), 0.0)};
    };
    const auto [want, want_next, want_sum] = sum_of(false);
    const auto [got, got_next, got_sum] = sum_of(true);
    for (int i = 0; i < hidden; ++i) {
      ASSERT_NEAR(got[i], want[i], 1e-3) << i;
      ASSERT_NEAR(float(got_next[i]), float(want_next[i]), std::abs(float(want_next[i])) / 50 + 2e-3) << i;
    }
    EXPECT_NEAR(got_sum, want_sum, 1e-4 * want_sum);
  }
}

}  // namespace
}  // namespace mneme
