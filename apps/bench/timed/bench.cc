#include "apps/bench/timed/bench.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "apps/bench/timed/sequences.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/rng.h"
#include "src/base/seconds.h"
#include "src/base/size32.h"
#include "src/base/underlying.h"
#include "src/engine/kv_plan.h"
#include "src/kv/kv_run.h"

namespace mneme {
namespace {

using Clock = OpTimer::Clock;
constexpr std::uint64_t kSeed = 20240607;
constexpr int kReadPasses = 12;  // before and after the steps of a case
constexpr std::int64_t kGemmRows = 1024, kGemmWidth = 2048;
constexpr int kGemmPasses = 5;
constexpr std::int32_t kEndRows = 64;  // of a prefill that only its end matters of
constexpr std::size_t kNormals = 1 << 16;

// Standard normal numbers as the cache stores them, from which keys and values are drawn: four a draw.
std::vector<std::uint16_t> normal_words(DType dtype) {
  Tensor from(DType::kF32, {1, kNormals});
  Tensor to(dtype, {1, kNormals});
  Rng rng(kSeed);
  for (std::size_t i = 0; i < kNormals; ++i) from.as<float>()[i] = static_cast<float>(rng.normal());
  quantise_rows(from, to);
  const auto* words = reinterpret_cast<const std::uint16_t*>(to.view().data());
  return {words, words + kNormals};
}

std::array<double, kOps.size()> times_of(const OpTimer& timer) {
  std::array<double, kOps.size()> times{};
  for (const Op op : kOps) times[underlying(op)] = timer.seconds(op);
  return times;
}

void fill_eight_bit(std::byte* token, std::int32_t n, const KvShape& shape, Rng rng) {
  std::vector<float> pair(2 * std::int64_t{shape.head_dim});
  const AttentionShape to{.head_dim = shape.head_dim, .kv_dtype = shape.dtype};
  for (std::int32_t t = 0; t < n; ++t, token += shape.token_bytes()) {
    for (float& x : pair) x = static_cast<float>(rng.normal());
    store_kv(pair.data(), pair.data() + shape.head_dim, to, token);
  }
}

}  // namespace

void fill_random(SequenceCache& cache, std::int32_t length, std::uint64_t seed, ThreadPool& pool) {
  const KvShape& shape = cache.shape();
  const std::vector<std::uint16_t> words =
      is_eight_bit(shape.dtype) ? std::vector<std::uint16_t>() : normal_words(shape.dtype);
  cache.extend(length - cache.length());
  cache.states().assume(length);
  const std::int64_t heads = shape.blocks_per_page(), pages = cache.n_pages();
  pool.parallel_for(heads * pages, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t item = begin; item < end; ++item) {
      const std::int32_t head = count32(item / pages);
      const std::int32_t first = count32(item % pages) * kPageTokens;
      const std::int32_t n = std::min(kPageTokens, length - first);
      if (is_eight_bit(shape.dtype)) {
        fill_eight_bit(cache.token(head / shape.n_kv_heads, head % shape.n_kv_heads, first), n, shape,
                       Rng(seed, std::uint64_t{1 << 20} * item));
        continue;
      }
      auto* out =
          reinterpret_cast<std::uint16_t*>(cache.token(head / shape.n_kv_heads, head % shape.n_kv_heads, first));
      Rng rng(seed, std::uint64_t{1 << 20} * item);
      const std::size_t count = n * shape.token_bytes() / sizeof(std::uint16_t);
      for (std::size_t i = 0; i < count;) {
        std::uint64_t draw = rng.next();
        for (int j = 0; j < 4 && i < count; ++j, draw >>= 16) out[i++] = words[draw % kNormals];
      }
    }
  });
}

struct Bench::Impl {
  const Model& model;
  CpuContext context;
  Machine machine;
  BenchOptions options;
  Forward forward;
  OpTimer timer;
  KvShape kv;
  ReadProbe memory;
  std::optional<ReadProbe> l3;
  Rng tokens{kSeed};

  Impl(const Model& m, const CpuContext& c, const Machine& mach, const BenchOptions& o)
      : model(m),
        context(c),
        machine(mach),
        options(o),
        forward(m, c, o.ranks),
        timer(o.keep_spans),
        kv(m.kv_shape(o.kv_dtype)),
        memory(memory_probe_bytes(mach.l3_bytes, mach.memory_limit), *c.pool) {
    forward.set_timer(&timer);
    if (mach.l3_bytes > 0 && std::cmp_less_equal(m.weight_bytes(), mach.l3_bytes))
      l3.emplace(l3_probe_bytes(mach.l3_bytes), *c.pool);
  }

  BenchSequences make_sequences(const BenchCase& c, std::int64_t length);
  void measure_bandwidth(BenchResult& result);
  double timed_step(BenchSequences& s, std::int32_t n, bool logits, BenchResult* trace, std::int32_t prefill_left = 0);
  void finish(BenchResult& result, const BenchSequences& s, double median);
};

BenchSequences Bench::Impl::make_sequences(const BenchCase& c, std::int64_t length) {
  MNEME_CHECK(c.batch >= 1 && c.depth >= 0, "batch {}, depth {}", c.batch, c.depth);
  const std::int64_t blocks = blocks_of(kv, length) * c.batch;
  const std::int64_t bytes = blocks * kv.page_bytes();
  const std::int64_t room = machine.memory_limit - static_cast<std::int64_t>(model.weight_bytes() + memory.bytes());
  if (bytes > room)
    fail(ErrorKind::kResource,
         "{} sequences of {} tokens take {} bytes of KV cache; {} bytes are left beside the weights", c.batch, length,
         bytes, std::max<std::int64_t>(room, 0));
  BenchSequences s;
  s.pool = std::make_unique<PagePool>(kv, blocks);
  s.make(*s.pool, c);
  return s;
}

void Bench::Impl::measure_bandwidth(BenchResult& result) {
  result.bandwidth = std::max(result.bandwidth, memory.measure(kReadPasses));
  if (l3) result.l3_bandwidth = std::max(result.l3_bandwidth, l3->measure(4 * kReadPasses));
}

// One pass over n new tokens of every sequence; seconds.
double Bench::Impl::timed_step(BenchSequences& s, std::int32_t n, bool logits, BenchResult* trace,
                               std::int32_t prefill_left) {
  s.draw_tokens(n, model.config().vocab, tokens);
  const Clock::time_point begin = Clock::now();
  timer.start();
  s.extend(n, logits, prefill_left);
  forward.run({.tokens = s.tokens, .sequences = s.rows});
  s.commit();
  const Clock::time_point end = Clock::now();
  if (trace != nullptr && options.keep_spans) trace->trace.push_back({begin, end, timer.spans()});
  return seconds_between(begin, end);
}

void Bench::Impl::finish(BenchResult& result, const BenchSequences& s, double median) {
  measure_bandwidth(result);
  result.floor_seconds = floor_seconds(result.cost, result.bandwidth, result.gemm_rate);
  result.share = result.floor_seconds / median;
  result.memory.kv = s.pool->n_used() * kv.page_bytes();
  for (const MethodState& m : s.methods) result.memory.method += m.index_bytes() + m.copy_bytes() + m.state_bytes();
  result.memory.activation = forward.activation_bytes();
}

Bench::Bench(const Model& model, const CpuContext& context, const Machine& machine, const BenchOptions& options)
    : impl_(std::make_unique<Impl>(model, context, machine, options)) {}
Bench::~Bench() = default;

BenchResult Bench::decode(const BenchCase& c) {
  Impl& b = *impl_;
  const BenchOptions& o = b.options;
  MNEME_CHECK(o.steps >= 1 && o.warmup >= 0, "{} steps after {}", o.steps, o.warmup);
  BenchSequences s = b.make_sequences(c, std::int64_t{c.depth} + o.warmup + o.steps);
  // A method that looks at the end of a prefill gets one; all before it is random.
  const std::int32_t end_rows = c.plan != nullptr && c.plan->observed_rows > 0 ? std::min(c.depth, kEndRows) : 0;
  for (std::size_t i = 0; i < s.caches.size(); ++i) {
    fill_random(s.caches[i], c.depth - end_rows, kSeed + 1 + i, *b.context.pool);
    if (s.rows[i].method == nullptr) continue;
    b.context.pool->parallel_for(b.kv.blocks_per_page(), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t head = begin; head < end; ++head)
        s.methods[i].close_units(count32(head / b.kv.n_kv_heads), count32(head % b.kv.n_kv_heads), s.caches[i]);
    });
  }

  if (end_rows > 0) b.timed_step(s, end_rows, false, nullptr);
  for (SequenceRows& rows : s.rows) rows.phase = SequencePhase::kDecode;

  BenchResult result;
  b.measure_bandwidth(result);
  for (std::int32_t i = 0; i < o.warmup; ++i) b.timed_step(s, 1, true, nullptr);
  const MethodReads before = s.reads();
  std::vector<double> seconds;
  std::vector<std::array<double, kOps.size()>> operations;
  for (std::int32_t i = 0; i < o.steps; ++i) {
    seconds.push_back(b.timed_step(s, 1, true, &result));
    operations.push_back(times_of(b.timer));
    result.cost += dense_cost(b.model, b.kv, s.caches[0].length() - 1, 1, c.batch, true);
  }
  result.step = quantiles_of(seconds);
  result.operations = operations[median_index(seconds)];
  result.cost = result.cost.scaled(1.0 / o.steps);
  result.attended_tokens = ratio(result.cost.kv_read, b.kv.bytes_per_token()) / c.batch;
  if (c.plan != nullptr) {
    const MethodReads read = s.reads().since(before);
    result.cost.kv_read = ratio(read.attended_tokens * b.kv.token_bytes(), o.steps);
    result.cost.index_read = ratio(read.index_bytes, o.steps);
    result.attended_tokens = ratio(read.attended_tokens, read.attended_heads);
    result.selected_share = ratio(read.selections, read.selections + read.reused);
  }
  result.tokens_per_second = c.batch / result.step.median;
  result.tokens_per_second_deviation = result.tokens_per_second * result.step.deviation / result.step.mean;
  b.finish(result, s, result.step.median);
  return result;
}

BenchResult Bench::prefill(const BenchCase& c) {
  Impl& b = *impl_;
  const BenchOptions& o = b.options;
  MNEME_CHECK(o.steps >= 1 && c.depth >= 1, "{} prompts of {} tokens", o.steps, c.depth);
  const std::int32_t chunk = std::max(1, o.chunk_tokens / c.batch);

  BenchResult result;
  b.measure_bandwidth(result);
  result.gemm_rate = gemm_rate(b.model.layers()[0].gate.view().dtype(), kGemmRows, kGemmWidth, kGemmPasses, b.context);
  std::vector<double> steps, prompts, ends;
  std::vector<std::array<double, kOps.size()>> operations;
  BenchSequences s = b.make_sequences(c, c.depth);
  for (std::int32_t i = 0; i < o.steps; ++i) {
    s.restart(c);
    double total = 0;
    std::array<double, kOps.size()> times{};
    for (std::int32_t first = 0; first < c.depth; first += chunk) {
      const std::int32_t n = std::min(chunk, c.depth - first);
      const bool last = first + n == c.depth;
      steps.push_back(b.timed_step(s, n, last, &result, c.depth - first - n));
      total += steps.back();
      const auto step_times = times_of(b.timer);
      for (std::size_t k = 0; k < times.size(); ++k) times[k] += step_times[k];
      if (i == 0) result.cost += dense_cost(b.model, b.kv, first, n, c.batch, last);
    }
    prompts.push_back(total);
    ends.push_back(s.prefill_end_seconds());
    operations.push_back(times);
  }
  result.step = quantiles_of(steps);
  result.prompt = quantiles_of(prompts);
  result.operations = operations[median_index(prompts)];
  result.prefill_end_seconds = ends[median_index(prompts)];
  const std::int64_t tokens = std::int64_t{c.depth} * c.batch;
  result.tokens_per_second = ratio(tokens, result.prompt.median);
  result.tokens_per_second_deviation = result.tokens_per_second * result.prompt.deviation / result.prompt.mean;
  b.finish(result, s, result.prompt.median);
  return result;
}

}  // namespace mneme
