#include "src/model/cuda/window_selection.h"

#include <algorithm>
#include <cstring>

namespace mneme {
namespace {

ProbeWeights weights_of(WindowProbe probe) {
  return probe == WindowProbe::kActivation ? ProbeWeights::kActivation
         : probe == WindowProbe::kMean     ? ProbeWeights::kMean
                                           : ProbeWeights::kReversed;
}

}  // namespace

CudaWindowSelection::CudaWindowSelection(const KvShape& shape, std::int32_t n_heads, std::int64_t max_context)
    : shape_(shape),
      n_heads_(n_heads),
      max_pages_(static_cast<std::int32_t>((max_context + kPageTokens - 1) / kPageTokens)),
      rank_stride_((max_pages_ + 3) / 4 * 4) {}

void CudaWindowSelection::begin() {
  prompts_.clear();
  windows_.clear();
}

std::int32_t CudaWindowSelection::add(MethodState& method, std::int32_t first, std::int32_t n_rows) {
  Prompt p{
      .method = &method, .first = first, .n_rows = n_rows, .first_window = static_cast<std::int32_t>(windows_.size())};
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    const MethodState::Layer& layer = method.layer(l);
    if (method.plan().dense_layer(l)) continue;
    p.known = std::clamp(layer.memory->seen - first, 0, n_rows);
    p.count = layer.memory->moments.count();
    break;
  }
  const LayerSelection& selection = *method.plan().layer_selection;
  p.shares = selection.entropy && selection.entropy->in_prefill;
  unit_stride_ = std::max(unit_stride_, p.shares ? EntropyCut::most(selection.n_units) : selection.n_units);
  prompts_.push_back(p);
  return static_cast<std::int32_t>(prompts_.size()) - 1;
}

void CudaWindowSelection::add_window(const WindowSpan& w) {
  Prompt& p = prompts_.back();
  SelectionWindow c{.row = w.begin - p.first, .n_rows = w.end - w.begin};
  if (!w.everything) {
    const Region region = region_at(p.method->plan().rules, w.begin + 1);
    c.n_candidates = region.last_unit - region.first_unit;
    c.n_select = region.n_select;
  }
  p.n_candidates = std::max(p.n_candidates, c.n_candidates);
  windows_.push_back(c);
  ++p.n_windows;
}

void CudaWindowSelection::send(const Stream& stream) {
  if (prompts_.empty()) return;
  const std::size_t n = windows_.size(), bytes = n * sizeof(SelectionWindow),
                    moments = prompts_.size() * moments_each() * sizeof(double);
  std::int32_t most_windows = 0, most_rows = 0;
  for (const Prompt& p : prompts_)
    most_windows = std::max(most_windows, p.n_windows), most_rows = std::max(most_rows, p.n_rows);
  const auto most = static_cast<std::size_t>(most_windows);
  windows_sent_.grow(bytes, "windows of prompts");
  moments_.grow(moments, "moments of queries");
  grow(scratch_, window_probe_scratch_bytes(most_windows, most_rows, static_cast<std::int32_t>(width())),
       "moments of windows");
  grow(probes_, most * static_cast<std::size_t>(shape_.n_kv_heads * shape_.head_dim) * sizeof(float), "probes");
  grow(ranks_, most * static_cast<std::size_t>(rank_stride_) * 4, "scores of pages");
  grow(units_, most * static_cast<std::size_t>(unit_stride_) * 4, "selected pages");
  grow(n_units_, most * 4, "selected pages");
  if (std::any_of(prompts_.begin(), prompts_.end(), [](const Prompt& p) { return p.shares; })) {
    grow(whole_, most * width() * sizeof(float), "probes");
    grow(pools_, n * sizeof(double), "shared budgets");
    shares_.grow(static_cast<std::size_t>(shape_.n_layers) * n * sizeof(WindowShare), "entropies of scores");
  }
  std::memcpy(windows_sent_.host.data(), windows_.data(), bytes);
  windows_sent_.send(bytes, stream);
  for (std::size_t i = 0; i < prompts_.size(); ++i)
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      if (prompts_[i].method->plan().dense_layer(l)) continue;
      const ChannelMoments& m = prompts_[i].method->layer(l).memory->moments;
      auto* to = moments_.host.as<double>() + i * moments_each() + moments_of(l);
      std::copy(m.means().begin(), m.means().end(), to);
      std::copy(m.squares().begin(), m.squares().end(), to + width());
    }
  moments_.send(moments, stream);
}

void CudaWindowSelection::select(std::int32_t prompt, const Layer& l, const CudaContext& context) {
  const Prompt& p = prompts_[static_cast<std::size_t>(prompt)];
  const Plan& plan = p.method->plan();
  const SelectionWindow* windows = windows_sent_.device.as<SelectionWindow>() + p.first_window;
  double* moments =
      moments_.device.as<double>() + static_cast<std::size_t>(prompt) * moments_each() + moments_of(l.layer);
  window_probes_cuda({.x = l.remote_q,
                      .windows = windows,
                      .n_windows = p.n_windows,
                      .n_rows = p.n_rows,
                      .n_heads = n_heads_,
                      .n_kv_heads = shape_.n_kv_heads,
                      .head_dim = shape_.head_dim,
                      .mean = moments,
                      .m2 = moments + width(),
                      .count = p.count,
                      .known = p.known,
                      .weights = weights_of(plan.window->probe),
                      .scratch = scratch_.data(),
                      .probes = probes_.as<float>(),
                      .whole = p.shares ? whole_.as<float>() : nullptr},
                     context);
  const SelectWindows select{.keys = l.keys,
                             .probes = probes_.as<float>(),
                             .windows = windows,
                             .n_windows = p.n_windows,
                             .n_heads = n_heads_,
                             .seq_slot = l.seq_slot,
                             .first_unit = first_unit(plan.rules),
                             .n_candidates = p.n_candidates,
                             .ranks = ranks_.as<std::uint32_t>(),
                             .rank_stride = rank_stride_,
                             .units = units_.as<std::int32_t>(),
                             .n_units = n_units_.as<std::int32_t>(),
                             .unit_stride = unit_stride_,
                             .cut = cut_of(p, l.layer)};
  select_windows_cuda(select, context);
  if (l.observer != nullptr) l.observer->after_windows(select, p.first, context);
}

WindowCut CudaWindowSelection::cut_of(const Prompt& p, std::int32_t layer) const {
  if (!p.shares) return {};
  const Plan& plan = p.method->plan();
  const std::int32_t number = p.method->compressed_number(layer);
  return {.rules = {.k = plan.layer_selection->n_units,
                    .n_layers = plan.compressed_layers(),
                    .reversed = plan.layer_selection->entropy->reversed},
          .layer = number,
          .probes = whole_.as<float>(),
          .width = static_cast<std::int32_t>(width()),
          .later = p.method->cut()->later(number),
          .pools = pools_.as<double>() + p.first_window,
          .shares = shares_.device.as<WindowShare>() + share_at(p, layer)};
}

void CudaWindowSelection::fetch(std::int32_t prompt, const Layer& l, const KvTables& pages, const KvTables& to,
                                std::int32_t there, const CudaContext& context) {
  const Prompt& p = prompts_[static_cast<std::size_t>(prompt)];
  if (p.n_candidates == 0 || there == 0) return;
  if (stamps_.size() == 0) {
    stamps_ = DeviceBuffer(static_cast<std::size_t>(max_pages_) * 4, "marks of pages");
    list_ = DeviceBuffer(static_cast<std::size_t>(max_pages_ + 1) * 4, "pages to fetch");
    const Stream stream = Stream::make();
    set_bytes(stamps_.data(), 0, stamps_.size(), stream);
    stream.synchronize();
  }
  fetch_units_cuda({.units = units(),
                    .n_units = n_units(),
                    .unit_stride = unit_stride_,
                    .n_windows = p.n_windows,
                    .there = there,
                    .from = pages,
                    .to = to,
                    .from_slot = l.seq_slot,
                    .from_layer = l.layer,
                    .stamps = stamps_.as<std::int32_t>(),
                    .list = list_.as<std::int32_t>(),
                    .stamp = ++stamp_},
                   context);
}

void CudaWindowSelection::fetch(const Stream& stream) {
  if (prompts_.empty()) return;
  moments_.fetch(prompts_.size() * moments_each() * sizeof(double), stream);
  if (std::any_of(prompts_.begin(), prompts_.end(), [](const Prompt& p) { return p.shares; }))
    shares_.fetch(static_cast<std::size_t>(shape_.n_layers) * windows_.size() * sizeof(WindowShare), stream);
}

// What EntropyCut::take() of the prompt's windows leaves in the sequence's state.
void CudaWindowSelection::learn_shares(const Prompt& p) const {
  for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
    if (p.method->plan().dense_layer(l)) continue;
    const WindowShare* shares = shares_.host.as<WindowShare>() + share_at(p, l);
    LayerStats& stats = p.method->stats().layers[static_cast<std::size_t>(l)];
    for (std::int32_t w = 0; w < p.n_windows; ++w) {
      if (shares[w].theta < 0) continue;
      p.method->cut()->add(p.method->compressed_number(l), shares[w].theta);
      ++stats.scored;
      stats.score_entropy += shares[w].theta;
      // CudaWindows has counted as many units in every layer.
      const SelectionWindow& window = windows_[static_cast<std::size_t>(p.first_window + w)];
      stats.prefill_tokens +=
          std::int64_t{shape_.n_kv_heads} * window.n_rows * (shares[w].units - window.n_select) * kPageTokens;
    }
  }
}

void CudaWindowSelection::learn() {
  for (std::size_t i = 0; i < prompts_.size(); ++i) {
    const Prompt& p = prompts_[i];
    if (p.shares) learn_shares(p);
    for (std::int32_t l = 0; l < shape_.n_layers; ++l) {
      if (p.method->plan().dense_layer(l)) continue;
      LayerMemory& memory = *p.method->layer(l).memory;
      const auto* m = moments_.host.as<double>() + i * moments_each() + moments_of(l);
      memory.moments.set(p.count + p.n_rows - p.known, {m, width()}, {m + width(), width()});
      memory.seen = std::max(memory.seen, p.first + p.n_rows);
      memory.mass.skip(memory.seen);
    }
  }
}

std::size_t CudaWindowSelection::bytes() const {
  std::size_t n = windows_sent_.size() + moments_.size() + shares_.size();
  for (const DeviceBuffer* b : {&scratch_, &probes_, &ranks_, &units_, &n_units_, &stamps_, &list_, &whole_, &pools_})
    n += b->size();
  return n;
}

}  // namespace mneme
