// A conversation to the tokens that the model answers.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "src/engine/running_model.h"

namespace mneme::server {

struct ChatMessage {
  std::string role;  // "system", "developer", "user", "assistant"
  std::string content;
};

// All turns with the model's framing, and where the next answer begins. Special tokens in the contents are ordinary
// characters.
//
// Errors  kRequest: no message, a role that is none, turns out of order, the last one not the user's.
std::vector<TokenId> chat_prompt(const TextSide& text, std::span<const ChatMessage> messages);

}  // namespace mneme::server
