// A model's chat template: messages in, tokens out, so that what people write can never become a special token.
//
// Every byte of what is rendered remembers whether the template wrote it or a message brought it (jinja::Origin). Only
// bytes of the template name special tokens; text between two of those is encoded in one piece, as the model saw it in
// training, whoever wrote it.
#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/tokenizer/jinja.h"
#include "src/tokenizer/tokenizer.h"

namespace mneme {

// What a conversation is rendered with; the names are those of transformers' apply_chat_template.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;      // null: none; else a list of function schemas
  nlohmann::ordered_json documents;  // null: none
  bool add_generation_prompt = true;
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();  // further names ("enable_thinking": false)
  std::optional<std::time_t> now;                                       // of strftime_now; absent: the clock's
};

class ChatTemplate {
 public:
  // Origins of what a conversation brings; the rest is the template's own.
  static constexpr jinja::Origin kGiven = 1;
  // Marks a part of a message's content, for those who must find it again: further origins from here on.
  static constexpr jinja::Origin kMarked = 2;

  // Errors  kFormat: not a template that can be read.
  explicit ChatTemplate(std::string source);

  const std::string& source() const { return source_; }

  // Rendered as text; tokens of the vocabulary are `bos_token` and `eos_token`.
  //
  // Errors  kRequest: what the template says against the conversation (raise_exception), and what fails in it.
  jinja::Text render(const ChatInput& input, const Tokenizer& tokenizer) const;

  // Parts that together stand in place of one message's content.
  struct Part {
    std::string text;
    jinja::Origin origin = kMarked;
  };
  struct Marked {
    std::size_t message = 0;
    std::vector<Part> parts;
  };
  jinja::Text render(const ChatInput& input, const Tokenizer& tokenizer, const std::vector<Marked>& marked) const;

 private:
  jinja::Template::Input names(const ChatInput& input, const Tokenizer& tokenizer) const;

  std::string source_;
  jinja::Template template_;
};

// Token ids of a rendered text. No beginning-of-sequence token is put before it: the template writes its own.
//
// Errors  as Tokenizer::encode.
std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer, const jinja::Text& text);

// The same of a part of it, [begin, end). `continues`: text before it belongs to the same piece.
std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer, const jinja::Text& text, std::size_t begin,
                                     std::size_t end, bool continues);

}  // namespace mneme
