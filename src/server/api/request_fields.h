// The names that the body of a request may have. Everything else is refused: a field that is ignored changes the answer
// without a word, and a typo is the most frequent case.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "src/formats/json.h"

namespace mneme::server {

// Accepts fields that are read, fields that change no answer ("user", "metadata"), and fields of OpenAI's, vLLM's and
// llama.cpp's that are not supported where their value asks for nothing (null, false, 0, "", [], or the default of the
// server that they come from).
//
// Requires  `body` is an object.
// Errors    ApiError 400, param: the field. An unknown name is answered with the known one that is most like it.
void check_fields(const JsonRef& body, bool chat);

// check_fields() for an endpoint that reads these names alone (/tokenize).
//
// Errors    ApiError 400, as above; kFormat where `body` is no object.
void expect_fields(const JsonRef& body, std::span<const std::string_view> names);

// Whether a field is present with a value that has an effect: not null, false, 0, "" or empty.
bool is_given(const JsonRef& body, std::string_view key);

// Errors  kFormat: another value than an integer from low to high.
std::int32_t int_in(const JsonRef& value, std::int64_t low, std::int64_t high);

// Errors  ApiError 400, param: the field; code: unsupported_parameter. Always.
[[noreturn]] void unsupported(std::string_view key, std::string_view why);

}  // namespace mneme::server
