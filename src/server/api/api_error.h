// An answer that is an error, as OpenAI's clients read it.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "mneme/error.h"

namespace mneme {
struct Failure;
}

namespace mneme::server {

class ApiError : public std::runtime_error {
 public:
  ApiError(int http_status, const std::string& message, std::string param = {}, std::string code = {})
      : std::runtime_error(message), status(http_status), parameter(std::move(param)), error_code(std::move(code)) {}
  // {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
  std::string body() const;
  // As Anthropic's clients read it: {"type": "error", "error": {"type": ..., "message": ...}, "request_id": ...}
  std::string anthropic_body(std::string_view request_id) const;

  int status;
  std::string parameter, error_code;
};

// A prompt that leaves no room for an answer, or one that leaves too little.
class ContextError : public ApiError {
 public:
  ContextError(const std::string& message, std::string param, std::int64_t prompt_tokens, std::int64_t context_tokens)
      : ApiError(400, message, std::move(param), "context_length_exceeded"),
        prompt(prompt_tokens),
        context(context_tokens) {}

  std::int64_t prompt, context;
};

// 400: input; 503: no room; 500: our own.
ApiError api_error_of(const Error& error);
ApiError api_error_of(const Failure& failure);

}  // namespace mneme::server
