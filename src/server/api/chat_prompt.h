// A conversation to the tokens that the model answers.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/session/running_model.h"
#include "src/formats/json.h"

namespace mneme::server {

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant"; with a template also "tool", ...
  std::string content;
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // what only templates read: tool_calls, name, ...
};

struct Conversation {
  std::vector<ChatMessage> messages;
  nlohmann::ordered_json tools;                                         // null: none
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();  // further names of a template
  bool add_generation_prompt = true;  // the beginning of the answer follows the last message
};

// "messages", "tools", "tool_choice", "chat_template_kwargs", "add_generation_prompt" of a body. Content is a string,
// or parts of type "text", which become one text with a newline between two.
// `text` is the body as it came: templates show tools with their members in that order.
//
// Errors  ApiError, kFormat, kRequest: what is wrong is named.
Conversation parse_conversation(const JsonRef& body, std::string_view text);

// All turns with the model's framing, and where the next answer begins. Special tokens in the contents are ordinary
// characters.
//
// Errors  kRequest: no message, a role that is none, turns out of order, the last one not the user's; tools where the
//         framing has no place for them; what the template says against the conversation.
std::vector<TokenId> chat_prompt(const TextSide& text, const Conversation& conversation);

}  // namespace mneme::server
