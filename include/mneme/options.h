// Options of the library: each with its default, its unit, and what it trades.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace mneme {

struct TokenBias {
  std::int32_t token = -1;
  float bias = 0.0f;
};

// How the next token is chosen from the logits. The defaults are greedy: the most likely token, always.
// Order of application: penalties, bias, temperature, top-k, top-p, min-p, draw.
struct SamplingOptions {
  float temperature = 0.0f;  // 0: greedy. Higher: more varied
  int top_k = 0;             // only the k most likely tokens; 0: all
  float top_p = 1.0f;        // only the fewest tokens that reach this probability together; 1: all
  float min_p = 0.0f;        // only tokens at least this share as likely as the most likely one; 0: all
  // Divides (or multiplies, if negative) the logits of tokens seen in prompt or answer; 1: none.
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;      // subtracted once from the logits of tokens that the answer already has
  float frequency_penalty = 0.0f;     // subtracted for every time the answer has the token
  std::vector<TokenBias> logit_bias;  // added to the logits of these tokens; of -100 on a token hardly ever comes
  // Of the random numbers. None: a session goes on with those of its last turn; a new one, and a fork, takes a seed
  // from the system's entropy.
  std::optional<std::uint64_t> seed;
};

struct GenerationOptions {
  SamplingOptions sampling;
  int max_tokens = 256;           // of the answer
  std::vector<std::string> stop;  // the answer ends before any of these strings
  bool ignore_end = false;        // go on after an end-of-turn token (for measuring)
};

// Whether special tokens written in a text ("<|end|>") are ordinary characters or those tokens.
enum class SpecialTokens : std::uint8_t { kAsText, kParsed };

// How a turn becomes tokens.
enum class Framing : std::uint8_t {
  kChat,  // the model's own marks around the user's turn
  kRaw,   // the text as it is, after the token that begins a sequence if the model wants one
};

// Through which path the question's tokens are computed: with the document in large steps, or one a step like the
// answer. The same up to rounding; one a step is slower.
enum class QuestionPath : std::uint8_t { kPrefill, kDecode };

struct AskOptions {
  Framing framing = Framing::kChat;
  SpecialTokens special = SpecialTokens::kAsText;  // with kRaw only: framed text never forges a turn
  QuestionPath question = QuestionPath::kPrefill;
  // Bytes [first, second) of the document (or of the question, where there is no document) that say what is asked, for
  // methods that read prompts by it (actqkv, question_weight): a task that stands before a long text, say. Tokens that
  // touch them count. None: nothing is marked.
  std::optional<std::pair<std::size_t, std::size_t>> question_span;
};

// How answers attend. Prompts are read exactly, unless the method says otherwise.
struct KvMethodOptions {
  std::string method =
      "full";  // of recipe names: "full", "window", "quest", "freekv", "fier", ... (mneme methods lists them)
  // Tokens that a KV head reads in one layer in one step, sinks, window and current token included; absent: the
  // method's own. Smaller is faster and may miss what an answer needs.
  std::optional<std::int32_t> budget;
  std::optional<std::int32_t> sink, recent;  // first and last tokens that are always read
  std::string dense_layers;                  // layers that attend everything: "0,1", "none"; empty: the method's own
  std::string overrides;                     // blocks of the method: "index=one_bit,unit=token"
};

struct EngineOptions {
  // Where the model computes: "cpu", or "cuda", the first NVIDIA GPU (full attention, and most methods).
  std::string device = "cpu";
  // Where keys and values are with device "cuda": "device"; "host", in page-locked memory that is read over its link,
  // and methods bring what they select; "auto": host for a method that selects, and for a context that the device has
  // no room for.
  std::string kv_store = "auto";
  // How keys and values are stored: "bf16", or "f16", which has three more bits of precision and a smaller range.
  std::string kv_cache_dtype = "bf16";
  // Longest sequence, tokens; 0: what the model was made for. Larger takes more memory for keys and values.
  std::int64_t context = 0;
  // Room for keys and values of all sequences, bytes; 0: enough for one sequence of `context`.
  std::int64_t kv_memory_bytes = 0;
  // Sequences that run at the same time.
  int max_sequences = 16;
  // Tokens of one step, prefill chunks included. Larger prefills faster, smaller answers others (and Ctrl-C) sooner.
  int max_batched_tokens = 1024;
  // 0: one per CPU that the process may use.
  int threads = 0;
  // Each thread to one CPU, the one that starts the model included. Steadier; slower where other programs compute too.
  bool pin_threads = true;
  // Where threads and memory go on a machine with several memory nodes: "none", as the system places them;
  // "distribute", over all nodes; "isolate", on the node that starts the model. Holds for the whole process.
  std::string numa = "none";
  // Fixed tiles: the same tokens whatever else is in the batch, a little slower.
  bool deterministic = false;
  // Of all sessions.
  KvMethodOptions kv;
  // Every n-th step of an answer also computes the true attention beside the method's, for the statistics; 0: never.
  int audit_every = 0;
};

}  // namespace mneme
