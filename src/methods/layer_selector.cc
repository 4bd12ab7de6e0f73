#include "src/methods/layer_selector.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/methods/stats/spearman.h"
#include "src/selection/index/box.h"
#include "src/selection/layer/representative.h"
#include "src/selection/layer/row_dots.h"
#include "src/selection/layer/row_moments.h"
#include "src/selection/layer/window_probe.h"
#include "src/selection/mass/attention_mass.h"

namespace mneme {
namespace {

constexpr std::int64_t kChannelGrain = 256;  // minimum channels of a window per worker
constexpr std::int64_t kRowGrain = 64;       // minimum rows per worker
// Queries of the question, by query head, whose mean stands for it: those that received most attention. Q-LLM's 4; the
// keys that represent a unit may be more.
constexpr std::int32_t kQuestionQueries = 4;

float length_of(std::span<const float> v) {
  double square = 0;
  for (float x : v) square += x * double{x};
  return static_cast<float>(std::sqrt(square));
}

// v scaled to length 1; zero vectors stay zero.
void normalise(std::span<float> v) {
  const float length = length_of(v);
  if (length == 0) return;
  for (float& x : v) x /= length;
}

}  // namespace

void LayerSelector::file_units(MethodState& method, std::int32_t layer, const SequenceCache& cache,
                               std::int32_t n_tokens) {
  const Plan& plan = method.plan();
  LayerMemory& memory = *method.layer(layer).memory;
  const std::int32_t p = plan.rules.unit_tokens, first = first_unit(plan.rules);
  const std::int32_t begin = first + memory.units.size(), end = window_begin(plan.rules, n_tokens) / p;
  if (begin >= end) return;
  entries_.clear();
  for (std::int32_t u = begin; u < end; ++u) entries_.push_back(memory.units.append());
  const AttentionShape shape = plan.shape.attention();
  context_.pool->parallel_for(end - begin, 1, [&](std::int64_t i, std::int64_t last, int) {
    for (; i < last; ++i) {
      const std::int32_t u = begin + count32(i);
      const bool dot = plan.layer_selection->similarity == Similarity::kDot;
      const auto build = plan.layer_selection->match != KeyMatch::kMean ? build_key_rows
                         : dot                                          ? build_mean_keys
                                                                        : build_representative;
      build({.cache = &cache, .layer = layer, .begin = u * p, .end = (u + 1) * p}, memory.mass, shape,
            plan.layer_selection->top, entries_[i]);
    }
  });
  memory.mass.forget(end * p);
}

std::span<const float> LayerSelector::probe(MethodState& method, std::int32_t layer, const ProbeQueries& rows) {
  const Plan& plan = method.plan();
  LayerMemory& memory = *method.layer(layer).memory;
  const std::int64_t width = std::int64_t{plan.shape.n_heads} * plan.shape.head_dim;
  for (auto* v : {&mean_, &m2_, &centre_, &weight_, &probe_}) v->resize(width);
  const ChannelBlock all{.x = rows.q, .n = rows.n, .stride = rows.stride, .begin = 0, .end = width};
  const auto by_channels = [&](const auto& f) {
    context_.pool->parallel_for(width, kChannelGrain, [&](std::int64_t begin, std::int64_t end, int) {
      ChannelBlock part = all;
      part.begin = begin;
      part.end = end;
      f(part);
    });
  };
  const std::int32_t known = std::clamp(memory.seen - rows.first, 0, rows.n);
  if (known < rows.n) {
    by_channels([&](ChannelBlock part) {
      part.x += known * part.stride;
      part.n -= known;
      row_moments_cpu(part, mean_.data(), m2_.data());
    });
    memory.moments.add(rows.n - known, mean_, m2_);
  }
  weights_.resize(rows.n);
  bias_.assign(weights_.size(), 1.0f);
  const WindowProbe form = plan.window->probe;
  if (form != WindowProbe::kMean) {
    memory.moments.bias_form(centre_, weight_);
    context_.pool->parallel_for(rows.n, kRowGrain, [&](std::int64_t begin, std::int64_t end, int) {
      ChannelBlock part = all;
      part.x += begin * part.stride;
      part.n = end - begin;
      row_bias_cpu(part, centre_.data(), weight_.data(), bias_.data() + begin);
    });
  }
  window_weights(form, bias_, weights_);
  by_channels([&](const ChannelBlock& part) { row_sum_cpu(part, weights_.data(), probe_.data()); });
  return probe_;
}

void LayerSelector::score(const Plan& plan, const LayerMemory& memory, std::int32_t begin, std::int32_t end,
                          const float* q, float* scores) {
  const std::int64_t width = plan.layer_selection->entry_width(plan.shape);
  const std::int32_t n_rows = plan.layer_selection->entry_rows(), group = plan.shape.group(), d = plan.shape.head_dim;
  const DType dtype = plan.shape.attention().wide().kv_dtype;
  if (plan.layer_selection->match == KeyMatch::kBest) {
    // A key is shared by the query heads of a group: its dot products are one, with the sum of the group's probes.
    folded_.assign(width, 0.0f);
    for (std::int32_t h = 0; h < plan.shape.n_heads; ++h)
      for (std::int32_t c = 0; c < d; ++c) folded_[h / group * d + c] += q[h * d + c];
    q = folded_.data();
  }
  row_scores_.resize(std::int64_t{end - begin} * n_rows);
  const std::int32_t chunk = EntryStore::kChunkEntries, n_chunks = (end + chunk - 1) / chunk;
  context_.pool->parallel_for(n_chunks, 1, [&](std::int64_t c, std::int64_t last, int) {
    for (; c < last; ++c) {
      const std::int32_t from = std::max(begin, count32(c) * chunk), to = std::min(end, count32(c + 1) * chunk);
      memory.units.for_contiguous(from, to, [&](const std::byte* entries, std::int32_t at, std::int32_t n) {
        float* dots = row_scores_.data() + std::int64_t{at - begin} * n_rows;
        row_dots_cpu(q, width, dtype, entries, std::int64_t{n} * n_rows, dots);
        for (std::int32_t i = 0; i < n; ++i, dots += n_rows) {
          float best = dots[0];
          for (std::int32_t j = 1; j < n_rows; ++j)
            if (std::isnan(best) || dots[j] > best) best = dots[j];
          scores[at - begin + i] = best;
        }
      });
    }
  });
}

void LayerSelector::select(MethodState& method, std::int32_t layer, const Region& region, std::span<const float> probe,
                           std::int32_t slot, std::vector<std::int32_t>& units) {
  const Plan& plan = method.plan();
  const LayerMemory& memory = *method.layer(layer).memory;
  const std::int32_t first = first_unit(plan.rules), n = region.last_unit - region.first_unit;
  const std::int32_t begin = region.first_unit - first, end = region.last_unit - first;
  MNEME_CHECK(end <= memory.units.size(), "{} units are filed, {} are candidates", memory.units.size(), end);
  scores_.resize(n);
  score(plan, memory, begin, end, probe.data(), scores_.data());
  const bool cosine = plan.layer_selection->similarity == Similarity::kCosine;
  const float length = length_of(probe);
  for (float& s : scores_) s = !cosine ? s : length == 0 ? 0.0f : s / length;
  const PrefillWindow& window = *plan.window;
  if ((slot != kDecode || window.question_in_answers) && !memory.question.empty() && window.question_weight != 0) {
    question_scores_.resize(scores_.size());
    score(plan, memory, begin, end, memory.question.data(), question_scores_.data());
    for (std::size_t i = 0; i < scores_.size(); ++i) scores_[i] += window.question_weight * question_scores_[i];
  }
  const double entropy = score_entropy(scores_);
  std::int32_t wanted = region.n_select;
  const auto& share = plan.layer_selection->entropy;
  if (share && (slot == kDecode || share->in_prefill))
    wanted = method.cut()->take(slot + 1, method.compressed_number(layer), entropy, n);
  units.resize(wanted);
  const std::int32_t found = topk_cpu(scores_, wanted, units.data(), topk_);
  MNEME_CHECK(found == wanted, "{} of {} units selected from {}", found, wanted, n);
  for (std::int32_t& u : units) u += region.first_unit;
  LayerStats& stats = method.stats().layers[layer];
  if (n < 2) return;
  ++stats.scored;
  stats.score_perplexity += std::exp(entropy) / n;
  stats.score_entropy += entropy / std::log(n);
}

double LayerSelector::rank_correlation(const MethodState& method, std::int32_t layer, const SequenceCache& cache,
                                       const Region& region, const ProbeQueries& rows) {
  const AttentionShape shape = method.plan().shape.attention();
  const std::int32_t p = method.plan().rules.unit_tokens, n = region.last_unit - region.first_unit;
  const std::size_t n_tokens = n * p;
  std::vector<double> received(n);
  std::vector<float> dots(n_tokens * shape.group);
  std::vector<KvRun> runs;
  for (std::int32_t m = 0; m < cache.shape().n_kv_heads; ++m) {
    runs.clear();
    cache.append_runs(layer, m, region.first_unit * p, region.last_unit * p, runs);
    for (std::int32_t i = 0; i < rows.n; ++i) {
      const float* q = rows.q + i * rows.stride + std::int64_t{m} * shape.group * shape.head_dim;
      key_score_cpu(q, shape, runs, dots.data(), n_tokens);
      for (std::int32_t g = 0; g < shape.group; ++g) {
        const auto head = std::span(dots).subspan(g * n_tokens, n_tokens);
        const float largest = *std::max_element(head.begin(), head.end());
        double sum = 0;
        for (float& x : head) sum += x = std::exp(shape.scale * (x - largest));
        for (std::size_t t = 0; t < n_tokens; ++t) received[t / p] += head[t] / sum;
      }
    }
  }
  return spearman({scores_.begin(), scores_.end()}, received);
}

void LayerSelector::add_mass(MethodState& method, std::int32_t layer, const LocalQueries& rows) {
  const Plan& plan = method.plan();
  LayerMemory& memory = *method.layer(layer).memory;
  const std::int32_t group = plan.shape.group(), end = rows.first + rows.n;
  const std::int32_t known = std::clamp(memory.seen - rows.first, 0, rows.n);
  if (known == rows.n) return;
  memory.mass.extend(end);
  // Recomputed rows may be closer to filed units than when those were filed.
  const std::int32_t from = std::max(rows.from, memory.mass.begin());
  thread_local std::vector<MassHead> heads;
  thread_local std::vector<std::vector<KvRun>> cut;
  heads.clear();
  cut.resize(rows.runs.size());
  for (std::int32_t m = 0; m < size32(rows.runs); ++m) {
    cut[m].clear();
    std::int32_t skip = from - rows.from;
    for (KvRun run : rows.runs[m]) {
      const std::int32_t gone = std::min(skip, run.n_tokens);
      skip -= gone;
      run.kv += gone * plan.shape.attention().token_bytes();
      run.n_tokens -= gone;
      if (run.n_tokens > 0) cut[m].push_back(run);
    }
    const std::int32_t head = m * group;
    heads.push_back({.q = rows.q + known * rows.stride + head * plan.shape.head_dim,
                     .q_stride = rows.stride,
                     .lse = rows.lse + (std::int64_t{m} * rows.lse_rows + known) * group,
                     .lse_stride = group,
                     .n_rows = rows.n - known,
                     .runs = cut[m],
                     .window = plan.rules.recent,
                     .mass = memory.mass.row(head, from),
                     .mass_stride = memory.mass.stride()});
  }
  attention_mass_cpu(heads, plan.shape.attention(), MassBy::kQueryHead, context_);
  memory.seen = end;
}

void LayerSelector::see_question(MethodState& method, std::int32_t layer, const ProbeQueries& rows) {
  const auto [begin, end] = method.question_span();
  LayerMemory& memory = *method.layer(layer).memory;
  if (begin >= end || !memory.question.empty()) return;
  const Plan& plan = method.plan();
  const std::int32_t n_heads = plan.shape.n_heads, d = plan.shape.head_dim;
  const std::size_t width = std::int64_t{n_heads} * d;
  const std::int32_t have = count32(memory.question_rows.size() / width);
  const std::int32_t from = std::max(begin + have, rows.first), to = std::min(end, rows.first + rows.n);
  for (std::int32_t t = from; t < to; ++t) {
    const float* q = rows.q + (t - rows.first) * rows.stride;
    memory.question_rows.insert(memory.question_rows.end(), q, q + width);
    memory.question_mass.resize(memory.question_mass.size() + n_heads, 0.0f);
  }
  // Current mass, of tokens that still have one.
  const std::int32_t n = count32(memory.question_rows.size() / width);
  for (std::int32_t i = 0; i < n; ++i) {
    const std::int32_t t = begin + i;
    if (t < memory.mass.begin() || t >= memory.mass.end()) continue;
    for (std::int32_t h = 0; h < n_heads; ++h) memory.question_mass[i * n_heads + h] = *memory.mass.row(h, t);
  }
  if (rows.first + rows.n < end) return;
  memory.question.assign(width, 0.0f);
  std::vector<std::int32_t> order(n);
  for (std::int32_t h = 0; h < n_heads; ++h) {
    std::iota(order.begin(), order.end(), 0);
    const auto mass = [&](std::int32_t i) { return memory.question_mass[i * n_heads + h]; };
    const std::int32_t top = std::min(kQuestionQueries, n);
    std::partial_sort(order.begin(), order.begin() + top, order.end(),
                      [&](std::int32_t a, std::int32_t b) { return mass(a) != mass(b) ? mass(a) > mass(b) : a > b; });
    for (std::int32_t i = 0; i < top; ++i)
      for (std::int32_t c = 0; c < d; ++c)
        memory.question[h * d + c] += memory.question_rows[order[i] * width + (h * d + c)];
  }
  // Dot products are with the mean of a head's top queries, cosines with a vector of length 1.
  if (plan.layer_selection->similarity == Similarity::kCosine) {
    normalise(memory.question);
  } else {
    for (float& x : memory.question) x /= static_cast<float>(std::min(kQuestionQueries, n));
  }
  memory.question_rows = {};
  memory.question_mass = {};
}

}  // namespace mneme
