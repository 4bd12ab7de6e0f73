// Keys and values in pages on the host and on the device, queries, and the fixture of attention's tests on a GPU.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "src/kv/kv_quant.h"
#include "src/ops/attention/attention_cuda.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/ops/attention/attention_testing.h"

namespace mneme {

// Sequences in pages on the host and on the device, in the same blocks.
struct Paged {
  AttentionShape shape;
  std::int32_t n_kv_heads, max_pages;
  std::vector<std::byte> memory;
  std::vector<std::int32_t> blocks;
  DeviceArray<std::byte> memory_device{0};
  DeviceArray<std::int32_t> blocks_device{0};
  static constexpr std::int32_t kLayers = 2, kLayer = 1;

  Paged(const AttentionShape& s, std::int32_t kv_heads, std::int32_t n_sequences, std::int32_t tokens, unsigned seed)
      : shape(s), n_kv_heads(kv_heads), max_pages((tokens + kKvPageTokens - 1) / kKvPageTokens + 1) {
    std::mt19937 rng(seed);
    const auto n = static_cast<std::size_t>(n_sequences) * static_cast<std::size_t>(stride());
    blocks.resize(n);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::shuffle(blocks.begin(), blocks.end(), rng);
    memory.resize(n * page_bytes());
    std::normal_distribution<float> normal;
    std::vector<float> numbers(4096);
    for (float& v : numbers) v = normal(rng);
    const auto d = static_cast<std::size_t>(shape.head_dim);
    std::vector<float> kv(2 * d);
    for (std::size_t at = 0; at < memory.size(); at += shape.token_bytes()) {
      for (float& v : kv) v = numbers[rng() % numbers.size()];
      store_kv(kv.data(), kv.data() + d, shape, memory.data() + at);
    }
    upload();
  }
  void upload() {
    memory_device = DeviceArray<std::byte>(std::span<const std::byte>(memory));
    blocks_device = DeviceArray<std::int32_t>(blocks);
  }
  std::size_t page_bytes() const { return kKvPageTokens * shape.token_bytes(); }
  std::int64_t stride() const { return std::int64_t{kLayers} * n_kv_heads * max_pages; }
  std::byte* token(std::int32_t sequence, std::int32_t head, std::int32_t position) {
    const auto entry = static_cast<std::size_t>(sequence * stride() + (kLayer * n_kv_heads + head) * max_pages +
                                                position / kKvPageTokens);
    return memory.data() + static_cast<std::size_t>(blocks[entry]) * page_bytes() +
           static_cast<std::size_t>(position % kKvPageTokens) * shape.token_bytes();
  }
  std::vector<KvRun> runs(std::int32_t sequence, std::int32_t head, std::int32_t begin, std::int32_t end) {
    std::vector<KvRun> r;
    for (std::int32_t at = begin; at < end; ++at) r.push_back({token(sequence, head, at), 1});
    return r;
  }
  KvTables tables() const {
    return {.base = memory_device.data(),
            .blocks = blocks_device.data(),
            .sequence_stride = stride(),
            .max_pages = max_pages,
            .n_kv_heads = n_kv_heads,
            .head_dim = shape.head_dim,
            .f16 = shape.kv_dtype == DType::kF16,
            .codes = kv_codes_of(shape.kv_dtype)};
  }
};

inline AttentionShape shape_of(int group, int head_dim, DType dtype) {
  return {group, head_dim, dtype, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

struct Queries {
  std::vector<float> values;  // rounded to bf16
  std::vector<std::uint16_t> bits;
  Queries(std::size_t n, unsigned seed, float sigma = 1.0f) {
    std::mt19937 rng(seed);
    for (const float v : testing::random_floats(n, rng, sigma)) {
      bits.push_back(bf16(v).bits);
      values.push_back(static_cast<float>(bf16(v)));
    }
  }
};

inline float value(std::uint16_t bits) {
  bf16 v;
  v.bits = bits;
  return static_cast<float>(v);
}

// The probabilities and the output are rounded to relative 2^-9, and values are of size 1: twice that, plus the sum of
// a few at the start of a long row.
inline void expect_close(std::span<const std::uint16_t> got, std::span<const float> want) {
  ASSERT_EQ(got.size(), want.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = static_cast<double>(want[i]);
    ASSERT_LE(std::abs(static_cast<double>(value(got[i])) - w), 0.0078 + std::abs(w) * 0.0078)
        << i << " of " << got.size();
  }
}

class CudaAttentionTest : public CudaTest {
 protected:
  CudaContext context() const { return {.stream = stream.get()}; }

  struct Decoded {
    std::vector<std::uint16_t> out;
    std::vector<float> lse;
  };
  Decoded decode(const Paged& kv, const Queries& q, std::span<const std::int32_t> slots,
                 std::span<const std::int32_t> lengths, std::int32_t window = 0,
                 const std::vector<float>& log_weights = {}, std::int32_t lengths_per_head = 0) {
    return decode(kv, kv.tables(), Paged::kLayer, q, slots, lengths, window, log_weights, lengths_per_head);
  }
  Decoded decode(const Paged& kv, const KvTables& tables, std::int32_t layer, const Queries& q,
                 std::span<const std::int32_t> slots, std::span<const std::int32_t> lengths, std::int32_t window = 0,
                 const std::vector<float>& log_weights = {}, std::int32_t lengths_per_head = 0) {
    const auto n = static_cast<std::int32_t>(slots.size());
    const std::int32_t heads = kv.n_kv_heads * kv.shape.group;
    const DeviceArray<std::uint16_t> q_device(q.bits), out(q.bits.size());
    const DeviceArray<std::int32_t> slots_device(slots), lengths_device(lengths);
    const DeviceArray<float> lse(static_cast<std::size_t>(n * heads)), weights(log_weights);
    const DeviceArray<std::byte> scratch(decode_attention_scratch_bytes(n, kv.n_kv_heads, kv.shape.head_dim), 0);
    const DecodeAttentionCuda a{
        .q = q_device.data(),
        .slots = slots_device.data(),
        .lengths = lengths_device.data(),
        .length_stride = lengths_per_head > 0 ? kv.n_kv_heads : 1,
        .length_head_stride = lengths_per_head,
        .log_weights = log_weights.empty() ? nullptr : weights.data(),
        .log_weight_stride =
            log_weights.empty() ? 0 : static_cast<std::int64_t>(log_weights.size()) / (n * kv.n_kv_heads),
        .out = out.data(),
        .lse = lse.data(),
        .n = n,
        .n_heads = heads,
        .window = window,
        .scale = kv.shape.scale,
        .scratch = scratch.data()};
    attend_decode_cuda(a, tables, layer, context());
    const std::vector<std::uint16_t> first = out.get(stream);
    attend_decode_cuda(a, tables, layer, context());  // the scratch is as before: the same result again
    Decoded d{out.get(stream), lse.get(stream)};
    EXPECT_EQ(first, d.out);
    return d;
  }

  // Against the reference, head by head.
  void check_decode(Paged& kv, const Queries& q, std::span<const std::int32_t> slots,
                    std::span<const std::int32_t> lengths, std::int32_t window = 0,
                    const std::vector<float>& log_weights = {}, bool per_head = false) {
    const Decoded got = decode(kv, q, slots, lengths, window, log_weights, per_head ? 1 : 0);
    const std::size_t group_width = static_cast<std::size_t>(kv.shape.group * kv.shape.head_dim);
    const std::size_t weight_stride = log_weights.size() / (slots.size() * static_cast<std::size_t>(kv.n_kv_heads));
    for (std::size_t row = 0; row < slots.size(); ++row)
      for (std::int32_t head = 0; head < kv.n_kv_heads; ++head) {
        const std::size_t item = row * static_cast<std::size_t>(kv.n_kv_heads) + static_cast<std::size_t>(head);
        const std::int32_t length = lengths[per_head ? item : row];
        SCOPED_TRACE(::testing::Message() << "row " << row << ", head " << head << ", " << length << " tokens");
        const std::int32_t from = window > 0 ? std::max(0, length - window) : 0;
        const std::vector<KvRun> runs = kv.runs(slots[row], head, from, length);
        const DecodePart part{.q = q.values.data() + item * group_width,
                              .runs = runs,
                              .log_weight = log_weights.empty() ? nullptr
                                                                : log_weights.data() + item * weight_stride +
                                                                      static_cast<std::size_t>(from)};
        std::vector<float> out(group_width), lse(static_cast<std::size_t>(kv.shape.group));
        const DecodeHead one{.parts = std::span(&part, 1), .out = out.data(), .lse = lse.data()};
        attend_decode_ref(std::span(&one, 1), kv.shape);
        expect_close(std::span(got.out).subspan(item * group_width, group_width), out);
        for (std::size_t g = 0; g < lse.size(); ++g) {
          const float l = got.lse[item * lse.size() + g];
          if (lse[g] == -testing::kInf) {
            ASSERT_EQ(l, -testing::kInf);
          } else {
            // Codes times their scale are not rounded to bf16 here, so that a token's score differs by 2^-9 or so.
            ASSERT_LE(std::abs(l - lse[g]), is_eight_bit(kv.shape.kv_dtype) ? 6e-3f : 2e-3f);
          }
        }
      }
  }
};

// A key that is NaN throughout: of 8 bits, its scale.
inline void set_nan(std::byte* token, const AttentionShape& shape) {
  const auto d = static_cast<std::size_t>(shape.head_dim);
  std::vector<float> kv(2 * d, 0.5f);
  kv[3] = testing::kNaN;
  store_kv(kv.data(), kv.data() + d, shape, token);
}

}  // namespace mneme
