#include "reference/methods/prefill_end_ref.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "src/base/check.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

double key(const SequenceCache& cache, std::int32_t layer, std::int32_t kv_head, std::int32_t position,
           std::int32_t c) {
  const auto* p = cache.token(layer, kv_head, position) + std::size_t{2} * c;
  if (cache.shape().dtype == DType::kBF16) return *reinterpret_cast<const bf16*>(p);
  return *reinterpret_cast<const f16*>(p);
}

std::size_t at(std::int32_t i) {
  return i;
}

}  // namespace

// Attention probabilities of the row at `position` over the tokens stored now; 0 for later tokens.
std::vector<double> ReferencePrefillEnd::probabilities(const SequenceCache& whole, const float* q,
                                                       std::int32_t query_head, std::int32_t position) const {
  const std::int32_t d = plan_->shape.head_dim, kv_head = query_head / plan_->shape.group();
  const std::vector<std::int32_t>& stored = heads_[at(kv_head)].stored;
  std::vector<double> p(stored.size(), 0.0);
  double largest = -INFINITY, sum = 0;
  for (std::size_t t = 0; t < stored.size() && stored[t] <= position; ++t) {
    for (std::int32_t c = 0; c < d; ++c) p[t] += q[query_head * d + c] * key(whole, layer_, kv_head, stored[t], c);
    p[t] *= plan_->shape.attention().scale;
    largest = std::max(largest, p[t]);
  }
  for (std::size_t t = 0; t < stored.size() && stored[t] <= position; ++t) sum += p[t] = std::exp(p[t] - largest);
  for (double& x : p) x /= sum;
  return p;
}

void ReferencePrefillEnd::see(const SequenceCache& whole, const Queries& rows) {
  if (plan_->observed_rows == 0 || !plan_->compressed(layer_)) return;
  const std::int32_t n_heads = plan_->shape.n_heads, group = plan_->shape.group();
  for (std::int32_t i = 0; i < rows.n_rows; ++i) {
    const std::int32_t position = whole.length() - rows.n_rows + i;
    for (Head& head : heads_) {
      head.stored.push_back(position);
      head.mass.push_back(0);
    }
    const float* q = rows.q + i * n_heads * plan_->shape.head_dim;
    if (plan_->observed_rows == Plan::kAllRows)
      for (std::int32_t h = 0; h < n_heads; ++h) {
        const std::vector<double> p = probabilities(whole, q, h, position);
        for (std::size_t t = 0; t < p.size(); ++t) heads_[at(h / group)].mass[t] += p[t];
      }
    if (rows.decodes) prefill_.clear();
    prefill_.push_back({position, {q, q + n_heads * plan_->shape.head_dim}});
  }
  const bool each_step = plan_->drops() && plan_->drop->when == DropWhen::kOverBudget;
  if (rows.decodes ? each_step : rows.prefill_left == 0) decide(whole, rows.decodes);
  if (rows.decodes || rows.prefill_left == 0) prefill_.clear();
}

void ReferencePrefillEnd::decide(const SequenceCache& whole, bool decodes) {
  received_.assign(at(plan_->shape.n_heads), {});
  for (std::int32_t h = 0; h < plan_->shape.n_heads; ++h)
    received_[at(h)].assign(heads_[at(h / plan_->shape.group())].stored.size(), 0.0);
  std::vector<double> seen_by(heads_[0].stored.size(), 0.0);
  by_row_.clear();
  if (const auto* last = std::get_if<LastRows>(&plan_->recipe.rows)) {
    const std::size_t n = decodes ? 1 : std::min(prefill_.size(), at(last->n));
    for (std::size_t i = prefill_.size() - n; i < prefill_.size(); ++i) {
      by_row_.emplace_back();
      for (std::int32_t h = 0; h < plan_->shape.n_heads; ++h) {
        const std::vector<double> p = probabilities(whole, prefill_[i].q.data(), h, prefill_[i].position);
        for (std::size_t t = 0; t < p.size(); ++t) received_[at(h)][t] += p[t];
        by_row_.back().push_back(p);
      }
      for (std::size_t t = 0; t < seen_by.size(); ++t)
        seen_by[t] += heads_[0].stored[t] <= prefill_[i].position ? 1 : 0;
    }
  }
  if (plan_->norm) {
    for (auto& row : received_)
      for (std::size_t t = 0; t < row.size(); ++t) row[t] /= seen_by[t];
    return keep_by_norm();
  }
  if (plan_->drop->rank == Rank::kStamp) return keep_by_stamps(whole.length(), decodes);
  if (plan_->drop->share == ShareKind::kPreference) return measure_preference();
  keep_by_rank(pyramid_budget() - (plan_->drop->when == DropWhen::kOverBudget ? 1 : 0));
}

std::vector<double> ReferencePrefillEnd::smoothed(const std::vector<double>& scores) const {
  const DropStage& stage = *plan_->recipe.prefill_end;
  std::vector<double> out(scores.size());
  const std::int32_t half = stage.smooth / 2, n = size32(scores);
  for (std::int32_t t = 0; t < n; ++t) {
    double sum = 0, largest = -INFINITY;
    for (std::int32_t i = std::max(0, t - half); i <= std::min(n - 1, t + half); ++i) {
      sum += scores[at(i)];
      largest = std::max(largest, scores[at(i)]);
    }
    out[at(t)] = stage.smooth_by == SmoothBy::kMax ? largest : sum / stage.smooth;
  }
  return out;
}

// The layer's budget: hi - l * step + recent, in integers, where layers share it by a pyramid.
std::int32_t ReferencePrefillEnd::pyramid_budget() const {
  const Recipe& recipe = plan_->recipe;
  const auto* pyramid = std::get_if<PyramidShare>(&recipe.prefill_end->share);
  const std::int32_t b = recipe.budget - recipe.recent, n = size32(heads_[0].stored),
                     layers = plan_->compressed_layers();
  if (pyramid == nullptr || n < 2 * b || layers < 2) return recipe.budget;
  std::int32_t lo = b / pyramid->beta, hi = 2 * b - lo, number = 0;
  if (hi >= n - recipe.recent) {
    hi = n - recipe.recent;
    lo = 2 * b - hi;
  }
  for (std::int32_t l = 0; l < layer_; ++l) number += plan_->compressed(l) ? 1 : 0;
  return hi - number * ((hi - lo) / (layers - 1)) + recipe.recent;
}

// Tokens of each head where heads share by scores: counts of the layer's best, one after the other.
std::vector<std::int32_t> ReferencePrefillEnd::head_budgets(std::int32_t n_keep) const {
  const Recipe& recipe = plan_->recipe;
  const auto& share = std::get<HeadShare>(recipe.prefill_end->share);
  const std::int32_t group = plan_->shape.group(), n_kv = plan_->shape.n_kv_heads;
  const std::int32_t b = n_keep - recipe.recent - recipe.sink;
  const auto least = static_cast<std::int32_t>(std::floor(share.floor * static_cast<float>(b)));
  struct Entry {
    double score;
    std::int32_t head;
  };
  std::vector<Entry> all;
  std::vector<std::int32_t> budgets;
  for (std::int32_t m = 0; m < n_kv; ++m) {
    const auto n = size32(heads_[at(m)].stored);
    std::vector<double> between;
    for (std::int32_t t = recipe.sink; t < n - recipe.recent; ++t) {
      between.push_back(0);
      for (std::int32_t g = 0; g < group; ++g) between.back() += received_[at(m * group + g)][at(t)];
    }
    between = smoothed(between);
    std::sort(between.begin(), between.end(), std::greater<>());
    const std::int32_t own = share.exact ? std::min(least, size32(between)) : 0;
    budgets.push_back(own + recipe.recent + recipe.sink);
    for (std::size_t i = at(own); i < between.size(); ++i) all.push_back({between[i], m});
  }
  std::stable_sort(all.begin(), all.end(), [](const Entry& x, const Entry& y) {
    return x.score != y.score ? x.score > y.score : x.head > y.head;
  });
  std::int32_t left = n_kv * b;
  for (std::int32_t n : budgets) left -= n - recipe.recent - recipe.sink;
  std::vector<double> counts(at(n_kv), 0.0);
  for (std::int32_t i = 0; i < std::min(left, size32(all)); ++i) ++counts[at(all[at(i)].head)];
  for (std::int32_t m = 0; m < n_kv; ++m)
    budgets[at(m)] += static_cast<std::int32_t>(
        share.exact ? counts[at(m)] : std::nearbyint((1 - double{share.floor}) * counts[at(m)] + least));
  return budgets;
}

void ReferencePrefillEnd::keep(Head& head, const std::vector<bool>& stays) {
  std::size_t n = 0;
  for (std::size_t t = 0; t < head.stored.size(); ++t) {
    if (!stays[t]) continue;
    head.stored[n] = head.stored[t];
    head.mass[n++] = head.mass[t];
  }
  head.stored.resize(n);
  head.mass.resize(n);
}

std::vector<double> ReferencePrefillEnd::rank_scores(std::int32_t m) const {
  const DropStage& stage = *plan_->recipe.prefill_end;
  const std::int32_t group = plan_->shape.group();
  const bool layer = stage.scope == DropScope::kLayer;
  const std::int32_t first = layer ? 0 : m, end = layer ? plan_->shape.n_kv_heads : m + 1;
  std::vector<double> scores(heads_[at(m)].stored.size(), 0.0);
  if (stage.rank == Rank::kPosition) return scores;
  for (std::int32_t other = first; other < end; ++other)
    for (std::int32_t t = 0; t < size32(scores); ++t) {
      double& score = scores[at(t)];
      if (stage.rank == Rank::kMassVariance) {
        score += score_of(other, t);
      } else if (plan_->observed_rows == Plan::kAllRows) {
        score += heads_[at(other)].mass[at(t)];
      } else {
        for (std::int32_t g = 0; g < group; ++g) score += received_[at(other * group + g)][at(t)];
      }
    }
  return scores;
}

void ReferencePrefillEnd::keep_by_rank(std::int32_t n_keep) {
  const Recipe& recipe = plan_->recipe;
  const DropStage& stage = *recipe.prefill_end;
  const std::int32_t n_kv = plan_->shape.n_kv_heads;
  const bool one = stage.scope == DropScope::kLayer;
  const std::int32_t recent = std::max(0, recipe.recent - (stage.when == DropWhen::kOverBudget ? 1 : 0));
  const bool shared = std::holds_alternative<HeadShare>(stage.share) && size32(heads_[0].stored) > n_keep;
  std::vector<std::int32_t> keeps(at(n_kv), n_keep);
  if (shared) keeps = head_budgets(n_keep);
  for (std::int32_t m = 0; m < n_kv; ++m) {
    Head& head = heads_[at(m)];
    const auto n = size32(head.stored);
    if (n <= keeps[at(m)]) continue;
    const std::vector<double> scores = rank_scores(m);
    std::vector<bool> stays(at(n), false);
    std::vector<std::int32_t> others;
    std::vector<double> between;
    std::int32_t left = keeps[at(m)];
    for (std::int32_t t = 0; t < n; ++t) {
      if (head.stored[at(t)] < recipe.sink || t >= n - recent) {
        stays[at(t)] = true;
        --left;
      } else {
        others.push_back(t);
        between.push_back(scores[at(t)]);
      }
    }
    between = smoothed(between);
    head.ranked = head.stored;
    head.scores.assign(at(n), INFINITY);
    for (std::size_t i = 0; i < others.size(); ++i) head.scores[at(others[i])] = between[i];
    std::stable_sort(others.begin(), others.end(), [&](std::int32_t a, std::int32_t b) {
      const double x = head.scores[at(a)], y = head.scores[at(b)];
      return x != y ? x > y : a > b;
    });
    for (std::int32_t i = 0; i < left; ++i) stays[at(others[at(i)])] = true;
    if (!one) {
      keep(head, stays);
      continue;
    }
    for (Head& all : heads_) {
      all.ranked = head.ranked;
      all.scores = head.scores;
      keep(all, stays);
    }
    return;
  }
}

// Mean over the rows and gamma times the unbiased variance, summed over the group.
double ReferencePrefillEnd::score_of(std::int32_t kv_head, std::int32_t t) const {
  const std::int32_t group = plan_->shape.group();
  double score = 0;
  for (std::int32_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    double mean = 0, squares = 0;
    for (const auto& row : by_row_) mean += row[at(h)][at(t)] / real(by_row_.size());
    for (const auto& row : by_row_) squares += std::pow(row[at(h)][at(t)] - mean, 2);
    score += mean;
    if (by_row_.size() > 1) score += plan_->drop->gamma * squares / real(by_row_.size() - 1);
  }
  return score;
}

// H^(1/tau1) V^(1/tau2) of the tokens before the window, over all rows and query heads.
void ReferencePrefillEnd::measure_preference() {
  const Recipe& recipe = plan_->recipe;
  const auto& share = std::get<PreferenceShare>(recipe.prefill_end->share);
  deferred_ = size32(heads_[0].stored) > recipe.budget;
  double entropy = 0, variance = 0;
  for (std::int32_t h = 0; h < plan_->shape.n_heads; ++h) {
    const std::int32_t n = size32(heads_[at(h / plan_->shape.group())].stored);
    for (std::int32_t t = 0; t < n - recipe.recent; ++t) {
      double mean = 0, squares = 0;
      for (const auto& row : by_row_) {
        const double a = row[at(h)][at(t)];
        entropy -= a * std::log(a + 1e-10);
        mean += a / real(by_row_.size());
      }
      for (const auto& row : by_row_) squares += std::pow(row[at(h)][at(t)] - mean, 2);
      if (by_row_.size() > 1) variance += squares / real(by_row_.size() - 1);
    }
  }
  preference_ = std::pow(entropy, 1 / double{share.tau1}) * std::pow(variance, 1 / double{share.tau2});
}

void ReferencePrefillEnd::share_layers(std::span<ReferencePrefillEnd> layers) {
  std::vector<ReferencePrefillEnd*> sharing;
  double sum = 0;
  for (ReferencePrefillEnd& layer : layers)
    if (std::exchange(layer.deferred_, false)) sharing.push_back(&layer), sum += layer.preference_;
  if (sharing.empty()) return;
  const Recipe& recipe = sharing[0]->plan_->recipe;
  const std::int32_t total = (recipe.budget - recipe.recent) * size32(sharing);
  std::vector<std::int32_t> keeps;
  std::int32_t given = 0, excess = 0;
  const auto cap = [&](std::size_t i) { return size32(sharing[i]->heads_[0].stored) - recipe.recent; };
  for (std::size_t i = 0; i < sharing.size(); ++i) {
    const auto part = static_cast<std::int32_t>(sharing[i]->preference_ / sum * total);
    keeps.push_back(std::min(part, cap(i)));
    given += part;
    excess += part - keeps.back();
  }
  // One token after the other, to the layers below their caps in turn, the lowest first.
  for (std::int32_t left : {excess, total - given})
    for (bool any = true; any && left > 0;) {
      any = false;
      for (std::size_t i = 0; i < sharing.size() && left > 0; ++i)
        if (keeps[i] < cap(i)) ++keeps[i], --left, any = true;
    }
  for (std::size_t i = 0; i < sharing.size(); ++i) sharing[i]->keep_by_rank(keeps[i] + recipe.recent);
}

// Complete pages behind those that there are, with this step's stamp.
void ReferencePrefillEnd::make_pages(Head& head, std::int32_t step) {
  const Stamps& rule = plan_->drop->stamps;
  std::size_t first = 0;
  while (first < head.stored.size() && head.stored[first] < plan_->recipe.sink) ++first;
  for (const Page& page : head.pages) first += page.positions.size();
  for (; first + at(rule.page) <= head.stored.size(); first += at(rule.page)) {
    const auto begin = head.stored.begin() + static_cast<std::ptrdiff_t>(first);
    head.pages.push_back({.positions = {begin, begin + rule.page},
                          .step = step,
                          .pinned = rule.pin_prompt && head.stored[first] < prompt_end_});
  }
}

void ReferencePrefillEnd::keep_by_stamps(std::int32_t step, bool decodes) {
  const Recipe& recipe = plan_->recipe;
  const Stamps& rule = recipe.prefill_end->stamps;
  const std::int32_t group = plan_->shape.group();
  if (!decodes) {
    prompt_end_ = step;
    if (size32(heads_[0].stored) > recipe.budget - 1) {
      keep_by_rank(recipe.budget - 1);
      for (Head& head : heads_) head.pages.clear();
    }
    for (Head& head : heads_) make_pages(head, step);
    return;
  }
  for (std::int32_t m = 0; m < plan_->shape.n_kv_heads; ++m) {
    Head& head = heads_[at(m)];
    std::vector<double> mass;
    for (const Page& page : head.pages) {
      mass.push_back(0);
      for (std::size_t t = 0; t < head.stored.size(); ++t)
        if (std::find(page.positions.begin(), page.positions.end(), head.stored[t]) != page.positions.end())
          for (std::int32_t g = 0; g < group; ++g) mass.back() += received_[at(m * group + g)][t] / group;
    }
    for (std::size_t p = 0; p < mass.size(); ++p) {
      std::size_t above = 0;  // pages with more, or as much and newer
      for (std::size_t o = 0; o < mass.size(); ++o) above += mass[o] > mass[p] || (mass[o] == mass[p] && o > p) ? 1 : 0;
      if (rule.above > 0 ? mass[p] > double{rule.above} : above < (mass.size() + 1) / 2) head.pages[p].step = step;
    }
    make_pages(head, step);
    while (size32(head.stored) > recipe.budget - 1) {
      const std::int32_t window = std::max(0, recipe.recent - 1);
      std::size_t oldest = head.pages.size();
      for (std::size_t p = 0; p < head.pages.size(); ++p) {
        const Page& page = head.pages[p];
        const auto end =
            std::find(head.stored.begin(), head.stored.end(), page.positions.back()) - head.stored.begin() + 1;
        if (end > std::ssize(head.stored) - window) continue;
        const auto older = [](const Page& a, const Page& b) {
          return a.pinned != b.pinned ? b.pinned : !a.pinned && a.step < b.step;
        };
        if (oldest == head.pages.size() || older(page, head.pages[oldest])) oldest = p;
      }
      if (oldest == head.pages.size()) break;
      std::vector<bool> stays(head.stored.size(), true);
      for (std::size_t t = 0; t < stays.size(); ++t)
        for (const std::int32_t gone : head.pages[oldest].positions) stays[t] = stays[t] && head.stored[t] != gone;
      head.pages.erase(head.pages.begin() + static_cast<std::ptrdiff_t>(oldest));
      keep(head, stays);
    }
  }
}

void ReferencePrefillEnd::keep_by_norm() {
  const Recipe& recipe = plan_->recipe;
  const NormBudget& norm = *recipe.norm;
  Head& any = heads_[0];
  const auto n = size32(any.stored);
  std::vector<std::int32_t> order;  // of the tokens that are not always kept
  std::vector<bool> first(at(n), false), stays(at(n), false);
  for (std::int32_t t = n - 1; t >= 0; --t) {
    first[at(t)] = any.stored[at(t)] < norm.first;
    if (!first[at(t)]) order.push_back(t);
  }
  if (plan_->drops() && recipe.prefill_end->rank == Rank::kMass) {
    std::vector<double> mean(at(n), 0.0);
    for (const auto& row : received_)
      for (std::int32_t t = 0; t < n; ++t) mean[at(t)] += row[at(t)];
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t a, std::int32_t b) { return mean[at(a)] > mean[at(b)]; });
  }
  // Norm of the tokens in `in`, averaged over heads.
  const auto norm_of = [&](const std::vector<bool>& in) {
    double sum = 0;
    for (const auto& row : received_) {
      double squares = 0;
      for (std::int32_t t = 0; t < n; ++t)
        if (in[at(t)] && (norm.first_in_norm || !first[at(t)])) squares += row[at(t)] * row[at(t)];
      sum += std::sqrt(squares);
    }
    return ratio(sum, received_.size());
  };
  const double whole = norm_of(std::vector<bool>(at(n), true));
  stays = first;
  const bool all = norm.loss <= 0 || !(whole > 0);
  for (std::int32_t t : order) {
    stays[at(t)] = true;
    if (!all && (whole - norm_of(stays)) / whole < norm.loss) break;
  }
  if (plan_->drops() && recipe.prefill_end->rank == Rank::kPosition)
    for (std::int32_t t = 0; t < n; ++t)
      if (any.stored[at(t)] < recipe.sink || t >= n - recipe.recent) stays[at(t)] = true;
  budget_ = count32(std::count(stays.begin(), stays.end(), true));
  if (!plan_->drops()) return;
  for (Head& head : heads_) keep(head, stays);
}

}  // namespace mneme
