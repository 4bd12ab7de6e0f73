#include "src/text/answer/response_template.h"

#include <algorithm>
#include <array>

namespace mneme {
namespace {

using TemplateJson = nlohmann::ordered_json;

// The literal under `key`: a text, or a list of one. Nothing: absent. False: anything else.
bool read_literal(const TemplateJson& field, const char* key, std::string& literal) {
  if (!field.contains(key)) return true;
  const TemplateJson* value = &field[key];
  if (value->is_array() && value->size() == 1) value = &value->front();
  if (!value->is_string()) return false;
  literal = value->get<std::string>();
  return true;
}

bool has_only_literals(const TemplateJson& field) {
  constexpr auto kKnown = std::to_array<std::string_view>(
      {"open", "close", "content", "content_args", "repeats", "join", "optional", "transform", "transform_each"});
  if (!field.is_object()) return false;
  for (const auto& [key, value] : field.items())
    if (std::find(kKnown.begin(), kKnown.end(), key) == kKnown.end()) return false;
  return true;
}

bool read_calls(const TemplateJson& field, AnswerFormat& format) {
  const bool plain = !field.contains("content_args") || field["content_args"].empty();
  const TemplateJson content = field.contains("content") ? field["content"] : TemplateJson("text");
  if (content == "json" && plain) {
    format.calls = CallForm::kObject;
  } else if (content == "python-call-list") {
    format.calls = CallForm::kPython;
  } else {
    return false;
  }
  return read_literal(field, "open", format.call.section_open) &&
         read_literal(field, "close", format.call.section_close);
}

bool read_field(const std::string& name, const TemplateJson& field, AnswerFormat& format) {
  if (!has_only_literals(field)) return false;
  if (name == "reasoning_content" || name == "thinking")
    return read_literal(field, "open", format.thought_open) && read_literal(field, "close", format.thought_close);
  if (name == "tool_calls") return read_calls(field, format);
  if (name != "content") return false;
  for (const char* key : {"open", "close"}) {
    std::string mark;
    if (!read_literal(field, key, mark)) return false;
    if (!mark.empty()) format.framing.push_back(mark);
  }
  return true;
}

}  // namespace

std::optional<AnswerFormat> format_of_response_template(std::string_view json) {
  const TemplateJson read = TemplateJson::parse(json, nullptr, false);
  if (!read.is_object() || !read.contains("fields") || !read["fields"].is_object()) return std::nullopt;
  if (read.contains("version") && read["version"] != 1) return std::nullopt;
  AnswerFormat format;
  format.name = "response_template";
  for (const auto& [name, field] : read["fields"].items())
    if (!read_field(name, field, format)) return std::nullopt;
  if (format.is_plain() || !problem_of(format).empty()) return std::nullopt;
  return format;
}

}  // namespace mneme
