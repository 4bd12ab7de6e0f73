// The parts of decode attention that concern whole rows: positions of a method's own, and decisions for all heads of a
// layer.
#include <algorithm>
#include <numeric>

#include "src/attention/decode_attention.h"
#include "src/base/check.h"

namespace mneme {
namespace {

bool chooses_by_layer(const DecodeRow& row, std::int32_t layer) {
  return row.method != nullptr && row.method->plan().layer_choice && !row.method->plan().dense_layer(layer);
}

}  // namespace

void DecodeAttention::turn_rows(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  far_q_.assign(rows.size(), nullptr);
  far_rows_.clear();
  for (std::size_t r = 0; r < rows.size(); ++r) {
    const DecodeRow& row = rows[r];
    const Plan* plan = row.method == nullptr ? nullptr : &row.method->plan();
    MNEME_CHECK(row.cache->key_basis() == (plan == nullptr ? KeyBasis::kTurned : plan->key_basis),
                "keys of a basis that the method does not read");
    if (plan == nullptr) continue;
    const std::int32_t length = row.cache->length();
    if (plan->far_position) far_rows_.push_back({row.q, *plan->far_position - (length - 1)});
    if (plan->key_basis == KeyBasis::kTurned) continue;
    if (near_angles_.size() < rows.size()) near_angles_.resize(rows.size());
    const std::int32_t from = std::max(0, length - plan->rules.recent);
    std::vector<TurnedWindow>& near = row.method->layer(layer).near;
    for (std::int32_t m = 0; m < row.cache->shape().n_kv_heads; ++m) {
      TurnedWindow& window = near[static_cast<std::size_t>(m)];
      const TurnedWindow::Range todo = window.missing(from, length);
      NearAngles& a = near_angles_[r];
      if (a.range.begin != todo.begin || a.range.end != todo.end) {
        std::vector<std::int32_t> positions(static_cast<std::size_t>(todo.end - todo.begin));
        std::iota(positions.begin(), positions.end(), todo.begin);
        a.angles.set(positions, turn_table_, context_);
        a.range = todo;
      }
      window.extend(*row.cache, layer, m, from, shape, a.angles);
    }
  }
  if (far_rows_.empty()) return;
  const std::int32_t n_heads = rows[0].cache->shape().n_kv_heads * shape.group;
  const float* far = far_.turn(far_rows_, n_heads, shape.head_dim, context_);
  for (std::size_t r = 0; r < rows.size(); ++r)
    if (rows[r].method != nullptr && rows[r].method->plan().far_position) {
      far_q_[r] = far;
      far += std::int64_t{n_heads} * shape.head_dim;
    }
}

// Units for all heads of the rows whose method decides by layer.
void DecodeAttention::choose_layers(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  replaced_.assign(rows.size(), 0);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!chooses_by_layer(rows[r], layer)) continue;
    MethodState& method = *rows[r].method;
    const std::int32_t length = rows[r].cache->length();
    chooser_.file_units(method, layer, *rows[r].cache, length);
    const Region region = region_at(method.plan().rules, length);
    if (region.everything) continue;
    const auto width = static_cast<std::size_t>(rows[r].cache->shape().n_kv_heads * shape.group * shape.head_dim);
    std::vector<std::int32_t>& units = method.layer(layer).attended[0];
    before_.assign(units.begin(), units.end());
    chooser_.choose(method, layer, region, {far_q_[r] != nullptr ? far_q_[r] : rows[r].q, width}, LayerChooser::kDecode,
                    units);
    std::vector<std::int32_t> fresh;
    std::set_difference(units.begin(), units.end(), before_.begin(), before_.end(), std::back_inserter(fresh));
    replaced_[r] = std::ssize(fresh);
  }
}

// What the rows attended near them, for representatives to come.
void DecodeAttention::add_masses(std::int32_t layer, std::span<const DecodeRow> rows, const AttentionShape& shape) {
  for (std::size_t r = 0; r < rows.size(); ++r) {
    if (!chooses_by_layer(rows[r], layer)) continue;
    const SequenceCache& cache = *rows[r].cache;
    const MethodState::Layer& state = rows[r].method->layer(layer);
    const std::int32_t length = cache.length(), n_kv = cache.shape().n_kv_heads;
    const std::int32_t from = std::max({0, length - rows[r].method->plan().rules.recent, state.memory->mass.begin()});
    near_runs_.resize(static_cast<std::size_t>(n_kv));
    near_spans_.clear();
    for (std::int32_t m = 0; m < n_kv; ++m) {
      std::vector<KvRun>& runs = near_runs_[static_cast<std::size_t>(m)];
      runs.clear();
      if (cache.key_basis() == KeyBasis::kRaw)
        state.near[static_cast<std::size_t>(m)].append_runs(from, length, shape, runs);
      else
        cache.append_runs(layer, m, from, length, runs);
      near_spans_.push_back(runs);
    }
    chooser_.add_mass(*rows[r].method, layer,
                      {.q = rows[r].q,
                       .stride = 0,
                       .lse = lse_.data() + first_item_[r] * static_cast<std::size_t>(shape.group),
                       .lse_rows = 1,
                       .first = length - 1,
                       .n = 1,
                       .from = from,
                       .runs = near_spans_});
  }
}

}  // namespace mneme
