// An answer that is an error, as OpenAI's clients read it.
#pragma once

#include <stdexcept>
#include <string>

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

  int status;
  std::string parameter, error_code;
};

// 400: input; 503: no room; 500: our own.
ApiError api_error_of(const Error& error);
ApiError api_error_of(const Failure& failure);

}  // namespace mneme::server
