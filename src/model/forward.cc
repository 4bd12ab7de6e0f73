// Forward pass on the CPU: embedding, the blocks of every layer of the plan, norm and head.
#include <algorithm>
#include <array>
#include <cstring>
#include <initializer_list>
#include <limits>

#include "src/base/check.h"
#include "src/base/underlying.h"
#include "src/model/attention_step.h"
#include "src/model/layer_pass.h"
#include "src/model/model.h"
#include "src/model/ranks/rank_forward.h"
#include "src/ops/norm_rope/pointwise.h"

namespace mneme {
namespace {

struct ForwardImpl {
  const Model& model;
  const ModelConfig& config;
  ModelPlan plan;
  Rounding rounding;   // of passes without clusters
  CpuContext context;  // of this pass
  AttentionStep attention;
  std::vector<RopeAngles> angles;  // of the step's positions, by RoPE of the plan
  RopeAngles key_angles;           // for the keys, where they are rotated differently
  Activations memory;              // of the layers
  Activation residual, normed, last, logits;
  std::span<const SequenceRows> rows_in;  // of this pass, by sequence
  OpTimer* timer = nullptr;
  Collective* ranks = nullptr;   // that share every layer; null: these layers are whole
  Collective* stages = nullptr;  // that share the layers, in order; null: this rank has all
  WeightMatrix head;             // this rank's rows of it
  Activation head_part, head_parts;

  ForwardImpl(const Model& m, const CpuContext& c)
      : model(m),
        config(m.config()),
        plan(model_plan_of(m.config())),
        rounding(c.rounding),
        context(c),
        attention(m.config(), m.rope(), c),
        angles(m.ropes().size()),
        head(m.head()) {}

  void lap(Op op, std::int32_t layer = -1) {
    if (timer != nullptr) timer->lap(op, layer);
  }
  void select_rounding(const ForwardInput& input);
  TensorView run_all_layers(const ForwardInput& input);
  void embed(std::span<const std::int32_t> tokens, const TensorView& x);
  void run_layer(std::int32_t layer, const TensorView& x);
  ConstTensorView run(const ForwardInput& input);
  ConstTensorView run_head(const TensorView& rows);
  void gather_logits(const TensorView& h, const TensorView& y);
  void take_rows(const TensorView& x);
  void hand_rows_on(const TensorView& x);
  TensorView gather_last_rows(const TensorView& x, std::span<const SequenceRows> sequences);
};

void ForwardImpl::embed(std::span<const std::int32_t> tokens, const TensorView& x) {
  embed_cpu(tokens, model.embedding(), x, context);
  if (plan.embedding_scale == 1.0) return;
  const auto scale = static_cast<float>(plan.embedding_scale);
  float* values = x.row_as<float>(0);
  for (std::int64_t i = 0; i < x.dim(0) * x.dim(1); ++i) values[i] *= scale;
}

void ForwardImpl::run_layer(std::int32_t layer, const TensorView& x) {
  LayerPass pass{.config = config,
                 .plan = plan,
                 .w = model.layers()[layer],
                 .layer = layer,
                 .x = x,
                 .context = context,
                 .attention = attention,
                 .sequences = rows_in,
                 .angles = angles,
                 .key_angles = attention.has_pre_rope_keys() ? key_angles : angles[0],
                 .memory = memory,
                 .timer = timer,
                 .ranks = ranks};
  for (const Mixer& mixer : plan.layers[layer].blocks)
    std::visit([&pass](const auto& block) { run_block(pass, block); }, mixer);
}

// k-means turns the last bit of a key into another cluster, and the cluster into another answer: keys that are
// clustered must not depend on the tiles that threads, chunks and the rest of the batch make kFast pick.
void ForwardImpl::select_rounding(const ForwardInput& input) {
  const bool clusters = std::any_of(input.sequences.begin(), input.sequences.end(), [](const SequenceRows& s) {
    return s.method != nullptr && s.method->plan().lists && s.phase == SequencePhase::kPrefill;
  });
  context.rounding = clusters ? Rounding::kFixed : rounding;
}

TensorView ForwardImpl::run_all_layers(const ForwardInput& input) {
  select_rounding(input);
  attention.begin(input.sequences);
  rows_in = input.sequences;
  const std::int64_t n = attention.positions().size();
  MNEME_CHECK(n == std::ssize(input.tokens), "{} tokens for {} rows", input.tokens.size(), n);
  for (const SequenceRows& s : input.sequences) {
    const KvShape expected = model.kv_shape(s.cache->shape().dtype);
    MNEME_CHECK(s.cache->shape() == expected, "the KV cache was made for another model");
    MNEME_CHECK(s.cache->length() <= model.max_context(), "a sequence of {} tokens, the context is {}",
                s.cache->length(), model.max_context());
    MNEME_CHECK(!s.cache->states().any() || s.n_rows == 0 || s.cache->states().length() == s.cache->length() - s.n_rows,
                "a state of {} tokens before row {}", s.cache->states().length(), s.cache->length() - s.n_rows);
  }
  const TensorView x = residual.get(DType::kF32, n, config.hidden);
  if (n == 0) return x;
  for (std::size_t i = 0; i < angles.size(); ++i) angles[i].set(attention.positions(), model.ropes()[i], context);
  if (attention.has_pre_rope_keys()) key_angles.set(attention.key_positions(), model.rope(), context);
  stages != nullptr && stages->rank() > 0 ? take_rows(x) : embed(input.tokens, x);
  lap(Op::kOther);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) run_layer(layer, x);
  for (const SequenceRows& s : input.sequences)
    if (s.cache->states().any() && s.n_rows > 0) s.cache->states().end_write(s.cache->length());
  if (stages != nullptr) hand_rows_on(x);
  return x;
}

// Every stage is told the rows behind each, and keeps those of the one before it.
void ForwardImpl::take_rows(const TensorView& x) {
  const std::span bytes(x.data(), x.dim(0) * x.stride_bytes());
  for (int stage = 0; stage < stages->rank(); ++stage) stages->broadcast(bytes, stage);
}

// Rows of the stages behind this one are nothing to it: only the last one's are read after this.
void ForwardImpl::hand_rows_on(const TensorView& x) {
  const std::span bytes(x.data(), x.dim(0) * x.stride_bytes());
  for (int stage = stages->rank(); stage + 1 < stages->size(); ++stage) stages->broadcast(bytes, stage);
}

TensorView ForwardImpl::gather_last_rows(const TensorView& x, std::span<const SequenceRows> sequences) {
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

//   h [n, hidden], y [n, vocab] f32
void ForwardImpl::gather_logits(const TensorView& h, const TensorView& y) {
  const std::int64_t n = y.dim(0), part = vocabulary_part(config.vocab, ranks->size());
  const TensorView mine = head_part.get(DType::kF32, n, part);
  const std::int64_t width = head.n_out();
  if (width > 0) {
    const TensorView used(mine.data(), DType::kF32, {n, width});
    gemm_cpu(h, std::array{GemmOutput{.w = &head, .y = used}}, context);
  }
  const TensorView all = head_parts.get(DType::kF32, n * ranks->size(), part);
  const std::size_t bytes = n * part * sizeof(float);
  ranks->all_gather(std::span(mine.data(), bytes), std::span(all.data(), bytes * ranks->size()));
  for (int r = 0; r < ranks->size(); ++r) {
    const RankRange range = vocabulary_range(config.vocab, r, ranks->size());
    const float* from = all.row_as<float>(0) + n * part * r;
    for (std::int64_t i = 0; i < n; ++i)
      std::memcpy(y.row_as<float>(i) + range.first, from + i * range.size(), range.size() * sizeof(float));
  }
}

ConstTensorView ForwardImpl::run_head(const TensorView& rows) {
  const std::int64_t n = rows.dim(0);
  const TensorView y = logits.get(DType::kF32, n, config.vocab);
  if (n == 0) return y;
  const std::span all(y.data(), n * y.stride_bytes());
  if (stages != nullptr && stages->rank() + 1 < stages->size()) {
    stages->broadcast(all, stages->size() - 1);
    return y;
  }
  const TensorView h = normed.get(input_dtype({&model.head()}, n, context), n, config.hidden);
  rms_norm_cpu(rows, model.output_norm().data(), plan.norm_eps, h, context);
  ranks == nullptr ? gemm_cpu(h, std::array{GemmOutput{.w = &head, .y = y}}, context) : gather_logits(h, y);
  if (plan.logit_cap != 0.0)
    soft_cap_cpu({y.row_as<float>(0), static_cast<std::size_t>(n * config.vocab)}, static_cast<float>(plan.logit_cap),
                 context);
  for (std::int64_t row = 0; row < n; ++row)
    for (const std::int32_t id : model.absent_tokens())
      y.row_as<float>(row)[id] = -std::numeric_limits<float>::infinity();
  if (stages != nullptr) stages->broadcast(all, stages->rank());
  lap(Op::kHead);
  return y;
}

ConstTensorView ForwardImpl::run(const ForwardInput& input) {
  const TensorView x = run_all_layers(input);
  const TensorView rows = gather_last_rows(x, input.sequences);
  lap(Op::kOther);
  return run_head(rows);
}

}  // namespace

// Whole tiles of the kernels' rows.
std::int64_t vocabulary_part(std::int64_t vocab, int size) {
  constexpr std::int64_t kRows = 64;
  return (vocab + size * kRows - 1) / (size * kRows) * kRows;
}
RankRange vocabulary_range(std::int64_t vocab, int rank, int size) {
  const std::int64_t part = vocabulary_part(vocab, size);
  return {.first = std::min(part * rank, vocab), .end = std::min(part * (rank + 1), vocab)};
}

RankRange rank_experts(std::int64_t n, int rank, int size) {
  return {.first = n * rank / size, .end = n * (rank + 1) / size};
}

struct Forward::Impl : ForwardImpl {
  using ForwardImpl::ForwardImpl;
};

// FNV-1a: some hundred numbers a step.
std::uint64_t step_hash(const ForwardInput& input) {
  std::uint64_t hash = 0xcbf29ce484222325;
  const auto add = [&hash](std::uint64_t value) { hash = (hash ^ value) * 0x100000001b3; };
  for (const std::int32_t token : input.tokens) add(static_cast<std::uint64_t>(token));
  for (const SequenceRows& s : input.sequences) {
    add(s.n_rows);
    add(s.cache->length());
    add(underlying(s.phase));
    add(s.prefill_left);
    add((s.want_logits ? 1 : 0) + (s.all_logits ? 2 : 0) + (s.method != nullptr ? 4 : 0));
  }
  return hash;
}

Forward::Forward(const Model& model, const CpuContext& context, Collective* ranks, RankSplit split)
    : impl_(std::make_unique<Impl>(model, context)) {
  (split == RankSplit::kHeads ? impl_->ranks : impl_->stages) = ranks;
  if (impl_->ranks == nullptr) return;
  const RankRange rows = vocabulary_range(model.config().vocab, ranks->rank(), ranks->size());
  impl_->head = WeightMatrix(model.head().view().rows(rows.first, rows.end));
}
Forward::~Forward() = default;

ConstTensorView Forward::run(const ForwardInput& input) {
  Collective* const others = impl_->ranks != nullptr ? impl_->ranks : impl_->stages;
  if (others != nullptr) expect_agreement(*others, "step", step_hash(input));
  return impl_->run(input);
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
  for (const Activation* a :
       {&impl_->residual, &impl_->normed, &impl_->last, &impl_->logits, &impl_->head_part, &impl_->head_parts})
    bytes += a->bytes();
  return bytes;
}

}  // namespace mneme
