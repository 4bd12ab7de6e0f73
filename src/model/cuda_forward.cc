// What a step is, is in run_graph_rows() and run_prompt_rows(); what a layer is, in the two layer functions. The rest
// is memory and bringing rows to the device.
#include "src/model/cuda_forward.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/device/device.h"
#include "src/kernels/attention_cuda.h"
#include "src/kernels/attention_library_cuda.h"
#include "src/kernels/matmul_lt.h"
#include "src/kernels/pointwise_cuda.h"
#include "src/model/cuda_tables.h"

namespace mneme {
namespace {

constexpr std::int32_t kMatvecRows = 8;                 // matvec_cuda.h: the most rows
constexpr std::int32_t kGraphRows = 64;                 // a step of more sequences is launched kernel by kernel
constexpr std::size_t kAside = std::size_t{768} << 20;  // graphs, modules, libraries

// The blocks of a pool on the device.
class DeviceBlocks final : public BlockMemory {
 public:
  DeviceBlocks(std::size_t bytes, const Stream& stream) : buffer_(bytes, "keys and values"), stream_(stream) {}
  std::byte* base() const override { return buffer_.data(); }
  std::size_t bytes() const { return buffer_.size(); }
  void copy(std::byte* to, const std::byte* from, std::size_t bytes) override { copy_bytes(to, from, bytes, stream_); }
  void read(std::byte* to_host, const std::byte* from, std::size_t bytes) override {
    copy_bytes(to_host, from, bytes, stream_);
    stream_.synchronize();
  }
  void write(std::byte* to, const std::byte* from_host, std::size_t bytes) override {
    copy_bytes(to, from_host, bytes, stream_);
    stream_.synchronize();
  }

 private:
  DeviceBuffer buffer_;
  const Stream& stream_;
};

// What a step says of its rows, in one piece of memory: `capacity` of each.
struct RowArrays {
  std::int32_t *tokens, *positions, *slots, *lengths, *wanted_rows;
  static constexpr std::int32_t kArrays = 5;
  static RowArrays at(std::int32_t* base, std::int32_t capacity) {
    return {base, base + capacity, base + 2 * capacity, base + 3 * capacity, base + 4 * capacity};
  }
};

std::int32_t graph_rows(std::int32_t n) {
  return n <= kMatvecRows ? n : (n + 7) / 8 * 8;
}

}  // namespace

struct CudaForward::Impl {
  const Model& model;
  const ModelConfig& config;
  CudaForwardOptions options;
  Stream stream;
  CudaWeights weights;
  MatmulLt products;
  LibraryAttention library;
  int device_major;
  float scale;
  std::int32_t q_width, kv_width, capacity;

  // ---- memory
  DeviceBuffer arena;
  float *residual = nullptr, *qkv_f32 = nullptr, *sums_embed = nullptr, *sums = nullptr, *angles = nullptr,
        *logits = nullptr, *best_logprob = nullptr;
  std::byte *normed = nullptr, *qkv = nullptr, *q = nullptr, *attended = nullptr, *gate_up = nullptr,
            *product = nullptr, *dequantised = nullptr, *attention_scratch = nullptr;
  std::int32_t *row_base = nullptr, *graph_base = nullptr, *best_token = nullptr;
  double* inv_freq = nullptr;
  PinnedBuffer host_rows, host_logits, host_best;
  Buffer all_logits;               // where more rows are wanted than the head takes at once
  DeviceBlocks* blocks = nullptr;  // the pool's
  std::optional<CudaTables> tables;

  // ---- a step
  std::map<std::int32_t, Graph> graphs;  // by rows; empty until the second step of so many
  std::vector<std::int32_t> slots, wanted;
  std::vector<const SequenceCache*> caches;
  std::vector<GreedyChoice> choices;
  Event begin = Event::make(Event::Timing::kTimed), end = Event::make(Event::Timing::kTimed);

  Impl(const Model& m, CudaWeights w, Stream s, const CudaForwardOptions& o);
  void allocate();
  CudaContext serial() const { return {.stream = stream.get()}; }
  CudaContext overlapped() const {
    return {.stream = stream.get(), .order = device_major >= 9 ? LaunchOrder::kOverlapped : LaunchOrder::kSerial};
  }
  DeferredNorm deferred(const float* from, std::int32_t parts) const {
    return {.sums = from,
            .n_parts = parts,
            .n = static_cast<std::int32_t>(config.hidden),
            .eps = static_cast<float>(config.rms_eps)};
  }

  struct Span {  // rows of one sequence
    std::int32_t first_row, n_rows, first_position, slot;
  };
  std::vector<Span> spans;

  bool fill_rows(const ForwardInput& input, std::int32_t rows_in_all);
  void run_graph_rows(std::int32_t n, std::int32_t n_padded);
  void launch_few(std::int32_t n);
  void launch_many(std::int32_t n, const RowArrays& rows, bool decode_only);
  void head_many(const std::int32_t* rows, std::int32_t n);
  std::int32_t head_rows() const { return std::max(options.max_sequences, kGraphRows); }  // of one call
  void layer_few(std::int32_t layer, std::int32_t n, const RowArrays& rows);
  void layer_many(std::int32_t layer, std::int32_t n, const RowArrays& rows, bool decode_only,
                  const CudaContext& context);
  void attend(std::int32_t layer, const RowArrays& rows, const CudaContext& context);
  void attend_decode(std::int32_t layer, std::int32_t first, std::int32_t n, const RowArrays& rows,
                     const CudaContext& context);
  void multiply(const void* x, const DeviceMatrix& w, std::int64_t m, void* y, bool f32, bool accumulate);
  QkvRows qkv_rows(std::int32_t layer, std::int32_t n, const RowArrays& rows, bool bf16) const;
  void fetch(std::span<const std::int32_t> rows, LogitsWanted what, float* to);
  ConstTensorView collect(LogitsWanted what, const RowArrays* to_compute);
};

CudaForward::Impl::Impl(const Model& m, CudaWeights w, Stream s, const CudaForwardOptions& o)
    : model(m), config(m.config()), options(o), stream(std::move(s)), weights(std::move(w)) {
  device_major = device_info(0).compute_major;
  expect_attention_shape_cuda(static_cast<std::int32_t>(config.head_dim), static_cast<std::int32_t>(config.group()));
  scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  q_width = static_cast<std::int32_t>(config.n_heads * config.head_dim);
  kv_width = static_cast<std::int32_t>(config.n_kv_heads * config.head_dim);
  capacity = std::max(options.max_rows, graph_rows(std::min(options.max_sequences, kGraphRows)));
  allocate();
}

void CudaForward::Impl::allocate() {
  const auto rows = static_cast<std::size_t>(capacity);
  const auto hidden = static_cast<std::size_t>(config.hidden), ffn = static_cast<std::size_t>(config.ffn);
  const std::size_t qkv_width = static_cast<std::size_t>(q_width + 2 * kv_width),
                    q_n = static_cast<std::size_t>(q_width);
  const auto sequences = static_cast<std::size_t>(head_rows());
  std::size_t widest = 0;  // a quantised matrix becomes bf16 on its way into a product of many rows
  const auto see = [&](const DeviceMatrix& w) {
    if (is_quantised(w.dtype)) widest = std::max(widest, static_cast<std::size_t>(w.n_out * w.n_in));
  };
  for (const CudaLayerWeights& w : weights.layers())
    for (const DeviceMatrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) see(*matrix);
  see(weights.head());
  const std::size_t scratch = decode_attention_scratch_bytes(capacity, static_cast<std::int32_t>(config.n_kv_heads),
                                                             static_cast<std::int32_t>(config.head_dim));
  struct Piece {
    void* to;
    std::size_t bytes;
  };
  const std::array pieces = {Piece{&residual, rows * hidden * 4},
                             Piece{&normed, rows * hidden * 2},
                             Piece{&qkv, rows * qkv_width * 2},
                             Piece{&qkv_f32, kMatvecRows * qkv_width * 4},
                             Piece{&q, rows * q_n * 2},
                             Piece{&attended, rows * q_n * 2},
                             Piece{&gate_up, rows * 2 * ffn * 2},
                             Piece{&product, rows * ffn * 2},
                             Piece{&dequantised, widest * 2},
                             Piece{&sums_embed, 8 * 4},
                             Piece{&sums, (hidden / 16 + 1) * 8 * 4},
                             Piece{&angles, rows * static_cast<std::size_t>(config.head_dim) * 4},
                             Piece{&logits, sequences * static_cast<std::size_t>(config.vocab) * 4},
                             Piece{&best_token, sequences * 4},
                             Piece{&best_logprob, sequences * 4},
                             Piece{&row_base, RowArrays::kArrays * rows * 4},
                             Piece{&graph_base, RowArrays::kArrays * kGraphRows * 4},
                             Piece{&inv_freq, model.rope().inv_freq.size() * 8},
                             Piece{&attention_scratch, scratch}};
  constexpr std::size_t kAlign = 256;
  const auto aligned = [](std::size_t n) { return (n + kAlign - 1) / kAlign * kAlign; };
  std::size_t total = 0;
  for (const Piece& p : pieces) total += aligned(p.bytes);
  arena = DeviceBuffer(total, "activations of a step (max_batched_tokens and max_sequences make them smaller)");
  std::size_t at = 0;
  for (const Piece& p : pieces) {
    *static_cast<std::byte**>(p.to) = arena.data() + at;
    at += aligned(p.bytes);
  }
  set_bytes(arena.data(), 0, total, stream);
  copy_bytes(inv_freq, model.rope().inv_freq.data(), model.rope().inv_freq.size() * 8, stream);
  host_rows = PinnedBuffer(RowArrays::kArrays * rows * 4);
  host_logits = PinnedBuffer(sequences * static_cast<std::size_t>(config.vocab) * 4);
  host_best = PinnedBuffer(sequences * 8);
  stream.synchronize();
}

// The rows of the step into host memory, their tables to the device. True: every sequence has one row.
bool CudaForward::Impl::fill_rows(const ForwardInput& input, std::int32_t rows_in_all) {
  const RowArrays host = RowArrays::at(host_rows.as<std::int32_t>(), capacity);
  spans.clear();
  caches.clear();
  wanted.clear();
  bool single = true;
  std::int32_t row = 0;
  for (const SequenceRows& s : input.sequences) {
    MNEME_CHECK(s.method == nullptr, "a step on the device with a method");
    if (s.n_rows == 0) continue;
    MNEME_CHECK(s.cache->length() <= options.max_context, "a sequence of {} tokens, the context is {}",
                s.cache->length(), options.max_context);
    const std::int32_t first = s.cache->length() - s.n_rows;
    single = single && s.n_rows == 1;
    if (s.want_logits || s.all_logits) {
      for (std::int32_t r = s.all_logits ? 0 : s.n_rows - 1; r < s.n_rows; ++r) wanted.push_back(row + r);
    }
    spans.push_back({row, s.n_rows, first, 0});
    caches.push_back(s.cache);
    for (std::int32_t i = 0; i < s.n_rows; ++i, ++row) {
      host.positions[row] = first + i;
      host.lengths[row] = first + i + 1;
    }
  }
  MNEME_CHECK(row == rows_in_all && row <= options.max_rows, "{} tokens for {} rows, of at most {}", rows_in_all, row,
              options.max_rows);
  MNEME_CHECK(spans.size() <= static_cast<std::size_t>(options.max_sequences), "{} sequences of at most {}",
              spans.size(), options.max_sequences);
  std::copy(input.tokens.begin(), input.tokens.end(), host.tokens);
  std::copy(wanted.begin(), wanted.end(), host.wanted_rows);
  slots.resize(spans.size());
  tables->place(caches, stream, slots);
  for (std::size_t i = 0; i < spans.size(); ++i) {
    spans[i].slot = slots[i];
    std::fill_n(host.slots + spans[i].first_row, spans[i].n_rows, slots[i]);
  }
  return single;
}

QkvRows CudaForward::Impl::qkv_rows(std::int32_t layer, std::int32_t n, const RowArrays& rows, bool bf16) const {
  const CudaLayerWeights& w = weights.layers()[static_cast<std::size_t>(layer)];
  return {.qkv = bf16 ? static_cast<const void*>(qkv) : qkv_f32,
          .qkv_bf16 = bf16,
          .bias = bf16 ? w.qkv_bias : nullptr,  // the matrix-vector product has added it
          .q_norm = w.q_norm,
          .k_norm = w.k_norm,
          .norm_eps = static_cast<float>(config.rms_eps),
          .angles = angles,
          .neighbours = model.rope().pairs == RopePairs::kNeighbours,
          .positions = rows.positions,
          .slots = rows.slots,
          .n = n,
          .n_heads = static_cast<std::int32_t>(config.n_heads)};
}

void CudaForward::Impl::attend_decode(std::int32_t layer, std::int32_t first, std::int32_t n, const RowArrays& rows,
                                      const CudaContext& context) {
  attend_decode_cuda({.q = q + static_cast<std::size_t>(first) * static_cast<std::size_t>(q_width) * 2,
                      .slots = rows.slots + first,
                      .lengths = rows.lengths + first,
                      .out = attended + static_cast<std::size_t>(first) * static_cast<std::size_t>(q_width) * 2,
                      .n = n,
                      .n_heads = static_cast<std::int32_t>(config.n_heads),
                      .window = static_cast<std::int32_t>(config.sliding_window),
                      .scale = scale,
                      .scratch = attention_scratch},
                     tables->tables(), layer, context);
}

// Six kernels a layer: norms are part of the products before and after them.
void CudaForward::Impl::layer_few(std::int32_t layer, std::int32_t n, const RowArrays& rows) {
  const CudaLayerWeights& w = weights.layers()[static_cast<std::size_t>(layer)];
  const bool last = layer + 1 == static_cast<std::int32_t>(config.n_layers);
  const float* next_norm =
      last ? weights.output_norm() : weights.layers()[static_cast<std::size_t>(layer) + 1].attn_norm;
  const std::int32_t parts = residual_parts(config.hidden);
  const CudaContext context = overlapped();

  matvec_cuda(normed, n, w.qkv, layer == 0 ? deferred(sums_embed, 1) : deferred(sums, parts),
              {.y = qkv_f32, .bias = w.qkv_bias}, context);
  store_qkv_cuda(qkv_rows(layer, n, rows, false), tables->tables(), layer, q, context);
  attend_decode(layer, 0, n, rows, context);
  matvec_residual_cuda(attended, n, w.o,
                       {.residual = residual, .norm_weight = w.ffn_norm, .x_next = normed, .sums = sums}, context);
  matvec_swiglu_cuda(normed, n, w.gate_up, deferred(sums, parts), product, context);
  matvec_residual_cuda(product, n, w.down,
                       {.residual = residual, .norm_weight = next_norm, .x_next = normed, .sums = sums}, context);
}

void CudaForward::Impl::launch_few(std::int32_t n) {
  const RowArrays rows = RowArrays::at(graph_base, kGraphRows);
  const CudaContext context = overlapped();
  embed_cuda(
      rows.tokens, n, weights.embedding(),
      {.residual = residual, .norm_weight = weights.layers().front().attn_norm, .x_next = normed, .sums = sums_embed},
      context);
  rope_angles_cuda(rows.positions, n, inv_freq, static_cast<std::int32_t>(config.head_dim / 2), model.rope().scale,
                   angles, context);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) layer_few(layer, n, rows);
  matvec_cuda(normed, n, weights.head(), deferred(sums, residual_parts(config.hidden)), {.y = logits}, context);
  argmax_cuda(logits, n, static_cast<std::int32_t>(config.vocab), best_token, best_logprob, context);
}

// y = x w^T, the weights as bf16.
void CudaForward::Impl::multiply(const void* x, const DeviceMatrix& w, std::int64_t m, void* y, bool f32,
                                 bool accumulate) {
  const void* values = w.values;
  if (is_quantised(w.dtype)) {
    dequantise_cuda(w, 0, w.n_out, dequantised, serial());
    values = dequantised;
  }
  products.run({.m = m, .n = w.n_out, .k = w.n_in, .f32 = f32, .accumulate = accumulate}, x, values, y, serial());
}

// Rows that stand alone attend together, chunks of a prompt one by one.
void CudaForward::Impl::attend(std::int32_t layer, const RowArrays& rows, const CudaContext& context) {
  for (std::size_t i = 0; i < spans.size();) {
    if (spans[i].n_rows == 1) {
      std::size_t stop = i;
      while (stop < spans.size() && spans[stop].n_rows == 1) ++stop;
      attend_decode(layer, spans[i].first_row, static_cast<std::int32_t>(stop - i), rows, context);
      i = stop;
      continue;
    }
    const Span& s = spans[i++];
    const std::size_t offset = static_cast<std::size_t>(s.first_row) * static_cast<std::size_t>(q_width) * 2;
    const PrefillAttentionCuda chunk{.q = q + offset,
                                     .out = attended + offset,
                                     .slot = s.slot,
                                     .first = s.first_position,
                                     .n_rows = s.n_rows,
                                     .n_heads = static_cast<std::int32_t>(config.n_heads),
                                     .window = static_cast<std::int32_t>(config.sliding_window),
                                     .scale = scale};
    if (!library.attend(chunk, tables->tables(), layer, context))
      attend_prefill_cuda(chunk, tables->tables(), layer, context);
  }
}

void CudaForward::Impl::layer_many(std::int32_t layer, std::int32_t n, const RowArrays& rows, bool decode_only,
                                   const CudaContext& context) {
  const CudaLayerWeights& w = weights.layers()[static_cast<std::size_t>(layer)];
  const auto hidden = static_cast<std::int32_t>(config.hidden), ffn = static_cast<std::int32_t>(config.ffn);
  const auto eps = static_cast<float>(config.rms_eps);
  rms_norm_cuda(residual, nullptr, n, hidden, w.attn_norm, eps, normed, context);
  multiply(normed, w.qkv, n, qkv, false, false);
  store_qkv_cuda(qkv_rows(layer, n, rows, true), tables->tables(), layer, q, context);
  decode_only ? attend_decode(layer, 0, n, rows, context) : attend(layer, rows, context);
  multiply(attended, w.o, n, residual, true, true);
  rms_norm_cuda(residual, nullptr, n, hidden, w.ffn_norm, eps, normed, context);
  multiply(normed, w.gate_up, n, gate_up, false, false);
  swiglu_cuda(gate_up, n, ffn, product, context);
  multiply(product, w.down, n, residual, true, true);
}

void CudaForward::Impl::launch_many(std::int32_t n, const RowArrays& rows, bool decode_only) {
  const CudaContext context = serial();
  embed_cuda(rows.tokens, n, weights.embedding(),
             {.residual = residual, .norm_weight = nullptr, .x_next = nullptr, .sums = nullptr}, context);
  rope_angles_cuda(rows.positions, n, inv_freq, static_cast<std::int32_t>(config.head_dim / 2), model.rope().scale,
                   angles, context);
  for (std::int32_t layer = 0; layer < config.n_layers; ++layer) layer_many(layer, n, rows, decode_only, context);
}

// Logits of n rows, and the best of each. rows: which, null: the first n.
void CudaForward::Impl::head_many(const std::int32_t* rows, std::int32_t n) {
  const CudaContext context = serial();
  rms_norm_cuda(residual, rows, n, static_cast<std::int32_t>(config.hidden), weights.output_norm(),
                static_cast<float>(config.rms_eps), normed, context);
  if (n <= kMatvecRows) {
    matvec_cuda(normed, n, weights.head(), {}, {.y = logits}, context);
  } else {
    multiply(normed, weights.head(), n, logits, true, false);
  }
  argmax_cuda(logits, n, static_cast<std::int32_t>(config.vocab), best_token, best_logprob, context);
}

// n rows of n sequences. The first step of so many rows is launched as it is, which loads the kernels; the second is
// captured.
void CudaForward::Impl::run_graph_rows(std::int32_t n, std::int32_t n_padded) {
  const RowArrays from = RowArrays::at(host_rows.as<std::int32_t>(), capacity);
  for (std::int32_t i = n; i < n_padded; ++i)
    from.tokens[i] = 0, from.positions[i] = 0, from.slots[i] = -1, from.lengths[i] = 0;
  const RowArrays to = RowArrays::at(graph_base, kGraphRows);
  const std::size_t bytes = static_cast<std::size_t>(n_padded) * sizeof(std::int32_t);
  copy_bytes(to.tokens, from.tokens, bytes, stream);
  copy_bytes(to.positions, from.positions, bytes, stream);
  copy_bytes(to.slots, from.slots, bytes, stream);
  copy_bytes(to.lengths, from.lengths, bytes, stream);
  const auto launch = [&] {
    if (n_padded <= kMatvecRows) {
      launch_few(n_padded);
    } else {
      launch_many(n_padded, to, true);
      head_many(nullptr, n_padded);
    }
  };
  const auto [it, fresh] = graphs.try_emplace(n_padded);
  if (fresh) {
    launch();
    return;
  }
  if (!it->second) it->second = Graph::capture(stream, launch);
  it->second.launch(stream);
}

// What `rows` of the head's last call are, to the host: their logits to `to`, or their best tokens to `choices`.
void CudaForward::Impl::fetch(std::span<const std::int32_t> rows, LogitsWanted what, float* to) {
  if (rows.empty()) return;
  if (what == LogitsWanted::kAll) {
    for (std::size_t i = 0; i < rows.size(); ++i)
      copy_bytes(to + static_cast<std::int64_t>(i) * config.vocab, logits + rows[i] * config.vocab,
                 static_cast<std::size_t>(config.vocab) * sizeof(float), stream);
    return;
  }
  auto* tokens = host_best.as<std::int32_t>();
  auto* logprobs = host_best.as<float>() + head_rows();
  const std::size_t bytes = static_cast<std::size_t>(*std::max_element(rows.begin(), rows.end()) + 1) * 4;
  copy_bytes(tokens, best_token, bytes, stream);
  copy_bytes(logprobs, best_logprob, bytes, stream);
  stream.synchronize();
  for (const std::int32_t row : rows) choices.push_back({tokens[row], logprobs[row]});
}

// What was wanted, on the host. to_compute: the rows, where the head has not seen them yet; it takes so many at a time.
ConstTensorView CudaForward::Impl::collect(LogitsWanted what, const RowArrays* to_compute) {
  const auto n = static_cast<std::int32_t>(wanted.size());
  const bool few = n <= head_rows();
  float* to = host_logits.as<float>();
  if (!few && what == LogitsWanted::kAll) {
    all_logits.reserve(static_cast<std::size_t>(n) * static_cast<std::size_t>(config.vocab) * sizeof(float));
    to = all_logits.as<float>();
  }
  choices.clear();
  if (to_compute == nullptr) fetch(wanted, what, to);
  std::vector<std::int32_t> rows;
  for (std::int32_t first = 0; to_compute != nullptr && first < n; first += head_rows()) {
    rows.resize(static_cast<std::size_t>(std::min(head_rows(), n - first)));
    std::iota(rows.begin(), rows.end(), 0);
    head_many(to_compute->wanted_rows + first, static_cast<std::int32_t>(rows.size()));
    fetch(rows, what, to + first * config.vocab);
  }
  end.record(stream);
  stream.synchronize();
  return view_of(static_cast<const float*>(to), {what == LogitsWanted::kAll ? n : 0, config.vocab});
}

CudaForward::CudaForward(const Model& model, CudaWeights weights, Stream stream, const CudaForwardOptions& options)
    : impl_(std::make_unique<Impl>(model, std::move(weights), std::move(stream), options)) {}
CudaForward::~CudaForward() = default;

std::unique_ptr<PagePool> CudaForward::make_pool(const KvShape& shape, std::int64_t n_blocks) {
  MNEME_CHECK(impl_->blocks == nullptr, "a second pool");
  auto blocks = std::make_unique<DeviceBlocks>(static_cast<std::size_t>(n_blocks) * shape.page_bytes(), impl_->stream);
  impl_->blocks = blocks.get();
  impl_->tables.emplace(shape, blocks->base(), std::max(impl_->options.max_sequences, 1), impl_->options.max_context);
  impl_->library.prepare(static_cast<std::int32_t>(impl_->config.n_heads), impl_->tables->tables(),
                         impl_->options.max_context);
  return std::make_unique<PagePool>(shape, n_blocks, std::move(blocks));
}

std::int64_t CudaForward::room_bytes() const {
  const KvShape shape = impl_->model.kv_shape(DType::kBF16);
  const std::int64_t pages = (impl_->options.max_context + kPageTokens - 1) / kPageTokens;
  const std::int64_t aside =
      static_cast<std::int64_t>(kAside) + impl_->options.max_sequences * shape.blocks_per_page() * pages * 4 +
      LibraryAttention::bytes(static_cast<std::int32_t>(impl_->config.n_kv_heads),
                              static_cast<std::int32_t>(impl_->config.head_dim), impl_->options.max_context);
  return static_cast<std::int64_t>(device_info(0).free_bytes) - aside;
}

ConstTensorView CudaForward::run(const ForwardInput& input, LogitsWanted what) {
  Impl& s = *impl_;
  MNEME_CHECK(s.tables.has_value(), "a step before make_pool()");
  use_device(0);
  const auto n = static_cast<std::int32_t>(input.tokens.size());
  const bool single = s.fill_rows(input, n);
  s.begin.record(s.stream);
  if (n == 0) return s.collect(what, nullptr);
  if (single && n <= kGraphRows) {
    s.run_graph_rows(n, graph_rows(n));
    return s.collect(what, nullptr);
  }
  copy_bytes(s.row_base, s.host_rows.data(), s.host_rows.size(), s.stream);
  const RowArrays rows = RowArrays::at(s.row_base, s.capacity);
  s.launch_many(n, rows, false);
  return s.collect(what, &rows);
}

std::span<const GreedyChoice> CudaForward::best() const {
  return impl_->choices;
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
std::size_t CudaForward::activation_bytes() const {
  return impl_->arena.size() + impl_->tables->bytes();
}
std::byte* CudaForward::kv_data() const {
  return impl_->blocks->base();
}
std::size_t CudaForward::kv_bytes() const {
  return impl_->blocks->bytes();
}

}  // namespace mneme
