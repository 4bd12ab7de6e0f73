// Options of the library: each with its default, its unit, and what it trades.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mneme/recipe.h"

namespace mneme {

struct TokenBias {
  std::int32_t token = -1;
  float bias = 0.0f;
};

// How the next token is selected from the logits. The defaults are greedy: the most likely token, always.
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
  // How this turn attends; absent: as the session does. A method that drops tokens or decides how prompts are read
  // binds its session: another one can neither follow it nor precede it.
  std::optional<Recipe> kv;
  // Tell the log-probability of every token of the answer and so many of the likeliest tokens in its place, 0 to the
  // size of the vocabulary; absent: Answer::scores stays empty.
  std::optional<std::int32_t> top_logprobs;
};

// A KV method by name, with the settings that most methods share. recipe_of() makes the recipe.
struct KvMethodOptions {
  std::string method =
      "full";  // a name of methods() (mneme/recipe.h): "full", "window", "quest", "freekv", "fier", ...
  // Tokens that one KV head reads in one layer in one step, sinks, window and current token included; absent: the
  // method's own. Smaller is faster and may miss what an answer needs.
  std::optional<std::int32_t> budget;
  std::optional<std::int32_t> sink, recent;  // first and last tokens, always read; absent: the method's own
  std::optional<std::vector<std::int32_t>> dense_layers;  // layers that attend every token; absent: the method's own
  std::string overrides;                                  // blocks of the method: "index=one_bit,unit=token"
  std::optional<Recipe> recipe;  // what the settings above change, in place of the method called `method`
};

// "none", or layers separated by commas: "0,1,31". Parsing sorts nothing; "" is absent (the method's own).
//
// Errors  kOption: another text.
std::optional<std::vector<std::int32_t>> parse_dense_layers(std::string_view text);
std::string dense_layers_text(const std::optional<std::vector<std::int32_t>>& layers);

// Where the model computes. kCuda: the first NVIDIA GPU; full attention and most methods.
enum class Device : std::uint8_t { kCpu, kCuda };

// Where the KV cache lies with Device::kCuda.
enum class KvResidency : std::uint8_t {
  kAuto,    // kDevice where the device has room for it and for the method's index, else kHost
  kDevice,  // in device memory
  kHost,    // in page-locked host memory; methods fetch what they select over the link
};

// How keys and values are stored. kF16 has three more bits of precision and a smaller range. kInt8 and kFp8 (e4m3) take
// half the memory: 8 bits and a scale for each key and value of a head.
enum class KvDtype : std::uint8_t { kBf16, kF16, kInt8, kFp8 };

// Where threads and memory go on a machine with several memory nodes (NUMA). Holds for the whole process.
enum class NumaPolicy : std::uint8_t {
  kNone,        // as the operating system places them
  kDistribute,  // threads over the nodes in turn, pages of memory over all nodes: the bandwidth of all
  kIsolate,     // threads and memory on the node of the thread that starts the model: no traffic between nodes
};

// What a request must find free to begin.
enum class KvAdmission : std::uint8_t {
  kReserve,   // all that it may take to its last token: whoever runs is never interrupted
  kForecast,  // its prompt, and an answer as long as nine of ten of the last ones: more run at once. Where memory runs
              // out all the same, the least urgent gives pages back, waits, and computes them again
};

// Names, as options, requests and reports spell them: "cpu", "cuda"; "auto", "device", "host"; "bf16", "f16", "int8", "fp8";
// "none", "distribute", "isolate".
std::string_view name_of(Device device);
std::string_view name_of(KvResidency residency);
std::string_view name_of(KvDtype dtype);
std::string_view name_of(NumaPolicy policy);
std::string_view name_of(KvAdmission admission);
// The value of a name.
//
// Errors  kOption: another name; the message lists the names.
Device parse_device(std::string_view name);
KvResidency parse_kv_residency(std::string_view name);
KvDtype parse_kv_dtype(std::string_view name);
NumaPolicy parse_numa_policy(std::string_view name);
// "auto", or a number of layers.
//
// Errors  kOption.
int parse_gpu_layers(std::string_view text);
KvAdmission parse_kv_admission(std::string_view name);

// EngineOptions::gpu_layers: as many as fit the device.
inline constexpr int kAutoGpuLayers = -1;

struct EngineOptions {
  Device device = Device::kCpu;
  // On a device, the number of first layers whose weights are in its memory. Those of the others are in host memory, and
  // every step reads them over the link.
  int gpu_layers = kAutoGpuLayers;
  KvResidency kv_store = KvResidency::kAuto;
  KvDtype kv_cache_dtype = KvDtype::kBf16;
  // Longest sequence, tokens; 0: what the model was made for. Larger takes more memory for keys and values.
  std::int64_t context = 0;
  // Room for keys and values of all sequences, bytes; 0: enough for one sequence of `context`.
  std::int64_t kv_memory_bytes = 0;
  // So many bytes of keys and values beyond that lie in a file of this folder, the coldest pages first: sequences may be
  // longer than memory, at the speed of the disk where they read all of it. With Device::kCpu.
  struct KvSpill {
    std::string folder;
    std::int64_t bytes = 0;  // 0: none
  } kv_spill;
  // Sequences that run at the same time.
  int max_sequences = 16;
  // Tokens of one step, prefill chunks included. Larger prefills faster, smaller answers others (and Ctrl-C) sooner.
  int max_batched_tokens = 1024;
  // The most that answers should wait for their next token while prompts are read beside them, ms: steps take fewer
  // prompt tokens where they would last longer. 0: steps are full.
  double inter_token_ms = 0;
  KvAdmission kv_admission = KvAdmission::kReserve;
  // 0: one per CPU that the process may use.
  int threads = 0;
  // Each thread to one CPU, the one that starts the model included. Steadier; slower where other programs compute too.
  bool pin_threads = true;
  NumaPolicy numa = NumaPolicy::kNone;
  // Fixed tiles: the same tokens whatever else is in the batch, a little slower. On the CPU; an error on a device.
  bool deterministic = false;
  // The default of all sessions; AskOptions::kv replaces it for one session.
  KvMethodOptions kv;
  // Every n-th step of an answer also computes the true attention, for KvMethodStats::audit; 0: never.
  int audit_every = 0;
};

}  // namespace mneme
