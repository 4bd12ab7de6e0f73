#include "src/model/cuda/weights.h"

#include <algorithm>
#include <span>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/ops/gemm/device/weight_layout_cuda.h"

namespace mneme {
namespace {

constexpr std::int64_t kWidthStep = 32;  // skinny_gemm_cuda.h: columns

std::byte* writable(const std::byte* p) {
  return const_cast<std::byte*>(p);
}

// Whether two matrices may be one on the device.
bool alike(const WeightMatrix& a, const WeightMatrix& b) {
  const auto type = [](const WeightMatrix& w) {
    return is_quantised(w.view().dtype()) ? w.view().dtype() : DType::kBF16;
  };
  return type(a) == type(b) && std::ranges::equal(a.columns(), b.columns());
}

// Where each column of x is among a matrix's.
std::vector<std::int32_t> inverse(std::span<const std::int32_t> columns) {
  std::vector<std::int32_t> places(columns.size());
  for (std::size_t j = 0; j < columns.size(); ++j)
    places[static_cast<std::size_t>(columns[j])] = static_cast<std::int32_t>(j);
  return places;
}

double used_share(const ExpertConfig& e) {
  return e.n == 0 ? 1.0 : static_cast<double>(e.n_used) / static_cast<double>(e.n);
}

}  // namespace

struct CudaWeightsMaker {
  const ModelConfig& config;
  const Stream& stream;
  CudaWeights out;
  DeviceBuffer staging, scratch = {};
  bool to_host = false;  // of the matrices that are made now

  CudaContext context() const { return {.stream = stream.get()}; }

  DeviceMatrix matrix(DType dtype, std::int64_t n_out, std::int64_t n_in) {
    if (n_in % kWidthStep != 0)
      fail(ErrorKind::kUnsupported, "a weight matrix of {} columns: the device's kernels take multiples of {}", n_in,
           kWidthStep);
    DeviceMatrix m{.values = nullptr, .dtype = dtype, .n_out = n_out, .n_in = n_in};
    if (to_host) {
      grow(scratch, m.bytes(), "weights in flight");
      m.values = scratch.data();
    } else {
      out.buffers_.emplace_back(m.bytes(), "the model's weights");
      m.values = out.buffers_.back().data();
    }
    // repack_cuda() leaves padding alone.
    if (is_quantised(dtype)) set_bytes(writable(m.values), 0, m.bytes(), stream);
    return m;
  }

  // Moves a matrix that is filled to where it stays.
  DeviceMatrix settled(DeviceMatrix m) {
    if (!to_host || m.values == nullptr) return m;
    PinnedBuffer& memory = out.host_buffers_.emplace_back(m.bytes());
    copy_bytes(memory.data(), m.values, m.bytes(), stream);
    stream.synchronize();
    m.values = memory.data(), m.on_host = true;
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

  static DType device_type(DType type) { return is_quantised(type) ? type : DType::kBF16; }

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

  DeviceBuffer on_device(std::span<const std::int32_t> from) {
    DeviceBuffer memory(from.size_bytes(), "the order of a matrix's columns");
    copy_bytes(memory.data(), from.data(), from.size_bytes(), stream);
    stream.synchronize();
    return memory;
  }

  // Rows [first, first + n) of `to` are those of a matrix.
  void fill(const WeightMatrix& from, const DeviceMatrix& to, std::int64_t first) {
    const ConstTensorView& view = from.view();
    const DType type = view.dtype();
    const std::int64_t n = view.dim(0);
    std::byte* rows = writable(to.values) + static_cast<std::size_t>(first) * row_bytes(DType::kBF16, to.n_in);
    if (is_quantised(to.dtype)) {
      repack_cuda(staged(view), first, n, to, context());
    } else if (type == DType::kBF16) {
      copy_bytes(rows, view.data(), static_cast<std::size_t>(n) * view.stride_bytes(), stream);
    } else if (is_quantised(type)) {
      DeviceMatrix repacked{.values = nullptr, .dtype = type, .n_out = n, .n_in = to.n_in};
      const DeviceBuffer memory(repacked.bytes(), "weights in flight");
      repacked.values = memory.data();
      repack_cuda(staged(view), 0, n, repacked, context());
      if (from.columns().empty()) {
        dequantise_cuda(repacked, 0, n, rows, context());
      } else {
        const DeviceBuffer stored(static_cast<std::size_t>(n) * row_bytes(DType::kBF16, to.n_in), "weights in flight"),
            places = on_device(inverse(from.columns()));
        dequantise_cuda(repacked, 0, n, stored.data(), context());
        gather_columns_cuda(stored.data(), static_cast<std::int32_t>(n), to.n_in, places.as<std::int32_t>(), rows,
                            context());
        stream.synchronize();
      }
      stream.synchronize();
    } else {
      to_bf16_cuda(staged(view), type, n * to.n_in, rows, context());
    }
    stream.synchronize();  // `staging` and pageable memory are free again
  }

  // Requires  quantised matrices that stay so have this order of columns.
  DeviceMatrix stacked(std::span<const WeightMatrix* const> parts, DType type, std::span<const std::int32_t> columns) {
    std::int64_t n_out = 0;
    for (const WeightMatrix* w : parts) n_out += w->n_out();
    DeviceMatrix all = matrix(type, n_out, parts[0]->n_in());
    if (is_quantised(type) && !columns.empty()) {
      out.buffers_.push_back(on_device(columns));
      all.columns = out.buffers_.back().as<std::int32_t>();
    }
    std::int64_t first = 0;
    for (const WeightMatrix* w : parts) {
      fill(*w, all, first);
      first += w->n_out();
    }
    return settled(all);
  }
  DeviceMatrix one(const WeightMatrix& w) {
    const WeightMatrix* const parts[] = {&w};
    return stacked(parts, device_type(w.view().dtype()), w.columns());
  }
  DeviceMatrix pair(const WeightMatrix& a, const WeightMatrix& b) {
    const WeightMatrix* const parts[] = {&a, &b};
    return stacked(parts, alike(a, b) ? device_type(a.view().dtype()) : DType::kBF16, a.columns());
  }
  FusedMatrix fused(std::span<const WeightMatrix* const> parts) {
    FusedMatrix all;
    for (std::size_t begin = 0, end = 0; begin < parts.size(); begin = end) {
      const DType type = device_type(parts[begin]->view().dtype());
      for (end = begin + 1; end < parts.size() && alike(*parts[begin], *parts[end]);) ++end;
      all.parts.push_back(stacked(parts.subspan(begin, end - begin), type, parts[begin]->columns()));
    }
    return all;
  }

  // The matrices of all experts, one behind the other: of each those of `parts`. Where an expert's have other types or
  // orders of columns than one another, all are bf16; else experts have an order each.
  DeviceMatrix experts(std::span<const ExpertWeights> from,
                       std::initializer_list<WeightMatrix ExpertWeights::*> parts) {
    std::vector<const WeightMatrix*> all;
    std::vector<std::int32_t> columns;
    bool same = true, ordered = false;
    for (const ExpertWeights& e : from) {
      const WeightMatrix& first = e.**parts.begin();
      if (first.n_out() == 0) continue;  // another rank's
      for (const auto part : parts) {
        const WeightMatrix& w = e.*part;
        if (w.n_out() % kOctet != 0)
          fail(ErrorKind::kUnsupported, "--device cuda: experts of {} rows: the device's kernels take multiples of {}",
               w.n_out(), kOctet);
        all.push_back(&w);
        same = same && w.view().dtype() == all[0]->view().dtype() && std::ranges::equal(w.columns(), first.columns());
      }
      ordered = ordered || !first.columns().empty();
      for (std::int64_t j = 0; j < first.n_in(); ++j)
        columns.push_back(first.columns().empty() ? static_cast<std::int32_t>(j)
                                                  : first.columns()[static_cast<std::size_t>(j)]);
    }
    if (!ordered) columns.clear();
    return stacked(all, same ? device_type(all[0]->view().dtype()) : DType::kBF16, columns);
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
    if (w.shared.gate.n_out() == 0) return;
    to.shared_gate_up = pair(w.shared.gate, w.shared.up);
    to.shared_down = one(w.shared.down);
    to.shared_gate = vector(std::span(w.shared_gate.view().row_as<float>(0), w.shared_gate.n_in()));
  }

  void add_attention(const LayerWeights& w, CudaLayerWeights& to) {
    const WeightMatrix* const qkv[] = {&w.q, &w.k, &w.v};
    to.qkv = fused(qkv);
    to.o = one(w.o);
    if (w.q_gate.n_out() > 0) to.q_gate = one(w.q_gate);
    to.q_norm = vector(w.q_norm), to.k_norm = vector(w.k_norm);
    to.qkv_bias = stacked(w.q_bias, w.k_bias, w.v_bias);
    to.o_bias = vector(w.o_bias);
    to.sinks = vector(w.sinks);
  }
  void add_delta(const DeltaWeights& w, CudaDeltaWeights& to) {
    const WeightMatrix* const in[] = {&w.qkv, &w.z, &w.beta, &w.alpha};
    to.in = fused(in);
    to.out = one(w.out);
    to.conv = vector(w.conv), to.a = vector(w.a), to.dt = vector(w.dt), to.norm = vector(w.norm);
  }
  void add_norms(const LayerWeights& w, CudaLayerWeights& to) {
    to.attn_norm = vector(w.attn_norm), to.ffn_norm = vector(w.ffn_norm);
    to.attn_out_norm = vector(w.attn_out_norm), to.ffn_out_norm = vector(w.ffn_out_norm);
  }

  // Adds the matrices of a dense layer.
  void add_feed_forward(const LayerWeights& w, CudaLayerWeights& to) {
    to.gate_up = pair(w.gate, w.up);
    to.down = one(w.down);
  }

  const float* stacked(std::span<const float> a, std::span<const float> b, std::span<const float> c) {
    std::vector<float> all(a.begin(), a.end());
    all.insert(all.end(), b.begin(), b.end());
    all.insert(all.end(), c.begin(), c.end());
    return vector(all);
  }
};

CudaWeights CudaWeights::load(const Model& model, const Stream& stream, std::optional<WeightPlacement> placement,
                              const ProgressFn& progress, std::optional<RankRange> head_rows) {
  CudaWeightsMaker maker{model.config(), stream, {}, {}};
  const WeightPlacement places = placement.value_or(first_layers(model.config().n_layers));
  CudaWeights& out = maker.out;
  out.used_experts_ = used_share(model.config().experts);
  const std::int64_t n_layers = model.config().n_layers;
  for (std::int64_t i = 0; i < n_layers; ++i) {
    const LayerWeights& w = model.layers()[static_cast<std::size_t>(i)];
    maker.to_host = places.others_on_host(i);
    CudaLayerWeights& to = out.layers_.emplace_back();
    model.config().has_state(i) ? maker.add_delta(w.delta, to.delta) : maker.add_attention(w, to);
    maker.add_norms(w, to);
    if (!w.experts.empty()) maker.to_host = places.experts_on_host(i);
    w.experts.empty() ? maker.add_feed_forward(w, to) : maker.add_experts(w, to);
    if (progress) progress("weights to the device, layers", i + 1, n_layers);
  }
  maker.to_host = false;
  out.embedding_ = maker.one(WeightMatrix(model.embedding()));
  out.tied_ = model.config().tied_embeddings && !head_rows;
  if (out.tied_) {
    out.head_ = out.embedding_;
  } else {
    const RankRange rows = head_rows.value_or(RankRange{.first = 0, .end = model.head().n_out()});
    const ConstTensorView head = model.head().view();
    out.head_ = rows.size() > 0
                    ? maker.one(WeightMatrix(head.rows(rows.first, rows.end)))
                    : DeviceMatrix{.values = nullptr, .dtype = DType::kBF16, .n_out = 0, .n_in = head.dim(1)};
  }
  out.output_norm_ = maker.vector(model.output_norm());
  return std::move(maker.out);
}

CudaWeights CudaWeights::random(const Model& model, const WeightMix& mix, std::uint64_t seed, const Stream& stream,
                                std::optional<WeightPlacement> placement, std::optional<RankRange> head_rows,
                                std::optional<RankRange> experts_of_rank) {
  const ModelConfig& c = model.config();
  CudaWeightsMaker maker{c, stream, {}, {}};
  const WeightPlacement places = placement.value_or(first_layers(c.n_layers));
  CudaWeights& out = maker.out;
  const ExpertConfig& experts = c.experts;
  const std::int64_t n_experts = experts_of_rank ? experts_of_rank->size() : experts.n;
  out.used_experts_ = used_share(experts);
  const auto matrix = [&](DType type, std::int64_t n_out, std::int64_t n_in) {
    const DeviceMatrix m = maker.matrix(maker.device_type(type), n_out, n_in);
    random_weights_cuda(m, seed++, maker.context());
    return maker.settled(m);
  };
  const std::int64_t q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
  const bool mixture = experts.n > 0, before = c.norms != NormOrder::kBehind, behind = c.norms != NormOrder::kBefore;
  for (std::int64_t i = 0; i < c.n_layers; ++i) {
    const DType type = mix.of_layer(i, c.n_layers);
    const auto expert_matrix = [&](DType of, std::int64_t n_out, std::int64_t n_in) {
      if (!mixture) return DeviceMatrix{};
      maker.to_host = places.experts_on_host(i);
      return matrix(of, n_experts * n_out, n_in);
    };
    maker.to_host = places.others_on_host(i);
    const bool has_state = c.has_state(i);
    FusedMatrix qkv;
    if (has_state) {
      // delta, below
    } else if (type == mix.most) {
      qkv.parts = {matrix(type, q + 2 * kv, c.hidden)};
    } else {
      qkv.parts = {matrix(mix.most, q + kv, c.hidden), matrix(type, kv, c.hidden)};
    }
    out.layers_.push_back({.qkv = qkv,
                           .o = has_state ? DeviceMatrix{} : matrix(mix.most, c.hidden, q),
                           .gate_up = mixture ? DeviceMatrix{} : matrix(mix.most, 2 * c.ffn, c.hidden),
                           .down = mixture ? DeviceMatrix{} : matrix(type, c.hidden, c.ffn),
                           .attn_norm = before ? maker.ones(c.hidden, 1) : nullptr,
                           .ffn_norm = before ? maker.ones(c.hidden, 1) : nullptr,
                           .attn_out_norm = behind ? maker.ones(c.hidden, 1) : nullptr,
                           .ffn_out_norm = behind ? maker.ones(c.hidden, 1) : nullptr,
                           .q_norm = c.qk_norm ? maker.ones(c.qk_norm_all ? q : c.head_dim, 1) : nullptr,
                           .k_norm = c.qk_norm ? maker.ones(c.qk_norm_all ? kv : c.head_dim, 1) : nullptr,
                           .qkv_bias = c.qkv_bias ? maker.ones(q + 2 * kv, 0) : nullptr,
                           .expert_gate_up = expert_matrix(mix.most, 2 * experts.ffn, c.hidden),
                           .expert_down = expert_matrix(type, c.hidden, experts.ffn),
                           .router = mixture ? maker.drawn(experts.n * c.hidden, seed++) : nullptr,
                           .router_bias = experts.biases ? maker.ones(experts.n, 0) : nullptr,
                           .expert_gate_up_bias = experts.biases ? maker.ones(n_experts * 2 * experts.ffn, 0) : nullptr,
                           .expert_down_bias = experts.biases ? maker.ones(n_experts * c.hidden, 0) : nullptr,
                           .o_bias = c.o_bias ? maker.ones(c.hidden, 0) : nullptr,
                           .sinks = c.sinks ? maker.ones(c.n_heads, 0) : nullptr});
    CudaLayerWeights& to = out.layers_.back();
    maker.to_host = places.others_on_host(i);
    const DeltaConfig& d = c.delta;
    if (has_state) {
      to.delta.in.parts = {matrix(mix.most, d.channels() + d.value_width() + 2 * d.n_v_heads, c.hidden)};
      to.delta.out = matrix(mix.most, c.hidden, d.value_width());
      to.delta.conv = maker.drawn(d.channels() * d.taps, seed++);
      to.delta.a = maker.ones(d.n_v_heads, -1), to.delta.dt = maker.ones(d.n_v_heads, 0);
      to.delta.norm = maker.ones(d.d_v, 1);
    } else if (c.output_gate) {
      to.q_gate = matrix(mix.most, q, c.hidden);
    }
    if (experts.shared > 0) {
      to.shared_gate_up = matrix(mix.most, 2 * experts.shared, c.hidden);
      to.shared_down = matrix(mix.most, c.hidden, experts.shared);
      to.shared_gate = maker.drawn(c.hidden, seed++);
    }
  }
  maker.to_host = false;
  out.tied_ = c.tied_embeddings && !head_rows;
  out.embedding_ = matrix(c.tied_embeddings ? mix.better : mix.most, c.vocab, c.hidden);
  out.head_ = out.tied_ ? out.embedding_ : matrix(mix.better, head_rows ? head_rows->size() : c.vocab, c.hidden);
  out.output_norm_ = maker.ones(c.hidden, 1);
  stream.synchronize();
  return std::move(maker.out);
}

std::int64_t FusedMatrix::n_out() const {
  std::int64_t n = 0;
  for (const DeviceMatrix& part : parts) n += part.n_out;
  return n;
}

void CudaWeights::for_each_in_layers(FunctionRef<void(const DeviceMatrix&)> f) const {
  for (const CudaLayerWeights& w : layers_) {
    for (const DeviceMatrix& part : w.qkv.parts) f(part);
    for (const DeviceMatrix& part : w.delta.in.parts) f(part);
    for (const DeviceMatrix* m :
         {&w.o, &w.gate_up, &w.down, &w.q_gate, &w.delta.out, &w.shared_gate_up, &w.shared_down})
      if (m->n_out > 0) f(*m);  // not those that a layer lacks
  }
}

void CudaWeights::for_each(FunctionRef<void(const DeviceMatrix&)> f) const {
  for_each_in_layers(f);
  f(head_);
}

std::size_t CudaWeights::step_bytes() const {
  std::size_t n = vector_bytes_ + embedding_.bytes() / static_cast<std::size_t>(embedding_.n_out);
  for_each([&](const DeviceMatrix& m) { n += m.bytes(); });
  return n + step_expert_bytes();
}

bool CudaWeights::reorders_experts() const {
  return std::any_of(layers_.begin(), layers_.end(), [](const CudaLayerWeights& w) {
    return w.expert_gate_up.columns != nullptr || w.expert_down.columns != nullptr;
  });
}

std::size_t CudaWeights::step_expert_bytes() const {
  double experts = 0;
  for (const CudaLayerWeights& w : layers_)
    if (w.router != nullptr) experts += static_cast<double>(w.expert_gate_up.bytes() + w.expert_down.bytes());
  return static_cast<std::size_t>(experts * used_experts_);
}

std::size_t CudaWeights::step_host_bytes() const {
  std::size_t n = 0;
  double experts = 0;
  for_each_in_layers([&](const DeviceMatrix& m) { n += m.on_host ? m.bytes() : 0; });
  for (const CudaLayerWeights& w : layers_)
    if (w.expert_gate_up.on_host) experts += static_cast<double>(w.expert_gate_up.bytes() + w.expert_down.bytes());
  return n + static_cast<std::size_t>(experts * used_experts_);
}

std::size_t CudaWeights::bytes() const {
  std::size_t n = 0;
  for (const DeviceBuffer& b : buffers_) n += b.size();
  return n;
}

std::size_t CudaWeights::host_bytes() const {
  std::size_t n = 0;
  for (const PinnedBuffer& b : host_buffers_) n += b.size();
  return n;
}

}  // namespace mneme
