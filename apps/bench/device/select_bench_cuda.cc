#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "apps/bench/device/device_bench_cuda.h"
#include "apps/bench/device_rates.h"
#include "apps/bench/timed/samples.h"
#include "src/base/error.h"
#include "src/cuda/device.h"
#include "src/cuda/memory.h"
#include "src/ops/attention/attention_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/selection/index/one_bit_cuda.h"
#include "src/selection/index/unit_entries_cuda.h"

namespace mneme {
namespace {

constexpr std::int32_t kLayers = 6, kRounds = 4;

// One sequence in kLayers layers.
struct Layers {
  DeviceCache cache;
  KvTables pages, listed;
  std::vector<DeviceBuffer> memory;
  SlotRows rows;
  std::int32_t* attended = nullptr;
  std::byte *select_scratch = nullptr, *attend_scratch = nullptr, *out = nullptr;

  template <typename T>
  void take(T*& to, std::size_t bytes) {
    memory.emplace_back(bytes, "what is measured");
    to = reinterpret_cast<T*>(memory.back().data());
  }
};

// Elements of the arrays of all layers.
struct Sizes {
  explicit Sizes(const DeviceCache& s)
      : heads(static_cast<std::size_t>(kLayers * s.n_kv_heads)),
        listed(static_cast<std::size_t>(s.max_listed)),
        queries(static_cast<std::size_t>(kLayers * s.n_heads) * static_cast<std::size_t>(s.head_dim)),
        blocks(heads * static_cast<std::size_t>(s.max_pages)),
        pool_bytes(blocks * kKvPageTokens * s.token_bytes()),
        attend_scratch_bytes(decode_attention_scratch_bytes(1, s.n_kv_heads, s.head_dim)) {}

  std::size_t heads, listed, queries, blocks, pool_bytes, attend_scratch_bytes;
};

void set_shape(DeviceCache& s, const ModelConfig& config, const SelectCase& c) {
  s.n_layers = kLayers, s.n_seq_slots = 1;
  s.n_kv_heads = static_cast<std::int32_t>(config.n_kv_heads);
  s.n_heads = static_cast<std::int32_t>(config.n_heads);
  s.head_dim = static_cast<std::int32_t>(config.head_dim);
  s.unit_tokens = 1;
  s.max_pages = (c.depth + kKvPageTokens - 1) / kKvPageTokens;
  s.max_listed = c.budget + 1;
  s.index.entries = {.kind = EntryKind::kOneBitMinMax,
                     .tokens = c.group_tokens,
                     .most = (s.max_pages * kKvPageTokens + c.group_tokens - 1) / c.group_tokens};
}

void allocate(Layers& l, const Sizes& n) {
  DeviceCache& s = l.cache;
  l.take(s.index.keys.codes, one_bit_code_bytes(s, n.heads));
  l.take(s.index.keys.levels, one_bit_level_bytes(s, n.heads));
  for (int i = 0; i < 2; ++i) l.take(s.selection.ids[i], n.heads * n.listed * 4), l.take(s.selection.n[i], n.heads * 4);
  l.take(s.slots.listed, n.heads * n.listed * 4);
  std::byte* q = nullptr;
  l.take(q, n.queries * 2);
  s.selection.last_q = q;
  l.take(s.selection.cosine, n.queries * 4);
  l.take(s.plans, kLayers * sizeof(SelectionPlan));
  l.take(s.counts, kLayers * sizeof(SlotCounts));
  l.take(l.select_scratch, select_tokens_scratch_bytes(s, 1));
  l.take(l.attend_scratch, n.attend_scratch_bytes);
  l.take(l.out, n.queries * 2);
  l.take(l.pages.base, n.pool_bytes);
  l.take(l.pages.blocks, n.blocks * 4);
}

// Random keys, values and queries, and the index of the keys.
void fill(Layers& l, const Sizes& n, const SelectCase& c, const Stream& stream) {
  DeviceCache& s = l.cache;
  const CudaContext context{.stream = stream.get()};
  random_kv_cuda(l.pages.base, static_cast<std::int64_t>(n.pool_bytes / 2), false, 1, context);
  random_kv_cuda(s.selection.last_q, static_cast<std::int64_t>(n.queries), false, 2, context);
  set_bytes(s.counts, 0, kLayers * sizeof(SlotCounts), stream);
  set_bytes(l.attend_scratch, 0, n.attend_scratch_bytes, stream);
  std::vector<std::int32_t> same(n.blocks);
  std::iota(same.begin(), same.end(), 0);
  copy_bytes(l.pages.blocks, same.data(), n.blocks * 4, stream);
  const std::vector<SelectionPlan> plan(
      kLayers, SelectionPlan{.schedule = ScheduleKind::kEveryStep,
                             .units = {.tokens = 1, .entry_tokens = c.group_tokens},
                             .region = {.budget = c.budget, .n_select = c.budget - 1},
                             .scores = {.alpha = 1.0f / std::sqrt(static_cast<float>(s.head_dim))}});
  copy_bytes(s.plans, plan.data(), plan.size() * sizeof(SelectionPlan), stream);
  stream.synchronize();
  for (std::int32_t layer = 0; layer < kLayers; ++layer)
    build_unit_entries_cuda({.of = {.slot_layer = layer, .key_layer = layer}, .stop = c.depth / c.group_tokens}, s,
                            l.pages, context);
  stream.synchronize();
}

// The row that is measured: sequence slot 0 at the case's depth.
void set_row(Layers& l, const SelectCase& c, const Stream& stream) {
  std::int32_t* numbers = nullptr;
  l.take(numbers, 4 * sizeof(std::int32_t));
  const std::vector<std::int32_t> row = {0, c.depth, 1, c.budget};
  copy_bytes(numbers, row.data(), row.size() * 4, stream);
  stream.synchronize();
  l.rows = {.seq_slots = numbers, .lengths = numbers + 1, .reset = numbers + 2, .n = 1};
  l.attended = numbers + 3;
}

Layers make_layers(const ModelConfig& config, const SelectCase& c, const Stream& stream) {
  Layers l;
  set_shape(l.cache, config, c);
  const Sizes n(l.cache);
  allocate(l, n);
  l.pages.sequence_stride = static_cast<std::int64_t>(n.blocks);
  l.pages.max_pages = l.cache.max_pages, l.pages.n_kv_heads = l.cache.n_kv_heads, l.pages.head_dim = l.cache.head_dim;
  l.listed = l.cache.tables();
  l.listed.base = l.pages.base;
  set_row(l, c, stream);
  fill(l, n, c, stream);
  return l;
}

// Of one layer, in a graph of all of them, some times.
template <typename F>
double seconds_of(const Stream& stream, std::int32_t times, F&& launch) {
  const auto all = [&] {
    for (std::int32_t i = 0; i < kRounds; ++i)
      for (std::int32_t layer = 0; layer < kLayers; ++layer) launch(layer);
  };
  all();
  const Graph graph = Graph::capture(stream, all);
  const Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);
  std::vector<double> seconds;
  for (std::int32_t i = -2; i < times; ++i) {
    begin.record(stream);
    graph.launch(stream);
    end.record(stream);
    end.synchronize();
    if (i >= 0) seconds.push_back(end.seconds_since(begin) / (kRounds * kLayers));
  }
  return quantiles_of(seconds).median;
}

}  // namespace

SelectResult measure_select_cuda(const ModelConfig& config, const SelectCase& c, std::int32_t times) {
  use_device(0);
  expect_attention_shape_cuda(static_cast<std::int32_t>(config.head_dim), static_cast<std::int32_t>(config.group()));
  if (c.depth <= c.budget + c.group_tokens)
    fail(ErrorKind::kOption, "a depth of {} tokens leaves nothing to select for a budget of {}", c.depth, c.budget);
  SelectResult r;
  r.read_rate = measure_device(0).read;
  const Stream stream = Stream::make();
  const Layers l = make_layers(config, c, stream);
  const DeviceCache& s = l.cache;
  const CudaContext context{
      .stream = stream.get(),
      .order = device_info(0).compute_major >= 9 ? LaunchOrder::kOverlapped : LaunchOrder::kSerial};
  const auto select = [&](std::int32_t layer) {
    return SelectTokens{.rows = l.rows, .scratch = l.select_scratch, .pages = &l.pages, .layer = layer};
  };
  r.scan_seconds =
      seconds_of(stream, times, [&](std::int32_t layer) { scan_tokens_cuda(select(layer), s, layer, context); });
  r.select_seconds =
      seconds_of(stream, times, [&](std::int32_t layer) { select_tokens_cuda(select(layer), s, layer, context); });
  const std::int64_t q_width = std::int64_t{s.n_heads} * s.head_dim * 2;
  r.attend_seconds = seconds_of(stream, times, [&](std::int32_t layer) {
    attend_decode_cuda({.q = static_cast<std::byte*>(s.selection.last_q) + layer * q_width,
                        .slots = l.rows.seq_slots,
                        .lengths = l.attended,
                        .out = l.out,
                        .n = 1,
                        .n_heads = s.n_heads,
                        .scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim)),
                        .tables_late = true,
                        .lengths_early = true,
                        .scratch = l.attend_scratch},
                       l.listed, layer, context);
  });
  const auto groups = static_cast<double>((c.depth - 1) / c.group_tokens);
  r.index_bytes = groups * s.n_kv_heads * s.head_dim * (4.0 + c.group_tokens / 8.0);
  r.attended_bytes = static_cast<double>(c.budget) * s.n_kv_heads * static_cast<double>(s.token_bytes());
  return r;
}

}  // namespace mneme
