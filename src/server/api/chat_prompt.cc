#include "src/server/api/chat_prompt.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/server/api/api_error.h"

namespace mneme::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

bool is_system(const ChatMessage& m) {
  return m.role == "system" || m.role == "developer";
}

std::string parse_content(const JsonRef& content) {
  if (content.is_string()) return content.string();
  if (!content.is_array()) content.wrong("a string, or an array of parts");
  std::string text;
  bool first = true;
  for (const JsonRef& part : content.elements()) {
    if (part.at("type").string() != "text") part.at("type").wrong("\"text\": the models here read nothing else");
    if (!std::exchange(first, false)) text += '\n';
    text += part.at("text").string();
  }
  return text;
}

// Clients send the arguments of a call as text; templates write them as JSON.
OrderedJson parse_tool_calls(const JsonRef& calls, OrderedJson in_order) {
  if (!calls.is_array()) calls.wrong("an array of calls");
  std::size_t i = 0;
  for (const JsonRef& call : calls.elements()) {
    const JsonRef arguments = call.at("function").at("arguments");
    call.at("function").at("name").string();
    if (!arguments.is_string()) {
      if (!arguments.is_object()) arguments.wrong("a JSON object, or one as text");
    } else {
      OrderedJson read = OrderedJson::parse(arguments.string(), nullptr, false);
      if (!read.is_object()) arguments.wrong("a JSON object, or one as text");
      in_order[i]["function"]["arguments"] = std::move(read);
    }
    ++i;
  }
  return in_order;
}

// What a template may ask of a message beside role and content.
OrderedJson parse_more(const JsonRef& message, const OrderedJson& in_order) {
  OrderedJson more = OrderedJson::object();
  for (const char* key : {"name", "tool_call_id", "reasoning_content"})
    if (message.find(key)) more[key] = message.at(key).string();
  if (const auto calls = message.find("tool_calls"))
    more["tool_calls"] = parse_tool_calls(*calls, in_order["tool_calls"]);
  return more;
}

OrderedJson parse_tools(const JsonRef& body, const OrderedJson& in_order) {
  const auto tools = body.find("tools");
  if (!tools) return {};
  if (!tools->is_array()) tools->wrong("an array of tools");
  for (const JsonRef& tool : tools->elements()) {
    if (tool.at("type").string() != "function") tool.at("type").wrong("\"function\"");
    tool.at("function").at("name").string();
  }
  if (const auto choice = body.find("tool_choice")) {
    if (!choice->is_string() || (choice->string() != "auto" && choice->string() != "none")) {
      throw ApiError(400, "tool_choice: expected \"auto\" or \"none\": answers are not forced into calls",
                     "tool_choice", "unsupported_parameter");
    }
    if (choice->string() == "none") return {};
  }
  return tools->value().empty() ? OrderedJson() : in_order["tools"];
}

// Every message as a template reads it.
ChatInput template_input(const Conversation& conversation) {
  ChatInput input;
  for (const ChatMessage& m : conversation.messages) {
    OrderedJson json{{"role", m.role == "developer" ? "system" : m.role}, {"content", m.content}};
    json.update(m.more);
    input.messages.push_back(std::move(json));
  }
  input.tools = conversation.tools;
  input.arguments = conversation.arguments;
  input.add_generation_prompt = conversation.add_generation_prompt;
  return input;
}

}  // namespace

Conversation parse_conversation(const JsonRef& body, std::string_view text) {
  Conversation out;
  const JsonRef list = body.at("messages");
  if (!list.is_array()) list.wrong("an array of messages");
  const std::vector<JsonRef> messages = list.elements();
  const bool ordered = body.find("tools") || body.find("chat_template_kwargs") ||
                       std::any_of(messages.begin(), messages.end(),
                                   [](const JsonRef& m) { return m.is_object() && m.value().contains("tool_calls"); });
  const OrderedJson in_order = ordered ? OrderedJson::parse(text) : OrderedJson();
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const JsonRef& m = messages[i];
    ChatMessage message{.role = m.at("role").string(), .content = {}};
    message.more = parse_more(m, ordered ? in_order["messages"][i] : in_order);
    // A message of calls may say nothing.
    if (m.find("content") || !message.more.contains("tool_calls")) message.content = parse_content(m.at("content"));
    out.messages.push_back(std::move(message));
  }
  out.tools = parse_tools(body, in_order);
  out.add_generation_prompt = body.boolean("add_generation_prompt", true);
  if (const auto arguments = body.find("chat_template_kwargs")) {
    if (!arguments->is_object()) arguments->wrong("an object");
    out.arguments = in_order["chat_template_kwargs"];
  }
  return out;
}

std::vector<TokenId> chat_prompt(const TextSide& text, const Conversation& conversation) {
  const std::vector<ChatMessage>& messages = conversation.messages;
  if (messages.empty()) fail(ErrorKind::kRequest, "messages: expected the user's at the end, found none");
  const ChatTemplate* const by_template = text.chat.chat_template();
  const bool shows_tools = by_template != nullptr && by_template->source().find("tools") != std::string::npos;
  if (!conversation.tools.is_null() && !shows_tools) {
    throw ApiError(400, "tools: the chat template of this model has no place for them", "tools",
                   "unsupported_parameter");
  }
  if (by_template == nullptr && !conversation.add_generation_prompt) {
    throw ApiError(
        400, "add_generation_prompt: this model's turns are framed without a template, and end where an answer begins",
        "add_generation_prompt", "unsupported_parameter");
  }
  if (by_template != nullptr) return text.chat.conversation(template_input(conversation));
  std::string system;
  std::size_t at = 0;
  for (; at < messages.size() && is_system(messages[at]); ++at) {
    if (!system.empty()) system += "\n\n";
    system += messages[at].content;
  }
  std::vector<TokenId> tokens;
  const auto append = [&](const std::vector<TokenId>& more) { tokens.insert(tokens.end(), more.begin(), more.end()); };
  bool first = true;
  const std::size_t begin = at;
  for (; at < messages.size(); ++at) {
    const ChatMessage& m = messages[at];
    const bool wants_user = (at - begin) % 2 == 0;
    if (m.role != (wants_user ? "user" : "assistant")) {
      fail(ErrorKind::kRequest, "messages[{}]: expected a message of the {}, found the role \"{}\"", at,
           wants_user ? "user" : "assistant", m.role);
    }
    if (wants_user) {
      append(text.chat.user_turn({.document = {}, .question = m.content, .system = first ? system : ""}, first));
      first = false;
    } else {
      append(text.tokenizer->encode(m.content, {.parse_special = false, .add_bos = false, .continues = true}));
      append(text.chat.end_of_answer());
    }
  }
  if (first || messages.back().role != "user") {
    fail(ErrorKind::kRequest, "messages: expected the user's at the end, found {}",
         messages.empty() ? "none" : "the role \"" + messages.back().role + "\"");
  }
  return tokens;
}

}  // namespace mneme::server
