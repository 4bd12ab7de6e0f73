// A step is run_graph_rows() (few rows, a replayed graph) or launch_many() (prompts); a layer is layer_few() or
// layer_many(). The rest is memory and row metadata.
#include "src/model/cuda/forward.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/cuda/device.h"
#include "src/cuda/trace_range.h"
#include "src/model/cuda/attention.h"
#include "src/model/cuda/experts.h"
#include "src/model/cuda/ranks/device_collective.h"
#include "src/model/ranks/rank_forward.h"
#include "src/ops/gemm/device/gemm_cublaslt_cuda.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"
#include "src/ops/norm_rope/pointwise_cuda.h"
#include "src/ops/norm_rope/rank_rows_cuda.h"

namespace mneme {
namespace {

constexpr std::int32_t kGraphRows = kSkinnyRows;  // steps with more sequences are launched kernel by kernel

std::int32_t graph_rows(std::int32_t n) {
  return n <= 8 ? n : (n + 7) / 8 * 8;
}

std::int32_t head_rows_of(const CudaForwardOptions& o) {
  return std::max(o.max_sequences, kGraphRows);
}

// The most rows that skinny GEMMs take for all of a model's matrices.
std::int32_t skinny_rows(const CudaWeights& weights) {
  std::int32_t rows = kSkinnyRows;
  weights.for_each([&](const DeviceMatrix& w) {
    for (const std::int32_t fewer : {kWgmmaBf16Rows, kSkinnyBf16Rows, 8})
      if (!skinny_gemm_takes(w.dtype, rows)) rows = std::min(rows, fewer);
  });
  return rows;
}

// The widest of a model's matrices.
struct Widest {
  std::int64_t input;
  std::size_t converted = 0;  // elements of those that become bf16 for a GEMM with many rows; the head has few
  std::size_t reordered = 0;  // columns of those whose columns are in another order
};
Widest widest_of(const CudaWeights& weights) {
  Widest widest{.input = weights.head().n_in};
  weights.for_each_in_layers([&](const DeviceMatrix& w) {
    widest.input = std::max(widest.input, w.n_in);
    if (is_quantised(w.dtype) || w.on_host)
      widest.converted = std::max(widest.converted, static_cast<std::size_t>(w.n_out * w.n_in));
    if (w.columns != nullptr) widest.reordered = std::max(widest.reordered, static_cast<std::size_t>(w.n_in));
  });
  return widest;
}

}  // namespace

// Where the results of a GEMM with any number of rows go: y = x w^T, or y += x w^T (f32).
struct CudaForward::Product {
  void* y = nullptr;
  bool f32 = false, accumulate = false;
  std::int64_t stride = 0;  // elements between rows of y; 0: w's rows
};

struct CudaForward::Impl {
  const Model& model;
  const ModelConfig& config;
  CudaForwardOptions options;
  Stream stream;
  CudaWeights weights;
  CublasLtGemm products;
  CudaAttention attention;
  std::optional<CudaExperts> experts;  // of a mixture
  std::int32_t q_width, kv_width, capacity;
  DeviceCollective* ranks;      // that share every layer; null: these layers are whole
  DeviceCollective* stages;     // that share the layers, in order; null: this rank has all
  std::int32_t vocab_part = 0;  // columns of `logits` that a rank computes
  std::int32_t few_rows;        // steps with at most so many rows, one a sequence, take layer_few()

  // ---- memory
  DeviceBuffer arena;
  float *residual = nullptr, *qkv_f32 = nullptr, *sums_embed = nullptr, *sums = nullptr, *angles = nullptr,
        *remote_angles = nullptr, *logits = nullptr, *best_logprob = nullptr, *lse = nullptr, *rank_rows = nullptr,
        *rank_logits = nullptr, *all_rank_logits = nullptr;
  std::byte *gathered = nullptr, *normed = nullptr, *qkv = nullptr, *q = nullptr, *remote_q = nullptr,
            *attended = nullptr, *gate_up = nullptr, *ffn_hidden = nullptr, *dequantised = nullptr,
            *attention_scratch = nullptr;
  std::int32_t *row_base = nullptr, *graph_base = nullptr, *best_token = nullptr;
  double* inv_freq = nullptr;
  SkinnyWorkspace workspace;
  SamplingRule* sampling_rules = nullptr;
  PinnedBuffer host_rows, host_logits, host_best, host_rules;
  Buffer all_logits;             // for more rows than the head takes in one call
  CudaBlocks* blocks = nullptr;  // the pool's

  // ---- a step
  // By rows and CudaAttention::graph_kind(); null until the second step of a shape.
  struct GraphOfStep {
    Graph graph;
    PhaseClock phases;
  };
  std::map<std::pair<std::int32_t, std::int32_t>, GraphOfStep> graphs;
  bool times_phases = false;
  PhaseClock launched_phases;    // of steps that no graph can run
  PhaseClock* phases = nullptr;  // of the current step, where it is timed
  std::int32_t generation = 0;   // of `attention`, for which the graphs were captured
  std::vector<std::int32_t> wanted;
  std::vector<TokenSample> samples;
  Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);

  Impl(const Model& m, CudaWeights w, Stream s, const CudaForwardOptions& o);
  void allocate();
  void allocate_on_host(std::size_t rows, std::size_t sequences);
  CudaContext serial() const { return {.stream = stream.get()}; }
  CudaContext overlapped() const {
    return {.stream = stream.get(), .order = phases != nullptr ? LaunchOrder::kSerial : LaunchOrder::kOverlapped};
  }
  void lap(StepPhase phase) const {
    if (phases != nullptr) phases->lap(phase, stream);
  }
  DeferredNorm deferred(const float* from, std::int32_t parts) const {
    return {.sums = from,
            .n_parts = parts,
            .n = static_cast<std::int32_t>(config.hidden),
            .eps = static_cast<float>(config.rms_eps)};
  }

  bool fill_rows(const ForwardInput& input, std::int32_t rows_in_all);
  void run_graph_rows(std::int32_t n, std::int32_t n_padded);
  void angles_of(const CudaRowArrays& rows, std::int32_t n, const CudaContext& context);
  void launch_few(std::int32_t n);
  void launch_many(std::int32_t n, const CudaRowArrays& rows, bool decode_only);
  void head_many(const std::int32_t* rows, std::int32_t n);
  std::int32_t head_rows() const { return head_rows_of(options); }  // per call
  void layer_few(std::int32_t layer, std::int32_t n, const CudaRowArrays& rows);
  void layer_many(std::int32_t layer, std::int32_t n, const CudaRowArrays& rows, bool decode_only,
                  const CudaContext& context);
  // What the ranks' sums of rows cost a step beside one GPU's: residual += the sum over the ranks of x w^T. With
  // next_norm by skinny GEMMs, and the next norm starts.
  void add_over_ranks(const void* x, const DeviceMatrix& w, std::int32_t n, const float* next_norm = nullptr);
  // The same, of the outputs of the ranks' experts.
  void add_experts_over_ranks(const CudaLayerWeights& w, std::int32_t n, const float* next_norm = nullptr);
  // Their common end: residual += the sum over the ranks of rank_rows; with next_norm that norm starts.
  void add_rank_rows(std::int32_t n, const float* next_norm);
  // Logits of n rows from `rank_logits` of all ranks.
  void gather_logits(std::int32_t n);
  bool is_last_stage() const { return stages == nullptr || stages->ranks().rank() + 1 == stages->ranks().size(); }
  // The last of many ranks may have no rows of a small vocabulary.
  bool has_head() const { return is_last_stage() && weights.head().n_out > 0; }
  bool is_first_stage() const { return stages == nullptr || stages->ranks().rank() == 0; }
  void begin_residual(std::int32_t n, const std::int32_t* tokens, const EmbedOutput& out, const CudaContext& context);
  void hand_rows_on(std::int32_t n);
  void share_logits(std::int32_t n);
  // The sums of squares that the x_next of n rows came with, before the layer or behind the last one.
  DeferredNorm norm_before(std::int32_t layer, std::int32_t n) const {
    if (layer == 0) return deferred(sums_embed, 1);
    return deferred(sums, experts && ranks == nullptr ? experts->parts(n) : parts_of_sums(n));
  }
  std::int32_t parts_of_sums(std::int32_t n) const {
    return ranks != nullptr ? ranks->row_parts(n, static_cast<std::int32_t>(config.hidden))
                            : residual_parts(config.hidden, n);
  }
  // x in the order of the columns of w.
  const void* ordered(const void* x, const DeviceMatrix& w, std::int64_t m, const CudaContext& context);
  void multiply(const void* x, const DeviceMatrix& w, std::int64_t m, const Product& y);
  CudaAttention::Memory attention_memory(std::int32_t layer, bool bf16) const;
  void fetch(std::span<const std::int32_t> rows, std::span<const SamplingRule> rules, float* to);
  ConstTensorView collect(const std::optional<std::span<const SamplingRule>>& rules, const CudaRowArrays* to_compute);
  // rules: sample tokens, see CudaForward::sample; none: logits.
  ConstTensorView step(const ForwardInput& input, const std::optional<std::span<const SamplingRule>>& rules);
  // The same, with the other ranks.
  ConstTensorView step_of_rank(const ForwardInput& input, const std::optional<std::span<const SamplingRule>>& rules);
};

CudaForward::Impl::Impl(const Model& m, CudaWeights w, Stream s, const CudaForwardOptions& o)
    : model(m),
      config(m.config()),
      options(o),
      stream(std::move(s)),
      weights(std::move(w)),
      attention(m, o),
      ranks(o.split == RankSplit::kHeads ? o.ranks : nullptr),
      stages(o.split == RankSplit::kLayers ? o.ranks : nullptr) {
  q_width = static_cast<std::int32_t>(config.n_heads * config.head_dim);
  kv_width = static_cast<std::int32_t>(config.n_kv_heads * config.head_dim);
  few_rows = skinny_rows(weights);
  capacity = std::max(options.max_rows, graph_rows(std::min(options.max_sequences, kGraphRows)));
  if (ranks != nullptr) vocab_part = static_cast<std::int32_t>(vocabulary_part(config.vocab, ranks->ranks().size()));
  allocate();
}

void CudaForward::Impl::allocate() {
  const auto rows = static_cast<std::size_t>(capacity);
  const auto hidden = static_cast<std::size_t>(config.hidden);
  const std::size_t ffn = config.experts.n > 0 ? 0 : static_cast<std::size_t>(config.ffn);
  if (config.experts.n > 0)
    experts.emplace(config, capacity,
                    ranks == nullptr ? RankRange{.first = 0, .end = config.experts.n}
                                     : rank_experts(config.experts.n, ranks->ranks().rank(), ranks->ranks().size()),
                    weights.reorders_experts(), stream);
  const auto qkv_width = static_cast<std::size_t>(q_width + 2 * kv_width), q_n = static_cast<std::size_t>(q_width);
  const auto sequences = static_cast<std::size_t>(head_rows());
  const Widest widest = widest_of(weights);
  const auto few = static_cast<std::size_t>(few_rows);
  // Every query head may attend a selection of its own (pool=none).
  const std::size_t scratch = decode_attention_scratch_bytes(capacity, static_cast<std::int32_t>(config.n_heads),
                                                             static_cast<std::int32_t>(config.head_dim));
  ArenaLayout arrays;
  arrays.add(residual, rows * hidden * 4);
  arrays.add(gathered, rows * widest.reordered * 2);
  arrays.add(normed, rows * hidden * 2);
  arrays.add(qkv, rows * qkv_width * 2);
  arrays.add(qkv_f32, few * qkv_width * 4);
  arrays.add(q, rows * q_n * 2);
  arrays.add(remote_q, rows * q_n * 2);
  arrays.add(attended, rows * q_n * 2);
  arrays.add(lse, config.has_sinks() ? rows * static_cast<std::size_t>(config.n_heads) * 4 : 0);
  arrays.add(gate_up, rows * 2 * ffn * 2);
  arrays.add(ffn_hidden, rows * ffn * 2);
  arrays.add(dequantised, widest.converted * 2);
  arrays.add(sums_embed, kSkinnyRows * 4);
  arrays.add(sums, (hidden / 16 + 1) * kSkinnyRows * 4);
  arrays.add(workspace.partial, skinny_partial_bytes());
  arrays.add(workspace.arrived, kSkinnyUnits * 4);
  arrays.add(workspace.permuted, skinny_permuted_bytes(widest.input));
  arrays.add(angles, rows * static_cast<std::size_t>(config.head_dim) * 4);
  arrays.add(remote_angles, rows * static_cast<std::size_t>(config.head_dim) * 4);
  arrays.add(logits, sequences * static_cast<std::size_t>(config.vocab) * 4);
  const std::size_t part = sequences * static_cast<std::size_t>(vocab_part) * 4;
  float* const shown_rows = ranks != nullptr ? ranks->own_rows() : nullptr;
  arrays.add(rank_rows, (ranks != nullptr && shown_rows == nullptr) || stages != nullptr ? rows * hidden * 4 : 0);
  arrays.add(rank_logits, part);
  arrays.add(all_rank_logits, ranks != nullptr ? part * static_cast<std::size_t>(ranks->ranks().size()) : 0);
  arrays.add(best_token, sequences * 4);
  arrays.add(best_logprob, sequences * 4);
  arrays.add(sampling_rules, sequences * sizeof(SamplingRule));
  arrays.add(row_base, CudaRowArrays::kArrays * rows * 4);
  arrays.add(graph_base, CudaRowArrays::kArrays * kGraphRows * 4);
  arrays.add(inv_freq, model.rope().inv_freq.size() * 8);
  arrays.add(attention_scratch, scratch);
  arena =
      DeviceBuffer(arrays.total(), "activations of a step (max_batched_tokens and max_sequences make them smaller)");
  arrays.assign(arena.data());
  if (shown_rows != nullptr) rank_rows = shown_rows;
  set_bytes(arena.data(), 0, arena.size(), stream);
  copy_bytes(inv_freq, model.rope().inv_freq.data(), model.rope().inv_freq.size() * 8, stream);
  allocate_on_host(rows, sequences);
  stream.synchronize();
}

// What a step copies to the device and back.
void CudaForward::Impl::allocate_on_host(std::size_t rows, std::size_t sequences) {
  host_rows = PinnedBuffer(CudaRowArrays::kArrays * rows * 4);
  host_logits = PinnedBuffer(sequences * static_cast<std::size_t>(config.vocab) * 4);
  host_best = PinnedBuffer(sequences * 8);
  host_rules = PinnedBuffer(sequences * sizeof(SamplingRule));
}

// Writes the step's row metadata to host memory and enqueues its copies. True: a graph can run the step.
bool CudaForward::Impl::fill_rows(const ForwardInput& input, std::int32_t rows_in_all) {
  const CudaRowArrays host = CudaRowArrays::at(host_rows.as<std::int32_t>(), capacity);
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
  const bool uniform = attention.begin(input.sequences, host, stream);
  if (generation != attention.generation()) graphs.clear();
  generation = attention.generation();
  return uniform;
}

CudaAttention::Memory CudaForward::Impl::attention_memory(std::int32_t layer, bool bf16) const {
  const CudaLayerWeights& w = weights.layers()[static_cast<std::size_t>(layer)];
  return {.qkv = bf16 ? static_cast<const void*>(qkv) : qkv_f32,
          .qkv_bf16 = bf16,
          .bias = bf16 ? w.qkv_bias : nullptr,  // the skinny GEMM has added it
          .q_norm = w.q_norm,
          .k_norm = w.k_norm,
          .angles = angles,
          .remote_angles = remote_angles,
          .q = q,
          .remote_q = remote_q,
          .out = attended,
          .scratch = attention_scratch,
          .sinks = w.sinks,
          .lse = lse,
          .phases = phases};
}

// A dense layer is six kernels, seven where q, k and v differ in type: norms are fused into the GEMMs before and after
// them.
void CudaForward::Impl::layer_few(std::int32_t layer, std::int32_t n, const CudaRowArrays& rows) {
  const CudaLayerWeights& w = weights.layers()[static_cast<std::size_t>(layer)];
  const bool last = layer + 1 == static_cast<std::int32_t>(config.n_layers);
  const float* next_norm =
      last ? weights.output_norm() : weights.layers()[static_cast<std::size_t>(layer) + 1].attn_norm;
  const std::int32_t parts = parts_of_sums(n);
  const CudaContext context = overlapped();

  const DeferredNorm norm = norm_before(layer, n);
  std::int64_t first = 0;
  for (const DeviceMatrix& part : w.qkv.parts) {
    const float* bias = w.qkv_bias == nullptr ? nullptr : w.qkv_bias + first;
    skinny_gemm_cuda(ordered(normed, part, n, context), n, part, norm,
                     {.y = qkv_f32 + first, .bias = bias, .stride = q_width + 2 * kv_width}, workspace, context);
    first += part.n_out;
  }
  lap(StepPhase::kGemm);
  attention.layer_of_graph(layer, n, rows, attention_memory(layer, false), context, stream);
  if (w.o_bias != nullptr) add_bias_cuda(residual, w.o_bias, n, static_cast<std::int32_t>(config.hidden), context);
  if (ranks != nullptr) {
    add_over_ranks(attended, w.o, n, w.ffn_norm);
    if (experts) return add_experts_over_ranks(w, n, next_norm);
    skinny_gemm_swiglu_cuda(ordered(normed, w.gate_up, n, context), n, w.gate_up, deferred(sums, parts), ffn_hidden,
                            workspace, context);
    add_over_ranks(ffn_hidden, w.down, n, next_norm);
    return;
  }
  skinny_gemm_residual_cuda(ordered(attended, w.o, n, context), n, w.o,
                            {.residual = residual, .norm_weight = w.ffn_norm, .x_next = normed, .sums = sums},
                            workspace, context);
  if (experts) {
    experts->run(w, n, {.residual = residual, .normed = normed, .deferred = true, .next_norm = next_norm, .sums = sums},
                 context);
    return;
  }
  skinny_gemm_swiglu_cuda(ordered(normed, w.gate_up, n, context), n, w.gate_up, deferred(sums, parts), ffn_hidden,
                          workspace, context);
  skinny_gemm_residual_cuda(ordered(ffn_hidden, w.down, n, context), n, w.down,
                            {.residual = residual, .norm_weight = next_norm, .x_next = normed, .sums = sums}, workspace,
                            context);
}

void CudaForward::Impl::add_over_ranks(const void* x, const DeviceMatrix& w, std::int32_t n, const float* next_norm) {
  const auto hidden = static_cast<std::int32_t>(config.hidden);
  if (next_norm == nullptr && !ranks->adds_in_one(n, hidden)) {  // the sum has the residual: no kernel behind it
    const bool first = ranks->ranks().rank() == 0;
    float* const mine = first ? residual : rank_rows;
    multiply(x, w, n, {.y = mine, .f32 = true, .accumulate = first});
    lap(StepPhase::kGemm);
    ranks->all_reduce(mine, residual, static_cast<std::size_t>(n) * static_cast<std::size_t>(hidden), serial());
    return lap(StepPhase::kRanks);
  }
  if (next_norm != nullptr)
    skinny_gemm_cuda(ordered(x, w, n, overlapped()), n, w, {}, {.y = rank_rows}, workspace, overlapped());
  else
    multiply(x, w, n, {.y = rank_rows, .f32 = true});
  lap(StepPhase::kGemm);
  add_rank_rows(n, next_norm);
}

void CudaForward::Impl::add_rank_rows(std::int32_t n, const float* next_norm) {
  ranks->add_rows(
      rank_rows, n, static_cast<std::int32_t>(config.hidden),
      {.residual = residual, .norm_weight = next_norm, .x_next = next_norm == nullptr ? nullptr : normed, .sums = sums},
      overlapped());
  lap(StepPhase::kRanks);
}

void CudaForward::Impl::add_experts_over_ranks(const CudaLayerWeights& w, std::int32_t n, const float* next_norm) {
  experts->run(w, n, {.residual = residual, .partial = rank_rows, .normed = normed, .deferred = next_norm != nullptr},
               next_norm == nullptr ? serial() : overlapped());
  lap(StepPhase::kGemm);
  add_rank_rows(n, next_norm);
}

void CudaForward::Impl::gather_logits(std::int32_t n) {
  ranks->all_gather(rank_logits, all_rank_logits, static_cast<std::size_t>(n) * static_cast<std::size_t>(vocab_part),
                    serial());
  join_vocabulary_cuda(all_rank_logits, n, vocab_part, static_cast<std::int32_t>(config.vocab), logits, serial());
}

// Rows of the residual stream that this rank's layers begin with: embeddings, or those behind the stage before.
void CudaForward::Impl::begin_residual(std::int32_t n, const std::int32_t* tokens, const EmbedOutput& out,
                                       const CudaContext& context) {
  if (is_first_stage()) return embed_cuda(tokens, n, weights.embedding(), out, context);
  const std::size_t elements = static_cast<std::size_t>(n) * static_cast<std::size_t>(config.hidden);
  for (int stage = 0; stage < stages->ranks().rank(); ++stage) stages->hand_on(rank_rows, elements, stage, serial());
  set_bytes(residual, 0, elements * sizeof(float), stream);
  add_summed_rows_cuda(rank_rows, n, static_cast<std::int32_t>(config.hidden), out, serial());
}

void CudaForward::Impl::hand_rows_on(std::int32_t n) {
  const std::size_t elements = static_cast<std::size_t>(n) * static_cast<std::size_t>(config.hidden);
  const int mine = stages->ranks().rank();
  for (int stage = mine; stage + 1 < stages->ranks().size(); ++stage)
    stages->hand_on(stage == mine ? residual : rank_rows, elements, stage, serial());
}

void CudaForward::Impl::share_logits(std::int32_t n) {
  stages->broadcast(logits, static_cast<std::size_t>(n) * static_cast<std::size_t>(config.vocab),
                    stages->ranks().size() - 1, serial());
}

// RoPE angles of the rows' positions, and of their remapped positions.
void CudaForward::Impl::angles_of(const CudaRowArrays& rows, std::int32_t n, const CudaContext& context) {
  const auto half = static_cast<std::int32_t>(config.head_dim / 2);
  rope_angles_cuda(rows.positions, n, inv_freq, half, model.rope().scale, angles, context);
  if (attention.has_remapped())
    rope_angles_cuda(rows.remote_positions, n, inv_freq, half, model.rope().scale, remote_angles, context);
}

void CudaForward::Impl::launch_few(std::int32_t n) {
  const CudaRowArrays rows = CudaRowArrays::at(graph_base, kGraphRows);
  const CudaContext context = overlapped();
  if (phases != nullptr) phases->start(stream);
  begin_residual(
      n, rows.tokens,
      {.residual = residual, .norm_weight = weights.layers().front().attn_norm, .x_next = normed, .sums = sums_embed},
      context);
  angles_of(rows, n, context);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) layer_few(layer, n, rows);
  attention.finish_graph(n, rows, stream);
  if (stages != nullptr) hand_rows_on(n);
  if (has_head())
    skinny_gemm_cuda(normed, n, weights.head(), norm_before(static_cast<std::int32_t>(config.n_layers), n),
                     {.y = ranks == nullptr ? logits : rank_logits, .stride = vocab_part}, workspace, context);
  lap(StepPhase::kGemm);
  if (ranks != nullptr) gather_logits(n);
  if (stages != nullptr) share_logits(n);
  argmax_cuda(logits, n, static_cast<std::int32_t>(config.vocab), best_token, best_logprob, context);
  lap(StepPhase::kSampling);
  attention.join(stream);
  lap(StepPhase::kWait);
}

const void* CudaForward::Impl::ordered(const void* x, const DeviceMatrix& w, std::int64_t m,
                                       const CudaContext& context) {
  if (w.columns == nullptr) return x;
  gather_columns_cuda(x, static_cast<std::int32_t>(m), w.n_in, w.columns, gathered, context);
  return gathered;
}

// Quantised weights: by skinny GEMMs where there are few rows, else converted to bf16.
void CudaForward::Impl::multiply(const void* x, const DeviceMatrix& w, std::int64_t m, const Product& y) {
  const void* values = w.values;
  x = ordered(x, w, m, serial());
  if (is_quantised(w.dtype) && m <= kSkinnyRows) {
    skinny_gemm_cuda(x, static_cast<std::int32_t>(m), w, {},
                     {.y = y.y, .stride = y.stride, .bf16 = !y.f32, .accumulate = y.accumulate}, workspace, serial());
    return;
  }
  if (is_quantised(w.dtype)) {
    dequantise_cuda(w, 0, w.n_out, dequantised, serial());
    values = dequantised;
  } else if (w.on_host) {  // cuBLASLt reads weights several times
    copy_bytes(dequantised, w.values, w.bytes(), stream);
    values = dequantised;
  }
  products.run({.m = m, .n = w.n_out, .k = w.n_in, .f32 = y.f32, .accumulate = y.accumulate, .stride = y.stride}, x,
               values, y.y, serial());
}

void CudaForward::Impl::layer_many(std::int32_t layer, std::int32_t n, const CudaRowArrays& rows, bool decode_only,
                                   const CudaContext& context) {
  const CudaLayerWeights& w = weights.layers()[static_cast<std::size_t>(layer)];
  const auto hidden = static_cast<std::int32_t>(config.hidden), ffn = static_cast<std::int32_t>(config.ffn);
  const auto eps = static_cast<float>(config.rms_eps);
  rms_norm_cuda(residual, nullptr, n, hidden, w.attn_norm, eps, normed, context);
  std::int64_t first = 0;
  for (const DeviceMatrix& part : w.qkv.parts) {
    multiply(normed, part, n, {.y = qkv + first * 2, .stride = q_width + 2 * kv_width});
    first += part.n_out;
  }
  lap(StepPhase::kGemm);
  const CudaAttention::Memory memory = attention_memory(layer, true);
  decode_only ? attention.layer_of_graph(layer, n, rows, memory, context, stream)
              : attention.layer_of_spans(layer, rows, memory, context, stream);
  if (w.o_bias != nullptr) add_bias_cuda(residual, w.o_bias, n, hidden, context);
  ranks != nullptr ? add_over_ranks(attended, w.o, n)
                   : multiply(attended, w.o, n, {.y = residual, .f32 = true, .accumulate = true});
  if (experts && ranks != nullptr) return add_experts_over_ranks(w, n);
  if (experts) return experts->run(w, n, {.residual = residual, .normed = normed}, context);
  rms_norm_cuda(residual, nullptr, n, hidden, w.ffn_norm, eps, normed, context);
  multiply(normed, w.gate_up, n, {.y = gate_up});
  swiglu_cuda(gate_up, n, ffn, ffn_hidden, context);
  ranks != nullptr ? add_over_ranks(ffn_hidden, w.down, n)
                   : multiply(ffn_hidden, w.down, n, {.y = residual, .f32 = true, .accumulate = true});
}

void CudaForward::Impl::launch_many(std::int32_t n, const CudaRowArrays& rows, bool decode_only) {
  const CudaContext context = decode_only ? overlapped() : serial();  // kernels of prompts are long
  if (phases != nullptr) phases->start(stream);
  begin_residual(n, rows.tokens, {.residual = residual}, context);
  angles_of(rows, n, context);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) layer_many(layer, n, rows, decode_only, context);
  decode_only ? attention.finish_graph(n, rows, stream) : attention.finish_spans(rows, stream);
  lap(StepPhase::kGemm);
  if (stages != nullptr) hand_rows_on(n);
  attention.join(stream);
  lap(StepPhase::kWait);
}

// Logits of n rows and the argmax of each. rows: which rows, null: the first n.
void CudaForward::Impl::head_many(const std::int32_t* rows, std::int32_t n) {
  const CudaContext context = serial();
  rms_norm_cuda(residual, rows, n, static_cast<std::int32_t>(config.hidden), weights.output_norm(),
                static_cast<float>(config.rms_eps), normed, context);
  const bool bf16 = !is_quantised(weights.head().dtype);
  const std::int32_t most = bf16 ? few_rows : kSkinnyRows;
  for (std::int32_t first = 0; first < n && has_head(); first += most) {
    const std::int32_t left = n - first;
    const std::byte* x = normed + std::int64_t{first} * config.hidden * 2;
    float* y =
        ranks == nullptr ? logits + std::int64_t{first} * config.vocab : rank_logits + std::int64_t{first} * vocab_part;
    if (bf16 && left > most) {
      multiply(x, weights.head(), left, {.y = y, .f32 = true, .stride = vocab_part});
      break;
    }
    skinny_gemm_cuda(x, std::min(left, most), weights.head(), {}, {.y = y, .stride = vocab_part}, workspace, context);
  }
  lap(StepPhase::kGemm);
  if (ranks != nullptr) gather_logits(n);
  if (stages != nullptr) share_logits(n);
  argmax_cuda(logits, n, static_cast<std::int32_t>(config.vocab), best_token, best_logprob, context);
  lap(StepPhase::kSampling);
}

// n rows of n sequences. The first step of a shape is launched directly, which loads the kernels; the second is
// captured.
void CudaForward::Impl::run_graph_rows(std::int32_t n, std::int32_t n_padded) {
  const CudaRowArrays from = CudaRowArrays::at(host_rows.as<std::int32_t>(), capacity);
  for (std::int32_t i = n; i < n_padded; ++i)
    for (std::int32_t a = 0; a < CudaRowArrays::kGraphArrays; ++a)
      host_rows.as<std::int32_t>()[std::int64_t{a} * capacity + i] = 0;
  for (std::int32_t i = n; i < n_padded; ++i) from.slots[i] = from.seq_slots[i] = -1;
  const CudaRowArrays to = CudaRowArrays::at(graph_base, kGraphRows);
  const std::size_t bytes = static_cast<std::size_t>(n_padded) * sizeof(std::int32_t);
  for (std::int32_t i = 0; i < CudaRowArrays::kGraphArrays; ++i)
    copy_bytes(graph_base + std::int64_t{i} * kGraphRows, host_rows.as<std::int32_t>() + std::int64_t{i} * capacity,
               bytes, stream);
  const auto launch = [&] {
    if (n_padded <= few_rows) {
      launch_few(n_padded);
    } else {
      launch_many(n_padded, to, true);
      head_many(nullptr, n_padded);
    }
  };
  if (!attention.in_graph()) {
    phases = times_phases ? &launched_phases : nullptr;
    launch();
    return;
  }
  const auto [it, fresh] = graphs.try_emplace(std::pair(n_padded, attention.graph_kind()));
  GraphOfStep& step = it->second;
  phases = times_phases ? &step.phases : nullptr;
  if (fresh) {
    launch();
    return;
  }
  if (!step.graph) step.graph = Graph::capture(stream, launch);
  step.graph.launch(stream);
}

// For `rows` of the head's last call: copies their logits to `to`, or, where that is null, their tokens to `samples`,
// sampled by `rules` (one per row; none: argmax).
void CudaForward::Impl::fetch(std::span<const std::int32_t> rows, std::span<const SamplingRule> rules, float* to) {
  if (rows.empty()) return;
  if (to != nullptr) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      copy_bytes(to + static_cast<std::int64_t>(i) * config.vocab, logits + rows[i] * config.vocab,
                 static_cast<std::size_t>(config.vocab) * sizeof(float), stream);
    return;
  }
  const std::int32_t n = *std::max_element(rows.begin(), rows.end()) + 1;
  if (std::any_of(rules.begin(), rules.end(), [](const SamplingRule& r) { return r.temperature > 0; })) {
    auto* here = host_rules.as<SamplingRule>();
    std::fill_n(here, n, SamplingRule{});
    for (std::size_t i = 0; i < rows.size(); ++i) here[rows[i]] = rules[i];
    copy_bytes(sampling_rules, here, static_cast<std::size_t>(n) * sizeof(SamplingRule), stream);
    sample_cuda(logits, sampling_rules, n, static_cast<std::int32_t>(config.vocab), best_token, best_logprob, serial());
  }
  auto* tokens = host_best.as<std::int32_t>();
  auto* logprobs = host_best.as<float>() + head_rows();
  copy_bytes(tokens, best_token, static_cast<std::size_t>(n) * 4, stream);
  copy_bytes(logprobs, best_logprob, static_cast<std::size_t>(n) * 4, stream);
  stream.synchronize();
  for (const std::int32_t row : rows) samples.push_back({tokens[row], logprobs[row]});
}

// Collects the results on the host: logits, or tokens if there are rules. to_compute: the rows, if the head has not
// processed them yet; it takes a limited number per call.
ConstTensorView CudaForward::Impl::collect(const std::optional<std::span<const SamplingRule>>& rules,
                                           const CudaRowArrays* to_compute) {
  const auto n = static_cast<std::int32_t>(wanted.size());
  MNEME_CHECK(!rules || rules->empty() || rules->size() == wanted.size(), "{} rules for {} rows", rules->size(), n);
  float* to = nullptr;
  if (!rules) {
    to = host_logits.as<float>();
    if (n > head_rows()) {
      all_logits.reserve(static_cast<std::size_t>(n) * static_cast<std::size_t>(config.vocab) * sizeof(float));
      to = all_logits.as<float>();
    }
  }
  const auto rules_of = [&](std::int32_t first, std::size_t count) {
    return rules && !rules->empty() ? rules->subspan(static_cast<std::size_t>(first), count)
                                    : std::span<const SamplingRule>();
  };
  samples.clear();
  if (to_compute == nullptr) fetch(wanted, rules_of(0, wanted.size()), to);
  std::vector<std::int32_t> rows;
  for (std::int32_t first = 0; to_compute != nullptr && first < n; first += head_rows()) {
    rows.resize(static_cast<std::size_t>(std::min(head_rows(), n - first)));
    std::iota(rows.begin(), rows.end(), 0);
    head_many(to_compute->wanted_rows + first, static_cast<std::int32_t>(rows.size()));
    fetch(rows, rules_of(first, rows.size()), to == nullptr ? nullptr : to + first * config.vocab);
  }
  const TraceRange range("wait for the device");
  attention.fetch_counts(stream);
  end.record(stream);
  stream.synchronize();
  attention.count(stream);
  return view_of(static_cast<const float*>(to), {to != nullptr ? n : 0, config.vocab});
}

CudaForward::CudaForward(const Model& model, CudaWeights weights, Stream stream, const CudaForwardOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(weights), std::move(stream), options)) {}
CudaForward::~CudaForward() = default;

std::unique_ptr<PagePool> CudaForward::make_pool(const KvShape& shape, std::int64_t n_blocks,
                                                 const ProgressFn& progress) {
  MNEME_CHECK(impl_->blocks == nullptr, "a second pool");
  const std::size_t bytes = static_cast<std::size_t>(n_blocks) * shape.page_bytes();
  auto blocks = impl_->options.store == KvStore::kHost ? CudaBlocks::on_host(bytes, impl_->stream, progress)
                                                       : CudaBlocks::on_device(bytes, impl_->stream);
  impl_->blocks = blocks.get();
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

void CudaForward::inject_outcomes(float turnover, float correction, const RecallForm& form) {
  impl_->attention.inject_outcomes(turnover, correction, form);
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

ConstTensorView CudaForward::Impl::step(const ForwardInput& input,
                                        const std::optional<std::span<const SamplingRule>>& rules) {
  MNEME_CHECK(attention.ready(), "a step before make_pool()");
  use_device(0);
  const auto n = static_cast<std::int32_t>(input.tokens.size());
  const TraceRange range(n == static_cast<std::int32_t>(input.sequences.size()) ? "decode step" : "prefill step");
  const bool single = fill_rows(input, n);
  begin.record(stream);
  if (n == 0) return collect(rules, nullptr);
  if (single && n <= kGraphRows) {
    run_graph_rows(n, graph_rows(n));
    return collect(rules, nullptr);
  }
  phases = nullptr;
  copy_bytes(row_base, host_rows.data(), host_rows.size(), stream);
  const CudaRowArrays rows = CudaRowArrays::at(row_base, capacity);
  launch_many(n, rows, false);
  return collect(rules, &rows);
}

ConstTensorView CudaForward::Impl::step_of_rank(const ForwardInput& input,
                                                const std::optional<std::span<const SamplingRule>>& rules) {
  if (options.ranks == nullptr) return step(input, rules);
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
  return impl_->samples;
}
const CudaWeights& CudaForward::weights() const {
  return impl_->weights;
}
const Stream& CudaForward::stream() const {
  return impl_->stream;
}
double CudaForward::device_seconds() const {
  return impl_->end.seconds_since(impl_->begin);
}
void CudaForward::time_phases(bool on) {
  impl_->times_phases = on;
  impl_->phases = nullptr;
  impl_->graphs.clear();
}
PhaseClock::Seconds CudaForward::phase_seconds() const {
  return impl_->phases != nullptr ? impl_->phases->seconds() : PhaseClock::Seconds{};
}
std::size_t CudaForward::activation_bytes() const {
  return impl_->arena.size() + impl_->attention.bytes() + (impl_->experts ? impl_->experts->bytes() : 0);
}
std::byte* CudaForward::kv_data() const {
  return impl_->blocks->base();
}
std::size_t CudaForward::kv_bytes() const {
  return impl_->blocks->bytes();
}

}  // namespace mneme
