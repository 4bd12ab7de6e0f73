// Decode attention, parts that handle whole rows: remapped positions, and selection for all heads of a layer.
#include <algorithm>
#include <numeric>

#include "src/base/check.h"
#include "src/methods/decode_attention.h"

namespace mneme {
namespace {

bool selects_by_layer(const DecodeRow& row, std::int32_t layer) {
  return row.method != nullptr && row.method->plan().layer_selection && !row.method->plan().dense_layer(layer);
}

}  // namespace

void DecodeAttention::rotate_rows(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  remapped_.q.assign(rows.size(), nullptr);
  remapped_.rows.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const DecodeRow& row = rows[r];
    const Plan* plan = row.method == nullptr ? nullptr : &row.method->plan();
    if (row.window > 0) continue;
    MNEME_CHECK(row.cache->key_basis() == (plan == nullptr ? KeyBasis::kPostRope : plan->key_basis),
                "keys of a basis that the method does not read");
    if (plan == nullptr) continue;
    const std::int32_t length = row.cache->length();
    if (plan->remote_position) remapped_.rows.push_back({row.q, *plan->remote_position - (length - 1)});
    if (plan->key_basis == KeyBasis::kPostRope) continue;
    if (remapped_.angles.size() < rows.size()) remapped_.angles.resize(rows.size());
    const std::int32_t from = std::max(0, length - plan->rules.recent);
    std::vector<RotatedWindow>& local = row.method->layer(layer).local;
    for (std::int32_t m = 0; m < row.cache->shape().n_kv_heads; ++m) {
      RotatedWindow& window = local[m];
      const RotatedWindow::Range todo = window.missing(from, length);
      LocalAngles& a = remapped_.angles[r];
      if (a.range.begin != todo.begin || a.range.end != todo.end) {
        std::vector<std::int32_t> positions(todo.end - todo.begin);
        std::iota(positions.begin(), positions.end(), todo.begin);
        a.angles.set(positions, remapped_.table, context_);
        a.range = todo;
      }
      window.extend(*row.cache, layer, m, from, shape, a.angles);
    }
  }
  if (remapped_.rows.empty()) return;
  const std::int32_t n_heads = rows[0].cache->shape().n_kv_heads * shape.group;
  const float* remote = remapped_.rotator.rotate(remapped_.rows, n_heads, shape.head_dim, context_);
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (rows[r].method != nullptr && rows[r].method->plan().remote_position) {
      remapped_.q[r] = remote;
      remote += std::int64_t{n_heads} * shape.head_dim;
    }
}

// Units for all heads of the rows whose method selects per layer.
void DecodeAttention::select_layers(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  by_layer_.replaced.assign(rows.size(), 0);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!selects_by_layer(rows[r], layer)) continue;
    MethodState& method = *rows[r].method;
    const std::int32_t length = rows[r].cache->length();
    by_layer_.selector.file_units(method, layer, *rows[r].cache, length);
    const Region region = region_at(method.plan().rules, length);
    if (region.everything) continue;
    const std::size_t width = rows[r].cache->shape().n_kv_heads * shape.group * shape.head_dim;
    std::vector<std::int32_t>& units = method.layer(layer).attended[0];
    by_layer_.before.assign(units.begin(), units.end());
    by_layer_.selector.select(method, layer, region, {remapped_.q[r] != nullptr ? remapped_.q[r] : rows[r].q, width},
                              LayerSelector::kDecode, units);
    std::vector<std::int32_t> fresh;
    std::set_difference(units.begin(), units.end(), by_layer_.before.begin(), by_layer_.before.end(),
                        std::back_inserter(fresh));
    by_layer_.replaced[r] = std::ssize(fresh);
  }
}

// Accumulates the rows' attention to their local tokens, for later representatives.
void DecodeAttention::add_masses(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!selects_by_layer(rows[r], layer)) continue;
    const SequenceCache& cache = *rows[r].cache;
    const MethodState::Layer& state = rows[r].method->layer(layer);
    const std::int32_t length = cache.length(), n_kv = cache.shape().n_kv_heads;
    const std::int32_t from = std::max({0, length - rows[r].method->plan().rules.recent, state.memory->mass.begin()});
    by_layer_.local_runs.resize(n_kv);
    by_layer_.local_spans.clear();
    for (std::int32_t m = 0; m < n_kv; ++m) {
      std::vector<KvRun>& runs = by_layer_.local_runs[m];
      runs.clear();
      if (cache.key_basis() == KeyBasis::kPreRope)
        state.local[m].append_runs(from, length, shape, runs);
      else
        cache.append_runs(layer, m, from, length, runs);
      by_layer_.local_spans.push_back(runs);
    }
    by_layer_.selector.add_mass(*rows[r].method, layer,
                                {.q = rows[r].q,
                                 .stride = 0,
                                 .lse = lse_.data() + first_item_[r] * shape.group,
                                 .lse_rows = 1,
                                 .first = length - 1,
                                 .n = 1,
                                 .from = from,
                                 .runs = by_layer_.local_spans});
  }
}

}  // namespace mneme
