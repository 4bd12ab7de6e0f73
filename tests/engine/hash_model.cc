#include "tests/engine/hash_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/rng.h"
#include "src/base/size32.h"
#include "src/engine/ranks/rank_engine.h"
#include "src/model/ranks/rank_forward.h"

namespace mneme {
namespace {

constexpr std::int32_t kLayers = 2, kHeads = 2;
constexpr std::size_t kWords = 4;  // 8 x [K | V] in two bytes each

std::uint64_t mix(std::uint64_t h, std::uint64_t word) {
  h = (std::rotl(h, 23) ^ word) * 0x9e3779b97f4a7c15ull;
  return h ^ (h >> 29);
}

std::uint64_t word_of(std::int32_t token, std::int32_t position, std::int32_t layer, std::int32_t head, std::size_t i) {
  return mix(mix(static_cast<std::uint64_t>(token) * 64 + (layer * 8 + head), position), i);
}

void write(const SequenceCache& cache, std::int32_t position, std::int32_t token) {
  for (std::int32_t l = 0; l < kLayers; ++l) {
    for (std::int32_t h = 0; h < kHeads; ++h) {
      std::byte* at = cache.token(l, h, position);
      for (std::size_t i = 0; i < kWords; ++i) {
        const std::uint64_t word = word_of(token, position, l, h, i);
        std::memcpy(at + i * 8, &word, 8);
      }
    }
  }
}

// Whether layer `l` sees position `p` of so many tokens.
bool sees(std::int32_t l, std::int32_t p, std::int32_t length, std::int32_t window) {
  return l == 0 || window == 0 || p >= length - window;
}

std::uint64_t hash_of(const SequenceCache& cache, std::int32_t length, std::int32_t window) {
  std::uint64_t hash = 1;
  for (std::int32_t p = 0; p < length; ++p) {
    for (std::int32_t l = 0; l < kLayers && sees(l, p, length, window); ++l) {
      for (std::int32_t h = 0; h < kHeads; ++h) {
        const std::byte* at = cache.token(l, h, p);
        for (std::size_t i = 0; i < kWords; ++i) {
          std::uint64_t word = 0;
          std::memcpy(&word, at + i * 8, 8);
          hash = mix(hash, word);
        }
      }
    }
  }
  return hash;
}

// Of all tokens up to one.
struct HashState {
  std::uint64_t hash = 0;
  std::int64_t n_tokens = 0;

  void take(std::int32_t token) { hash = mix(hash, static_cast<std::uint64_t>(token) + 1), ++n_tokens; }
};

// Takes the last rows of a sequence into its state; what it was after each of them.
std::vector<std::uint64_t> take_rows(SequenceCache& cache, std::span<const std::int32_t> tokens) {
  HashState state;
  std::byte* at = cache.states().begin_write().host();
  std::memcpy(&state, at, sizeof(state));
  MNEME_CHECK(state.n_tokens == cache.length() - std::ssize(tokens), "a state of {} tokens before {} of {}",
              state.n_tokens, tokens.size(), cache.length());
  std::vector<std::uint64_t> all;
  for (const std::int32_t token : tokens) {
    state.take(token);
    all.push_back(state.hash);
  }
  std::memcpy(at, &state, sizeof(state));
  cache.states().end_write(cache.length());
  return all;
}

void logits_of(std::uint64_t hash, std::span<float> out) {
  Rng rng(hash);
  for (float& v : out) v = static_cast<float>(rng.uniform() * 6 - 3);
}

std::int32_t rows_wanted(const SequenceRows& s) {
  return s.all_logits ? s.n_rows : std::int32_t{s.want_logits};
}

}  // namespace

ConstTensorView HashModel::run(const ForwardInput& input) {
  if (link_ != nullptr) expect_agreement(link_->ranks(), "step", step_hash(input));
  if (log_->fail_in == 0) {
    log_->fail_in = -1;
    // As a real one would: some rows are written already.
    write(*input.sequences.front().cache, input.sequences.front().cache->length() - 1, 39);
    if (log_->has_state) std::memset(input.sequences.front().cache->states().begin_write().host(), 7, kHashStateBytes);
    fail(ErrorKind::kResource, "the test asked for it");
  }
  if (log_->fail_in > 0) --log_->fail_in;
  auto& rows = log_->steps.emplace_back();
  std::size_t at = 0;
  std::int64_t n_wanted = 0;
  for (const SequenceRows& s : input.sequences) {
    rows.push_back(s.n_rows);
    for (std::int32_t i = 0; i < s.n_rows; ++i) write(*s.cache, s.cache->length() - s.n_rows + i, input.tokens[at++]);
    n_wanted += rows_wanted(s);
  }
  MNEME_CHECK(at == input.tokens.size(), "{} of {} tokens have a sequence", at, input.tokens.size());
  logits_.resize(n_wanted * kHashVocab);
  std::span<float> out(logits_);
  at = 0;
  for (const SequenceRows& s : input.sequences) {
    std::vector<std::uint64_t> states;
    if (log_->has_state) states = take_rows(*s.cache, input.tokens.subspan(at, static_cast<std::size_t>(s.n_rows)));
    at += static_cast<std::size_t>(s.n_rows);
    for (std::int32_t i = rows_wanted(s); i > 0; --i) {
      std::uint64_t hash = hash_of(*s.cache, s.cache->length() - i + 1, log_->window);
      if (log_->has_state) hash = mix(hash, states[states.size() - static_cast<std::size_t>(i)]);
      if (link_ != nullptr) expect_agreement(link_->ranks(), "pages", hash);
      logits_of(hash, out.first(kHashVocab));
      out = out.subspan(kHashVocab);
    }
  }
  return view_of(static_cast<const float*>(logits_.data()), {n_wanted, kHashVocab});
}

std::vector<float> hash_logits(std::span<const std::int32_t> tokens, std::int32_t window, bool has_state) {
  std::uint64_t hash = 1;
  const auto n = size32(tokens);
  for (std::int32_t p = 0; p < n; ++p) {
    for (std::int32_t l = 0; l < kLayers && sees(l, p, n, window); ++l) {
      for (std::int32_t h = 0; h < kHeads; ++h) {
        for (std::size_t i = 0; i < kWords; ++i) hash = mix(hash, word_of(tokens[p], p, l, h, i));
      }
    }
  }
  HashState state;
  for (const std::int32_t token : tokens) state.take(token);
  if (has_state) hash = mix(hash, state.hash);
  std::vector<float> logits(kHashVocab);
  logits_of(hash, logits);
  return logits;
}

HashAnswer answer_alone(std::span<const std::int32_t> before, const RequestInput& input, std::int32_t window,
                        bool has_state) {
  Sampler sampler(input.sampling);
  sampler.see_prompt(before);
  std::vector<std::int32_t> all(before.begin(), before.end());
  HashAnswer answer;
  while (size32(answer.tokens) < input.max_tokens) {
    const std::int32_t token = sampler.next(hash_logits(all, window, has_state)).token;
    if (std::find(input.end_tokens.begin(), input.end_tokens.end(), token) != input.end_tokens.end()) {
      answer.reason = StopReason::kEnd;
      break;
    }
    answer.tokens.push_back(token);
    all.push_back(token);
  }
  return answer;
}

const HashAnswer& Drained::of(RequestId id) const {
  const auto it = std::find_if(answers.begin(), answers.end(), [&](const auto& a) { return a.first == id; });
  MNEME_CHECK(it != answers.end(), "request {} has no event", id.value);
  return it->second;
}

Drained drain(Engine& engine) {
  std::map<RequestId, HashAnswer> answers;
  int steps = 0;
  while (!engine.idle()) {
    for (const RequestEvent& e : engine.step()) {
      HashAnswer& a = answers[e.id];
      if (e.token) a.tokens.push_back(e.token->token);
      if (e.finished) a.reason = *e.finished;
    }
    engine.check_invariants();
    MNEME_CHECK(++steps < 100000, "no end");
  }
  return {{answers.begin(), answers.end()}};
}

namespace {

std::unique_ptr<Engine> make_engine(std::unique_ptr<HashModel> model, const EngineOptions& options, int n_threads) {
  auto threads = std::make_unique<ThreadPool>(n_threads);
  if (model->ranks() != nullptr) return std::make_unique<RankEngine>(std::move(model), options, std::move(threads));
  return std::make_unique<Engine>(std::move(model), options, std::move(threads));
}

}  // namespace

TestEngine::TestEngine(const EngineOptions& options, int n_threads, Collective* ranks, std::int32_t window,
                       bool has_state)
    : log(std::make_unique<HashModelLog>(HashModelLog{.steps = {}, .window = window, .has_state = has_state})),
      link(ranks == nullptr ? nullptr : std::make_unique<RankLink>(*ranks)),
      engine(make_engine(std::make_unique<HashModel>(log.get(), link.get()), options, n_threads)) {}

EngineOptions chunked(int max_batched_tokens) {
  EngineOptions o;
  o.context = 4096;
  o.max_batched_tokens = max_batched_tokens;
  return o;
}

std::vector<std::int32_t> random_prompt(std::size_t n, std::uint64_t seed) {
  Rng rng(seed);
  std::vector<std::int32_t> tokens(n);
  for (auto& t : tokens) t = 1 + static_cast<std::int32_t>(rng.below(kHashVocab - 1));
  return tokens;
}

RequestInput request(std::vector<std::int32_t> prompt, std::int32_t max_tokens) {
  RequestInput input;
  input.prompt = std::move(prompt);
  input.max_tokens = max_tokens;
  input.end_tokens = {kHashEnd};
  return input;
}

std::vector<std::int32_t> joined(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
  std::vector<std::int32_t> all(a.begin(), a.end());
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

}  // namespace mneme
