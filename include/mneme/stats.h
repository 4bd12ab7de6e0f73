// Why an answer ended, and what it took: tokens, time, memory, and what its KV method did. Values only; the library never
// prints them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace mneme {

enum class StopReason : std::uint8_t {
  kEnd,         // the model ended its turn
  kLength,      // max_tokens
  kStopString,  // one of GenerationOptions::stop
  kCancelled,   // by a callback
};
std::string_view stop_reason_name(StopReason reason);  // "end", "length", "stop", "cancelled"
// As OpenAI's API names it: "stop" where the model or a stop string ended the answer, "length", "abort".
std::string_view finish_reason_name(StopReason reason);

// What the KV method did for a session since its first turn; under full attention, what this answer's steps read.
struct KvMethodStats {
  struct Layer {
    bool dense = false;          // attends every token
    double achieved_budget = 0;  // tokens that one KV head read in one step, mean
    double correction_rate = 0;  // share of (step, KV head) whose speculative selection was corrected
    // Share of the prompt's tokens kept at the end of prefill (of a method that drops nothing: the share that the
    // budget is of them); 1 in dense layers and where no prefill ended.
    double kept_share = 1;
  };
  // Counts over (step, layer, KV head).
  struct Selections {
    std::int64_t made = 0;    // with the query of the step itself
    std::int64_t reused = 0;  // made in an earlier step
    // Of the reused ones: those that a gate checked, and those that it corrected.
    std::int64_t checks = 0, corrections = 0;
    double correction_rate = 0;  // corrections / checks; 0 without checks
  };
  struct Units {
    std::int64_t selected = 0, replaced = 0;
    double turnover = 0;  // replaced / selected: share that the step before had not selected
    // Misses: selected units outside the device cache. Recalled: units copied into it. Bytes over the link between host
    // and device.
    std::int64_t missing = 0, recalled = 0, host_to_device_bytes = 0;
  };
  // EngineOptions::audit_every: means over the audited (step, layer, KV head).
  struct Audit {
    std::int64_t samples = 0;
    double recall = 0;  // share of the tokens with the largest true attention that were read
    double mass = 0;    // true attention probability of the tokens that were read
    double error = 0;   // relative L2 error of the attention output
  };

  std::vector<Layer> layers;                               // empty under full attention
  double kv_bytes_per_step = 0, index_bytes_per_step = 0;  // read by attention; read to select
  std::int64_t kv_bytes_read = 0;                          // by attention, all steps
  std::int64_t index_bytes = 0;                            // held
  Selections selections;
  Units units;
  std::int64_t dropped_tokens = 0;  // for good, summed over layers and KV heads
  double prefill_end_seconds = 0;   // spent on decisions at the end of prefill
  Audit audit;
};

struct AnswerStats {
  std::int64_t prompt_tokens = 0;  // computed for this turn
  std::int64_t shared_tokens = 0;  // computed before, by earlier turns or by the session that this one was forked from
  std::int64_t answer_tokens = 0;
  double prefill_seconds = 0;     // steps up to the first token of the answer
  double decode_seconds = 0;      // steps after it
  std::int64_t decode_steps = 0;  // forward passes in decode_seconds, the one of the end token included
  // Speculation: passes that verified drafts, drafts verified, and tokens (the end token included) that came of accepted
  // drafts, without a pass of their own.
  std::int64_t verify_steps = 0, drafted_tokens = 0, accepted_tokens = 0;
  std::int64_t kv_bytes = 0;  // keys and values of the whole session
  KvMethodStats method;
};

}  // namespace mneme
