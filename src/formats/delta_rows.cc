#include "src/formats/delta_rows.h"

namespace mneme {

DeltaRows rows_by_key_head(const DeltaConfig& d) {
  const std::int64_t per_key = d.n_v_heads / d.n_k_heads, v = per_key * d.d_v, block = 2 * d.d_k + 2 * v;
  DeltaRows rows;
  const auto add = [&](std::vector<std::int64_t>& to, std::int64_t in_block, std::int64_t first, std::int64_t n) {
    for (std::int64_t head = 0; head < d.n_k_heads; ++head)
      for (std::int64_t i = 0; i < n; ++i) to.push_back(head * in_block + first + i);
  };
  add(rows.qkv, block, 0, d.d_k);
  add(rows.qkv, block, d.d_k, d.d_k);
  add(rows.qkv, block, 2 * d.d_k, v);
  add(rows.z, block, 2 * d.d_k + v, v);
  add(rows.beta, 2 * per_key, 0, per_key);
  add(rows.alpha, 2 * per_key, per_key, per_key);
  return rows;
}

std::vector<std::int64_t> tiled_order(const DeltaConfig& d) {
  const std::int64_t per_key = d.n_v_heads / d.n_k_heads;
  std::vector<std::int64_t> order(d.n_v_heads);
  for (std::int64_t i = 0; i < d.n_v_heads; ++i) order[i] = i % d.n_k_heads * per_key + i / d.n_k_heads;
  return order;
}

}  // namespace mneme
