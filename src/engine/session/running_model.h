// A model that computes, and the text side that goes with it: what the public LanguageModel and the server stand on.
#pragma once

#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "mneme/mneme.h"
#include "src/engine/engine.h"
#include "src/engine/plan_cache.h"
#include "src/engine/ranks/rank_start.h"
#include "src/engine/session/session_file.h"
#include "src/formats/checkpoint.h"
#include "src/text/chat/chat_format.h"
#include "src/text/constraint/token_trie.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

// Text to tokens and back for one model.
struct TextSide {
  explicit TextSide(const Checkpoint& checkpoint);

  struct Prompt {
    std::vector<TokenId> tokens;
    std::int32_t n_question = 0;  // at its end; counted only where the question is computed apart
  };
  // Errors  kRequest: neither document nor question.
  Prompt prompt_of(const Turn& turn, const AskOptions& how, bool first) const;
  // Tokens of the prompt that AskOptions::question_span marks; none: an empty range.
  //
  // Errors  kRequest: it is not within the text.
  std::pair<std::int32_t, std::int32_t> question_span(const Turn& turn, const AskOptions& how, bool first,
                                                      std::span<const TokenId> prompt) const;
  std::vector<TokenId> tokenize(std::string_view text, SpecialTokens special) const;
  // Frames turns by this template. Errors  as ChatFormat::with_template().
  void set_chat_template(std::string source);

  ModelInfo info;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatFormat chat;

  // For constraints on answers; made when it is first asked for. Thread-safe.
  std::shared_ptr<const TokenTrie> token_trie() const;

 private:
  mutable std::once_flag trie_made_;
  mutable std::shared_ptr<const TokenTrie> trie_;
};

struct RunningModel {
  std::unique_ptr<TextSide> text;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<PlanCache> plans;
  std::shared_ptr<const Plan> method;  // of EngineOptions::kv; null: full attention
  std::vector<TokenId> end_tokens;
  SessionIdentity identity;
};

// Reads the weights and starts the threads; the calling thread is one of them. `text` may be null. Ranks that share the
// model all call it; rank 0's options count.
//
// Errors  as LanguageModel's constructor.
RunningModel start_model(std::unique_ptr<Checkpoint> checkpoint, std::unique_ptr<TextSide> text,
                         const EngineOptions& options, const ProgressFn& progress,
                         const RankSetup& ranks = process_ranks());

}  // namespace mneme
