// The shipped model answering questions greedily, straight on the forward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "src/formats/checkpoint.h"
#include "src/model/model.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"
#include "tests/model/needle_prompts.h"
#include "tests/model/sequence_runner.h"

namespace mneme {

inline std::filesystem::path needle_path() {
  return std::filesystem::path(MNEME_SOURCE_DIR) / "models/needle-27m-q8_0.gguf";
}

struct NeedleAnswer {
  std::string text;
  std::size_t prompt_tokens = 0;
  bool ended = false;  // by the model itself
};

class NeedleRunner {
 public:
  NeedleRunner(const std::filesystem::path& path, DType kv_dtype, const CpuContext& context, std::int64_t max_tokens)
      : checkpoint_(Checkpoint::open(path)),
        tokenizer_(Tokenizer::make(checkpoint_->tokenizer())),
        format_(ChatFormat::detect(*tokenizer_)),
        model_(Model::load(std::move(checkpoint_), {}, context)),
        runner_(*model_, kv_dtype, context, max_tokens / kPageTokens + 2) {}

  NeedleAnswer answer(const NeedlePrompt& prompt, int max_new = 200) {
    const std::vector<TokenId> ids =
        format_.user_turn({.document = prompt.document, .question = prompt.question}, true);
    SequenceCache cache(runner_.pool);
    constexpr std::size_t kChunk = 512;
    std::vector<float> logits;
    for (std::size_t at = 0; at < ids.size(); at += kChunk)
      logits = runner_.step(cache, std::span(ids).subspan(at, std::min(kChunk, ids.size() - at)));
    NeedleAnswer a{.prompt_tokens = ids.size()};
    std::vector<TokenId> out;
    for (int i = 0; i < max_new; ++i) {
      const auto next = static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
      a.ended = tokenizer_->is_end(next);
      if (a.ended) break;
      out.push_back(next);
      logits = runner_.step(cache, std::span(&out.back(), 1));
    }
    a.text = tokenizer_->decode(out);
    return a;
  }

  const Model& model() const { return *model_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  const ChatFormat& format() const { return format_; }

 private:
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ChatFormat format_;
  std::unique_ptr<Model> model_;
  SequenceRunner runner_;
};

}  // namespace mneme
