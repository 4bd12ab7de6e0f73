#include "src/server/messages/message_blocks.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/ascii.h"
#include "src/server/api/api_error.h"
#include "src/server/messages/messages_request.h"
#include "src/server/turns/sealed_thought.h"

namespace mneme::server {
namespace {

std::string type_of(const JsonRef& block) {
  return block.at("type").string();
}

[[noreturn]] void not_read(const JsonRef& block) {
  throw ApiError(400,
                 fmt::format("{}: blocks of the type \"{}\" are not read: the model reads text", block.path(),
                             type_of(block).substr(0, 60)),
                 block.path(), "unsupported_content");
}

// The text of a document that is given as text.
std::optional<std::string> text_of_document(const JsonRef& block) {
  const auto source = block.find("source");
  if (!source || source->string("type", "") != "text") return std::nullopt;
  return source->at("data").string();
}

bool says_error(std::string_view text) {
  constexpr std::string_view kError = "error";
  return ascii_lower(std::string(text.substr(0, kError.size()))) == kError;
}

}  // namespace

void MessageBlocks::read_system(const JsonRef& system) {
  const auto add = [this](std::string text) {
    if (remove_billing_line(text)) {
      skipped_.notes.emplace_back("the billing line before the system prompt is left out");
      if (text.empty()) return;
    }
    turns_.system(std::move(text));
  };
  if (system.is_string()) return add(system.string());
  if (!system.is_array()) system.wrong("a string, or an array of blocks");
  for (const JsonRef& block : system.elements()) {
    if (type_of(block) == "text")
      add(block.at("text").string());
    else
      skipped_.notes.push_back(fmt::format("{}: a block of the type \"{}\"", block.path(), type_of(block)));
  }
}

void MessageBlocks::read_message(const JsonRef& message, const nlohmann::ordered_json& in_order) {
  const std::string& role = message.at("role").string();
  const JsonRef content = message.at("content");
  if (role == "system") return read_system(content);
  if (role != "user" && role != "assistant") message.at("role").wrong("\"user\" or \"assistant\"");
  const bool user = role == "user";
  if (content.is_string()) {
    user ? turns_.user(content.string()) : turns_.answer(content.string());
    return;
  }
  if (!content.is_array()) content.wrong("a string, or an array of blocks");
  const std::vector<JsonRef> blocks = content.elements();
  // Results precede the text of their message: templates want them behind the calls.
  for (const JsonRef& block : blocks)
    if (user && type_of(block) == "tool_result") read_result(block);
  for (std::size_t i = 0; i < blocks.size(); ++i)
    user ? read_user_block(blocks[i]) : read_assistant_block(blocks[i], in_order["content"][i]);
}

void MessageBlocks::read_user_block(const JsonRef& block) {
  const std::string type = type_of(block);
  if (type == "tool_result") return;
  if (type == "text") return turns_.user(block.at("text").string());
  if (type == "image") not_read(block);
  if (type == "document") {
    std::optional<std::string> text = text_of_document(block);
    if (!text) not_read(block);
    return turns_.user(std::move(*text));
  }
  if (type == "search_result") return turns_.user(text_of_result(block.at("content")));
  skipped_.notes.push_back(fmt::format("{}: a block of the type \"{}\"", block.path(), type.substr(0, 60)));
}

void MessageBlocks::read_assistant_block(const JsonRef& block, const nlohmann::ordered_json& in_order) {
  const std::string type = type_of(block);
  if (type == "text") return turns_.answer(block.at("text").string());
  if (type == "thinking") {
    std::string thought = block.string("thinking", "");
    if (thought.empty()) thought = open_thought(block.string("signature", "")).value_or("");
    return turns_.thought(std::move(thought));
  }
  if (type == "redacted_thinking") return;
  if (type == "tool_use") {
    const auto input = block.find("input");
    if (input && !input->is_object()) input->wrong("an object");
    return turns_.call(block.at("id").string(), block.at("name").string(),
                       input ? in_order["input"] : nlohmann::ordered_json::object());
  }
  skipped_.notes.push_back(fmt::format("{}: a block of the type \"{}\"", block.path(), type.substr(0, 60)));
}

void MessageBlocks::read_result(const JsonRef& block) {
  const auto content = block.find("content");
  std::string text = content ? text_of_result(*content) : "";
  if (block.boolean("is_error", false) && !says_error(text)) text = "Error: " + text;
  turns_.result(block.at("tool_use_id").string(), std::move(text));
}

// An image must not end a session: a tool has read a file, and the model goes on without it.
std::string MessageBlocks::text_of_result(const JsonRef& content) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) content.wrong("a string, or an array of blocks");
  std::string text;
  const auto add = [&text](std::string_view more) {
    if (!text.empty()) text += '\n';
    text += more;
  };
  for (const JsonRef& block : content.elements()) {
    const std::string type = type_of(block);
    if (type == "text") {
      add(block.at("text").string());
    } else if (type == "tool_reference") {
      references_.insert(block.at("tool_name").string());
      add(fmt::format("[tool {}]", block.at("tool_name").string()));
    } else if (type == "document" && text_of_document(block)) {
      add(*text_of_document(block));
    } else if (type == "search_result" && block.find("content")) {
      add(text_of_result(block.at("content")));
    } else {
      add(fmt::format("[{} omitted: the model reads text]", type.substr(0, 60)));
    }
  }
  return text;
}

}  // namespace mneme::server
