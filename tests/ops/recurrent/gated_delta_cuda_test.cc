// Gated DeltaNet on the device against its plain form in f64.
#include "src/ops/recurrent/gated_delta_cuda.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "src/base/rng.h"
#include "src/tensor/dtype.h"
#include "tests/cuda/cuda_testing.h"

namespace mneme {
namespace {

using Floats = std::vector<float>;

Floats random_floats(Rng& rng, std::int64_t n, double scale) {
  Floats v(static_cast<std::size_t>(n));
  for (float& x : v) x = static_cast<float>(scale * rng.normal());
  return v;
}

float rounded(float x) {
  return static_cast<float>(bf16(x));
}
std::vector<std::uint16_t> bits_of(const Floats& v) {
  std::vector<std::uint16_t> bits;
  for (const float x : v) bits.push_back(bf16(x).bits);
  return bits;
}
Floats floats_of(const std::vector<std::uint16_t>& bits) {
  Floats v;
  for (const std::uint16_t b : bits) {
    bf16 x;
    x.bits = b;
    v.push_back(static_cast<float>(x));
  }
  return v;
}

struct Weights {
  Floats conv, a, dt, norm;
  Weights(const DeltaShape& s, double decay) {
    Rng rng(17);
    conv = random_floats(rng, s.channels() * s.taps, 0.5);
    norm = random_floats(rng, s.d_v, 1.0);
    for (std::int64_t i = 0; i < s.n_v_heads; ++i) {
      a.push_back(static_cast<float>(-decay * std::exp(0.5 * rng.normal())));
      dt.push_back(static_cast<float>(0.7 * rng.normal()));
    }
  }
};

// Rows of a sequence, random and exact in bf16, and its slot [inputs | state].
struct Sequence {
  std::int64_t n;
  Floats x, z, beta, alpha, slot, y;
  Sequence(const DeltaShape& s, std::int64_t rows, std::uint64_t seed) : n(rows) {
    Rng rng(seed);
    x = random_floats(rng, n * s.channels(), 1.0), z = random_floats(rng, n * s.value_width(), 1.0);
    beta = random_floats(rng, n * s.n_v_heads, 1.0), alpha = random_floats(rng, n * s.n_v_heads, 1.0);
    slot = random_floats(rng, s.input_floats(), 1.0);
    const Floats state = random_floats(rng, s.state_floats(), 0.3);
    slot.insert(slot.end(), state.begin(), state.end());
    for (Floats* v : {&x, &z}) std::transform(v->begin(), v->end(), v->begin(), rounded);
  }
};

// y and slot by the plain form.
Sequence truth_of(Sequence q, const DeltaShape& s, const Weights& w, std::int64_t position, double eps) {
  Floats out(static_cast<std::size_t>(q.n * s.value_width()));
  Floats x = q.x;
  const GatedDeltaRows rows{.n = q.n,
                            .position = position,
                            .x = x.data(),
                            .beta = q.beta.data(),
                            .alpha = q.alpha.data(),
                            .out = out.data(),
                            .inputs = q.slot.data(),
                            .state = q.slot.data() + s.input_floats()};
  gated_delta_ref(std::vector{rows}, {w.conv.data(), w.a.data(), w.dt.data()}, s);
  q.y.resize(out.size());
  for (std::size_t head = 0; head < out.size(); head += static_cast<std::size_t>(s.d_v)) {
    double squares = 0;
    for (std::size_t j = 0; j < static_cast<std::size_t>(s.d_v); ++j)
      squares += double{out[head + j]} * double{out[head + j]};
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(s.d_v) + eps);
    for (std::size_t j = 0; j < static_cast<std::size_t>(s.d_v); ++j) {
      const double z = double{q.z[head + j]};
      q.y[head + j] = static_cast<float>(double{out[head + j]} * scale * double{w.norm[j]} * z / (1 + std::exp(-z)));
    }
  }
  return q;
}

double error(const Floats& found, const Floats& expected) {
  double sum = 0.0, of = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    sum += std::pow(double{found[i]} - double{expected[i]}, 2);
    of += std::pow(double{expected[i]}, 2);
  }
  return of == 0.0 ? std::sqrt(sum) : std::sqrt(sum / of);
}

// RMS errors. y is bf16, whose rounding alone makes 1.7e-3. States of chunks are sums of products of tf32, those of rows
// f32: 8.3e-4 after 130 rows that decay nothing, on an H200.
constexpr double kOfY = 3e-3, kOfChunks = 1.2e-3, kOfRows = 4e-6;
constexpr float kEps = 1e-6f;

// Sizes that fill no tile, with three value heads a key head; published heads; few taps.
constexpr DeltaShape kOdd = {.n_k_heads = 2, .n_v_heads = 6, .d_k = 12, .d_v = 20, .taps = 4};
constexpr DeltaShape kTiled = {.n_k_heads = 2, .n_v_heads = 10, .d_k = 32, .d_v = 36, .taps = 3, .tiled = true};
constexpr DeltaShape kPublished = {.n_k_heads = 2, .n_v_heads = 6, .d_k = 128, .d_v = 128, .taps = 4};
// Enough heads for the scan of 64 columns on any device of up to 320 SMs.
constexpr DeltaShape kManyHeads = {.n_k_heads = 16, .n_v_heads = 160, .d_k = 16, .d_v = 128, .taps = 4};

class CudaGatedDelta : public CudaTest {
 protected:
  struct Device {
    DeviceArray<float> conv, a, dt, norm, slots, convolved, gates, out, tiles;
    std::int64_t slot_floats;
    Device(const DeltaShape& s, const Weights& w, const Floats& slots_of, std::int32_t rows)
        : conv(w.conv),
          a(w.a),
          dt(w.dt),
          norm(w.norm),
          slots(slots_of),
          convolved(delta_scratch_bytes(s, rows).convolved / 4),
          gates(delta_scratch_bytes(s, rows).gates / 4),
          out(delta_scratch_bytes(s, rows).out / 4),
          tiles(delta_scratch_bytes(s, rows).tiles / 4),
          slot_floats(s.input_floats() + s.state_floats()) {}
    DeltaLayerCuda layer(const DeltaShape& s) const {
      return {.shape = s,
              .parameters = {.conv = conv.data(), .a = a.data(), .dt = dt.data()},
              .norm = norm.data(),
              .norm_eps = kEps,
              .states = slots.data(),
              .slot_stride = slot_floats};
    }
    DeltaScratchCuda scratch() const {
      return {.convolved = convolved.data(), .gates = gates.data(), .out = out.data(), .tiles = tiles.data()};
    }
  };

  enum class Input { kF32, kBF16 };
  CudaContext context(LaunchOrder order = LaunchOrder::kOverlapped) const { return {stream.get(), order}; }

  // The rows of x and z on the device, with y behind.
  struct Rows {
    DeviceArray<float> x, z, beta, alpha;
    DeviceArray<std::uint16_t> x_bf16, z_bf16, y;
    Rows(const Sequence& q, std::size_t y_values)
        : x(q.x), z(q.z), beta(q.beta), alpha(q.alpha), x_bf16(bits_of(q.x)), z_bf16(bits_of(q.z)), y(y_values) {}
    DeltaRowsCuda get(const DeltaShape& s, Input input, std::int64_t first) const {
      DeltaRowsCuda r{.bf16 = input == Input::kBF16, .x_stride = s.channels(), .z_stride = s.value_width()};
      r.x = r.bf16 ? static_cast<const void*>(x_bf16.data() + first * s.channels()) : x.data() + first * s.channels();
      r.z = r.bf16 ? static_cast<const void*>(z_bf16.data() + first * s.value_width())
                   : z.data() + first * s.value_width();
      r.beta = beta.data() + first * s.n_v_heads, r.alpha = alpha.data() + first * s.n_v_heads;
      r.gate_stride = s.n_v_heads;
      r.y = y.data() + first * s.value_width();
      return r;
    }
  };

  // A prompt in parts that end at `cuts` and at its end.
  Sequence run(Sequence q, const DeltaShape& s, const Weights& w, std::int64_t position, DeltaForm form,
               std::vector<std::int64_t> cuts = {}, Input input = Input::kF32,
               LaunchOrder order = LaunchOrder::kOverlapped) const {
    const Device d(s, w, q.slot, static_cast<std::int32_t>(q.n));
    const Rows rows(q, static_cast<std::size_t>(q.n * s.value_width()));
    cuts.push_back(q.n);
    std::int64_t first = 0;
    for (const std::int64_t end : cuts) {
      delta_prompt_cuda(d.layer(s), rows.get(s, input, first), 0, static_cast<std::int32_t>(end - first),
                        position + first, form, d.scratch(), context(order));
      first = end;
    }
    q.y = floats_of(rows.y.get(stream));
    q.slot = d.slots.get(stream);
    return q;
  }

  static void expect_same(const Sequence& found, const Sequence& expected, const DeltaShape& s, double of_state,
                          const std::string& what, double of_y = kOfY) {
    EXPECT_LE(error(found.y, expected.y), of_y) << what;
    const auto inputs = static_cast<std::ptrdiff_t>(s.input_floats());
    EXPECT_EQ(Floats(found.slot.begin(), found.slot.begin() + inputs),
              Floats(expected.slot.begin(), expected.slot.begin() + inputs))
        << what;
    EXPECT_LE(
        error({found.slot.begin() + inputs, found.slot.end()}, {expected.slot.begin() + inputs, expected.slot.end()}),
        of_state)
        << what;
  }
  void compare(const DeltaShape& s, std::int64_t n, std::int64_t position, double decay = 0.3) const {
    const Weights w(s, decay);
    const Sequence q(s, n, 3), truth = truth_of(q, s, w, position, double{kEps});
    const std::string what = std::to_string(n) + " rows at " + std::to_string(position) + ", heads of " +
                             std::to_string(s.d_k) + ", decay " + std::to_string(decay);
    for (const Input input : {Input::kF32, Input::kBF16}) {
      expect_same(run(q, s, w, position, DeltaForm::kChunks, {}, input), truth, s, kOfChunks, "chunks of " + what);
      expect_same(run(q, s, w, position, DeltaForm::kRows, {}, input), truth, s, kOfRows, what);
    }
  }
};

TEST_F(CudaGatedDelta, IsThePlainForm) {
  for (const DeltaShape& s : {kOdd, kTiled, kPublished})
    for (const std::int64_t n : {1, 7, 8, 63, 64, 65, 127, 200})
      for (const std::int64_t position : {0, 5, 60, 64}) compare(s, n, position);
}

TEST_F(CudaGatedDelta, ScansWideColumnsOfManyHeads) {
  compare(kManyHeads, 150, 40);
}

TEST_F(CudaGatedDelta, NoRowsChangeNothing) {
  const Weights w(kOdd, 0.3);
  const Sequence q(kOdd, 0, 3);
  EXPECT_EQ(run(q, kOdd, w, 5, DeltaForm::kChunks).slot, q.slot);
}

TEST_F(CudaGatedDelta, PromptsLongerThanItsScratch) {
  const Weights w(kOdd, 0.3);
  const std::int64_t n = kMaxDeltaRowsCuda + 100;
  const Sequence q(kOdd, n, 3);
  expect_same(run(q, kOdd, w, 30, DeltaForm::kChunks), truth_of(q, kOdd, w, 30, double{kEps}), kOdd, kOfChunks, "long");
}

// One row of each sequence, which goes on from its slot; two rows have none. Row by row prompts are the same bits.
TEST_F(CudaGatedDelta, StepsOfSeveralSequences) {
  for (const DeltaShape& s : {kOdd, kTiled, kPublished})
    for (const std::int32_t n : {1, 2, 3, 5, 16}) {
      const Weights w(s, 0.3);
      const std::int32_t n_slots = n + 2;
      Sequence batch(s, n, 3);
      std::vector<Sequence> alone;
      Floats slots(static_cast<std::size_t>(n_slots) * batch.slot.size(), 0.25f);
      std::vector<std::int32_t> slot_of;
      for (std::int32_t i = 0; i < n; ++i) {
        const auto row = [&](const Floats& v, std::int64_t width) {
          return Floats(v.begin() + i * width, v.begin() + (i + 1) * width);
        };
        Sequence& q = alone.emplace_back(s, 1, 100 + i);
        q.x = row(batch.x, s.channels()), q.z = row(batch.z, s.value_width());
        q.beta = row(batch.beta, s.n_v_heads), q.alpha = row(batch.alpha, s.n_v_heads);
        slot_of.push_back(i == 2 ? -1 : (n_slots - 1 - i));
        if (i != 2) std::copy(q.slot.begin(), q.slot.end(), slots.begin() + slot_of.back() * std::ssize(q.slot));
      }
      const Device d(s, w, slots, n);
      const Rows rows(batch, static_cast<std::size_t>(n * s.value_width()));
      const DeviceArray<std::int32_t> slots_device(slot_of);
      delta_step_cuda(d.layer(s), rows.get(s, Input::kF32, 0), slots_device.data(), n, d.scratch(), context());
      const Floats y = floats_of(rows.y.get(stream)), after = d.slots.get(stream);
      Floats expected = slots;
      for (std::int32_t i = 0; i < n; ++i) {
        Sequence found = alone[static_cast<std::size_t>(i)];
        found.y = Floats(y.begin() + i * s.value_width(), y.begin() + (i + 1) * s.value_width());
        if (i == 2) {
          EXPECT_EQ(found.y, Floats(found.y.size(), 0.0f));
          continue;
        }
        const auto at = slot_of[static_cast<std::size_t>(i)] * std::ssize(found.slot);
        const Sequence by_rows = run(found, s, w, 9, DeltaForm::kRows), truth = truth_of(found, s, w, 9, double{kEps});
        found.slot = Floats(after.begin() + at, after.begin() + at + std::ssize(found.slot));
        EXPECT_EQ(found.slot, by_rows.slot);
        EXPECT_EQ(found.y, by_rows.y);
        expect_same(found, truth, s, kOfRows, "row " + std::to_string(i) + " of " + std::to_string(n));
        std::copy(found.slot.begin(), found.slot.end(), expected.begin() + at);
      }
      EXPECT_EQ(after, expected) << "slots of no row";
    }
}

TEST_F(CudaGatedDelta, StepsOneAfterAnother) {
  const DeltaShape& s = kPublished;
  const Weights w(s, 0.3);
  const Sequence q(s, 20, 3);
  const Device d(s, w, q.slot, 1);
  const Rows rows(q, static_cast<std::size_t>(q.n * s.value_width()));
  const DeviceArray<std::int32_t> slot(std::vector<std::int32_t>{0});
  for (std::int64_t i = 0; i < q.n; ++i)
    delta_step_cuda(d.layer(s), rows.get(s, Input::kF32, i), slot.data(), 1, d.scratch(), context());
  const Sequence by_rows = run(q, s, w, 0, DeltaForm::kRows, {}, Input::kF32, LaunchOrder::kSerial);
  EXPECT_EQ(floats_of(rows.y.get(stream)), by_rows.y);
  EXPECT_EQ(d.slots.get(stream), by_rows.slot);
}

// Position 10 is within a chunk: chunks begin at rows 54, 118, ...
TEST_F(CudaGatedDelta, CutAtChunksGivesTheSameBits) {
  for (const DeltaShape& s : {kOdd, kPublished}) {
    const Weights w(s, 0.3);
    const Sequence q(s, 250, 3), whole = run(q, s, w, 10, DeltaForm::kChunks);
    for (const std::vector<std::int64_t>& cuts :
         {std::vector<std::int64_t>{54}, {118}, {182, 246}, {54, 118, 182, 246}}) {
      const Sequence cut = run(q, s, w, 10, DeltaForm::kChunks, cuts);
      EXPECT_EQ(cut.y, whole.y) << cuts.size();
      EXPECT_EQ(cut.slot, whole.slot) << cuts.size();
    }
  }
}

TEST_F(CudaGatedDelta, CutWithinChunksStaysTheSameButForRounding) {
  const DeltaShape& s = kPublished;
  const Weights w(s, 0.3);
  const Sequence q(s, 200, 3), truth = truth_of(q, s, w, 0, double{kEps});
  for (const std::vector<std::int64_t>& cuts : {std::vector<std::int64_t>{1}, {63}, {65}, {100, 101, 150}, {7, 130}})
    expect_same(run(q, s, w, 0, DeltaForm::kChunks, cuts), truth, s, kOfChunks, "first cut " + std::to_string(cuts[0]));
}

TEST_F(CudaGatedDelta, RowsGiveTheSameBitsHoweverTheyAreCut) {
  for (const DeltaShape& s : {kOdd, kPublished}) {
    const Weights w(s, 0.3);
    const Sequence q(s, 70, 3), whole = run(q, s, w, 0, DeltaForm::kRows),
                                cut = run(q, s, w, 0, DeltaForm::kRows, {1, 8, 9, 40, 63, 64});
    EXPECT_EQ(cut.y, whole.y);
    EXPECT_EQ(cut.slot, whole.slot);
  }
}

TEST_F(CudaGatedDelta, TwiceTheSameBits) {
  const Weights w(kPublished, 0.3);
  const Sequence q(kPublished, 300, 3),
      once = run(q, kPublished, w, 3, DeltaForm::kChunks),
      again = run(q, kPublished, w, 3, DeltaForm::kChunks, {}, Input::kF32, LaunchOrder::kSerial);
  EXPECT_EQ(again.y, once.y);
  EXPECT_EQ(again.slot, once.slot);
}

// Fast, slow and no decay; gates at their ends. A form with e^{-G} overflows here.
TEST_F(CudaGatedDelta, ExtremeGates) {
  for (const DeltaShape& s : {kOdd, kPublished})
    for (const double decay : {0.0, 1e-6, 6.0, 40.0, 1e9}) compare(s, 130, 0, decay);
  const Weights w(kOdd, 0.3);
  for (const float alpha : {-1e9f, 0.0f, 1e9f})
    for (const float beta : {-1e9f, 1e9f}) {
      Sequence q(kOdd, 130, 5);
      for (std::size_t i = 0; i < q.alpha.size(); i += 3) q.alpha[i] = alpha, q.beta[i] = beta;
      expect_same(run(q, kOdd, w, 0, DeltaForm::kChunks), truth_of(q, kOdd, w, 0, double{kEps}), kOdd, kOfChunks,
                  std::to_string(alpha) + ", " + std::to_string(beta));
    }
}

// Keys 90 % alike and a slow decay: an inverse by doubling is NaN at 64 rows.
TEST_F(CudaGatedDelta, KeysThatAreAlike) {
  const DeltaShape& s = kPublished;
  Sequence q(s, 192, 7);
  for (std::int64_t r = 1; r < q.n; ++r)
    for (std::int64_t c = s.key_width(); c < 2 * s.key_width(); ++c) {
      float& k = q.x[static_cast<std::size_t>(r * s.channels() + c)];
      k = rounded(0.9f * q.x[static_cast<std::size_t>(c)] + 0.1f * k);
    }
  std::fill(q.beta.begin(), q.beta.end(), 7.0f);
  const Weights w(s, 1e-3);
  expect_same(run(q, s, w, 0, DeltaForm::kChunks), truth_of(q, s, w, 0, double{kEps}), s, 3 * kOfChunks, "keys alike",
              2 * kOfY);
}

TEST_F(CudaGatedDelta, NanStaysBehindItsChunkAndInItsHead) {
  const DeltaShape& s = kOdd;
  const Weights w(s, 0.3);
  Sequence q(s, 160, 3);
  q.alpha[static_cast<std::size_t>(80 * s.n_v_heads)] = std::numeric_limits<float>::quiet_NaN();
  const Sequence found = run(q, s, w, 0, DeltaForm::kChunks);
  for (std::int64_t r = 0; r < q.n; ++r) {
    const bool nan = std::isnan(found.y[static_cast<std::size_t>(r * s.value_width())]);
    EXPECT_FALSE(nan && r < 64) << r;
    EXPECT_TRUE(nan || r < 80) << r;
    EXPECT_FALSE(std::isnan(found.y[static_cast<std::size_t>(r * s.value_width() + s.d_v)])) << "another head, " << r;
  }
}

TEST(CudaDeltaShape, TakesPublishedShapesAlone) {
  EXPECT_TRUE(delta_shape_on_device(kPublished));
  EXPECT_TRUE(delta_shape_on_device(kOdd));
  for (const DeltaShape& s : {DeltaShape{1, 1, 132, 128, 4}, DeltaShape{1, 1, 128, 256, 4}, DeltaShape{1, 1, 13, 16, 4},
                              DeltaShape{1, 1, 16, 16, 5}, DeltaShape{1, 1, 16, 16, 1}, DeltaShape{1, 1, 0, 16, 4}})
    EXPECT_FALSE(delta_shape_on_device(s)) << s.d_k << ", " << s.d_v << ", " << s.taps;
}

}  // namespace
}  // namespace mneme
