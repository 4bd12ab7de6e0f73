#include "src/model/cuda/weights.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/model/device_types.h"

namespace mneme {
namespace {

constexpr std::int64_t kWidthStep = 32;  // skinny_gemm_cuda.h: columns

std::byte* writable(const std::byte* p) {
  return const_cast<std::byte*>(p);
}

// Rows [first, first + n) of a matrix as a matrix.
DeviceMatrix rows_of(const DeviceMatrix& m, std::int64_t first, std::int64_t n) {
  DeviceMatrix part = m;
  part.n_out = n;
  part.values += static_cast<std::size_t>(first) * m.value_bytes_per_row();
  if (m.scales != nullptr) part.scales += static_cast<std::size_t>(first * m.scale_stride()) * 2;
  return part;
}

double used_share(const ExpertConfig& e) {
  return e.n == 0 ? 1.0 : static_cast<double>(e.n_used) / static_cast<double>(e.n);
}

}  // namespace

struct CudaWeightsMaker {
  const ModelConfig& config;
  const Stream& stream;
  CudaWeights out;
  DeviceBuffer staging;

  CudaContext context() const { return {.stream = stream.get()}; }

  DeviceMatrix matrix(DType dtype, std::int64_t n_out, std::int64_t n_in) {
    if (n_in % kWidthStep != 0)
      fail(ErrorKind::kUnsupported, "a weight matrix of {} columns: the device's kernels take multiples of {}", n_in,
           kWidthStep);
    DeviceMatrix m{.values = nullptr, .scales = nullptr, .dtype = dtype, .n_out = n_out, .n_in = n_in};
    const std::size_t values = static_cast<std::size_t>(n_out) * m.value_bytes_per_row();
    out.buffers_.emplace_back(m.bytes(), "the model's weights");
    m.values = out.buffers_.back().data();
    if (is_quantised(dtype)) m.scales = m.values + values;
    return m;
  }

  const float* vector(std::span<const float> from) {
    if (from.empty()) return nullptr;
    out.buffers_.emplace_back(from.size_bytes(), "the model's norms");
    copy_bytes(out.buffers_.back().data(), from.data(), from.size_bytes(), stream);
    stream.synchronize();
    out.vector_bytes_ += from.size_bytes();
    return out.buffers_.back().as<float>();
  }
  const float* ones(std::int64_t n, float value) {
    const std::vector<float> v(static_cast<std::size_t>(n), value);
    return vector(v);
  }

  // Normal values, as random_weights_cuda() has them.
  const float* drawn(std::int64_t n, std::uint64_t seed) {
    std::vector<float> v(static_cast<std::size_t>(n));
    Rng rng(seed);
    for (float& x : v) x = static_cast<float>(0.02 * rng.normal());
    return vector(v);
  }

  // Dtype of fused matrices: their common one, or bf16.
  static DType common(std::initializer_list<const WeightMatrix*> parts) {
    const DType first = (*parts.begin())->view().dtype();
    const bool same =
        std::all_of(parts.begin(), parts.end(), [&](const WeightMatrix* w) { return w->view().dtype() == first; });
    return same && is_quantised(first) ? first : DType::kBF16;
  }

  std::byte* staged(const ConstTensorView& view) {
    const std::size_t bytes = static_cast<std::size_t>(view.dim(0)) * row_bytes(view.dtype(), view.dim(1));
    MNEME_CHECK(view.stride_bytes() == row_bytes(view.dtype(), view.dim(1)), "weights with rows apart");
    if (staging.size() < bytes) {
      stream.synchronize();
      staging = DeviceBuffer();
      staging = DeviceBuffer(bytes, "weights in flight");
    }
    copy_bytes(staging.data(), view.data(), bytes, stream);
    return staging.data();
  }

  void fill(const WeightMatrix& from, const DeviceMatrix& to) {
    const ConstTensorView& view = from.view();
    const DType type = view.dtype();
    if (type == to.dtype && type == DType::kBF16) {
      copy_bytes(writable(to.values), view.data(), to.bytes(), stream);
    } else if (type == to.dtype) {
      repack_cuda(staged(view), to, context());
    } else if (is_quantised(type)) {
      DeviceMatrix blocks{.values = nullptr, .scales = nullptr, .dtype = type, .n_out = to.n_out, .n_in = to.n_in};
      const DeviceBuffer repacked(blocks.bytes(), "weights in flight");
      blocks.values = repacked.data();
      blocks.scales = repacked.data() + static_cast<std::size_t>(to.n_out) * blocks.value_bytes_per_row();
      repack_cuda(staged(view), blocks, context());
      dequantise_cuda(blocks, 0, to.n_out, writable(to.values), context());
      stream.synchronize();
    } else {
      to_bf16_cuda(staged(view), type, to.n_out * to.n_in, writable(to.values), context());
    }
    stream.synchronize();  // `staging` and pageable memory are free again
  }

  DeviceMatrix stacked(std::initializer_list<const WeightMatrix*> parts) {
    std::int64_t n_out = 0;
    for (const WeightMatrix* w : parts) n_out += w->n_out();
    const DeviceMatrix all = matrix(common(parts), n_out, (*parts.begin())->n_in());
    std::int64_t first = 0;
    for (const WeightMatrix* w : parts) {
      fill(*w, rows_of(all, first, w->n_out()));
      first += w->n_out();
    }
    return all;
  }

  // The matrices of all experts, one behind the other: of each those of `parts`.
  DeviceMatrix experts(std::span<const ExpertWeights> from,
                       std::initializer_list<WeightMatrix ExpertWeights::*> parts) {
    std::int64_t n_out = 0;
    bool same = true;
    const DType first = (from[0].**parts.begin()).view().dtype();
    for (const ExpertWeights& e : from)
      for (const auto part : parts) {
        n_out += (e.*part).n_out();
        same = same && (e.*part).view().dtype() == first;
      }
    const DType dtype = same && is_quantised(first) ? first : DType::kBF16;
    const DeviceMatrix all = matrix(dtype, n_out, (from[0].**parts.begin()).n_in());
    std::int64_t at = 0;
    for (const ExpertWeights& e : from)
      for (const auto part : parts) {
        fill(e.*part, rows_of(all, at, (e.*part).n_out()));
        at += (e.*part).n_out();
      }
    return all;
  }

  void add_experts(const LayerWeights& w, CudaLayerWeights& to) {
    to.router = vector(std::span(w.router.view().row_as<float>(0), w.router.n_out() * w.router.n_in()));
    to.expert_gate_up = experts(w.experts, {&ExpertWeights::gate, &ExpertWeights::up});
    to.expert_down = experts(w.experts, {&ExpertWeights::down});
    to.router_bias = vector(w.router_bias);
    std::vector<float> gate_up, down;
    for (const ExpertWeights& e : w.experts) {
      gate_up.insert(gate_up.end(), e.gate_bias.begin(), e.gate_bias.end());
      gate_up.insert(gate_up.end(), e.up_bias.begin(), e.up_bias.end());
      down.insert(down.end(), e.down_bias.begin(), e.down_bias.end());
    }
    to.expert_gate_up_bias = vector(gate_up);
    to.expert_down_bias = vector(down);
  }

  // Of a dense layer.
  void add_feed_forward(const LayerWeights& w, CudaLayerWeights& to) {
    to.gate_up = stacked({&w.gate, &w.up});
    to.down = stacked({&w.down});
  }

  const float* stacked(std::span<const float> a, std::span<const float> b, std::span<const float> c) {
    std::vector<float> all(a.begin(), a.end());
    all.insert(all.end(), b.begin(), b.end());
    all.insert(all.end(), c.begin(), c.end());
    return vector(all);
  }
};

CudaWeights CudaWeights::load(const Model& model, const Stream& stream, const ProgressFn& progress) {
  expect_device_types(model);
  CudaWeightsMaker maker{model.config(), stream, {}, {}};
  CudaWeights& out = maker.out;
  out.used_experts_ = used_share(model.config().experts);
  const std::int64_t n_layers = model.config().n_layers;
  for (std::int64_t i = 0; i < n_layers; ++i) {
    const LayerWeights& w = model.layers()[static_cast<std::size_t>(i)];
    out.layers_.push_back({.qkv = maker.stacked({&w.q, &w.k, &w.v}),
                           .o = maker.stacked({&w.o}),
                           .gate_up = {},
                           .down = {},
                           .attn_norm = maker.vector(w.attn_norm),
                           .ffn_norm = maker.vector(w.ffn_norm),
                           .q_norm = maker.vector(w.q_norm),
                           .k_norm = maker.vector(w.k_norm),
                           .qkv_bias = maker.stacked(w.q_bias, w.k_bias, w.v_bias),
                           .expert_gate_up = {},
                           .expert_down = {},
                           .router = nullptr,
                           .o_bias = maker.vector(w.o_bias),
                           .sinks = maker.vector(w.sinks)});
    w.experts.empty() ? maker.add_feed_forward(w, out.layers_.back()) : maker.add_experts(w, out.layers_.back());
    if (progress) progress("weights to the device, layers", i + 1, n_layers);
  }
  out.embedding_ = maker.matrix(is_quantised(model.embedding().dtype()) ? model.embedding().dtype() : DType::kBF16,
                                model.embedding().dim(0), model.embedding().dim(1));
  maker.fill(WeightMatrix(model.embedding()), out.embedding_);
  out.tied_ = model.config().tied_embeddings;
  out.head_ = out.tied_ ? out.embedding_ : maker.stacked({&model.head()});
  out.output_norm_ = maker.vector(model.output_norm());
  return std::move(maker.out);
}

CudaWeights CudaWeights::random(const Model& model, DType dtype, std::uint64_t seed, const Stream& stream) {
  expect_device_type("token_embd.weight", dtype);
  const ModelConfig& c = model.config();
  CudaWeightsMaker maker{c, stream, {}, {}};
  CudaWeights& out = maker.out;
  const ExpertConfig& experts = c.experts;
  out.used_experts_ = used_share(experts);
  const auto matrix = [&](std::int64_t n_out, std::int64_t n_in) {
    const DeviceMatrix m = maker.matrix(dtype, n_out, n_in);
    random_weights_cuda(m, seed++, maker.context());
    return m;
  };
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  for (std::int64_t i = 0; i < c.n_layers; ++i)
    out.layers_.push_back(
        {.qkv = matrix(q + 2 * kv, c.hidden),
         .o = matrix(c.hidden, q),
         .gate_up = experts.n > 0 ? DeviceMatrix{} : matrix(2 * c.ffn, c.hidden),
         .down = experts.n > 0 ? DeviceMatrix{} : matrix(c.hidden, c.ffn),
         .attn_norm = maker.ones(c.hidden, 1),
         .ffn_norm = maker.ones(c.hidden, 1),
         .q_norm = c.qk_norm ? maker.ones(c.head_dim, 1) : nullptr,
         .k_norm = c.qk_norm ? maker.ones(c.head_dim, 1) : nullptr,
         .qkv_bias = c.qkv_bias ? maker.ones(q + 2 * kv, 0) : nullptr,
         .expert_gate_up = experts.n > 0 ? matrix(experts.n * 2 * experts.ffn, c.hidden) : DeviceMatrix{},
         .expert_down = experts.n > 0 ? matrix(experts.n * c.hidden, experts.ffn) : DeviceMatrix{},
         .router = experts.n > 0 ? maker.drawn(experts.n * c.hidden, seed++) : nullptr,
         .router_bias = experts.biases ? maker.ones(experts.n, 0) : nullptr,
         .expert_gate_up_bias = experts.biases ? maker.ones(experts.n * 2 * experts.ffn, 0) : nullptr,
         .expert_down_bias = experts.biases ? maker.ones(experts.n * c.hidden, 0) : nullptr,
         .o_bias = c.has_o_bias() ? maker.ones(c.hidden, 0) : nullptr,
         .sinks = c.has_sinks() ? maker.ones(c.n_heads, 0) : nullptr});
  out.embedding_ = matrix(c.vocab, c.hidden);
  out.tied_ = c.tied_embeddings;
  out.head_ = out.tied_ ? out.embedding_ : matrix(c.vocab, c.hidden);
  out.output_norm_ = maker.ones(c.hidden, 1);
  stream.synchronize();
  return std::move(maker.out);
}

std::size_t CudaWeights::step_bytes() const {
  std::size_t n = vector_bytes_ + head_.bytes() + embedding_.bytes() / static_cast<std::size_t>(embedding_.n_out);
  for (const CudaLayerWeights& w : layers_)
    for (const DeviceMatrix* m : {&w.qkv, &w.o, &w.gate_up, &w.down}) n += m->n_out == 0 ? 0 : m->bytes();
  return n + step_expert_bytes();
}

std::size_t CudaWeights::step_expert_bytes() const {
  double experts = 0;
  for (const CudaLayerWeights& w : layers_)
    if (w.router != nullptr) experts += static_cast<double>(w.expert_gate_up.bytes() + w.expert_down.bytes());
  return static_cast<std::size_t>(experts * used_experts_);
}

std::size_t CudaWeights::bytes() const {
  std::size_t n = 0;
  for (const DeviceBuffer& b : buffers_) n += b.size();
  return n;
}

}  // namespace mneme
