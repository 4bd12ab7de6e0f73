// A conversation to the tokens that the model answers.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/engine/session/running_model.h"
#include "src/formats/json.h"

namespace mneme::server {

struct ChatMessage {
  std::string role;                    // "system", "developer", "user", "assistant"; with a template also "tool", ...
  std::optional<std::string> content;  // null, or absent: of calls, and of answers without text
  nlohmann::ordered_json more = nlohmann::ordered_json::object();  // what only templates read: tool_calls, name, ...
};

// What a request says of calls.
struct ToolChoice {
  bool required = false;           // the answer calls a tool
  bool parallel = true;            // it may call more than one
  std::vector<std::string> names;  // of the tools that may be called
};

struct Conversation {
  std::vector<ChatMessage> messages;
  nlohmann::ordered_json tools;                                         // null: none
  ToolChoice choice;                                                    // of these tools
  nlohmann::ordered_json arguments = nlohmann::ordered_json::object();  // further names of a template
  std::string effort;                                                   // "reasoning_effort"; empty: not given
  bool add_generation_prompt = true;    // the beginning of the answer follows the last message
  bool continue_final_message = false;  // the answer continues the last message
  std::string template_name;            // of the model's templates; empty: tool_use where there are tools, else default
};

// "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "enable_thinking", "reasoning_effort",
// "add_generation_prompt", "continue_final_message" and
// "chat_template" of a body. Content is a string, or parts of type "text" or "refusal", which become one text with a
// newline between two. Earlier messages may be whatever OpenAI's type allows: arguments of calls as the model wrote
// them ("" is {}, what is no JSON object stays text), content null or absent, reasoning under any of its names.
// `text` is the unparsed body: templates show tools with their members in its order.
//
// Errors  ApiError, kFormat, kRequest: what is wrong is named.
Conversation parse_conversation(const JsonRef& body, std::string_view text);

// All turns with the model's framing, and where the answer begins. Special tokens in the contents are ordinary
// characters.
//
// Errors  kRequest: no message, a role that is none, turns out of order, the last one not the user's; tools where the
//         framing has no place for them; templates of which none is the default; what the template says against the
//         conversation.
std::vector<TokenId> chat_prompt(const TextSide& text, const Conversation& conversation);

}  // namespace mneme::server
