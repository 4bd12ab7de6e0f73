#include "src/model/cuda/host_attention.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/size32.h"
#include "src/recipes/device_form.h"
#include "src/tensor/half.h"

namespace mneme {
namespace {

bool question_counts(const MethodState& method) {
  const auto [begin, end] = method.question_span();
  return method.plan().layer_selection && method.plan().window->question_weight != 0 && begin < end;
}

}  // namespace

CudaHostAttention::CudaHostAttention(const Model& model, const Options& options)
    : model_(model),
      options_(options),
      threads_(available_cpus()),
      attention_(model.config(), model.rope(), CpuContext{.pool = &threads_}) {
  attention_.set_audit(options.audit_every);
}

bool CudaHostAttention::takes(const MethodState& method) {
  return host_reason(method.plan()) != nullptr || question_counts(method);
}

// A budget that the prompt sets looks at the prompt's last rows.
bool CudaHostAttention::attends(const SequenceRows& s) {
  const Plan& plan = s.method->plan();
  return s.phase == SequencePhase::kDecode || plan.window || plan.norm;
}

void CudaHostAttention::begin() {
  taken_.clear();
}

void CudaHostAttention::add(const SequenceRows& s, std::int32_t first_row) {
  taken_.push_back({.rows = s, .first_row = first_row, .attends = attends(s)});
}

void CudaHostAttention::copy_tokens(const Taken& t, std::int32_t layer, std::int32_t first) {
  const KvShape& shape = t.from->shape();
  const std::int32_t end = t.from->length();
  for (std::int32_t head = 0; head < shape.n_kv_heads; ++head)
    for (std::int32_t p = first, n = 0; p < end; p += n) {
      n = std::min(kPageTokens - p % kPageTokens, end - p);
      t.from->pool().read(t.rows.cache->token(layer, head, p), t.from->token(layer, head, p), n * shape.token_bytes());
    }
}

// Extends a copy to the sequence's length, with the earlier tokens that it lacks. This step's follow layer by layer.
void CudaHostAttention::follow(Taken& t, Copy& copy) const {
  t.from = t.rows.cache;
  t.rows.cache = &copy.cache;
  const std::int32_t before = t.from->length() - t.rows.n_rows;
  if (copy.cache.length() > before) copy.cache.truncate(before);
  const std::int32_t known = copy.cache.length();
  copy.cache.extend(t.from->length() - known);
  for (std::int32_t l = 0; known < before && l < t.from->shape().n_layers; ++l) copy_tokens(t, l, known);
}

// Copies of the step's sequences, where the host cannot read their pages. Those of others end.
void CudaHostAttention::take_copies() {
  std::vector<std::unique_ptr<Copy>> earlier = std::exchange(copies_, {});
  std::vector<Taken*> fresh;
  for (Taken& t : taken_) {
    const SequenceCache& cache = *t.rows.cache;
    const auto known = std::find_if(earlier.begin(), earlier.end(), [&](const auto& c) {
      return c != nullptr && c->revision == cache.revision() && c->cache.key_basis() == cache.key_basis();
    });
    if (known == earlier.end()) {
      fresh.push_back(&t);
      continue;
    }
    copies_.push_back(std::move(*known));
    follow(t, *copies_.back());
  }
  earlier.clear();  // before others take their blocks
  for (Taken* t : fresh) {
    const SequenceCache& cache = *t->rows.cache;
    KvShape shape = cache.shape();
    shape.state_bytes = 0;  // the device has the states
    if (pool_ == nullptr || !(pool_->shape() == shape)) {
      MNEME_CHECK(copies_.empty(), "sequences of two shapes in one step");
      const std::int64_t pages = options_.max_context / kPageTokens + 1;
      pool_ = std::make_unique<PagePool>(shape, options_.max_sequences * pages * shape.blocks_per_page());
    }
    copies_.push_back(std::make_unique<Copy>(Copy{.revision = cache.revision(), .cache = SequenceCache(*pool_)}));
    copies_.back()->cache.set_key_basis(cache.key_basis());
    follow(*t, *copies_.back());
  }
}

void CudaHostAttention::start() {
  if (!options_.reads_pages) take_copies();
  std::vector<SequenceRows> attended;
  std::size_t n_rows = 0;
  for (const Taken& t : taken_) {
    if (!t.attends) continue;
    attended.push_back(t.rows);
    n_rows += static_cast<std::size_t>(t.rows.n_rows);
  }
  attention_.begin(attended);
  const std::size_t values = n_rows * static_cast<std::size_t>(width());
  if (host_q_.size() < values * sizeof(bf16)) {
    host_q_ = {}, host_out_ = {};
    host_q_ = PinnedBuffer(values * sizeof(bf16)), host_out_ = PinnedBuffer(values * sizeof(bf16));
  }
  wide_q_.reserve(values * sizeof(float));
}

void CudaHostAttention::attend(std::int32_t layer, const std::byte* q, std::byte* out, const Stream& stream) {
  const std::size_t row_bytes = static_cast<std::size_t>(width()) * sizeof(bf16);
  // The step's rows that the host attends, in its buffers.
  const auto for_rows = [&](auto&& copy) {
    std::size_t at = 0;
    for (const Taken& t : taken_) {
      if (!t.attends) continue;
      const std::size_t bytes = static_cast<std::size_t>(t.rows.n_rows) * row_bytes;
      copy(at, static_cast<std::size_t>(t.first_row) * row_bytes, bytes);
      at += bytes;
    }
    return static_cast<std::int64_t>(at / row_bytes);
  };
  const std::int64_t n = for_rows([&](std::size_t here, std::size_t there, std::size_t bytes) {
    copy_bytes(host_q_.data() + here, q + there, bytes, stream);
  });
  if (n == 0) return;
  stream.synchronize();
  for (const Taken& t : taken_)
    if (t.attends && t.from != nullptr) copy_tokens(t, layer, t.first());
  std::copy_n(host_q_.as<bf16>(), n * width(), wide_q_.as<float>());
  const ModelConfig& c = model_.config();
  const bool has_sinks = c.sinks && !model_.layers().empty();  // a benchmark's model may have no weights here
  const float* sinks = has_sinks ? model_.layers()[static_cast<std::size_t>(layer)].sinks.data() : nullptr;
  attention_.attend(layer, view_of(wide_q_.as<const float>(), {n, c.n_heads, c.head_dim}),
                    TensorView(host_out_.data(), DType::kBF16, {n, width()}), sinks);
  for_rows([&](std::size_t here, std::size_t there, std::size_t bytes) {
    copy_bytes(out + there, host_out_.data() + here, bytes, stream);
  });
}

// Index entries of prompts that the device attended.
void CudaHostAttention::end() {
  std::vector<SequenceRows> prompts;
  for (const Taken& t : taken_) {
    if (t.attends) continue;
    for (std::int32_t l = 0; t.from != nullptr && l < t.from->shape().n_layers; ++l) copy_tokens(t, l, t.first());
    prompts.push_back(t.rows);
  }
  if (prompts.empty()) return;
  attention_.begin(prompts);
  for (std::int32_t l = 0; l < prompts.front().cache->shape().n_layers; ++l) attention_.close_units(l);
}

}  // namespace mneme
