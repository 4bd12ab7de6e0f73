// A step is run_graph_rows() (few rows, a replayed graph) or launch_many() (prompts); a layer is layer_few() or
// layer_many(), which run the blocks of the model's plan. What they are made of is in src/model/cuda/step.
#include "src/model/cuda/forward.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/cuda/device.h"
#include "src/cuda/trace_range.h"
#include "src/formats/model_plan.h"
#include "src/model/cuda/attention.h"
#include "src/model/cuda/delta/delta.h"
#include "src/model/cuda/experts.h"
#include "src/model/cuda/step/graphs.h"
#include "src/model/cuda/step/head.h"
#include "src/model/ranks/rank_forward.h"
#include "src/ops/experts/shared_expert_cuda.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/output_gate_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"

namespace mneme {
namespace {

constexpr std::int32_t kGraphRows = kSkinnyRows;  // steps with more sequences are launched kernel by kernel

std::int32_t graph_rows(std::int32_t n) {
  return n <= 8 ? n : (n + 7) / 8 * 8;
}

// Rows that a step's arrays have room for.
std::int32_t capacity_of(const CudaForwardOptions& o) {
  const std::int32_t rows = std::max(o.max_rows, graph_rows(std::min(o.max_sequences, kGraphRows)));
  return o.batch_invariant ? (rows + kInvariantRows - 1) / kInvariantRows * kInvariantRows : rows;
}

std::vector<RopeTable> ropes_with_identity(const Model& model) {
  std::vector<RopeTable> all(model.ropes().begin(), model.ropes().end());
  all.push_back({.inv_freq = std::vector<double>(all.front().inv_freq.size(), 0.0)});
  return all;
}

std::int32_t head_rows_of(const CudaForwardOptions& o) {
  return std::max(o.max_sequences, kGraphRows);
}

}  // namespace

struct CudaForward::Impl {
  // What a block of a layer is run with.
  struct SkinnyPass {
    std::int32_t layer, n;
    const StepArrays& rows;
    const CudaLayerWeights& w;
    const float* next_norm;  // of the block behind this one, or of the head: the last GEMM of a block applies it
    const CudaContext& context;
  };
  struct WidePass {
    std::int32_t layer, n;
    const StepArrays& rows;
    const CudaLayerWeights& w;
    const CudaContext& context;
  };

  const Model& model;
  const ModelConfig& config;
  ModelPlan plan;
  std::vector<RopeTable> ropes;  // of the plan, and behind them one that rotates nothing
  bool fused_norms;              // few rows: norms are part of the GEMMs around them
  CudaForwardOptions options;
  StepLaunch launch;
  CudaWeights weights;
  CudaAttention attention;
  std::int32_t capacity;  // rows of a step
  CudaActivations a;
  CudaGemms gemms;
  ForwardRanks ranks;
  std::optional<CudaExperts> experts;  // of a mixture
  std::optional<CudaDelta> delta;      // of layers with linear attention
  CudaHead head;
  StepGraphs graphs;
  DeviceBuffer arena;
  CudaBlocks* blocks = nullptr;  // the pool's
  // Metadata of a step's rows (StepArrays): of `capacity`, and of kGraphRows.
  struct StepArrayMemory {
    std::int32_t *all = nullptr, *of_graph = nullptr;
    PinnedBuffer host;
  } rows_at;
  std::vector<std::int32_t> wanted;
  bool alike = false;  // the step's rows are of one kind and a sequence each: a graph can run them
  Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);

  Impl(const Model& m, CudaWeights w, Stream s, const CudaForwardOptions& o);
  void allocate();
  std::int32_t hidden() const { return static_cast<std::int32_t>(config.hidden); }
  std::int32_t qkv_width() const {
    return static_cast<std::int32_t>((config.n_heads + 2 * config.n_kv_heads) * config.head_dim);
  }
  float embedding_scale() const { return static_cast<float>(plan.embedding_scale); }
  float norm_eps() const { return static_cast<float>(plan.norm_eps); }
  const CudaLayerWeights& layer_weights(std::int32_t layer) const {
    return weights.layers()[static_cast<std::size_t>(layer)];
  }
  DeferredNorm deferred(const float* sums, std::int32_t parts) const {
    return {.sums = sums, .n_parts = parts, .n = hidden(), .eps = norm_eps()};
  }
  // The sums of squares that the x_next of n rows came with, before the layer or behind the last one.
  DeferredNorm norm_before(std::int32_t layer, std::int32_t n) const {
    if (layer == 0) return deferred(a.sums_embed, 1);
    if (!experts || ranks.share_heads()) return deferred(a.sums, ranks.parts_of_sums(n));
    return deferred(a.sums, experts->parts(options.batch_invariant ? 1 : n));
  }

  bool fill_rows(const ForwardInput& input, std::int32_t rows_in_all);
  void run_graph_rows(std::int32_t n, std::int32_t n_padded);
  void begin_residual(std::int32_t n, const std::int32_t* tokens, const EmbedOutput& out, const CudaContext& context);
  void angles_of(const StepArrays& rows, std::int32_t n, const CudaContext& context);
  CudaAttention::Memory attention_memory(std::int32_t layer, const AttentionPlan& block, bool bf16) const;
  void launch_few(std::int32_t n);
  void layer_few(std::int32_t layer, std::int32_t n, const StepArrays& rows);
  void attend(std::int32_t layer, std::int32_t n, const StepArrays& rows, const CudaAttention::Memory& memory,
              const CudaContext& context);
  void finish_attention(std::int32_t n, const StepArrays& rows);
  // Products of `normed` with matrices whose results are beside each other, from out.y on.
  void few_parts(std::span<const DeviceMatrix> parts, const DeferredNorm& norm, SkinnyGemmStore out,
                 const SkinnyPass& p);
  void many_parts(std::span<const DeviceMatrix> parts, CudaGemms::Output out, const WidePass& p);
  void few(const AttentionPlan& block, const SkinnyPass& p);
  void few(const MlpPlan&, const SkinnyPass& p);
  void few(const ExpertsPlan&, const SkinnyPass& p);
  void few(const DeltaPlan& block, const SkinnyPass& p);
  // The attended rows, by the sigmoid of the layer's output_gate.
  void gate_output(const AttentionPlan& block, std::int32_t n, const CudaContext& context);
  void launch_many(std::int32_t n, const StepArrays& rows, bool decode_only);
  void layer_many(std::int32_t layer, std::int32_t n, const StepArrays& rows, const CudaContext& context);
  void many(const AttentionPlan& block, const WidePass& p);
  void many(const MlpPlan& mlp, const WidePass& p);
  void many(const ExpertsPlan& block, const WidePass& p);
  void many(const DeltaPlan& block, const WidePass& p);
  void add_shared_expert(const ExpertsPlan& block, const WidePass& p);
  struct ExpertsPass {
    const CudaLayerWeights& w;
    std::int32_t n;
    const CudaContext& context;
  };
  // buffers: without the rows of the residual stream
  void run_experts(const ExpertsPass& p, CudaExperts::Buffers buffers);
  void expect_invariant(const ForwardInput& input, bool of_prompt) const;
  // normed = RMSNorm(residual), or the residual as it is.   norm: its weight, or null
  void input_many(const float* norm, std::int32_t n, const CudaContext& context);
  // residual += x w^T, of many rows and of all ranks that share heads; with norm_behind RMSNorm(x w^T).
  void add_many(const void* x, const DeviceMatrix& w, std::int32_t n, const float* norm_behind);
  void head_many(const std::int32_t* rows, std::int32_t n);
  ConstTensorView collect(const std::optional<std::span<const SamplingRule>>& rules, const StepArrays* to_compute);
  // rules: sample tokens, see CudaForward::sample; none: logits.
  ConstTensorView step(const ForwardInput& input, const std::optional<std::span<const SamplingRule>>& rules);
  // The same, with the other ranks.
  ConstTensorView step_of_rank(const ForwardInput& input, const std::optional<std::span<const SamplingRule>>& rules);
};

CudaForward::Impl::Impl(const Model& m, CudaWeights w, Stream s, const CudaForwardOptions& o)
    : model(m),
      config(m.config()),
      plan(model_plan_of(m.config())),
      ropes(ropes_with_identity(m)),
      fused_norms(config.norms == NormOrder::kBefore && !config.qk_norm_all && config.gate == Gate::kSilu &&
                  config.experts.shared == 0),
      options(o),
      launch{.stream = std::move(s)},
      weights(std::move(w)),
      attention(m, o),
      capacity(capacity_of(o)),
      gemms(weights, launch, o),
      ranks(options, config, a, gemms, launch),
      head(weights, m, head_rows_of(o), gemms, ranks, launch),
      graphs(launch) {
  if (config.norms != NormOrder::kBefore && (ranks.share_heads() || config.o_bias))
    fail(ErrorKind::kUnsupported, "--device cuda: norms behind the blocks of a model{}: expected {}",
         ranks.share_heads() ? ", and ranks that share its heads" : " whose attention has an output bias",
         ranks.share_heads() ? "one GPU, or --pipeline-parallel-size" : "--device cpu");
  if (config.qk_norm_all && config.qkv_bias)
    fail(ErrorKind::kUnsupported,
         "--device cuda: biases of q and k under a norm over all heads: expected a model without one of them, or "
         "--device cpu");
  if (ranks.share_heads() && (config.output_gate || config.experts.shared > 0))
    fail(ErrorKind::kUnsupported,
         "--device cuda: ranks that share the heads of a model with {}: expected one GPU, or --pipeline-parallel-size",
         config.output_gate ? "a gate on attention's output" : "an expert that all rows have");
  if (config.n_state_layers() > 0) delta.emplace(m, capacity, std::max(o.max_sequences, 1), launch.stream);
  if (config.experts.n > 0)
    experts.emplace(config, plan.norm_eps, capacity, ranks.experts(), weights.reorders_experts(), launch.stream);
  allocate();
}

void CudaForward::Impl::allocate() {
  const auto rows = static_cast<std::size_t>(capacity);
  ArenaLayout arrays;
  a.reserve(arrays, config, capacity, gemms.few_rows(), ropes.size());
  gemms.reserve(arrays, capacity);
  ranks.reserve(arrays, rows, static_cast<std::size_t>(head.max_rows()));
  head.reserve(arrays);
  arrays.add(rows_at.all, StepArrays::kArrays * rows * 4);
  arrays.add(rows_at.of_graph, StepArrays::kArrays * kGraphRows * 4);
  arena =
      DeviceBuffer(arrays.total(), "activations of a step (max_batched_tokens and max_sequences make them smaller)");
  arrays.assign(arena.data());
  ranks.take_own_rows();
  set_bytes(arena.data(), 0, arena.size(), launch.stream);
  std::vector<double> frequencies;
  for (const RopeTable& rope : ropes) frequencies.insert(frequencies.end(), rope.inv_freq.begin(), rope.inv_freq.end());
  copy_bytes(a.inv_freq, frequencies.data(), frequencies.size() * 8, launch.stream);
  rows_at.host = PinnedBuffer(StepArrays::kArrays * rows * 4);
  launch.stream.synchronize();
}

// Writes the step's row metadata to host memory and enqueues its copies. True: a graph can run the step.
bool CudaForward::Impl::fill_rows(const ForwardInput& input, std::int32_t rows_in_all) {
  const StepArrays host = StepArrays::at(rows_at.host.as<std::int32_t>(), capacity);
  wanted.clear();
  std::int32_t row = 0;
  for (const SequenceRows& s : input.sequences) {
    if (s.n_rows > 0 && (s.want_logits || s.all_logits))
      for (std::int32_t r = s.all_logits ? 0 : s.n_rows - 1; r < s.n_rows; ++r) wanted.push_back(row + r);
    row += s.n_rows;
  }
  MNEME_CHECK(row == rows_in_all && row <= options.max_rows, "{} tokens for {} rows, of at most {}", rows_in_all, row,
              options.max_rows);
  std::copy(input.tokens.begin(), input.tokens.end(), host.tokens);
  std::copy(wanted.begin(), wanted.end(), host.wanted_rows);
  const TraceRange range("rows, tables and methods");
  const bool uniform = attention.begin(input.sequences, host, launch.stream);
  if (delta) delta->begin(input.sequences, host.state_slots);
  graphs.follow(attention.generation());
  return uniform;
}

CudaAttention::Memory CudaForward::Impl::attention_memory(std::int32_t layer, const AttentionPlan& block,
                                                          bool bf16) const {
  const CudaLayerWeights& w = layer_weights(layer);
  const bool by_heads = block.qk_norm != QkNorm::kAllHeads;
  const auto rope = block.rope == kNoRope ? std::ssize(ropes) - 1 : std::ptrdiff_t{block.rope};
  return {.qkv = bf16 ? static_cast<const void*>(a.qkv) : a.qkv_f32,
          .qkv_bf16 = bf16,
          .bias = bf16 ? w.qkv_bias : nullptr,  // the skinny GEMM has added it
          .q_norm = by_heads ? w.q_norm : nullptr,
          .k_norm = by_heads ? w.k_norm : nullptr,
          .norm_behind = block.qk_norm == QkNorm::kHeadsBehindRope,
          .query_scale = static_cast<float>(block.query_scale),
          .angles = a.angles + rope * capacity * config.head_dim,
          .remote_angles = a.remote_angles,
          .q = a.q,
          .remote_q = a.remote_q,
          .out = a.attended,
          .scratch = a.attention_scratch,
          .sinks = w.sinks,
          .lse = a.lse,
          .phases = launch.phases};
}

// A dense layer is six kernels, seven where q, k and v differ in type: norms are fused into the GEMMs before and after
// them.
void CudaForward::Impl::layer_few(std::int32_t layer, std::int32_t n, const StepArrays& rows) {
  const CudaLayerWeights& w = layer_weights(layer);
  const bool last = layer + 1 == static_cast<std::int32_t>(config.n_layers);
  const float* behind = last ? weights.output_norm() : layer_weights(layer + 1).attn_norm;
  const CudaContext context = launch.overlapped();
  const std::vector<Mixer>& mixers = plan.layers[static_cast<std::size_t>(layer)].blocks;
  for (std::size_t i = 0; i < mixers.size(); ++i) {
    const SkinnyPass p{layer, n, rows, w, i + 1 == mixers.size() ? behind : w.ffn_norm, context};
    std::visit([&](const auto& block) { few(block, p); }, mixers[i]);
  }
}

void CudaForward::Impl::attend(std::int32_t layer, std::int32_t n, const StepArrays& rows,
                               const CudaAttention::Memory& memory, const CudaContext& context) {
  alike ? attention.layer_of_graph(layer, n, rows, memory, context, launch.stream)
        : attention.layer_of_spans(layer, rows, memory, context, launch.stream);
}

void CudaForward::Impl::finish_attention(std::int32_t n, const StepArrays& rows) {
  alike ? attention.finish_graph(n, rows, launch.stream) : attention.finish_spans(rows, launch.stream);
}

void CudaForward::Impl::few_parts(std::span<const DeviceMatrix> parts, const DeferredNorm& norm, SkinnyGemmStore out,
                                  const SkinnyPass& p) {
  for (const DeviceMatrix& part : parts) {
    gemms.few(a.normed, p.n, part, norm, out, p.context);
    out.y = static_cast<float*>(out.y) + part.n_out;
    if (out.bias != nullptr) out.bias += part.n_out;
  }
}

void CudaForward::Impl::many_parts(std::span<const DeviceMatrix> parts, CudaGemms::Output out, const WidePass& p) {
  for (const DeviceMatrix& part : parts) {
    gemms.many(a.normed, p.n, part, out);
    out.y = static_cast<std::byte*>(out.y) + part.n_out * (out.f32 ? 4 : 2);
  }
}

void CudaForward::Impl::few(const AttentionPlan& block, const SkinnyPass& p) {
  const DeferredNorm norm = norm_before(p.layer, p.n);
  few_parts(p.w.qkv.parts, norm, {.y = a.qkv_f32, .bias = p.w.qkv_bias, .stride = qkv_width()}, p);
  if (block.output_gate) gemms.few(a.normed, p.n, p.w.q_gate, norm, {.y = a.output_gate}, p.context);
  launch.lap(StepPhase::kGemm);
  attend(block.kv_layer, p.n, p.rows, attention_memory(p.layer, block, false), p.context);
  gate_output(block, p.n, p.context);
  if (p.w.o_bias != nullptr) add_bias_cuda(a.residual, p.w.o_bias, p.n, hidden(), p.context);
  if (ranks.share_heads())
    ranks.add(a.attended, p.w.o, p.n, p.next_norm);
  else
    gemms.few_residual(a.attended, p.n, p.w.o, {a.residual, p.next_norm, a.normed, a.sums});
}

void CudaForward::Impl::gate_output(const AttentionPlan& block, std::int32_t n, const CudaContext& context) {
  if (block.output_gate) sigmoid_gate_cuda(a.attended, a.output_gate, false, n * block.q_width(), a.attended, context);
}

void CudaForward::Impl::few(const DeltaPlan& block, const SkinnyPass& p) {
  const DeferredNorm norm = norm_before(p.layer, p.n);
  few_parts(p.w.delta.in.parts, norm, {.y = delta->in(), .stride = delta->width()}, p);
  launch.lap(StepPhase::kGemm);
  delta->rows(block, p.w, p.n, p.rows.state_slots, p.context);
  launch.lap(StepPhase::kAttention);
  gemms.few_residual(delta->y(), p.n, p.w.delta.out, {a.residual, p.next_norm, a.normed, a.sums});
}

void CudaForward::Impl::few(const MlpPlan&, const SkinnyPass& p) {
  gemms.few_swiglu(a.normed, p.n, p.w.gate_up, deferred(a.sums, ranks.parts_of_sums(p.n)), a.ffn_hidden);
  if (ranks.share_heads())
    ranks.add(a.ffn_hidden, p.w.down, p.n, p.next_norm);
  else
    gemms.few_residual(a.ffn_hidden, p.n, p.w.down, {a.residual, p.next_norm, a.normed, a.sums});
}

void CudaForward::Impl::few(const ExpertsPlan&, const SkinnyPass& p) {
  if (ranks.share_heads()) return ranks.add_experts(*experts, p.w, p.n, p.next_norm);
  run_experts({p.w, p.n, p.context}, {.deferred = true, .next_norm = p.next_norm, .sums = a.sums});
}

// Batch-invariant: a row at a time, because how pairs are routed and multiplied follows their number.
void CudaForward::Impl::run_experts(const ExpertsPass& p, CudaExperts::Buffers buffers) {
  const std::int32_t each = options.batch_invariant && !gemms.of_prompt() ? 1 : p.n;
  for (std::int32_t first = 0; first < p.n; first += each) {
    buffers.tiled_as = options.batch_invariant && gemms.of_prompt() ? kInvariantRows : each;
    buffers.residual = a.residual + std::int64_t{first} * hidden();
    buffers.normed = a.normed + std::int64_t{first} * hidden() * 2;
    if (buffers.sums != nullptr) buffers.sums = a.sums + std::int64_t{first} * experts->parts(each);
    experts->run(p.w, each, buffers, p.context);
  }
}

// Rows of the residual stream that this rank's layers begin with: embeddings, or those behind the stage before.
void CudaForward::Impl::begin_residual(std::int32_t n, const std::int32_t* tokens, const EmbedOutput& out,
                                       const CudaContext& context) {
  ranks.is_first_stage() ? embed_cuda(tokens, n, weights.embedding(), out, context) : ranks.take_rows(n, out);
}

// RoPE angles of the rows' positions, and of their remapped positions.
void CudaForward::Impl::angles_of(const StepArrays& rows, std::int32_t n, const CudaContext& context) {
  const auto half = static_cast<std::int32_t>(config.head_dim / 2);
  const bool rotates_all = config.unrotated.empty();
  for (std::size_t i = 0; i < ropes.size() - (rotates_all ? 1 : 0); ++i)
    rope_angles_cuda(rows.positions, n, a.inv_freq + static_cast<std::ptrdiff_t>(i) * half, half, ropes[i].scale,
                     a.angles + static_cast<std::ptrdiff_t>(i) * capacity * config.head_dim, context);
  if (attention.has_remapped())
    rope_angles_cuda(rows.remote_positions, n, a.inv_freq, half, model.rope().scale, a.remote_angles, context);
}

void CudaForward::Impl::launch_few(std::int32_t n) {
  const StepArrays rows = StepArrays::at(rows_at.of_graph, kGraphRows);
  const CudaContext context = launch.overlapped();
  if (launch.phases != nullptr) launch.phases->start(launch.stream);
  begin_residual(n, rows.tokens, {a.residual, layer_weights(0).attn_norm, a.normed, a.sums_embed, embedding_scale()},
                 context);
  angles_of(rows, n, context);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) layer_few(layer, n, rows);
  finish_attention(n, rows);
  ranks.hand_rows_on(n);
  head.run_few(a.normed, n, norm_before(static_cast<std::int32_t>(config.n_layers), n));
  attention.join(launch.stream);
  launch.lap(StepPhase::kWait);
}

void CudaForward::Impl::input_many(const float* norm, std::int32_t n, const CudaContext& context) {
  norm == nullptr ? to_bf16_cuda(reinterpret_cast<const std::byte*>(a.residual), DType::kF32,
                                 std::int64_t{n} * hidden(), a.normed, launch.serial())
                  : rms_norm_cuda(a.residual, nullptr, n, hidden(), norm, norm_eps(), a.normed, context);
}

void CudaForward::Impl::add_many(const void* x, const DeviceMatrix& w, std::int32_t n, const float* norm_behind) {
  if (norm_behind != nullptr) {
    gemms.many(x, n, w, {.y = a.block_out, .f32 = true});
    add_normed_cuda(a.residual, a.block_out, n, hidden(), norm_behind, static_cast<float>(config.rms_eps),
                    launch.serial());
    return;
  }
  ranks.share_heads() ? ranks.add(x, w, n) : gemms.many(x, n, w, {.y = a.residual, .f32 = true, .accumulate = true});
}

void CudaForward::Impl::layer_many(std::int32_t layer, std::int32_t n, const StepArrays& rows,
                                   const CudaContext& context) {
  const WidePass p{layer, n, rows, layer_weights(layer), context};
  for (const Mixer& mixer : plan.layers[static_cast<std::size_t>(layer)].blocks)
    std::visit([&](const auto& block) { many(block, p); }, mixer);
}

void CudaForward::Impl::many(const AttentionPlan& block, const WidePass& p) {
  input_many(p.w.attn_norm, p.n, p.context);
  many_parts(p.w.qkv.parts, {.y = a.qkv, .stride = qkv_width()}, p);
  if (block.qk_norm == QkNorm::kAllHeads) {
    const auto eps = static_cast<float>(config.rms_eps);
    const auto q = static_cast<std::int32_t>(block.q_width()), kv = static_cast<std::int32_t>(block.kv_width());
    norm_in_place_cuda(a.qkv, p.n, q, qkv_width(), p.w.q_norm, eps, p.context);
    norm_in_place_cuda(a.qkv + std::int64_t{q} * 2, p.n, kv, qkv_width(), p.w.k_norm, eps, p.context);
  }
  if (block.output_gate) gemms.many(a.normed, p.n, p.w.q_gate, {.y = a.output_gate, .f32 = true});
  launch.lap(StepPhase::kGemm);
  const CudaAttention::Memory memory = attention_memory(p.layer, block, true);
  attend(block.kv_layer, p.n, p.rows, memory, p.context);
  gate_output(block, p.n, p.context);
  if (p.w.o_bias != nullptr) add_bias_cuda(a.residual, p.w.o_bias, p.n, hidden(), p.context);
  add_many(a.attended, p.w.o, p.n, p.w.attn_out_norm);
}

void CudaForward::Impl::many(const DeltaPlan& block, const WidePass& p) {
  input_many(p.w.attn_norm, p.n, p.context);
  many_parts(p.w.delta.in.parts, {.y = delta->in(), .f32 = true, .stride = delta->width()}, p);
  launch.lap(StepPhase::kGemm);
  alike ? delta->rows(block, p.w, p.n, p.rows.state_slots, p.context)
        : delta->spans(block, p.w, p.rows.state_slots, p.context);
  launch.lap(StepPhase::kAttention);
  add_many(delta->y(), p.w.delta.out, p.n, p.w.attn_out_norm);
}

void CudaForward::Impl::many(const MlpPlan& mlp, const WidePass& p) {
  input_many(p.w.ffn_norm, p.n, p.context);
  gemms.many(a.normed, p.n, p.w.gate_up, {.y = a.gate_up});
  const auto gated = mlp.gate == Gate::kGelu ? geglu_cuda : swiglu_cuda;
  gated(a.gate_up, p.n, static_cast<std::int32_t>(mlp.width), a.ffn_hidden, p.context);
  add_many(a.ffn_hidden, p.w.down, p.n, p.w.ffn_out_norm);
}

void CudaForward::Impl::many(const ExpertsPlan& block, const WidePass& p) {
  if (ranks.share_heads()) return ranks.add_experts(*experts, p.w, p.n);
  run_experts({p.w, p.n, p.context}, {});
  if (block.shared > 0) add_shared_expert(block, p);
}

// Of the rows that the routed experts have read, which `normed` still has.
void CudaForward::Impl::add_shared_expert(const ExpertsPlan& block, const WidePass& p) {
  gemms.many(a.normed, p.n, p.w.shared_gate_up, {.y = a.gate_up});
  swiglu_cuda(a.gate_up, p.n, static_cast<std::int32_t>(block.shared), a.ffn_hidden, p.context);
  gemms.many(a.ffn_hidden, p.n, p.w.shared_down, {.y = a.block_out, .f32 = true});
  add_shared_expert_cuda(a.residual, a.normed, p.w.shared_gate, a.block_out, p.n, hidden(), p.context);
}

void CudaForward::Impl::launch_many(std::int32_t n, const StepArrays& rows, bool decode_only) {
  const CudaContext context = decode_only ? launch.overlapped() : launch.serial();  // kernels of prompts are long
  if (launch.phases != nullptr) launch.phases->start(launch.stream);
  begin_residual(n, rows.tokens, {.residual = a.residual, .scale = embedding_scale()}, context);
  angles_of(rows, n, context);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) layer_many(layer, n, rows, context);
  finish_attention(n, rows);
  launch.lap(StepPhase::kGemm);
  ranks.hand_rows_on(n);
  attention.join(launch.stream);
  launch.lap(StepPhase::kWait);
}

// Logits of n rows and the argmax of each. rows: which rows, null: the first n.
void CudaForward::Impl::head_many(const std::int32_t* rows, std::int32_t n) {
  rms_norm_cuda(a.residual, rows, n, hidden(), weights.output_norm(), norm_eps(), a.normed, launch.serial());
  head.run_many(a.normed, n);
}

// n rows of n sequences.
void CudaForward::Impl::run_graph_rows(std::int32_t n, std::int32_t n_padded) {
  const StepArrays from = StepArrays::at(rows_at.host.as<std::int32_t>(), capacity);
  for (std::int32_t i = n; i < n_padded; ++i)
    for (std::int32_t array = 0; array < StepArrays::kGraphArrays; ++array)
      rows_at.host.as<std::int32_t>()[std::int64_t{array} * capacity + i] = 0;
  for (std::int32_t i = n; i < n_padded; ++i) from.slots[i] = from.seq_slots[i] = from.state_slots[i] = -1;
  const std::size_t bytes = static_cast<std::size_t>(n_padded) * sizeof(std::int32_t);
  for (std::int32_t i = 0; i < StepArrays::kGraphArrays; ++i)
    copy_bytes(rows_at.of_graph + std::int64_t{i} * kGraphRows,
               rows_at.host.as<std::int32_t>() + std::int64_t{i} * capacity, bytes, launch.stream);
  const auto launches = [&] {
    if (fused_norms && n_padded <= gemms.few_rows()) return launch_few(n_padded);
    launch_many(n_padded, StepArrays::at(rows_at.of_graph, kGraphRows), true);
    head_many(nullptr, n_padded);
  };
  const bool in_graph = attention.in_graph() && alike;
  in_graph ? graphs.run({n_padded, attention.graph_kind()}, launches) : graphs.run_directly(launches);
}

// Collects the results on the host: logits, or tokens if there are rules. to_compute: the rows, if the head has not
// processed them yet; it takes a limited number per call.
ConstTensorView CudaForward::Impl::collect(const std::optional<std::span<const SamplingRule>>& rules,
                                           const StepArrays* to_compute) {
  const auto n = static_cast<std::int32_t>(wanted.size());
  MNEME_CHECK(!rules || rules->empty() || rules->size() == wanted.size(), "{} rules for {} rows", rules->size(), n);
  float* to = rules ? nullptr : head.host_logits(n);
  const auto rules_of = [&](std::int32_t first, std::size_t count) {
    return rules && !rules->empty() ? rules->subspan(static_cast<std::size_t>(first), count)
                                    : std::span<const SamplingRule>();
  };
  head.clear_samples();
  if (to_compute == nullptr) head.fetch(wanted, rules_of(0, wanted.size()), to);
  std::vector<std::int32_t> rows;
  for (std::int32_t first = 0; to_compute != nullptr && first < n; first += head.max_rows()) {
    rows.resize(static_cast<std::size_t>(std::min(head.max_rows(), n - first)));
    std::iota(rows.begin(), rows.end(), 0);
    head_many(to_compute->wanted_rows + first, static_cast<std::int32_t>(rows.size()));
    head.fetch(rows, rules_of(first, rows.size()), to == nullptr ? nullptr : to + first * config.vocab);
  }
  const TraceRange range("wait for the device");
  attention.fetch_counts(launch.stream);
  end.record(launch.stream);
  launch.stream.synchronize();
  attention.count(launch.stream);
  return view_of(static_cast<const float*>(to), {to != nullptr ? n : 0, config.vocab});
}

CudaForward::CudaForward(const Model& model, CudaWeights weights, Stream stream, const CudaForwardOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(weights), std::move(stream), options)) {}
CudaForward::~CudaForward() = default;

std::unique_ptr<PagePool> CudaForward::make_pool(const KvShape& shape, std::int64_t n_blocks,
                                                 const ProgressFn& progress) {
  MNEME_CHECK(impl_->blocks == nullptr, "a second pool");
  const std::size_t bytes = static_cast<std::size_t>(n_blocks) * shape.page_bytes();
  auto blocks = impl_->options.store == KvStore::kHost ? CudaBlocks::on_host(bytes, impl_->launch.stream, progress)
                                                       : CudaBlocks::on_device(bytes, impl_->launch.stream);
  impl_->blocks = blocks.get();
  if (impl_->delta) blocks->set_states(impl_->delta->states());
  impl_->attention.prepare(shape, *blocks);
  return std::make_unique<PagePool>(shape, n_blocks, std::move(blocks));
}

std::int64_t CudaForward::room_bytes() const {
  const KvShape shape = impl_->model.kv_shape(impl_->options.kv_dtype);
  return static_cast<std::int64_t>(device_info(0).free_bytes) - kReservedDeviceBytes -
         impl_->attention.reserved_device_bytes(shape);
}

void CudaForward::set_store(KvStore store) {
  MNEME_CHECK(impl_->blocks == nullptr, "the pool is there already");
  impl_->options.store = store;
  impl_->attention.set_store(store);
}

void CudaForward::observe(StepObserver* observer) {
  impl_->attention.observe(observer);
}

std::size_t CudaForward::rank_message_bytes(const ModelConfig& config, const CudaForwardOptions& o, int n_ranks) {
  const std::int64_t rows = std::max({o.max_rows, o.max_sequences, kGraphRows}) * config.hidden,
                     logits = vocabulary_part(config.vocab, n_ranks) * n_ranks * head_rows_of(o);
  return static_cast<std::size_t>(std::max(rows, logits)) * sizeof(float);
}

CudaForward::MethodBytes CudaForward::method_bytes() const {
  MethodBytes bytes;
  for (const auto& r : impl_->attention.retrievals().all()) {
    bytes.all += r->bytes();
    bytes.slots += r->slot_bytes(), bytes.index += r->index_bytes(), bytes.dense_layers += r->dense_bytes();
  }
  return bytes;
}

// What batch invariance requires of a step.
void CudaForward::Impl::expect_invariant(const ForwardInput& input, bool of_prompt) const {
  std::size_t n_sequences = 0;
  for (const SequenceRows& s : input.sequences) {
    if (s.n_rows == 0) continue;
    ++n_sequences;
    const std::int32_t first = s.cache->length() - s.n_rows;
    MNEME_CHECK(!of_prompt || first % kInvariantRows == 0, "rows of a prompt from {} on", first);
    MNEME_CHECK(of_prompt || s.n_rows == 1, "{} rows of a sequence that decodes", s.n_rows);
  }
  MNEME_CHECK(n_sequences <= (of_prompt ? 1U : static_cast<std::size_t>(kGraphRows)), "{} sequences", n_sequences);
}

ConstTensorView CudaForward::Impl::step(const ForwardInput& input,
                                        const std::optional<std::span<const SamplingRule>>& rules) {
  MNEME_CHECK(attention.ready(), "a step before make_pool()");
  use_device(0);
  const auto n = static_cast<std::int32_t>(input.tokens.size());
  const TraceRange range(n == static_cast<std::int32_t>(input.sequences.size()) ? "decode step" : "prefill step");
  alike = fill_rows(input, n) && n <= kGraphRows;
  begin.record(launch.stream);
  if (n == 0) return collect(rules, nullptr);
  const bool of_prompt = std::any_of(input.sequences.begin(), input.sequences.end(),
                                     [](const SequenceRows& s) { return s.phase == SequencePhase::kPrefill; });
  gemms.begin_step(of_prompt);
  if (options.batch_invariant) expect_invariant(input, of_prompt);
  alike = alike && !(options.batch_invariant && of_prompt);
  if (options.batch_invariant ? !of_prompt : alike) {
    run_graph_rows(n, graph_rows(n));
    return collect(rules, nullptr);
  }
  launch.phases = nullptr;
  copy_bytes(rows_at.all, rows_at.host.data(), rows_at.host.size(), launch.stream);
  const StepArrays rows = StepArrays::at(rows_at.all, capacity);
  launch_many(n, rows, false);
  return collect(rules, &rows);
}

ConstTensorView CudaForward::Impl::step_of_rank(const ForwardInput& input,
                                                const std::optional<std::span<const SamplingRule>>& rules) {
  if (options.ranks == nullptr) {
    const ConstTensorView out = step(input, rules);
    if (delta) CudaDelta::end(input.sequences);
    return out;
  }
  MNEME_CHECK(!delta, "linear attention of several ranks");
  expect_agreement(options.ranks->ranks(), "step", step_hash(input));
  options.ranks->begin_step();
  const ConstTensorView out = step(input, rules);
  options.ranks->end_step();
  return out;
}

ConstTensorView CudaForward::run(const ForwardInput& input) {
  return impl_->step_of_rank(input, {});
}
std::span<const TokenSample> CudaForward::sample(const ForwardInput& input, std::span<const SamplingRule> rules) {
  impl_->step_of_rank(input, rules);
  return impl_->head.samples();
}
const CudaWeights& CudaForward::weights() const {
  return impl_->weights;
}
const Stream& CudaForward::stream() const {
  return impl_->launch.stream;
}
double CudaForward::device_seconds() const {
  return impl_->end.seconds_since(impl_->begin);
}
void CudaForward::time_phases(bool on) {
  impl_->graphs.time_phases(on);
}
PhaseClock::Seconds CudaForward::phase_seconds() const {
  return impl_->launch.phases != nullptr ? impl_->launch.phases->seconds() : PhaseClock::Seconds{};
}
std::size_t CudaForward::activation_bytes() const {
  return impl_->arena.size() + impl_->attention.bytes() + (impl_->experts ? impl_->experts->bytes() : 0) +
         (impl_->delta ? impl_->delta->bytes() : 0);
}
std::byte* CudaForward::kv_data() const {
  return impl_->blocks->base();
}
std::size_t CudaForward::kv_bytes() const {
  return impl_->blocks->bytes();
}

}  // namespace mneme
