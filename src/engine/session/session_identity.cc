#include "src/engine/session/session_identity.h"

#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include "src/base/check.h"
#include "src/base/underlying.h"

namespace mneme {
namespace {

constexpr std::size_t kPiece = 64, kPieces = 32;  // of a tensor; up to 32 * 64 bytes all of it

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    MNEME_CHECK(state_ != nullptr, "no memory for a checksum");
    XXH3_64bits_reset(state_.get());
  }
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  template <typename T>
  requires std::is_arithmetic_v<T>
  void add(T value) { add(std::as_bytes(std::span(&value, 1))); }
  void add(std::string_view text) {
    add(std::uint64_t{text.size()});
    add(std::as_bytes(std::span(text)));
  }
  std::uint64_t value() const { return XXH3_64bits_digest(state_.get()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

std::uint64_t hash_of(const TokenizerData& t) {
  Hash hash;
  hash.add(underlying(t.kind));
  hash.add(std::string_view(t.pre));
  for (const auto* list : {&t.pre_patterns, &t.tokens}) {
    hash.add(std::uint64_t{list->size()});
    for (const std::string& text : *list) hash.add(std::string_view(text));
  }
  hash.add(std::as_bytes(std::span(t.scores)));
  hash.add(std::as_bytes(std::span(t.types)));
  for (const auto& [left, right] : t.merges) {
    hash.add(std::string_view(left));
    hash.add(std::string_view(right));
  }
  for (const auto& id : {t.bos, t.eos, t.eot, t.unk, t.pad}) hash.add(id.value_or(-1));
  hash.add(std::as_bytes(std::span(t.eog)));
  for (const bool flag : {t.pre_add_prefix_space, t.ignore_merges, t.add_bos, t.add_eos, t.add_space_prefix})
    hash.add(flag);
  hash.add(std::string_view(t.chat_template));
  for (const auto& [name, source] : t.named_templates) {
    hash.add(std::string_view(name));
    hash.add(std::string_view(source));
  }
  return hash.value();
}

std::uint64_t hash_of(const RopeConfig& r, std::int64_t context) {
  Hash hash;
  hash.add(underlying(r.pairs));
  hash.add(underlying(r.scaling));
  for (const double v :
       {r.theta, r.factor, r.low_freq_factor, r.high_freq_factor, r.beta_fast, r.beta_slow, r.attention_factor})
    hash.add(v);
  hash.add(r.original_context);
  hash.add(std::as_bytes(std::span(r.freq_factors)));
  if (r.scaling == RopeScaling::kDynamic || r.scaling == RopeScaling::kLongRope) hash.add(context);
  if (r.rotary_dim != 0) hash.add(r.rotary_dim);
  for (const std::vector<float>* factors : {&r.short_factors, &r.long_factors})
    hash.add(std::as_bytes(std::span(*factors)));
  return hash.value();
}

void add_tensor(Hash& hash, const CheckpointTensor& tensor) {
  const ConstTensorView& v = tensor.view;
  hash.add(std::string_view(tensor.name));
  hash.add(underlying(v.dtype()));
  for (int i = 0; i < v.rank(); ++i) hash.add(v.dim(i));
  const std::size_t bytes = (v.rank() == 1 ? 1 : v.dim(0)) * v.stride_bytes();
  const std::span<const std::byte> all(v.data(), bytes);
  if (bytes <= kPiece * kPieces) return hash.add(all);
  for (std::size_t i = 0; i < kPieces; ++i)  // the first one and the last one among them
    hash.add(all.subspan((bytes - kPiece) / (kPieces - 1) * i, kPiece));
  hash.add(all.last(kPiece));
}

std::uint64_t hash_of_weights(const Checkpoint& checkpoint) {
  const ModelConfig& c = checkpoint.config();
  Hash hash;
  for (const std::int64_t v :
       {c.n_layers, c.hidden, c.ffn, c.n_heads, c.n_kv_heads, c.head_dim, c.vocab, c.sliding_window})
    hash.add(v);
  hash.add(c.rms_eps);
  for (const bool flag : {c.tied_embeddings, c.qkv_bias, c.qk_norm}) hash.add(flag);
  if (c.experts.n > 0) {
    hash.add(c.experts.n_used);
    hash.add(c.experts.normalise);
  }
  if (c.temperature != 0.0) {
    hash.add(c.temperature);
    hash.add(c.temperature_context);
  }
  for (const bool windowed : c.windowed) hash.add(windowed);
  // What a model of before 2026-12 cannot have is added where it is there: files of such models keep their number.
  for (const bool unrotated : c.unrotated) hash.add(unrotated);
  for (const double v : {c.embedding_scale, c.residual_scale, c.logit_divisor})
    if (v != 1.0) hash.add(v);
  for (const double v : {c.attention_scale, c.window_theta, c.logit_cap})
    if (v != 0.0) hash.add(v);
  if (c.gate != Gate::kSilu) hash.add(underlying(c.gate));
  for (const bool flag : {c.qk_norm_all, c.qk_norm_behind, c.plain_windows})
    if (flag) hash.add(flag);
  if (c.norms != NormOrder::kBefore) hash.add(underlying(c.norms));
  if (c.experts.limit != 0.0) hash.add(c.experts.limit);
  // By name: the order of tensors in a file says nothing.
  std::vector<const CheckpointTensor*> tensors;
  for (const CheckpointTensor& t : checkpoint.tensors()) tensors.push_back(&t);
  std::sort(tensors.begin(), tensors.end(), [](const auto* a, const auto* b) { return a->name < b->name; });
  for (const CheckpointTensor* t : tensors) add_tensor(hash, *t);
  return hash.value();
}

}  // namespace

SessionIdentity identity_of(const Checkpoint& checkpoint, std::int64_t context) {
  const ModelConfig& c = checkpoint.config();
  return {.architecture = std::string(architecture_name(c.architecture)),
          .name = c.name,
          .vocab = c.vocab,
          .weights = hash_of_weights(checkpoint),
          .tokenizer = hash_of(checkpoint.tokenizer()),
          .rope = hash_of(c.rope, context),
          .kv = {}};
}

}  // namespace mneme
