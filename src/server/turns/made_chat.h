// Bodies of chats that were made of another API's.
#pragma once

#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "src/server/api/api_request.h"

namespace mneme::server {

// What a request asks for that is not done, for the log and the header X-Mneme-Skipped-Tools.
struct Skipped {
  std::vector<std::string> fields, tools, notes;
};

// parse_chat() of the body. max_tokens: at most so many tokens are answered, fewer where the context has no room for
// them; none: the server's default.
//
// Errors  as parse_chat(); ContextError: the prompt leaves no room.
CompletionRequest parse_made_chat(const nlohmann::ordered_json& chat, const RequestContext& context,
                                  std::optional<std::int32_t> max_tokens);

// Tokens of the prompt that the body makes.
std::int64_t count_prompt(const nlohmann::ordered_json& chat, const RequestContext& context);

// Copies members that mean the same in a chat: those of OpenAI's sampling, vLLM's and Mneme's own.
void copy_shared_fields(const nlohmann::ordered_json& body, nlohmann::ordered_json& chat);

// Notes members that are neither copied so nor in one of the lists.
void note_unknown_fields(const JsonRef& body, std::initializer_list<std::span<const std::string_view>> known,
                         Skipped& skipped);

// An effort to think that chats have; a client of next year may know others.
bool is_effort(std::string_view effort);

}  // namespace mneme::server
