// What is behind the public ModelFile and LanguageModel (include/mneme/mneme.h).
#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "mneme/mneme.h"
#include "src/checkpoint/checkpoint.h"
#include "src/engine/engine.h"
#include "src/engine/session_file.h"
#include "src/tokenizer/chat_format.h"
#include "src/tokenizer/tokenizer.h"

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
  std::vector<TokenId> tokenize(std::string_view text, SpecialTokens special) const;

  ModelInfo info;
  std::unique_ptr<Tokenizer> tokenizer;
  ChatFormat chat;
};

struct ModelFile::Impl {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<TextSide> text;
};

struct LanguageModel::Impl {
  std::unique_ptr<TextSide> text;
  std::unique_ptr<Engine> engine;
  std::shared_ptr<const Plan> method;  // null: full attention
  std::vector<TokenId> end_tokens;
  SessionIdentity identity;
};

}  // namespace mneme
