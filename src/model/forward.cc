// Forward pass on the CPU. run_layer() is the model; the rest is rows and memory.
#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

#include "src/base/check.h"
#include "src/model/attention_step.h"
#include "src/model/model.h"
#include "src/ops/norm_rope/pointwise.h"

namespace mneme {
namespace {

// Dtype of activations that needs no conversion in any GEMM, for n rows. It depends on n, so it is not used where a row
// must give the same bits in every batch.
DType input_dtype(std::initializer_list<const WeightMatrix*> weights, std::int64_t n, const CpuContext& context) {
  if (context.rounding == Rounding::kFixed) return DType::kF32;
  const bool bf16_for_all = std::all_of(weights.begin(), weights.end(),
                                        [n](const WeightMatrix* w) { return gemm_input_dtype(*w, n) == DType::kBF16; });
  return bf16_for_all ? DType::kBF16 : DType::kF32;
}

// An activation matrix whose memory grows to the largest batch and is kept.
class Activation {
 public:
  TensorView get(DType dtype, std::int64_t n, std::int64_t width) {
    buffer_.reserve(n * row_bytes(dtype, width));
    return TensorView(buffer_.data(), dtype, {n, width});
  }
  std::size_t bytes() const { return buffer_.size(); }

 private:
  Buffer buffer_;
};

TensorView by_heads(const TensorView& x, std::int64_t heads) {
  return TensorView(x.data(), x.dtype(), {x.dim(0), heads, x.dim(1) / heads});
}

// RMSNorm of every head, in place (qwen3).
void norm_heads(const TensorView& x, std::int64_t heads, std::span<const float> weight, double eps,
                const CpuContext& context) {
  const TensorView rows(x.data(), x.dtype(), {x.dim(0) * heads, x.dim(1) / heads});
  rms_norm_cpu(rows, weight.data(), eps, rows, context);
}

const float* or_null(std::span<const float> bias) {
  return bias.empty() ? nullptr : bias.data();
}

}  // namespace

struct Forward::Impl {
  const Model& model;
  const ModelConfig& config;
  Rounding rounding;   // of passes without clusters
  CpuContext context;  // of this pass
  AttentionStep attention;
  RopeAngles angles;      // of the step's positions, for all layers
  RopeAngles key_angles;  // for the keys, where they are rotated differently
  Activation residual, normed, q, k, v, attended, gate, up, ffn_hidden, last, logits;
  OpTimer* timer = nullptr;

  Impl(const Model& m, const CpuContext& c)
      : model(m), config(m.config()), rounding(c.rounding), context(c), attention(m.config(), m.rope(), c) {}

  void lap(Op op, std::int32_t layer = -1) {
    if (timer != nullptr) timer->lap(op, layer);
  }
  void select_rounding(const ForwardInput& input);
  TensorView run_all_layers(const ForwardInput& input);
  void run_layer(std::int32_t layer, const TensorView& x);
  ConstTensorView run_head(const TensorView& rows);
  TensorView gather_last_rows(const TensorView& x, std::span<const SequenceRows> sequences);
};

void Forward::Impl::run_layer(std::int32_t layer, const TensorView& x) {
  const LayerWeights& w = model.layers()[layer];
  const std::int64_t n = x.dim(0), q_width = config.n_heads * config.head_dim,
                     kv_width = config.n_kv_heads * config.head_dim;

  const TensorView h = normed.get(input_dtype({&w.q, &w.k, &w.v}, n, context), n, config.hidden);
  rms_norm_cpu(x, w.attn_norm.data(), config.rms_eps, h, context);
  lap(Op::kPointwise, layer);
  const TensorView queries = q.get(DType::kF32, n, q_width);
  const TensorView keys = k.get(DType::kF32, n, kv_width);
  const TensorView values = v.get(DType::kF32, n, kv_width);
  gemm_cpu(h,
           std::array{GemmOutput{.w = &w.q, .y = queries, .bias = or_null(w.q_bias)},
                      GemmOutput{.w = &w.k, .y = keys, .bias = or_null(w.k_bias)},
                      GemmOutput{.w = &w.v, .y = values, .bias = or_null(w.v_bias)}},
           context);
  lap(Op::kProducts, layer);
  if (config.qk_norm) {
    norm_heads(queries, config.n_heads, w.q_norm, config.rms_eps, context);
    norm_heads(keys, config.n_kv_heads, w.k_norm, config.rms_eps, context);
  }
  rope_cpu(by_heads(queries, config.n_heads), angles, context);
  rope_cpu(by_heads(keys, config.n_kv_heads), attention.has_pre_rope_keys() ? key_angles : angles, context);
  lap(Op::kPointwise, layer);

  const TensorView a = attended.get(input_dtype({&w.o}, n, context), n, q_width);
  attention.append(layer, by_heads(keys, config.n_kv_heads), by_heads(values, config.n_kv_heads));
  attention.attend(layer, by_heads(queries, config.n_heads), a);
  lap(Op::kAttention, layer);
  gemm_cpu(a, std::array{GemmOutput{.w = &w.o, .y = x, .accumulate = true}}, context);
  lap(Op::kProducts, layer);

  const TensorView h2 = normed.get(input_dtype({&w.gate, &w.up}, n, context), n, config.hidden);
  rms_norm_cpu(x, w.ffn_norm.data(), config.rms_eps, h2, context);
  lap(Op::kPointwise, layer);
  const TensorView g = gate.get(DType::kF32, n, config.ffn);
  const TensorView u = up.get(DType::kF32, n, config.ffn);
  gemm_cpu(h2, std::array{GemmOutput{.w = &w.gate, .y = g}, GemmOutput{.w = &w.up, .y = u}}, context);
  lap(Op::kProducts, layer);
  const TensorView p = ffn_hidden.get(input_dtype({&w.down}, n, context), n, config.ffn);
  swiglu_cpu(g, u, p, context);
  lap(Op::kPointwise, layer);
  gemm_cpu(p, std::array{GemmOutput{.w = &w.down, .y = x, .accumulate = true}}, context);
  lap(Op::kProducts, layer);
}

// k-means turns the last bit of a key into another cluster, and the cluster into another answer: keys that are
// clustered must not depend on the tiles that threads, chunks and the rest of the batch make kFast pick.
void Forward::Impl::select_rounding(const ForwardInput& input) {
  const bool clusters = std::any_of(input.sequences.begin(), input.sequences.end(), [](const SequenceRows& s) {
    return s.method != nullptr && s.method->plan().lists && s.phase == RowPhase::kPrefill;
  });
  context.rounding = clusters ? Rounding::kFixed : rounding;
}

TensorView Forward::Impl::run_all_layers(const ForwardInput& input) {
  select_rounding(input);
  attention.begin(input.sequences);
  const std::int64_t n = attention.positions().size();
  MNEME_CHECK(n == std::ssize(input.tokens), "{} tokens for {} rows", input.tokens.size(), n);
  for (const SequenceRows& s : input.sequences) {
    const KvShape expected = model.kv_shape(s.cache->shape().dtype);
    MNEME_CHECK(s.cache->shape() == expected, "the KV cache was made for another model");
    MNEME_CHECK(s.cache->length() <= model.max_context(), "a sequence of {} tokens, the context is {}",
                s.cache->length(), model.max_context());
  }
  const TensorView x = residual.get(DType::kF32, n, config.hidden);
  if (n == 0) return x;
  angles.set(attention.positions(), model.rope(), context);
  if (attention.has_pre_rope_keys()) key_angles.set(attention.key_positions(), model.rope(), context);
  embed_cpu(input.tokens, model.embedding(), x, context);
  lap(Op::kOther);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) run_layer(layer, x);
  return x;
}

TensorView Forward::Impl::gather_last_rows(const TensorView& x, std::span<const SequenceRows> sequences) {
  const auto wanted = [](const SequenceRows& s) {
    return s.all_logits ? s.n_rows : std::min<int>(s.want_logits, s.n_rows);
  };
  std::int64_t n = 0, end = 0, at = 0;
  for (const SequenceRows& s : sequences) n += wanted(s);
  const TensorView rows = last.get(DType::kF32, n, config.hidden);
  for (const SequenceRows& s : sequences) {
    end += s.n_rows;
    for (std::int64_t row = end - wanted(s); row < end; ++row)
      std::memcpy(rows.row(at++), x.row(row), x.stride_bytes());
  }
  return rows;
}

ConstTensorView Forward::Impl::run_head(const TensorView& rows) {
  const std::int64_t n = rows.dim(0);
  const TensorView y = logits.get(DType::kF32, n, config.vocab);
  if (n == 0) return y;
  const TensorView h = normed.get(input_dtype({&model.head()}, n, context), n, config.hidden);
  rms_norm_cpu(rows, model.output_norm().data(), config.rms_eps, h, context);
  gemm_cpu(h, std::array{GemmOutput{.w = &model.head(), .y = y}}, context);
  lap(Op::kHead);
  return y;
}

Forward::Forward(const Model& model, const CpuContext& context) : impl_(std::make_unique<Impl>(model, context)) {}
Forward::~Forward() = default;

ConstTensorView Forward::run(const ForwardInput& input) {
  const TensorView x = impl_->run_all_layers(input);
  const TensorView rows = impl_->gather_last_rows(x, input.sequences);
  impl_->lap(Op::kOther);
  return impl_->run_head(rows);
}

ConstTensorView Forward::run_all_logits(const ForwardInput& input) {
  return impl_->run_head(impl_->run_all_layers(input));
}

void Forward::set_audit(std::int32_t every) {
  impl_->attention.set_audit(every);
}

void Forward::set_observer(DecodeObserver* observer) {
  impl_->attention.set_observer(observer);
}

void Forward::set_timer(OpTimer* timer) {
  impl_->timer = timer;
}

std::size_t Forward::activation_bytes() const {
  std::size_t bytes = impl_->attention.scratch_bytes();
  for (const Activation* a : {&impl_->residual, &impl_->normed, &impl_->q, &impl_->k, &impl_->v, &impl_->attended,
                              &impl_->gate, &impl_->up, &impl_->ffn_hidden, &impl_->last, &impl_->logits})
    bytes += a->bytes();
  return bytes;
}

}  // namespace mneme
