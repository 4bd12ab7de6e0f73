// Parts of OpenAI's response objects, from the events of generations.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

#include "src/engine/loop/generation.h"
#include "src/engine/session/running_model.h"

namespace mneme::server {

using OrderedJson = nlohmann::ordered_json;

// With invalid UTF-8 replaced.
std::string json_text(const OrderedJson& json);
// `text` between quotes.
std::string json_string(std::string_view text);

// A chat's "logprobs".
OrderedJson chat_logprobs(const Tokenizer& tokenizer, std::span<const TokenScore> tokens);

// A completion's "logprobs", to be filled token by token.
struct CompletionLogprobs {
  OrderedJson tokens = OrderedJson::array(), token_logprobs = OrderedJson::array(), top_logprobs = OrderedJson::array(),
              text_offset = OrderedJson::array();

  // `offset`: characters before the token; moves on by its own. A token without a logprob is the first one of a prompt.
  void add(const Tokenizer& tokenizer, TokenId id, std::optional<float> logprob, std::span<const TokenLogprob> top,
           std::size_t& offset);
  OrderedJson json() const;
};

OrderedJson reads_json(const PageReads& reads);
OrderedJson retrieval_json(const AnswerSummary& summary, std::string_view method);

// Characters of UTF-8 text; bytes that begin none count nothing.
std::size_t count_characters(std::string_view text);

}  // namespace mneme::server
