// Chat template: renders messages to tokens such that user text can never become a special token.
//
// Every rendered byte records its origin, template or message (jinja::Origin). Only bytes of the template name special
// tokens. Text between two special tokens is encoded in one piece, as in training, whatever its origin.
#pragma once

#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/text/jinja/jinja.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme {

// Input of a template; names as in transformers' apply_chat_template.
struct ChatInput {
  nlohmann::ordered_json messages = nlohmann::ordered_json::array();
  nlohmann::ordered_json tools;      // null: none; else a list of function schemas
  nlohmann::ordered_json documents;  // null: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;                                  // the text ends with the last message's content
  std::string template_name;                                            // empty: by what the input asks for
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();  // other variables ("enable_thinking": false)
  std::optional<std::time_t> now;                                       // for strftime_now; absent: the current time
};

class ChatTemplate {
 public:
  // Origin of text from the conversation; the rest is the template's own.
  static constexpr jinja::Origin kGiven = 1;
  // Origins from here on mark a part of a message's content, so that callers can find it again.
  static constexpr jinja::Origin kMarked = 2;

  // Errors  kFormat: not a template that can be parsed.
  explicit ChatTemplate(std::string source);

  const std::string& source() const { return source_; }

  // Renders to text, with `bos_token` and `eos_token` from the vocabulary.
  //
  // Errors  kRequest: the template rejects the conversation (raise_exception), or fails.
  jinja::Text render(const ChatInput& input, const Tokenizer& tokenizer) const;

  // Parts that replace one message's content.
  struct Part {
    std::string text;
    jinja::Origin origin = kMarked;
  };
  struct Marked {
    std::size_t message = 0;
    std::vector<Part> parts;
  };
  // undefined: null, or set to the first expression without a value that the template writes.
  jinja::Text render(const ChatInput& input, const Tokenizer& tokenizer, const std::vector<Marked>& marked,
                     std::string* undefined = nullptr) const;

 private:
  jinja::Template::Input names(const ChatInput& input, const Tokenizer& tokenizer) const;

  std::string source_;
  jinja::Template template_;
};

// Token ids of a rendered text. Adds no beginning-of-sequence token: the template writes its own.
//
// Errors  as Tokenizer::encode.
std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer, const jinja::Text& text);

// encode_rendered() of the bytes [begin, end). `continues`: text before it belongs to the same piece.
std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer, const jinja::Text& text, std::size_t begin,
                                     std::size_t end, bool continues);

}  // namespace mneme
