// Thoughts, text and calls of an answer as members of a chat's message and of its deltas.
#pragma once

#include <string>
#include <string_view>

#include "src/server/answer/chat_answer.h"
#include "src/server/api/completion_json.h"

namespace mneme::server {

// A chunk's "delta"; empty: the piece has nothing to tell. One delta never has two kinds.
//
//   thought_field  "reasoning_content" or "reasoning"
std::string delta_json(const ChatAnswer::Piece& piece, std::string_view thought_field);

// "message" of the whole answer. Content is null beside calls or a thought where there is no text.
OrderedJson message_json(const ChatAnswer& answer, std::string_view thought_field);

}  // namespace mneme::server
