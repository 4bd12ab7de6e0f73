#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/base/size32.h"
#include "src/ops/attention/attention.h"
#include "tests/ops/attention/attention_testing.h"

namespace mneme {
namespace {

using namespace testing;

struct Part {
  KvStore kv;
  std::vector<float> q;  // [n_rows, stride]
  bool causal = true;
  std::int32_t window = 0;
};

struct Head {
  std::int32_t n_rows = 0;
  std::vector<Part> parts;
};

struct Case {
  AttentionShape shape;
  std::vector<Head> heads;
  std::vector<float> sinks = {};  // [G]; empty: none

  // Rows are padded, so that a wrong stride is detected.
  std::int64_t stride() const { return shape.group * shape.head_dim + 8; }
};

AttentionShape shape_of(int group, int head_dim, DType dtype = DType::kBF16) {
  return {group, head_dim, dtype, 1.0f / std::sqrt(static_cast<float>(head_dim))};
}

// Per head: rows x [G, D] without padding, and [rows, G].
struct Outputs {
  std::vector<std::vector<float>> out, lse;
};

using Attend = FunctionRef<void(std::span<const PrefillHead>, const AttentionShape&)>;

// Drops the first n tokens of the runs.
void drop_front(std::vector<KvRun>& runs, std::int32_t n, std::size_t token_bytes) {
  while (n > 0 && runs.front().n_tokens <= n) {
    n -= runs.front().n_tokens;
    runs.erase(runs.begin());
  }
  if (n == 0) return;
  runs.front().kv += n * token_bytes;
  runs.front().n_tokens -= n;
}

// `n` rows of every head from first_row on, as one chunk of a prompt: the tokens after the last row are not stored yet,
// nor those any more that are behind the window of all.
Outputs attend_chunk(const Case& c, std::int32_t first_row, std::int32_t n, DType out_dtype, Attend form) {
  const std::size_t n_heads = c.heads.size();
  const std::size_t stride = c.stride();
  const std::size_t width = c.shape.group * c.shape.head_dim;
  const std::size_t bytes = out_dtype == DType::kF32 ? 4 : 2;
  std::vector<std::vector<PrefillPart>> parts(n_heads);
  std::vector<std::vector<std::vector<KvRun>>> runs(n_heads);
  std::vector<std::vector<std::byte>> raw(n_heads);
  std::vector<PrefillHead> heads;
  Outputs o;
  o.lse.resize(n_heads);
  for (std::size_t h = 0; h < n_heads; ++h) {
    const Head& head = c.heads[h];
    const std::int32_t rows = std::min(n, head.n_rows - first_row);
    runs[h].resize(head.parts.size());
    for (std::size_t p = 0; p < head.parts.size(); ++p) {
      const Part& part = head.parts[p];
      std::int32_t hidden = part.causal ? head.n_rows - first_row - rows : 0;
      runs[h][p] = part.kv.runs;
      for (auto r = runs[h][p].rbegin(); r != runs[h][p].rend(); ++r) {
        const std::int32_t cut = std::min(hidden, r->n_tokens);
        r->n_tokens -= cut;
        hidden -= cut;
      }
      std::int32_t n_tokens = 0;
      for (const KvRun& r : runs[h][p]) n_tokens += r.n_tokens;
      const std::int32_t behind =
          part.causal && part.window > 0 ? std::clamp(n_tokens - rows + 1 - part.window, 0, n_tokens) : 0;
      drop_front(runs[h][p], behind, c.shape.token_bytes());
      parts[h].push_back(
          {part.q.data() + first_row * stride, c.stride(), runs[h][p], part.causal, part.window, behind});
    }
    raw[h].assign(rows * stride * bytes, std::byte{0x5a});
    o.lse[h].assign(rows * c.shape.group, kNaN);
    heads.push_back({parts[h], rows, raw[h].data(), c.stride(), out_dtype, o.lse[h].data(),
                     c.sinks.empty() ? nullptr : c.sinks.data()});
  }
  form(heads, c.shape);
  o.out.resize(n_heads);
  for (std::size_t h = 0; h < n_heads; ++h)
    for (std::size_t r = 0; r < static_cast<std::size_t>(heads[h].n_rows); ++r)
      for (std::size_t i = 0; i < stride; ++i) {
        const std::byte* p = raw[h].data() + (r * stride + i) * bytes;
        if (i >= width) {
          EXPECT_EQ(*p, std::byte{0x5a}) << "between rows";
          continue;
        }
        float value = 0;
        if (out_dtype == DType::kF32) {
          std::memcpy(&value, p, 4);
        } else {
          value = kv_at(p, 0, DType::kBF16);
        }
        o.out[h].push_back(value);
      }
  return o;
}

Outputs attend_fast(const Case& c, int n_threads, DType out_dtype = DType::kF32) {
  ThreadPool pool(n_threads);
  return attend_chunk(c, 0, 1 << 30, out_dtype, [&](auto heads, const AttentionShape& s) {
    attend_prefill_cpu(heads, s, {&pool, Rounding::kFast});
  });
}

std::vector<float> plain(const Head& head, const Case& c) {
  const std::size_t d = c.shape.head_dim;
  std::vector<float> out((head.n_rows * c.shape.group) * d);
  const Arithmetic arithmetic = c.shape.kv_dtype == DType::kBF16 ? Arithmetic::kBF16 : Arithmetic::kF32;
  for (std::int32_t row = 0; row < head.n_rows; ++row)
    for (std::int32_t g = 0; g < c.shape.group; ++g) {
      std::vector<Entry> entries;
      for (const Part& p : head.parts) {
        const auto m = size32(p.kv.tokens);
        const std::int32_t last = p.causal ? m - head.n_rows + 1 + row : m;
        const std::int32_t first = p.causal && p.window > 0 ? std::max(0, last - p.window) : 0;
        for (std::int32_t t = first; t < last; ++t)
          entries.push_back({p.q.data() + row * c.stride() + g * c.shape.head_dim, p.kv.tokens[t], 0});
      }
      plain_attend(entries, c.shape, arithmetic, out.data() + (row * c.shape.group + g) * d);
    }
  return out;
}

struct Expected {
  Outputs want;
  std::vector<double> tolerance;  // per head
  float lse_tolerance;            // relative, or absolute below 1
};

// Twice the error of plain arithmetic of the same type: bf16 query and probabilities for bf16 keys, f32 for f16 ones.
// The floor is the rounding of a value of that size, for cases so small that plain arithmetic is exact by luck.
Expected expected(const Case& c) {
  const bool is_bf16 = c.shape.kv_dtype == DType::kBF16;
  // A score is a sum of D products, each off by at most 2^-9 when the query is rounded.
  Expected e{attend_chunk(c, 0, 1 << 30, DType::kF32,
                          [](auto heads, const AttentionShape& s) { attend_prefill_ref(heads, s); }),
             {},
             is_bf16 ? 0.02f : 2e-6f};
  for (std::size_t h = 0; h < c.heads.size(); ++h)
    e.tolerance.push_back(2 * max_error(plain(c.heads[h], c), e.want.out[h]) +
                          (is_bf16 ? 0x1.0p-9 : 4e-7) * max_abs(e.want.out[h]));
  return e;
}

void expect_close(const Expected& e, const Outputs& got) {
  for (std::size_t h = 0; h < e.tolerance.size(); ++h) {
    EXPECT_LE(max_error(got.out[h], e.want.out[h]), e.tolerance[h]) << "head " << h;
    for (std::size_t i = 0; i < e.want.lse[h].size(); ++i) {
      const float want = e.want.lse[h][i];
      if (std::isinf(want)) {
        EXPECT_EQ(got.lse[h][i], want) << "head " << h << " query " << i;
      } else {
        EXPECT_LE(std::abs(got.lse[h][i] - want), e.lse_tolerance * std::max(1.0f, std::abs(want)))
            << "head " << h << " query " << i;
      }
    }
  }
}

void expect_close_everywhere(const Case& c, const std::vector<int>& threads = {2}) {
  const Expected e = expected(c);
  each_supported_target([&] {
    for (const int n_threads : threads) expect_close(e, attend_fast(c, n_threads));
  });
}

Part make_part(std::int32_t n_tokens, std::int32_t n_rows, const Case& c, Layout layout, std::mt19937& rng,
               float sigma = 1.0f) {
  return {KvStore(n_tokens, c.shape, layout, rng, sigma), random_floats(n_rows * c.stride(), rng, sigma)};
}

struct Lengths {
  std::int32_t rows, tokens;
};

Case make_case(const std::vector<Lengths>& lengths, AttentionShape shape, Layout layout, std::int32_t window = 0,
               float sigma = 1.0f) {
  std::mt19937 rng(5);
  Case c{shape, {}};
  for (const Lengths& l : lengths) {
    c.heads.push_back({l.rows, {}});
    c.heads.back().parts.push_back(make_part(l.tokens, l.rows, c, layout, rng, sigma));
    c.heads.back().parts.back().window = window;
  }
  return c;
}

TEST(AttentionPrefill, RowsAndTokensAroundTiles) {
  for (const Layout layout : {Layout::kPages, Layout::kSingles, Layout::kRagged, Layout::kOneRun}) {
    std::vector<Lengths> lengths;
    for (const std::int32_t rows : {1, 2, 31, 32, 33, 100})
      for (const std::int32_t more : {0, 1, 31, 32, 33, 63, 64, 65, 97}) lengths.push_back({rows, rows + more});
    const Case c = make_case(lengths, shape_of(3, 16), layout);
    expect_close_everywhere(c);
  }
}

TEST(AttentionPrefill, SinksAreOneMoreLogit) {
  for (const std::int32_t window : {0, 7}) {
    Case c = make_case({{1, 1}, {33, 40}, {100, 130}}, shape_of(4, 64), Layout::kPages, window);
    const std::vector<double> tolerance = expected(c).tolerance;
    c.sinks = {-kInf, -3.0f, 1.5f, 200.0f};
    Expected e{attend_chunk(c, 0, 1 << 30, DType::kF32,
                            [](auto heads, const AttentionShape& s) { attend_prefill_ref(heads, s); }),
               tolerance, 0.02f};
    for (std::size_t i = 3; i < e.want.lse[2].size(); i += 4) EXPECT_FLOAT_EQ(e.want.lse[2][i], 200.0f);
    each_supported_target([&] { expect_close(e, attend_fast(c, 2)); });
  }
}

TEST(AttentionPrefill, GroupsAndHeadDims) {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const int group : {1, 4, 5, 7, 8, 16})
      for (const int head_dim : {8, 16, 24, 64, 80, 96, 128, 256}) {
        SCOPED_TRACE(::testing::Message() << dtype_name(dtype) << " group " << group << " head_dim " << head_dim);
        const Case c = make_case({{5, 70}, {13, 13}}, shape_of(group, head_dim, dtype), Layout::kPages);
        expect_close_everywhere(c, {1});
      }
}

TEST(AttentionPrefill, Windows) {
  for (const std::int32_t window : {1, 5, 32, 64, 100, 1 << 30}) {
    const Case c = make_case({{100, 100}, {33, 211}, {1, 64}, {7, 200}}, shape_of(4, 16), Layout::kRagged, window);
    expect_close_everywhere(c);
  }
}

TEST(AttentionPrefill, PartsCausalAndNot) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::mt19937 rng(9);
    Case c{shape_of(5, 32, dtype), {}};
    for (const std::int32_t rows : {1, 20, 67}) {
      for (const std::vector<std::int32_t>& others : {std::vector<std::int32_t>{}, {0}, {4, 130}, {64, 0, 1}}) {
        c.heads.push_back({rows, {}});
        for (const std::int32_t n : others) {
          c.heads.back().parts.push_back(make_part(n, rows, c, Layout::kRagged, rng));
          c.heads.back().parts.back().causal = false;
        }
        if (others.size() != 1) c.heads.back().parts.push_back(make_part(rows + 41, rows, c, Layout::kRagged, rng));
      }
    }
    c.heads.push_back({3, {}});  // no parts at all
    expect_close_everywhere(c, {1, 2, 3, 4});
    each_supported_target([&] {
      const Outputs got = attend_fast(c, 2);
      EXPECT_THAT(got.out.back(), ::testing::Each(0.0f));
      EXPECT_THAT(got.lse.back(), ::testing::Each(-kInf));
    });
  }
}

// A part that ends before the rows, like tokens that left a sliding window: the first rows attend none of it, or only
// some.
TEST(AttentionPrefill, PartsThatTheFirstRowsDoNotSee) {
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    std::mt19937 rng(11);
    Case c{shape_of(4, 16, dtype), {}};
    for (const std::int32_t rows : {2, 33, 130})
      for (const std::int32_t tokens : {0, 1, rows / 2, rows - 1}) {
        c.heads.push_back({rows, {}});
        c.heads.back().parts.push_back(make_part(tokens, rows, c, Layout::kRagged, rng));
        c.heads.push_back({rows, {}});
        c.heads.back().parts.push_back(make_part(tokens, rows, c, Layout::kPages, rng));
        c.heads.back().parts.push_back(make_part(rows + 3, rows, c, Layout::kPages, rng));
        c.heads.back().parts.back().window = 5;
      }
    expect_close_everywhere(c);
  }
}

TEST(AttentionPrefill, OutputInBf16IsTheRoundedOne) {
  each_supported_target([&] {
    const Case c = make_case({{33, 90}, {1, 1}}, shape_of(4, 64), Layout::kPages);
    const Outputs f32 = attend_fast(c, 2);
    const Outputs got = attend_fast(c, 2, DType::kBF16);
    for (std::size_t h = 0; h < 2; ++h)
      for (std::size_t i = 0; i < f32.out[h].size(); ++i)
        EXPECT_EQ(got.out[h][i], static_cast<float>(bf16(f32.out[h][i]))) << i;
  });
}

// A row's result depends neither on its chunk nor on other heads, threads or the rounding mode: bit for bit.
TEST(AttentionPrefill, ChunksHeadsAndThreadsChangeNoBits) {
  each_supported_target([&] {
    for (const DType dtype : {DType::kBF16, DType::kF16})
      for (const std::int32_t window : {0, 50}) {
        const Case c = make_case({{130, 233}}, shape_of(5, 64, dtype), Layout::kPages, window);
        const Outputs want = attend_fast(c, 1);
        for (const std::int32_t chunk : {1, 7, 32, 64, 100, 129}) {
          ThreadPool pool(1 + chunk % 4);
          std::vector<float> out, lse;
          for (std::int32_t row = 0; row < 130; row += chunk) {
            const Outputs o = attend_chunk(c, row, chunk, DType::kF32, [&](auto heads, const AttentionShape& s) {
              attend_prefill_cpu(heads, s, {&pool, Rounding::kFixed});
            });
            out.insert(out.end(), o.out[0].begin(), o.out[0].end());
            lse.insert(lse.end(), o.lse[0].begin(), o.lse[0].end());
          }
          EXPECT_TRUE(same_bits(out, want.out[0])) << "chunk " << chunk;
          EXPECT_TRUE(same_bits(lse, want.lse[0])) << "chunk " << chunk;
        }
        const Case more = make_case({{130, 233}, {64, 64}, {1, 300}, {60, 400}}, c.shape, Layout::kPages, window);
        for (const int n_threads : {1, 2, 3, 4})
          EXPECT_TRUE(same_bits(attend_fast(more, n_threads).out[0], want.out[0]));
      }
  });
}

TEST(AttentionPrefill, EqualScoresGiveTheMean) {
  Case c = make_case({{70, 300}}, shape_of(4, 64), Layout::kPages);
  auto& q = c.heads[0].parts[0].q;
  std::fill(q.begin(), q.end(), 0.0f);
  expect_close_everywhere(c);
  each_supported_target([&] {
    const Outputs got = attend_fast(c, 2);
    EXPECT_NEAR(got.lse[0][0], std::log(231.0f), 1e-5f);
    EXPECT_NEAR(got.lse[0].back(), std::log(300.0f), 1e-5f);
  });
}

TEST(AttentionPrefill, HugeScores) {
  // Scores of about +- 1e4; values that are exact in bf16 and differ little, because rounding decides which of two
  // close scores wins.
  Case c = make_case({{70, 300}}, shape_of(4, 64), Layout::kPages, 0, 60.0f);
  for (std::byte* token : c.heads[0].parts[0].kv.tokens)
    for (std::size_t d = 64; d < 128; ++d) set_kv(token, d, DType::kBF16, 3.0f);
  each_supported_target([&] {
    const Outputs got = attend_fast(c, 2);
    for (const float x : got.out[0]) EXPECT_LE(std::abs(x - 3.0f), 0.03f);
  });
  const Case f16 = make_case({{70, 300}}, shape_of(4, 64, DType::kF16), Layout::kPages, 0, 60.0f);
  expect_close_everywhere(f16);
}

TEST(AttentionPrefill, NaNStaysInItsRows) {
  each_supported_target([&] {
    for (const DType dtype : {DType::kBF16, DType::kF16}) {
      const AttentionShape shape = shape_of(2, 16, dtype);
      const Case clean = make_case({{100, 150}}, shape, Layout::kPages);
      const Outputs want = attend_fast(clean, 2);
      for (const bool in_value : {false, true})
        for (const std::int32_t token : {50, 100, 127, 149}) {  // attended from row token - 50 on
          Case c = make_case({{100, 150}}, shape, Layout::kPages);
          set_kv(c.heads[0].parts[0].kv.tokens[token], in_value ? 16 + 3 : 3, dtype, kNaN);
          const Outputs got = attend_fast(c, 2);
          for (std::int32_t row = 0; row < 100; ++row)
            for (std::size_t i = 0; i < 32; ++i) {
              const std::size_t at = static_cast<std::size_t>(row) * 32 + i;
              const bool poisoned = row >= token - 50 && (!in_value || i % 16 == 3);
              EXPECT_EQ(std::isnan(got.out[0][at]), poisoned)
                  << "row " << row << " element " << i << " token " << token;
              if (!poisoned) {
                EXPECT_EQ(got.out[0][at], want.out[0][at]) << "row " << row << " element " << i;
              }
            }
        }
      Case c = make_case({{100, 150}}, shape, Layout::kPages);
      c.heads[0].parts[0].q[static_cast<std::size_t>(7 * c.stride()) + 16] = kNaN;  // row 7, head 1
      const Outputs got = attend_fast(c, 2);
      for (std::size_t i = 0; i < got.out[0].size(); ++i) {
        const bool poisoned = i / 32 == 7 && i % 32 >= 16;
        EXPECT_EQ(std::isnan(got.out[0][i]), poisoned) << i;
        if (!poisoned) {
          EXPECT_EQ(got.out[0][i], want.out[0][i]) << i;
        }
      }
    }
  });
}

TEST(AttentionPrefill, MoreThan6144Pages) {
  const Case c = make_case({{2, 6145 * 32 + 1}}, shape_of(1, 8), Layout::kPages);
  expect_close_everywhere(c);
}

TEST(AttentionPrefillCall, NothingToDo) {
  ThreadPool pool(2);
  attend_prefill_cpu({}, shape_of(4, 64), {&pool, Rounding::kFast});
  std::vector<float> out(256, 7.0f), lse(4, 7.0f);
  const PrefillHead head{.out = reinterpret_cast<std::byte*>(out.data()), .out_stride = 256, .lse = lse.data()};
  attend_prefill_cpu({&head, 1}, shape_of(4, 64), {&pool, Rounding::kFast});
  EXPECT_THAT(out, ::testing::Each(7.0f)) << "a head without rows";
  EXPECT_THAT(lse, ::testing::Each(7.0f));
}

}  // namespace
}  // namespace mneme
