// A model for tests of the engine: its logits are a hash of every byte that the sequence's pages hold, in order of
// position, layer and head. A page that is mixed up, not copied before it is written, or given back too early changes
// the tokens that follow.
//
// What it must say is known without it: hash_logits() computes the same from the tokens alone.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "src/engine/engine.h"
#include "src/engine/forward_pass.h"
#include "src/engine/ranks/rank_link.h"

namespace mneme {

inline constexpr std::int32_t kHashVocab = 40;
inline constexpr std::int32_t kHashEnd = 0;  // comes as often as any other token
inline constexpr std::int64_t kHashContext = 100000;
inline constexpr std::int64_t kHashBlocksPerPage = 4;
inline constexpr std::size_t kHashStateBytes = 2500;  // three blocks

// What the model writes and sees; outlives the engine that owns the model.
struct HashModelLog {
  std::vector<std::vector<std::int32_t>> steps;  // rows of every sequence, step by step
  int fail_in = -1;                              // steps until run() throws kResource; negative: never
  std::int32_t window = 0;                       // tokens that layer 1 sees; 0: all of them
  bool has_state = false;                        // logits depend on a state of all tokens, too
};

class HashModel final : public ForwardPass {
 public:
  // link: of ranks that all have the whole model; null: none.
  explicit HashModel(HashModelLog* log, RankLink* link = nullptr) : log_(log), link_(link) {}

  KvShape kv_shape(DType kv_dtype) const override {
    return {.n_layers = 2,
            .n_kv_heads = 2,
            .head_dim = 8,
            .dtype = kv_dtype,
            .state_bytes = log_->has_state ? kHashStateBytes : 0};
  }
  KvWindows kv_windows() const override { return {.tokens = log_->window, .layers = {false, true}}; }
  std::int64_t vocab() const override { return kHashVocab; }
  std::int64_t max_context() const override { return kHashContext; }
  ConstTensorView run(const ForwardInput& input) override;
  RankLink* ranks() const override { return link_; }

 private:
  HashModelLog* log_;
  RankLink* link_;
  std::vector<float> logits_;
};

// Logits after these tokens.
std::vector<float> hash_logits(std::span<const std::int32_t> tokens, std::int32_t window = 0, bool has_state = false);

struct HashAnswer {
  std::vector<std::int32_t> tokens;
  StopReason reason = StopReason::kLength;
  bool operator==(const HashAnswer&) const = default;
};

// What a request must answer when `before` are the tokens of its sequence (its own prompt included).
HashAnswer answer_alone(std::span<const std::int32_t> before, const RequestInput& input, std::int32_t window = 0,
                        bool has_state = false);

// Steps until nothing is left to do; the answer of every request, by id.
struct Drained {
  std::vector<std::pair<RequestId, HashAnswer>> answers;
  const HashAnswer& of(RequestId id) const;
};
Drained drain(Engine& engine);

struct TestEngine {
  explicit TestEngine(const EngineOptions& options = {.context = 4096}, int n_threads = 1, Collective* ranks = nullptr,
                      std::int32_t window = 0, bool has_state = false);
  Engine* operator->() const { return engine.get(); }
  Engine& operator*() const { return *engine; }

  std::unique_ptr<HashModelLog> log;
  std::unique_ptr<RankLink> link;  // null: one rank
  std::unique_ptr<Engine> engine;
};

// Options of an engine whose steps take that many tokens.
EngineOptions chunked(int max_batched_tokens);
// n tokens that depend on the seed, none of them the end token.
std::vector<std::int32_t> random_prompt(std::size_t n, std::uint64_t seed);
// A greedy request that ends at kHashEnd.
RequestInput request(std::vector<std::int32_t> prompt, std::int32_t max_tokens = 20);
std::vector<std::int32_t> joined(std::span<const std::int32_t> a, std::span<const std::int32_t> b);

}  // namespace mneme
