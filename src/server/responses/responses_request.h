// A body of /v1/responses as the chat that asks for the same. Untrusted input.
//
// Fields that are not known change nothing and are told in Skipped: the API grows by the month. Fields that would change
// the answer and are not supported are refused.
#pragma once

#include <string>

#include "src/server/api/api_request.h"
#include "src/server/responses/response_store.h"
#include "src/server/responses/response_tools.h"
#include "src/server/turns/made_chat.h"

namespace mneme::server {

struct ResponsesRequest {
  CompletionRequest chat;
  ResponseTools tools;
  // What the response object repeats of the request, as OpenAI's types have it.
  nlohmann::ordered_json repeated;
  nlohmann::ordered_json input;  // items of this request, each with an id
  std::string previous;          // response that this one goes on from; empty: none
  bool stored = true;
  bool summarises = false;  // the thought is told as a summary
  bool seals = false;       // the thought comes sealed as well
  bool logprobs = false;
};

// `owner`: whose responses may be gone on from.
//
// Errors  ApiError, mneme::Error: 400, 404 (code previous_response_not_found).
ResponsesRequest parse_responses(const Body& body, const RequestContext& context, ResponseStore& store,
                                 const std::string& owner, Skipped& skipped);

// Tokens of the prompt of a body.
std::int64_t count_responses(const Body& body, const RequestContext& context, ResponseStore& store,
                             const std::string& owner, Skipped& skipped);

}  // namespace mneme::server
