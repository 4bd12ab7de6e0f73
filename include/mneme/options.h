// Options of the library: each with its default, its unit, and what it trades.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mneme {

// How the next token is chosen from the logits. The defaults are greedy: the most likely token, always.
// Order of application: penalties, temperature, top-k, top-p, min-p, draw.
struct SamplingOptions {
  float temperature = 0.0f;         // 0: greedy. Higher: more varied
  int top_k = 0;                    // only the k most likely tokens; 0: all
  float top_p = 1.0f;               // only the fewest tokens that reach this probability together; 1: all
  float min_p = 0.0f;               // only tokens at least this share as likely as the most likely one; 0: all
  float repetition_penalty = 1.0f;  // divides (or multiplies, if negative) the logits of tokens seen in prompt or answer; 1: none
  float presence_penalty = 0.0f;    // subtracted once from the logits of tokens that the answer already has
  float frequency_penalty = 0.0f;   // subtracted for every time the answer has the token
  std::optional<std::uint64_t> seed;  // none: taken from the system's entropy
};

struct GenerationOptions {
  SamplingOptions sampling;
  int max_tokens = 256;             // of the answer
  std::vector<std::string> stop;    // the answer ends before any of these strings
  bool ignore_end = false;          // go on after an end-of-turn token (for measuring)
};

struct EngineOptions {
  std::string kv_cache_dtype = "bf16";  // "bf16" or "f16": how keys and values are stored
  std::int64_t context = 0;             // longest sequence, tokens; 0: what the model was made for. Larger takes more KV memory
  std::int64_t kv_memory_bytes = 0;     // room for keys and values of all sequences; 0: enough for one sequence of `context`
  int max_sequences = 16;               // that run at the same time
  int max_batched_tokens = 1024;        // a step's tokens, prefill chunks included: larger prefills faster, smaller answers others sooner
  int threads = 0;                      // 0: one per CPU that the process may use
  bool pin_threads = true;              // each to one CPU
  bool deterministic = false;           // fixed tiles: the same tokens in every batch, a little slower
};

}  // namespace mneme
