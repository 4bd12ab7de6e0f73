// What a request allows its answers to be: documents, calls of tools, thoughts of a length.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "src/server/api/api_request.h"
#include "src/server/api/chat_prompt.h"

namespace mneme::server {

// What "response_format" or "structured_outputs" says the text of an answer is; nothing: any text.
//
// Errors  ApiError, kFormat, kRequest, kUnsupported: as they name it.
std::optional<JsonGrammar> parse_document(const Body& body);

// How the answers of a chat are read; null: they are their text.
std::shared_ptr<const AnswerReading> reading_of(const RequestContext& context, const Conversation& conversation,
                                                const std::vector<TokenId>& prompt);

// Sets input.constraint for the request's document, the tools that its answers may or must call, and the budget of
// their thoughts. Free text stays as fast as without a constraint.
//
// Errors  ApiError 400: a call is required, and the model's answers have no format with calls; a strict tool whose
//         schema is not supported.
void constrain_answer(const JsonRef& body, const RequestContext& context, const Conversation& conversation,
                      const CompletionRequest& request, GenerationInput& input);

}  // namespace mneme::server
