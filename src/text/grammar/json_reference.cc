#include "src/text/grammar/json_reference.h"

#include <charconv>

#include "src/base/error.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

std::string percent_decoded(std::string_view text, const std::string& path) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    unsigned byte = 0;
    const std::string_view digits = text.substr(i + 1, 2);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), byte, 16);
    if (digits.size() != 2 || error != std::errc() || end != digits.data() + 2)
      schema_wrong(path, fmt::format("$ref: expected two hexadecimal digits after % in {}", text.substr(0, 100)));
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

}  // namespace

void schema_unsupported(const std::string& path, std::string_view what) {
  fail(ErrorKind::kUnsupported, "JSON schema, {}: {}", path, what);
}
void schema_wrong(const std::string& path, std::string_view what) {
  fail(ErrorKind::kRequest, "JSON schema, {}: {}", path, what);
}

bool is_schema_resource(const Json& schema) {
  return schema.is_object() && schema.contains("$id") && schema["$id"].is_string();
}

const Json& resolve_reference(const Json& document, const Json& ref, const std::string& path) {
  if (!ref.is_string()) schema_wrong(path, "$ref: expected a string");
  const auto& text = ref.get_ref<const std::string&>();
  if (text.empty() || text[0] != '#')
    schema_unsupported(path, "$ref: only places within the document (\"#/...\") are supported");
  try {
    const Json::json_pointer place(percent_decoded(text.substr(1), path));
    for (Json::json_pointer up = place; !up.empty(); up.pop_back())
      if (up != place && is_schema_resource(document.at(up)))
        schema_unsupported(path, fmt::format("$ref: {} is within a schema with an $id", text.substr(0, 100)));
    return document.at(place);
  } catch (const nlohmann::json::exception&) {
    schema_wrong(path, fmt::format("$ref: there is no {}", text.substr(0, 100)));
  }
}

}  // namespace mneme
