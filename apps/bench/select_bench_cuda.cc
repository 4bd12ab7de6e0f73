#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/device/device.h"
#include "src/device/memory.h"
#include "src/kernels/attention_cuda.h"
#include "src/kernels/one_bit_cuda.h"
#include "src/kernels/pointwise_cuda.h"
#include "src/perf/choose_bench.h"
#include "src/perf/device_rates.h"
#include "src/perf/samples.h"

namespace mneme {
namespace {

constexpr std::int32_t kLayers = 6, kRounds = 4;

// One sequence in kLayers layers.
struct Layers {
  KvSlots slots;
  KvTables pages, listed;
  std::vector<DeviceBuffer> memory;
  SlotRows rows;
  std::int32_t* attended = nullptr;
  std::byte *choose_scratch = nullptr, *attend_scratch = nullptr, *out = nullptr;

  template <typename T>
  void take(T*& to, std::size_t bytes) {
    memory.emplace_back(bytes, "what is measured");
    to = reinterpret_cast<T*>(memory.back().data());
  }
};

Layers make_layers(const ModelConfig& config, const ChooseCase& c, const Stream& stream) {
  Layers l;
  KvSlots& s = l.slots;
  s.n_layers = kLayers, s.n_places = 1;
  s.n_kv_heads = static_cast<std::int32_t>(config.n_kv_heads);
  s.n_heads = static_cast<std::int32_t>(config.n_heads);
  s.head_dim = static_cast<std::int32_t>(config.head_dim);
  s.unit_tokens = 1, s.group_tokens = c.group_tokens;
  s.max_pages = (c.depth + kKvPageTokens - 1) / kKvPageTokens;
  s.max_listed = c.budget + 1;
  const auto heads = static_cast<std::size_t>(kLayers * s.n_kv_heads), listed = static_cast<std::size_t>(s.max_listed),
             queries = static_cast<std::size_t>(kLayers * s.n_heads) * static_cast<std::size_t>(s.head_dim),
             blocks = heads * static_cast<std::size_t>(s.max_pages);
  l.take(s.keys.codes, one_bit_code_bytes(s, heads));
  l.take(s.keys.levels, one_bit_level_bytes(s, heads));
  for (int i = 0; i < 2; ++i) l.take(s.chosen[i], heads * listed * 4), l.take(s.n_chosen[i], heads * 4);
  l.take(s.listed, heads * listed * 4);
  std::byte* q = nullptr;
  l.take(q, queries * 2);
  s.last_q = q;
  l.take(s.cosine, queries * 4);
  l.take(s.rules, kLayers * sizeof(SlotRules));
  l.take(s.counts, kLayers * sizeof(SlotCounts));
  l.take(l.choose_scratch, choose_tokens_scratch_bytes(s, 1));
  const std::size_t scratch = decode_attention_scratch_bytes(1, s.n_kv_heads, s.head_dim);
  l.take(l.attend_scratch, scratch);
  l.take(l.out, queries * 2);
  const std::size_t pool_bytes = blocks * kKvPageTokens * s.token_bytes();
  l.take(l.pages.base, pool_bytes);
  l.take(l.pages.blocks, blocks * 4);
  std::int32_t* numbers = nullptr;
  l.take(numbers, 4 * sizeof(std::int32_t));

  const CudaContext context{.stream = stream.get()};
  random_kv_cuda(l.pages.base, static_cast<std::int64_t>(pool_bytes / 2), false, 1, context);
  random_kv_cuda(s.last_q, static_cast<std::int64_t>(queries), false, 2, context);
  set_bytes(s.counts, 0, kLayers * sizeof(SlotCounts), stream);
  set_bytes(l.attend_scratch, 0, scratch, stream);
  std::vector<std::int32_t> same(blocks);
  std::iota(same.begin(), same.end(), 0);
  copy_bytes(l.pages.blocks, same.data(), blocks * 4, stream);
  const std::vector<std::int32_t> row = {0, c.depth, 1, c.budget};
  copy_bytes(numbers, row.data(), row.size() * 4, stream);
  const std::vector<SlotRules> rules(kLayers, SlotRules{.unit_tokens = 1,
                                                        .entry_tokens = c.group_tokens,
                                                        .budget = c.budget,
                                                        .n_select = c.budget - 1,
                                                        .schedule = SlotSchedule::kEveryStep,
                                                        .alpha = 1.0f / std::sqrt(static_cast<float>(s.head_dim))});
  copy_bytes(s.rules, rules.data(), rules.size() * sizeof(SlotRules), stream);
  stream.synchronize();
  l.rows = {.places = numbers, .lengths = numbers + 1, .anew = numbers + 2, .n = 1};
  l.attended = numbers + 3;
  l.pages.sequence_stride = static_cast<std::int64_t>(blocks);
  l.pages.max_pages = s.max_pages, l.pages.n_kv_heads = s.n_kv_heads, l.pages.head_dim = s.head_dim;
  l.listed = s.tables();
  l.listed.base = l.pages.base;
  for (std::int32_t layer = 0; layer < kLayers; ++layer)
    build_one_bit_cuda({.slot_layer = layer, .stop = c.depth / c.group_tokens, .key_layer = layer}, s, l.pages,
                       context);
  stream.synchronize();
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

ChooseResult measure_choose_cuda(const ModelConfig& config, const ChooseCase& c, std::int32_t times) {
  if (device_count() == 0) fail(ErrorKind::kDevice, "--device cuda: {}", no_device_reason());
  use_device(0);
  expect_attention_shape_cuda(static_cast<std::int32_t>(config.head_dim), static_cast<std::int32_t>(config.group()));
  if (c.depth <= c.budget + c.group_tokens)
    fail(ErrorKind::kOption, "a depth of {} tokens leaves nothing to choose for a budget of {}", c.depth, c.budget);
  ChooseResult r;
  r.read_rate = measure_device(0).read;
  const Stream stream = Stream::make();
  const Layers l = make_layers(config, c, stream);
  const KvSlots& s = l.slots;
  const CudaContext context{
      .stream = stream.get(),
      .order = device_info(0).compute_major >= 9 ? LaunchOrder::kOverlapped : LaunchOrder::kSerial};
  const auto choose = [&](std::int32_t layer) {
    return ChooseTokens{.rows = l.rows, .scratch = l.choose_scratch, .pages = &l.pages, .layer = layer};
  };
  r.scan_seconds =
      seconds_of(stream, times, [&](std::int32_t layer) { scan_tokens_cuda(choose(layer), s, layer, context); });
  r.choose_seconds =
      seconds_of(stream, times, [&](std::int32_t layer) { choose_tokens_cuda(choose(layer), s, layer, context); });
  const std::int64_t q_width = std::int64_t{s.n_heads} * s.head_dim * 2;
  r.attend_seconds = seconds_of(stream, times, [&](std::int32_t layer) {
    attend_decode_cuda({.q = static_cast<std::byte*>(s.last_q) + layer * q_width,
                        .slots = l.rows.places,
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
