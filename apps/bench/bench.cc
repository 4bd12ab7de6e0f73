#include "src/perf/bench.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/engine/kv_plan.h"

namespace mneme {
namespace {

using Clock = OpTimer::Clock;
constexpr std::uint64_t kSeed = 20240607;
constexpr int kReadPasses = 12;  // before and after the steps of a case
constexpr std::int64_t kProductRows = 1024, kProductWidth = 2048;
constexpr int kProductPasses = 5;
constexpr std::int32_t kEndRows = 64;  // of a prefill that only its end matters of
constexpr std::size_t kNormals = 1 << 16;

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Standard normal numbers as the cache stores them, from which keys and values are drawn: four a draw.
std::vector<std::uint16_t> normal_words(DType dtype) {
  Tensor from(DType::kF32, {1, static_cast<std::int64_t>(kNormals)});
  Tensor to(dtype, {1, static_cast<std::int64_t>(kNormals)});
  Rng rng(kSeed);
  for (std::size_t i = 0; i < kNormals; ++i) from.as<float>()[i] = static_cast<float>(rng.normal());
  quantise_rows(from, to);
  const auto* words = reinterpret_cast<const std::uint16_t*>(to.view().data());
  return {words, words + kNormals};
}

std::array<double, kOps.size()> times_of(const OpTimer& timer) {
  std::array<double, kOps.size()> times{};
  for (const Op op : kOps) times[static_cast<std::size_t>(op)] = timer.seconds(op);
  return times;
}

}  // namespace

void fill_random(SequenceCache& cache, std::int32_t length, std::uint64_t seed, ThreadPool& pool) {
  const KvShape& shape = cache.shape();
  const std::vector<std::uint16_t> words = normal_words(shape.dtype);
  cache.extend(length - cache.length());
  const std::int64_t heads = shape.blocks_per_page(), pages = cache.n_pages();
  pool.parallel_for(heads * pages, 8, [&](std::int64_t begin, std::int64_t end, int) {
    for (std::int64_t item = begin; item < end; ++item) {
      const auto head = static_cast<std::int32_t>(item / pages);
      const auto first = static_cast<std::int32_t>(item % pages) * kPageTokens;
      const std::int32_t n = std::min(kPageTokens, length - first);
      auto* out =
          reinterpret_cast<std::uint16_t*>(cache.token(head / shape.n_kv_heads, head % shape.n_kv_heads, first));
      Rng rng(seed, static_cast<std::uint64_t>(item) << 20);
      const std::size_t count = static_cast<std::size_t>(n) * shape.token_bytes() / sizeof(std::uint16_t);
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

  struct Sequences {
    std::unique_ptr<PagePool> pool;
    std::vector<SequenceCache> caches;
    std::vector<MethodState> methods;  // empty, or one a cache
    std::vector<SequenceRows> rows;
    std::vector<std::int32_t> tokens;
  };

  Impl(const Model& m, const CpuContext& c, const Machine& mach, const BenchOptions& o)
      : model(m),
        context(c),
        machine(mach),
        options(o),
        forward(m, c),
        timer(o.keep_spans),
        kv(m.kv_shape(o.kv_dtype)),
        memory(memory_probe_bytes(mach.l3_bytes, mach.memory_limit), *c.pool) {
    forward.set_timer(&timer);
    if (mach.l3_bytes > 0 && static_cast<std::int64_t>(m.weight_bytes()) <= mach.l3_bytes)
      l3.emplace(l3_probe_bytes(mach.l3_bytes), *c.pool);
  }

  Sequences make_sequences(const BenchCase& c, std::int64_t length);
  void measure_bandwidth(BenchResult& result);
  void extend(Sequences& s, std::int32_t n);
  double timed_step(Sequences& s, std::int32_t n, bool logits, BenchResult* trace, std::int32_t prefill_left = 0);
  void finish(BenchResult& result, const Sequences& s, double median);
};

Bench::Impl::Sequences Bench::Impl::make_sequences(const BenchCase& c, std::int64_t length) {
  MNEME_CHECK(c.batch >= 1 && c.depth >= 0, "batch {}, depth {}", c.batch, c.depth);
  const std::int64_t blocks = blocks_of(kv, length) * c.batch;
  const std::int64_t bytes = blocks * static_cast<std::int64_t>(kv.page_bytes());
  const std::int64_t room = machine.memory_limit - static_cast<std::int64_t>(model.weight_bytes() + memory.bytes());
  if (bytes > room)
    fail(ErrorKind::kResource,
         "{} sequences of {} tokens take {} bytes of keys and values; {} bytes are left beside the weights", c.batch,
         length, bytes, std::max<std::int64_t>(room, 0));
  Sequences s;
  s.pool = std::make_unique<PagePool>(kv, blocks);
  for (std::int32_t i = 0; i < c.batch; ++i) {
    s.caches.emplace_back(*s.pool);
    if (c.plan == nullptr) continue;
    s.caches.back().set_key_basis(c.plan->key_basis);
    s.methods.emplace_back(c.plan);
  }
  for (std::size_t i = 0; i < s.caches.size(); ++i)
    s.rows.push_back({.cache = &s.caches[i], .method = s.methods.empty() ? nullptr : &s.methods[i]});
  return s;
}

void Bench::Impl::measure_bandwidth(BenchResult& result) {
  result.bandwidth = std::max(result.bandwidth, memory.measure(kReadPasses));
  if (l3) result.l3_bandwidth = std::max(result.l3_bandwidth, l3->measure(4 * kReadPasses));
}

// One pass over n new tokens of every sequence; seconds.
double Bench::Impl::timed_step(Sequences& s, std::int32_t n, bool logits, BenchResult* trace,
                               std::int32_t prefill_left) {
  s.tokens.resize(s.caches.size() * static_cast<std::size_t>(n));
  for (std::int32_t& t : s.tokens)
    t = static_cast<std::int32_t>(tokens.below(static_cast<std::uint64_t>(model.config().vocab)));
  const Clock::time_point begin = Clock::now();
  timer.start();
  for (std::size_t i = 0; i < s.caches.size(); ++i) {
    s.caches[i].extend(n);
    s.rows[i].n_rows = n;
    s.rows[i].want_logits = logits;
    s.rows[i].prefill_left = prefill_left;
  }
  forward.run({.tokens = s.tokens, .sequences = s.rows});
  for (std::size_t i = 0; i < s.methods.size(); ++i) s.methods[i].commit(s.caches[i]);
  const Clock::time_point end = Clock::now();
  if (trace != nullptr && options.keep_spans) trace->trace.push_back({begin, end, timer.spans()});
  return seconds_between(begin, end);
}

void Bench::Impl::finish(BenchResult& result, const Sequences& s, double median) {
  measure_bandwidth(result);
  result.floor_seconds = floor_seconds(result.cost, result.bandwidth, result.product_rate);
  result.share = result.floor_seconds / median;
  result.kv_bytes = static_cast<std::int64_t>(s.pool->n_used()) * static_cast<std::int64_t>(kv.page_bytes());
  for (const MethodState& m : s.methods)
    result.method_bytes += static_cast<std::int64_t>(m.index_bytes() + m.copy_bytes() + m.state_bytes());
  result.activation_bytes = static_cast<std::int64_t>(forward.activation_bytes());
}

Bench::Bench(const Model& model, const CpuContext& context, const Machine& machine, const BenchOptions& options)
    : impl_(std::make_unique<Impl>(model, context, machine, options)) {}
Bench::~Bench() = default;

namespace {

// What a method read: its counts of one step, in bytes of one sequence's caches.
struct MethodReads {
  double attended_tokens = 0, heads = 0, index_bytes = 0, selections = 0, reused = 0;
};

MethodReads reads_of(const std::vector<MethodState>& methods) {
  MethodReads reads;
  for (const MethodState& m : methods)
    for (const LayerStats& l : m.stats().layers) {
      reads.attended_tokens += static_cast<double>(l.attended_tokens);
      reads.heads += static_cast<double>(l.attended_heads);
      reads.index_bytes += static_cast<double>(l.index_bytes_read);
      reads.selections += static_cast<double>(l.selections);
      reads.reused += static_cast<double>(l.reused);
    }
  return reads;
}

}  // namespace

BenchResult Bench::decode(const BenchCase& c) {
  Impl& b = *impl_;
  const BenchOptions& o = b.options;
  MNEME_CHECK(o.steps >= 1 && o.warmup >= 0, "{} steps after {}", o.steps, o.warmup);
  Impl::Sequences s = b.make_sequences(c, std::int64_t{c.depth} + o.warmup + o.steps);
  // A method that looks at the end of a prefill gets one; all before it is random.
  const std::int32_t end_rows = c.plan != nullptr && c.plan->tap_rows() > 0 ? std::min(c.depth, kEndRows) : 0;
  for (std::size_t i = 0; i < s.caches.size(); ++i) {
    fill_random(s.caches[i], c.depth - end_rows, kSeed + 1 + i, *b.context.pool);
    if (s.rows[i].method == nullptr) continue;
    b.context.pool->parallel_for(b.kv.blocks_per_page(), 1, [&](std::int64_t begin, std::int64_t end, int) {
      for (std::int64_t head = begin; head < end; ++head)
        s.methods[i].close_units(static_cast<std::int32_t>(head) / b.kv.n_kv_heads,
                                 static_cast<std::int32_t>(head) % b.kv.n_kv_heads, s.caches[i]);
    });
  }

  if (end_rows > 0) b.timed_step(s, end_rows, false, nullptr);
  for (SequenceRows& rows : s.rows) rows.phase = RowPhase::kDecode;

  BenchResult result;
  b.measure_bandwidth(result);
  for (std::int32_t i = 0; i < o.warmup; ++i) b.timed_step(s, 1, true, nullptr);
  const MethodReads before = reads_of(s.methods);
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
  result.attended_tokens = result.cost.kv_read / static_cast<double>(b.kv.bytes_per_token()) / c.batch;
  if (c.plan != nullptr) {
    const MethodReads after = reads_of(s.methods);
    const double tokens = (after.attended_tokens - before.attended_tokens) / o.steps;
    result.cost.kv_read = tokens * static_cast<double>(b.kv.token_bytes());
    result.cost.index_read = (after.index_bytes - before.index_bytes) / o.steps;
    result.attended_tokens = tokens * o.steps / std::max(after.heads - before.heads, 1.0);
    const double selections = after.selections - before.selections, reused = after.reused - before.reused;
    result.selected_share = selections / std::max(selections + reused, 1.0);
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
  result.product_rate =
      product_rate(b.model.layers()[0].gate.view().dtype(), kProductRows, kProductWidth, kProductPasses, b.context);
  std::vector<double> steps, prompts, ends;
  std::vector<std::array<double, kOps.size()>> operations;
  Impl::Sequences s = b.make_sequences(c, c.depth);
  for (std::int32_t i = 0; i < o.steps; ++i) {
    for (std::size_t j = 0; j < s.caches.size(); ++j) s.caches[j].clear();
    for (MethodState& m : s.methods) m = MethodState(c.plan);
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
    ends.push_back(0);
    for (const MethodState& m : s.methods) ends.back() += m.stats().prefill_end_seconds;
    operations.push_back(times);
  }
  result.step = quantiles_of(steps);
  result.prompt = quantiles_of(prompts);
  result.operations = operations[median_index(prompts)];
  result.prefill_end_seconds = ends[median_index(prompts)];
  const double tokens = static_cast<double>(c.depth) * c.batch;
  result.tokens_per_second = tokens / result.prompt.median;
  result.tokens_per_second_deviation = result.tokens_per_second * result.prompt.deviation / result.prompt.mean;
  b.finish(result, s, result.prompt.median);
  return result;
}

}  // namespace mneme
