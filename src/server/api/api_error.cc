#include "src/server/api/api_error.h"

#include <nlohmann/json.hpp>

#include "src/base/check.h"
#include "src/base/underlying.h"
#include "src/engine/loop/generation.h"

namespace mneme::server {
namespace {

const char* type_of(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 408:
      return "timeout_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 503:
      return "service_unavailable_error";
    default:
      return "invalid_request_error";
  }
}

const char* anthropic_type_of(int status) {
  switch (status) {
    case 413:
      return "request_too_large";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return type_of(status);
  }
}

int status_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kFormat:
    case ErrorKind::kUnsupported:
    case ErrorKind::kOption:
    case ErrorKind::kRequest:
    case ErrorKind::kFile:
      return 400;
    case ErrorKind::kResource:
      return 503;
    case ErrorKind::kDevice:
      return 500;
  }
  MNEME_CHECK(false, "error kind {}", underlying(kind));
}

}  // namespace

std::string ApiError::body() const {
  nlohmann::ordered_json error;
  error["message"] = what();
  error["type"] = type_of(status);
  error["param"] = parameter.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(parameter);
  error["code"] = error_code.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(error_code);
  nlohmann::ordered_json body;
  body["error"] = std::move(error);
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string ApiError::anthropic_body(std::string_view request_id) const {
  nlohmann::ordered_json body;
  body["type"] = "error";
  body["error"] = {{"type", anthropic_type_of(status)}, {"message", what()}};
  body["request_id"] = request_id;
  return body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

ApiError api_error_of(const Error& error) {
  return ApiError(status_of(error.kind()), error.what());
}

ApiError api_error_of(const Failure& failure) {
  switch (failure.kind) {
    case FailureKind::kRefused:
      return ApiError(status_of(failure.error), failure.message);
    case FailureKind::kTimeout:
      return ApiError(408, failure.message, {}, "timeout");
    case FailureKind::kShutdown:
      return ApiError(503, failure.message);
    case FailureKind::kInternal:
      return ApiError(failure.error == ErrorKind::kResource ? 503 : 500, failure.message);
  }
  MNEME_CHECK(false, "failure {}", underlying(failure.kind));
}

}  // namespace mneme::server
