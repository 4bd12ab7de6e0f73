// Forward pass on the CPU: embedding, the parts of every layer (architectures/), norm and head.
#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>

#include "src/base/check.h"
#include "src/model/architectures/architectures.h"
#include "src/model/attention_step.h"
#include "src/model/layer_pass.h"
#include "src/model/model.h"
#include "src/ops/norm_rope/pointwise.h"

namespace mneme {
struct Forward::Impl {
  const Model& model;
  const ModelConfig& config;
  Rounding rounding;   // of passes without clusters
  CpuContext context;  // of this pass
  AttentionStep attention;
  RopeAngles angles;      // of the step's positions, for all layers
  RopeAngles key_angles;  // for the keys, where they are rotated differently
  std::span<const Part> parts;
  Activations memory;  // of the layers
  Activation residual, normed, last, logits;
  OpTimer* timer = nullptr;

  Impl(const Model& m, const CpuContext& c)
      : model(m),
        config(m.config()),
        rounding(c.rounding),
        context(c),
        attention(m.config(), m.rope(), c),
        parts(parts_of(m.config().architecture)) {}

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
  LayerPass pass{.config = config,
                 .w = model.layers()[layer],
                 .layer = layer,
                 .x = x,
                 .context = context,
                 .attention = attention,
                 .angles = angles,
                 .key_angles = attention.has_pre_rope_keys() ? key_angles : angles,
                 .memory = memory,
                 .timer = timer};
  for (const Part part : parts) part(pass);
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
  std::size_t bytes = impl_->attention.scratch_bytes() + impl_->memory.bytes();
  for (const Activation* a : {&impl_->residual, &impl_->normed, &impl_->last, &impl_->logits}) bytes += a->bytes();
  return bytes;
}

}  // namespace mneme
