#include "src/server/responses/input_items.h"

#include <fmt/format.h>

#include <utility>

#include "src/server/api/api_error.h"
#include "src/server/responses/response_tools.h"
#include "src/server/turns/sealed_thought.h"

namespace mneme::server {
namespace {

enum class Unread { kRefused, kNamed };  // what becomes of images and files

bool is_text(std::string_view type) {
  return type == "input_text" || type == "output_text" || type == "text" || type == "reasoning_text" ||
         type == "summary_text";
}

// A string, or parts joined with newlines.
std::string text_of(const JsonRef& content, Unread unread) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) content.wrong("a string, or an array of parts");
  std::string text;
  bool first = true;
  for (const JsonRef& part : content.elements()) {
    const std::string type = part.at("type").string();
    if (!std::exchange(first, false)) text += '\n';
    if (is_text(type)) {
      text += part.at("text").string();
    } else if (type == "refusal") {
      text += part.at("refusal").string();
    } else if (unread == Unread::kNamed) {
      text += fmt::format("[{} omitted: the model reads text]", type.substr(0, 60));
    } else {
      throw ApiError(400,
                     fmt::format("{}: parts of the type \"{}\" are not read: the model reads text", part.path(),
                                 type.substr(0, 60)),
                     part.path(), "unsupported_content");
    }
  }
  return text;
}

std::string texts_of(const JsonRef& item, std::string_view member) {
  const auto parts = item.find(member);
  return parts ? text_of(*parts, Unread::kNamed) : "";
}

std::string name_of(const JsonRef& call) {
  return ResponseTools::shown_name(call.string("namespace", ""), call.at("name").string());
}

}  // namespace

void InputItems::read(const JsonRef& item) {
  if (!item.is_object()) item.wrong("an object");
  const std::string type = item.string("type", item.find("role") ? "message" : "");
  if (type == "message") return read_message(item);
  if (type == "reasoning") return read_thought(item);
  if (type == "item_reference") return read_reference(item);
  if (type == "function_call")
    return turns_.call(item.at("call_id").string(), name_of(item), item.string("arguments", ""));
  if (type == "custom_tool_call") {
    return turns_.call(item.at("call_id").string(), name_of(item),
                       nlohmann::ordered_json{{"input", item.at("input").string()}});
  }
  if (type == "function_call_output" || type == "custom_tool_call_output") {
    const auto output = item.find("output");
    return turns_.result(item.at("call_id").string(), output ? text_of(*output, Unread::kNamed) : "");
  }
  if (type != "additional_tools")  // read with the tools
    skipped_.notes.push_back(fmt::format("{}: an item of the type \"{}\"", item.path(), type.substr(0, 60)));
}

void InputItems::read_message(const JsonRef& item) {
  const std::string& role = item.at("role").string();
  std::string text = text_of(item.at("content"), Unread::kRefused);
  if (role == "assistant") return turns_.answer(std::move(text));
  if (role == "user") return turns_.user(std::move(text));
  if (role != "system" && role != "developer")
    item.at("role").wrong("\"user\", \"assistant\", \"system\" or \"developer\"");
  turns_.system(std::move(text));
}

// Its content, what we sealed, or its summary, whichever the client has kept.
void InputItems::read_thought(const JsonRef& item) {
  std::string thought = texts_of(item, "content");
  if (thought.empty()) thought = open_thought(item.string("encrypted_content", "")).value_or("");
  if (thought.empty()) thought = texts_of(item, "summary");
  if (!thought.empty()) turns_.thought(std::move(thought));
}

void InputItems::read_reference(const JsonRef& item) {
  const std::string& id = item.at("id").string();
  const nlohmann::ordered_json stored = find_(id);
  if (!stored.is_object()) {
    throw ApiError(
        400, fmt::format("{}: no item \"{}\" is stored here: send the item itself", item.path(), id.substr(0, 100)),
        item.path());
  }
  const Json json(stored);
  read(JsonRef(json, id));
}

}  // namespace mneme::server
