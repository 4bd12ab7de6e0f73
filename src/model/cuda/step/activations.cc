#include "src/model/cuda/step/activations.h"

#include "src/ops/attention/attention_cuda.h"
#include "src/ops/gemm/device/skinny_gemm_cuda.h"

namespace mneme {

void CudaActivations::reserve(ArenaLayout& arena, const ModelConfig& c, std::int32_t n_rows, std::int32_t few_rows,
                              std::size_t n_ropes) {
  const auto rows = static_cast<std::size_t>(n_rows), few = static_cast<std::size_t>(few_rows),
             hidden = static_cast<std::size_t>(c.hidden), heads = static_cast<std::size_t>(c.n_heads),
             head_dim = static_cast<std::size_t>(c.head_dim), q_width = heads * head_dim,
             qkv_width = q_width + 2 * static_cast<std::size_t>(c.n_kv_heads) * head_dim,
             ffn = static_cast<std::size_t>(c.experts.n > 0 ? c.experts.shared : c.ffn);
  arena.add(residual, rows * hidden * 4);
  arena.add(normed, rows * hidden * 2);
  arena.add(qkv, rows * qkv_width * 2);
  arena.add(qkv_f32, few * qkv_width * 4);
  arena.add(q, rows * q_width * 2);
  arena.add(remote_q, rows * q_width * 2);
  arena.add(attended, rows * q_width * 2);
  arena.add(output_gate, c.output_gate ? rows * q_width * 4 : 0);
  arena.add(lse, c.sinks ? rows * heads * 4 : 0);
  arena.add(gate_up, rows * 2 * ffn * 2);
  arena.add(ffn_hidden, rows * ffn * 2);
  arena.add(sums_embed, kSkinnyRows * 4);
  arena.add(sums, (hidden / 16 + 1) * kSkinnyRows * 4);
  arena.add(block_out, c.norms == NormOrder::kBefore && c.experts.shared == 0 ? 0 : rows * hidden * 4);
  arena.add(angles, n_ropes * rows * head_dim * 4);
  arena.add(remote_angles, rows * head_dim * 4);
  arena.add(inv_freq, n_ropes * head_dim / 2 * 8);
  // Every query head may attend a selection of its own (pool=none).
  arena.add(attention_scratch, decode_attention_scratch_bytes(n_rows, static_cast<std::int32_t>(c.n_heads),
                                                              static_cast<std::int32_t>(c.head_dim)));
}

}  // namespace mneme
