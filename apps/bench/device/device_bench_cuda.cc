#include "apps/bench/device/device_bench_cuda.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "apps/bench/device/gather_cuda.h"
#include "apps/bench/device/outcomes_cuda.h"
#include "apps/bench/timed/sequences.h"
#include "src/base/backend.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/rng.h"
#include "src/base/seconds.h"
#include "src/cuda/bandwidth_cuda.h"
#include "src/engine/kv_plan.h"
#include "src/engine/memory_limit.h"
#include "src/model/cuda/forward.h"
#include "src/model/cuda/ranks/device_collective.h"
#include "src/model/ranks/rank_forward.h"
#include "src/ops/gemm/device/gemm_cublaslt_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/recipes/device_form.h"

namespace mneme {
namespace {

using Clock = OpTimer::Clock;
constexpr std::uint64_t kSeed = 20240607;
constexpr int kReadPasses = 8, kGemmPasses = 5;
constexpr std::int64_t kGemmWidth = 8192;
constexpr std::size_t kReadBytes = std::size_t{4} << 30;
constexpr std::size_t kLinkBytes = std::size_t{256} << 20;

class CudaBench final : public DeviceBench {
 public:
  CudaBench(std::unique_ptr<Model> model, const DeviceBenchSetup& setup);

  BenchResult decode(const BenchCase& c) override;
  BenchResult prefill(const BenchCase& c) override;
  GatherResult gather(const GatherCase& c) override;

  const DeviceInfo& device() const override;
  std::int64_t weight_bytes() const override;
  std::int64_t step_weight_bytes() const override;
  DType weights() const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct CudaBench::Impl {
  BenchOptions options;
  DeviceInfo device;
  std::unique_ptr<Model> model;
  KvShape kv;
  std::unique_ptr<DeviceCollective> ranks;   // null: the model is whole
  std::optional<InjectedOutcomes> outcomes;  // of the last case
  std::unique_ptr<CudaForward> forward;
  std::unique_ptr<PagePool> pool;
  WeightBytes weights;
  Rng tokens{kSeed};
  PinnedBuffer gather_pool;

  void inject(const BenchCase& c);
  BenchSequences make_sequences(const BenchCase& c);
  void count_method(BenchResult& result, const MethodReads& read, const BenchCase& c) const;
  double read_bandwidth();
  double link_bandwidth();
  double gemm_rate();
  double timed_step(BenchSequences& s, std::int32_t n, bool logits, std::int32_t left = 0);
  void measure_phases(BenchResult& result, BenchSequences& s);
  static void drop_as_prompts_end(const Plan& plan, SequenceCache& cache);
  void finish(BenchResult& result, const BenchSequences& s, double median);
};

CudaBench::CudaBench(std::unique_ptr<Model> model, const DeviceBenchSetup& setup) : impl_(std::make_unique<Impl>()) {
  Impl& b = *impl_;
  const BenchOptions& options = setup.options;
  const std::int64_t deepest = setup.deepest;
  const std::int32_t most = setup.most;
  b.options = options;
  b.device = device_info(0);
  b.model = std::move(model);
  b.kv = b.model->kv_shape(options.kv_dtype);
  use_device(0);
  Stream stream = Stream::make();
  const std::int64_t n_layers = b.model->config().n_layers;
  const WeightPlacement places =
      first_layers(setup.gpu_layers < 0 ? n_layers : std::min<std::int64_t>(setup.gpu_layers, n_layers));
  CudaForwardOptions forward{.max_rows = std::max(options.chunk_tokens, most),
                             .max_sequences = most,
                             .max_context = deepest,
                             .store = options.host_pages ? KvStore::kHost : KvStore::kDevice,
                             .kv_dtype = options.kv_dtype,
                             .batch_invariant = options.batch_invariant};
  std::optional<RankRange> head, experts;
  if (Collective* const ranks = options.ranks; ranks != nullptr) {
    b.ranks =
        make_device_collective(*ranks, CudaForward::rank_message_bytes(b.model->config(), forward, ranks->size()));
    forward.ranks = b.ranks.get();
    head = vocabulary_range(b.model->config().vocab, ranks->rank(), ranks->size());
    experts = rank_experts(b.model->config().experts.n, ranks->rank(), ranks->size());
  }
  CudaWeights weights = setup.random ? CudaWeights::random(*b.model, setup.mix, kSeed, stream, places, head, experts)
                                     : CudaWeights::load(*b.model, stream, places, {}, head);
  b.forward = std::make_unique<CudaForward>(*b.model, std::move(weights), std::move(stream), forward);
  const std::int64_t blocks = blocks_of(b.kv, deepest) * most;
  const std::int64_t bytes = blocks * static_cast<std::int64_t>(b.kv.page_bytes()), room = b.forward->room_bytes();
  if (!options.host_pages && bytes > room)
    fail(ErrorKind::kResource,
         "{} sequences of {} tokens take {} bytes of KV cache; {} bytes of the device are left beside weights "
         "and activations: fewer (--batch), shorter (--depth), smaller steps (-b), or --kv-store host",
         most, deepest, bytes, std::max<std::int64_t>(room, 0));
  const std::int64_t host_room = memory_limit_bytes() - kReservedHostBytes;
  if (options.host_pages && bytes > host_room)
    fail(ErrorKind::kResource,
         "{} sequences of {} tokens take {} bytes of KV cache; this process may have {} bytes of host memory, "
         "{} set aside: fewer (--batch) or shorter ones (--depth)",
         most, deepest, bytes, memory_limit_bytes(), kReservedHostBytes);
  b.pool = b.forward->make_pool(b.kv, blocks);
  const CudaContext context{.stream = b.forward->stream().get()};
  const auto kv_bytes = static_cast<std::int64_t>(b.forward->kv_bytes());
  if (is_eight_bit(b.kv.dtype)) {
    random_codes_cuda(b.forward->kv_data(), kv_bytes / static_cast<std::int64_t>(b.kv.token_bytes()),
                      kv_codes_of(b.kv.dtype), b.kv.head_dim, kSeed, context);
  } else {
    random_kv_cuda(b.forward->kv_data(), kv_bytes / 2, b.kv.dtype == DType::kF16, kSeed, context);
  }
  b.forward->stream().synchronize();
  const CudaWeights& w = b.forward->weights();
  b.weights = {.step = static_cast<double>(w.step_bytes()),
               .embedding_row = static_cast<double>(w.embedding().bytes()) / static_cast<double>(w.embedding().n_out),
               .head = static_cast<double>(w.head().bytes()),
               .experts = static_cast<double>(w.step_expert_bytes())};
}

const DeviceInfo& CudaBench::device() const {
  return impl_->device;
}
std::int64_t CudaBench::weight_bytes() const {
  return static_cast<std::int64_t>(impl_->forward->weights().bytes());
}
std::int64_t CudaBench::step_weight_bytes() const {
  return static_cast<std::int64_t>(impl_->weights.step);
}
DType CudaBench::weights() const {
  return impl_->forward->weights().dtype();
}

// Outcomes of a case at its rates.
void CudaBench::Impl::inject(const BenchCase& c) {
  const OutcomeRates rates{.turnover = c.turnover, .correction = c.correction};
  if (rates.any() && c.plan != nullptr) {
    const Plan& plan = *c.plan;
    if (rates.correction >= 0 && (plan.layer_selection || plan.remote_position))
      fail(ErrorKind::kOption, "--correction is for what KV heads select; {} selects by layer", plan.name());
    if (rates.correction >= 0 && plan.mass_gate() && !options.host_pages && attends_by_token(plan) &&
        device_form(plan) == DeviceForm::kFused)
      fail(ErrorKind::kOption,
           "--correction: {} selects tokens in their pages for both steps at once, before its gate is evaluated; use "
           "--kv-store host",
           plan.name());
    if (plan.selects() && plan.selection.scores.index <= EntryKind::kKeys)
      fail(ErrorKind::kOption, "--turnover and --correction draw what an index selects; {} has none", plan.name());
  }
  if (rates == (outcomes ? outcomes->rates() : OutcomeRates{})) return;
  outcomes.reset();
  if (rates.any()) outcomes.emplace(rates);
  forward->observe(outcomes ? &*outcomes : nullptr);
}

BenchSequences CudaBench::Impl::make_sequences(const BenchCase& c) {
  MNEME_CHECK(c.batch >= 1 && c.depth >= 0, "batch {}, depth {}", c.batch, c.depth);
  if (c.plan != nullptr && c.plan->layer_selection && host_reason(*c.plan) != nullptr)
    fail(ErrorKind::kOption,
         "bench --device cuda: {} selects by what the prompt's windows attended, and has no prompt here",
         c.plan->name());
  inject(c);
  BenchSequences s;
  s.make(*pool, c);
  return s;
}

// Bytes a second of a kernel that reads 4 GiB (or all that the blocks have); the best of several.
double CudaBench::Impl::read_bandwidth() {
  const bool borrow = !options.host_pages && forward->kv_bytes() >= kReadBytes;
  const DeviceBuffer own(borrow ? 0 : kReadBytes, "memory to read");
  const std::byte* from = own.size() > 0 ? own.data() : forward->kv_data();
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  double best = 0;
  for (int i = 0; i < kReadPasses; ++i) {
    begin.record(forward->stream());
    read_all_cuda(from, kReadBytes, nullptr, {.stream = forward->stream().get()});
    end.record(forward->stream());
    end.synchronize();
    best = std::max(best, static_cast<double>(kReadBytes) / end.seconds_since(begin));
  }
  return best;
}

// Bytes a second over the link, as kernels read weights in host memory.
double CudaBench::Impl::link_bandwidth() {
  const PinnedBuffer from(kLinkBytes);
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  double best = 0;
  for (int i = 0; i < kReadPasses; ++i) {
    begin.record(forward->stream());
    read_all_cuda(from.data(), kLinkBytes, nullptr, {.stream = forward->stream().get()});
    end.record(forward->stream());
    end.synchronize();
    best = std::max(best, static_cast<double>(kLinkBytes) / end.seconds_since(begin));
  }
  return best;
}

// Operations a second of a large GEMM of random numbers.
double CudaBench::Impl::gemm_rate() {
  constexpr std::size_t kBytes = static_cast<std::size_t>(kGemmWidth) * kGemmWidth * 2;
  const DeviceBuffer x(kBytes, "a GEMM"), w(kBytes, "a GEMM"), y(kBytes, "a GEMM");
  const CudaContext context{.stream = forward->stream().get()};
  random_kv_cuda(x.data(), kBytes / 2, false, 1, context);
  random_kv_cuda(w.data(), kBytes / 2, false, 2, context);
  CublasLtGemm gemm;
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  double best = 0;
  for (int i = 0; i < kGemmPasses; ++i) {
    begin.record(forward->stream());
    gemm.run({.m = kGemmWidth, .n = kGemmWidth, .k = kGemmWidth}, x.data(), w.data(), y.data(), context);
    end.record(forward->stream());
    end.synchronize();
    const double n = static_cast<double>(kGemmWidth);
    best = std::max(best, 2 * n * n * n / end.seconds_since(begin));
  }
  return best;
}

// One pass over n new tokens of every sequence, `left` of whose prompts are still to come, with what the engine does
// around it; seconds.
double CudaBench::Impl::timed_step(BenchSequences& s, std::int32_t n, bool logits, std::int32_t left) {
  s.draw_tokens(n, model->config().vocab, tokens);
  const Clock::time_point begin = Clock::now();
  s.extend(n, logits, left);
  forward->sample({.tokens = s.tokens, .sequences = s.rows});
  s.commit();
  return seconds_between(begin, Clock::now());
}

void CudaBench::Impl::finish(BenchResult& result, const BenchSequences& s, double median) {
  result.bandwidth = std::max(result.bandwidth, read_bandwidth());
  result.floor_seconds = floor_seconds(result.cost, result.bandwidth, result.gemm_rate);
  if (const auto host = static_cast<double>(forward->weights().step_host_bytes()); host > 0)
    result.floor_seconds += host / link_bandwidth() - host / result.bandwidth;
  result.share = result.floor_seconds / median;
  result.memory.kv = static_cast<std::int64_t>(pool->n_used()) * static_cast<std::int64_t>(kv.page_bytes());
  result.memory.activation = static_cast<std::int64_t>(forward->activation_bytes());
  const DeviceInfo now = device_info(0);
  result.memory.device = static_cast<std::int64_t>(now.memory_bytes - now.free_bytes);
  if (!s.methods.empty()) result.memory.method = static_cast<std::int64_t>(forward->method_bytes().all);
}

// The bytes of a step as the method has them: what it attends, and the whole index once a step.
void CudaBench::Impl::count_method(BenchResult& result, const MethodReads& read, const BenchCase& c) const {
  const double attended = ratio(read.attended_tokens, options.steps);
  result.cost.kv_read = attended * static_cast<double>(kv.token_bytes());
  result.attended_tokens = ratio(read.attended_tokens, read.attended_heads);
  if (c.plan->selects())
    result.cost.index_read = static_cast<double>(c.plan->compressed_layers()) * kv.n_kv_heads * c.batch *
                             static_cast<double>(c.depth) * c.plan->index_bytes_per_token();
  result.recall.selected_units = ratio(read.selected_units, options.steps);
  result.recall.missing_units = ratio(read.missing_units, options.steps);
  result.recall.recalled_units = ratio(read.recalled_units, options.steps);
  const double unit = static_cast<double>(kv.token_bytes()) * c.plan->rules.unit_tokens;
  result.recall.recalled_bytes = result.recall.recalled_units * unit;
  result.recall.correction_rate = ratio(read.corrections, read.gate_checks);
}

// Down to the budget, tokens from all over the sequence beside the last ones: where they lie is what costs, not which
// they are.
void CudaBench::Impl::drop_as_prompts_end(const Plan& plan, SequenceCache& cache) {
  const std::int32_t n = cache.length(), n_keep = std::min(n, plan.drop->budget),
                     recent = std::min(std::max(plan.drop->recent, 1), n_keep), scattered = n_keep - recent;
  std::vector<TokenRange> kept;
  for (std::int32_t i = 0; i < scattered; ++i) {
    const auto t = static_cast<std::int32_t>(std::int64_t{i} * (n - recent) / scattered);
    if (!kept.empty() && kept.back().end == t) {
      ++kept.back().end;
    } else {
      kept.push_back({t, t + 1});
    }
  }
  kept.push_back({n - recent, n});
  std::vector<SequenceCache::HeadRanks> heads;
  for (std::int32_t l = 0; l < cache.shape().n_layers; ++l)
    for (std::int32_t m = 0; m < cache.shape().n_kv_heads && plan.compressed(l); ++m) heads.push_back({l, m, kept});
  cache.keep(heads);
}

// As many steps again, each timed by phase.
void CudaBench::Impl::measure_phases(BenchResult& result, BenchSequences& s) {
  forward->time_phases(true);
  for (std::int32_t i = 0; i < kPhaseWarmup; ++i) timed_step(s, 1, true);
  PhaseClock::Seconds sum{};
  for (std::int32_t i = 0; i < options.steps; ++i) {
    timed_step(s, 1, true);
    const PhaseClock::Seconds step = forward->phase_seconds();
    for (std::size_t p = 0; p < step.size(); ++p) sum[p] += step[p] / options.steps;
  }
  forward->time_phases(false);
  for (const StepPhase phase : kStepPhases)
    if (ranks != nullptr || phase != StepPhase::kRanks)
      result.phases.emplace_back(phase_name(phase), sum[underlying(phase)]);
}

BenchResult CudaBench::decode(const BenchCase& c) {
  Impl& b = *impl_;
  const BenchOptions& o = b.options;
  BenchSequences s = b.make_sequences(c);
  for (std::size_t i = 0; i < s.caches.size(); ++i) {
    s.caches[i].extend(c.depth);  // the blocks have random content
    s.caches[i].states().assume(c.depth);
    if (c.plan != nullptr && c.plan->drops() && !c.plan->norm) Impl::drop_as_prompts_end(*c.plan, s.caches[i]);
    s.rows[i].phase = SequencePhase::kDecode;
  }
  BenchResult result;
  result.bandwidth = b.read_bandwidth();
  for (std::int32_t i = 0; i < std::max(o.warmup, 3); ++i) b.timed_step(s, 1, true);  // two make the graph
  const MethodReads before = s.reads();
  std::vector<double> seconds;
  double device_seconds = 0;
  for (std::int32_t i = 0; i < o.steps; ++i) {
    seconds.push_back(b.timed_step(s, 1, true));
    device_seconds += b.forward->device_seconds();
    result.cost += dense_cost(b.model->config(), b.weights, b.kv, s.caches[0].length() - 1, 1, c.batch, true);
  }
  result.step = quantiles_of(seconds);
  const MethodReads read = s.reads().since(before);
  if (o.phases) b.measure_phases(result, s);
  result.operations[static_cast<std::size_t>(Op::kProducts)] = device_seconds / o.steps;
  result.operations[static_cast<std::size_t>(Op::kOther)] = std::max(0.0, result.step.mean - device_seconds / o.steps);
  result.cost = result.cost.scaled(1.0 / o.steps);
  result.attended_tokens = result.cost.kv_read / static_cast<double>(b.kv.bytes_per_token()) / c.batch;
  if (c.plan != nullptr) b.count_method(result, read, c);
  result.tokens_per_second = c.batch / result.step.median;
  result.tokens_per_second_deviation = result.tokens_per_second * result.step.deviation / result.step.mean;
  b.finish(result, s, result.step.median);
  return result;
}

DeviceBench::GatherResult CudaBench::gather(const GatherCase& c) {
  Impl& b = *impl_;
  constexpr std::size_t kLaunchBytes = std::size_t{128} << 20;
  constexpr int kIdleLaunches = 4, kOverlappedLaunches = 24, kSteps = 40;
  if (b.gather_pool.size() != static_cast<std::size_t>(c.pool_bytes)) {
    b.gather_pool = {};
    b.gather_pool = PinnedBuffer(static_cast<std::size_t>(c.pool_bytes));
  }
  const auto block = static_cast<std::size_t>(c.block_bytes);
  const auto n = static_cast<std::int32_t>(kLaunchBytes / block);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(n) * kOverlappedLaunches);
  for (std::int32_t& id : ids) id = static_cast<std::int32_t>(b.tokens.below(b.gather_pool.size() / block));
  const DeviceBuffer to(kLaunchBytes, "gathered blocks"), there(ids.size() * sizeof(std::int32_t), "their numbers");
  const Stream side = Stream::make(Stream::Priority::kHigh);
  copy_bytes(there.data(), ids.data(), there.size(), side);
  side.synchronize();
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  const auto launch = [&](int launches) {  // other blocks each time: the device's own cache would answer for the same
    begin.record(side);
    for (int i = 0; i < launches; ++i)
      gather_blocks_cuda(to.data(), b.gather_pool.device_data(), there.as<std::int32_t>() + std::int64_t{i} * n, n,
                         c.block_bytes, c.thread_blocks, c.bulk ? GatherBy::kBulkCopies : GatherBy::kLoads,
                         {.stream = side.get()});
    end.record(side);
  };
  const auto rate = [&](int launches) {
    end.synchronize();
    return static_cast<double>(launches) * static_cast<double>(n) * static_cast<double>(block) /
           end.seconds_since(begin);
  };
  GatherResult result;
  launch(1);
  launch(kIdleLaunches);
  result.idle_rate = rate(kIdleLaunches);

  BenchSequences s = b.make_sequences({.depth = 2048, .batch = 1, .plan = nullptr});
  s.caches[0].extend(2048);
  s.caches[0].states().assume(2048);
  s.rows[0].phase = SequencePhase::kDecode;
  const auto steps = [&](int count) {
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      b.timed_step(s, 1, true);
      seconds.push_back(b.forward->device_seconds());
    }
    return quantiles_of(seconds).median;
  };
  steps(5);
  result.step_alone = steps(kSteps);
  launch(kOverlappedLaunches);
  std::vector<double> seconds;
  for (int i = 0; i < kSteps && !end.happened(); ++i) {
    b.timed_step(s, 1, true);
    if (!end.happened()) seconds.push_back(b.forward->device_seconds());
  }
  result.concurrent_rate = rate(kOverlappedLaunches);
  if (!seconds.empty()) result.step_concurrent = quantiles_of(seconds).median;
  return result;
}

BenchResult CudaBench::prefill(const BenchCase& c) {
  Impl& b = *impl_;
  const BenchOptions& o = b.options;
  const std::int32_t chunk = std::max(1, o.chunk_tokens / c.batch);
  BenchResult result;
  result.bandwidth = b.read_bandwidth();
  result.gemm_rate = b.gemm_rate();
  BenchSequences s = b.make_sequences(c);
  std::vector<double> steps, prompts, ends;
  for (std::int32_t i = -1; i < o.steps; ++i) {  // the first is not counted
    s.restart(c);
    double total = 0;
    for (std::int32_t first = 0; first < c.depth; first += chunk) {
      const std::int32_t n = std::min(chunk, c.depth - first);
      const bool last = first + n == c.depth;
      const double seconds = b.timed_step(s, n, last, c.depth - first - n);
      total += seconds;
      if (i >= 0) steps.push_back(seconds);
      if (i == 0) result.cost += dense_cost(b.model->config(), b.weights, b.kv, first, n, c.batch, last);
    }
    if (i < 0) continue;
    prompts.push_back(total);
    ends.push_back(s.prefill_end_seconds());
  }
  result.step = quantiles_of(steps);
  result.prompt = quantiles_of(prompts);
  result.prefill_end_seconds = ends[median_index(prompts)];
  result.operations[static_cast<std::size_t>(Op::kProducts)] = result.prompt.median;
  const double tokens = static_cast<double>(c.depth) * c.batch;
  result.tokens_per_second = tokens / result.prompt.median;
  result.tokens_per_second_deviation = result.tokens_per_second * result.prompt.deviation / result.prompt.mean;
  b.finish(result, s, result.prompt.median);
  return result;
}

}  // namespace

std::unique_ptr<DeviceBench> make_device_bench_cuda(std::unique_ptr<Model> model, const DeviceBenchSetup& setup) {
  return std::make_unique<CudaBench>(std::move(model), setup);
}

MNEME_REGISTER_BACKEND(bench_cuda, DeviceBenches,
                       {.make = &make_device_bench_cuda,
                        .attention = &measure_attention_cuda,
                        .select = &measure_select_cuda,
                        .gemm = &measure_gemm_cuda,
                        .all_reduces = &measure_all_reduces_cuda});

}  // namespace mneme
