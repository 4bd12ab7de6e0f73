// What the API asks of the engine thread, and what comes back: one prompt, one or several answers to it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mneme/mneme.h"
#include "src/engine/answer/answer_piece.h"
#include "src/engine/engine.h"
#include "src/text/answer/answer_parser.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

// What ends an answer before max_tokens.
struct StopRules {
  std::vector<std::string> strings;
  std::shared_ptr<const AnswerScope> scope;  // they end its text, not its thoughts and calls; null: all is its text
  bool keep_string = false;                  // the answer includes the stop string that ends it
  std::vector<TokenId> tokens;               // end the answer as the model's own end tokens do, ignore_end or not
  bool ignore_end = false;
};

struct GenerationInput {
  std::vector<TokenId> prompt;
  std::int32_t n = 1;  // answers; each with its own random numbers, of seed, seed + 1, ...
  SamplingOptions sampling;
  std::shared_ptr<const TokenConstraint> constraint;  // on each answer; null: none
  std::int32_t max_tokens = 0;                        // 0: the prompt alone
  StopRules stop;
  std::int32_t top_logprobs = 0;             // likeliest tokens told with each token of an answer
  std::optional<std::int32_t> score_prompt;  // as RequestInput::score_prompt
  std::int32_t priority = 0;                 // larger first
  std::int32_t group = 0, group_limit = 0;   // as RequestInput's
  double timeout_seconds = 0;                // from submission to the last token; 0: none
  KvMethodOptions kv;
  std::shared_ptr<const Plan> method;  // of kv; null: full attention
  std::string cache_salt;              // prefixes are shared among equal salts only
  bool stream = true;                  // tell pieces as they come; else all of an answer with its end
  bool count_reads = false;            // tell PageReads
  bool report_progress = false;        // send PromptProgress
  std::optional<std::int32_t> slot;    // whose sequence this one goes on from, and replaces
};

// Tokens of the prompt after a step of its prefill. Tokens are `cached` (taken from the prefix cache), `processed`
// (computed so far, cached ones included), and `total`.
struct PromptProgress {
  std::int32_t total = 0, cached = 0, processed = 0;
  double seconds = 0;  // since the request arrived
};

// Told once, when the prompt of a generation is computed.
struct PromptSummary {
  std::int32_t tokens = 0, cached_tokens = 0;
  std::vector<PromptScore> scores;  // GenerationInput::score_prompt
};

// Why a generation ended without its answers.
enum class FailureKind : std::uint8_t { kRefused, kTimeout, kShutdown, kInternal };
struct Failure {
  FailureKind kind = FailureKind::kInternal;
  ErrorKind error = ErrorKind::kRequest;  // kRefused, kInternal
  std::string message;
};

// One piece of news about a generation. Of the optional parts any may be there.
struct GenerationEvent {
  std::int32_t choice = 0;
  bool accepted = false;            // it stands in the queue: the input was right
  std::int32_t queue_position = 0;  // with `accepted`: answers that wait and go before it
  std::optional<PromptProgress> progress;
  std::optional<PromptSummary> prompt;
  AnswerPiece piece;
  std::optional<Failure> failure;  // of all answers; nothing follows
};

// Where events go. Called on the thread that the loop delivers to, in order.
class GenerationSink {
 public:
  virtual ~GenerationSink() = default;
  virtual void on_event(GenerationEvent event) = 0;
};

}  // namespace mneme
