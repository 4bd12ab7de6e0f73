// A body of Anthropic's API, /v1/messages, as the chat that asks for the same. Untrusted input.
//
// Fields that are not known change nothing and are told in Skipped: clients send those of next month.
#pragma once

#include <string>

#include "src/server/api/api_request.h"
#include "src/server/turns/made_chat.h"

namespace mneme::server {

struct MessagesRequest {
  CompletionRequest chat;
  std::string model;          // as it was asked for
  bool shows_thought = true;  // else thinking blocks have a signature alone
};

// Errors  ApiError, mneme::Error: 400, 404. A prompt that does not fit has the words that Claude Code acts on.
MessagesRequest parse_messages(const Body& body, const RequestContext& context, Skipped& skipped);

// Tokens of the prompt of a body, which needs no max_tokens: what usage will say, cached ones included.
std::int64_t count_messages(const Body& body, const RequestContext& context, Skipped& skipped);

// A line that Claude Code puts before its system prompt, which differs from one conversation to the next: no two would
// share a prefix.
//
// Returns  whether there was one; it is gone from `text`.
bool remove_billing_line(std::string& text);

}  // namespace mneme::server
