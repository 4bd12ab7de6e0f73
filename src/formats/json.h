// Untrusted JSON: limits on size and depth, no duplicate keys, and access with errors that name the location.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mneme {

using Json = nlohmann::json;

// Errors  kFormat: not JSON, deeper than kMaxJsonDepth, larger than max_bytes, a duplicate key, invalid UTF-8 (`file`
//         and position are named)
Json parse_json(std::string_view text, std::string_view file, std::size_t max_bytes);

// A value and its path. An access that does not find the expected type fails with kFormat and the path: "config.json:
// rope_scaling.factor: expected a number, found string".
class JsonRef {
 public:
  JsonRef(const Json& value, std::string_view file) : value_(&value), file_(file) {}

  const Json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  std::string_view file() const { return file_; }
  bool is_object() const { return value_->is_object(); }
  bool is_array() const { return value_->is_array(); }
  bool is_string() const { return value_->is_string(); }
  bool is_number() const { return value_->is_number(); }

  // Member of an object. find: nothing when absent or null.
  std::optional<JsonRef> find(std::string_view key) const;
  JsonRef at(std::string_view key) const;
  // Elements of an array, or member values of an object.
  std::vector<JsonRef> elements() const;

  std::int64_t integer() const;
  double number() const;  // finite
  bool boolean() const;
  const std::string& string() const;

  // Members with a default for absent or null.
  std::int64_t integer(std::string_view key, std::int64_t otherwise) const;
  double number(std::string_view key, double otherwise) const;
  bool boolean(std::string_view key, bool otherwise) const;
  std::string string(std::string_view key, std::string_view otherwise) const;

  [[noreturn]] void wrong(std::string_view expected) const;

 private:
  const Json* value_;
  std::string_view file_;
  std::string path_;
};

}  // namespace mneme
