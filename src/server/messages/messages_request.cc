#include "src/server/messages/messages_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "src/base/ascii.h"
#include "src/server/api/api_error.h"
#include "src/server/api/request_fields.h"
#include "src/server/messages/message_blocks.h"

namespace mneme::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr auto kMessageFields =
    std::to_array<std::string_view>({"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config",
                                     "output_format", "max_tokens", "stop_sequences", "stream"});
// They ask for nothing that an answer here could have.
constexpr auto kMessageFieldsWithoutEffect =
    std::to_array<std::string_view>({"metadata", "context_management", "service_tier", "container", "mcp_servers",
                                     "cache_control", "inference_geo", "speed", "diagnostics", "betas"});

// The client's tools as a chat has them. Tools that a server of Anthropic's runs have no schema: they are left out. A
// deferred one is shown when a tool_reference has named it.
OrderedJson tools_of(const JsonRef& body, const OrderedJson& in_order, const std::set<std::string>& references,
                     Skipped& skipped) {
  OrderedJson tools = OrderedJson::array();
  const auto given = body.find("tools");
  if (!given) return tools;
  if (!given->is_array()) given->wrong("an array of tools");
  std::size_t i = 0;
  for (const JsonRef& tool : given->elements()) {
    const OrderedJson& ordered = in_order["tools"][i++];
    const std::string& name = tool.at("name").string();
    if (!tool.find("input_schema")) {
      skipped.tools.push_back(name.substr(0, 60));
      continue;
    }
    if (tool.boolean("defer_loading", false) && !references.contains(name)) continue;
    OrderedJson function = {{"name", name}};
    if (tool.find("description")) function["description"] = tool.at("description").string();
    function["parameters"] = ordered["input_schema"];
    if (tool.boolean("strict", false)) function["strict"] = true;
    tools.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return tools;
}

bool has_tool(const OrderedJson& tools, const std::string& name) {
  return std::any_of(tools.begin(), tools.end(), [&](const OrderedJson& t) { return t["function"]["name"] == name; });
}

void set_tools(const JsonRef& body, OrderedJson tools, OrderedJson& chat) {
  const auto choice = body.find("tool_choice");
  const std::string type = choice ? choice->at("type").string() : "auto";
  if (type != "auto" && type != "any" && type != "tool" && type != "none")
    choice->at("type").wrong("\"auto\", \"any\", \"tool\" or \"none\"");
  if (type == "tool" && !has_tool(tools, choice->at("name").string()))
    choice->at("name").wrong("the name of one of the tools");
  if (type == "any" && tools.empty()) choice->at("type").wrong("\"auto\" or \"none\" in a request without tools");
  if (tools.empty()) return;
  chat["tools"] = std::move(tools);
  if (type == "none") chat["tool_choice"] = "none";
  if (type == "any") chat["tool_choice"] = "required";
  if (type == "tool")
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", choice->at("name").string()}}}};
  if (choice && choice->boolean("disable_parallel_tool_use", false)) chat["parallel_tool_calls"] = false;
}

// thinking: {"type": "enabled", "budget_tokens"}, "disabled" or "adaptive"; none: what the template does by itself.
void set_thinking(const JsonRef& body, std::optional<std::int32_t> max_tokens, OrderedJson& chat) {
  const auto thinking = body.find("thinking");
  if (!thinking) return;
  const std::string& type = thinking->at("type").string();
  if (type != "enabled" && type != "disabled" && type != "adaptive")
    thinking->at("type").wrong("\"enabled\", \"disabled\" or \"adaptive\"");
  if (!chat.contains("enable_thinking")) chat["enable_thinking"] = type != "disabled";
  const auto budget = thinking->find("budget_tokens");
  if (!budget || type != "enabled") return;
  const std::int32_t tokens = int_in(*budget, 1, std::numeric_limits<std::int32_t>::max());
  if (max_tokens && tokens >= *max_tokens) budget->wrong("fewer tokens than max_tokens");
  chat["thinking_token_budget"] = tokens;
}

void set_output(const JsonRef& body, const OrderedJson& in_order, OrderedJson& chat, Skipped& skipped) {
  const auto config = body.find("output_config");
  if (config) {
    const std::string effort = config->string("effort", "");
    if (is_effort(effort)) chat["reasoning_effort"] = effort;
    if (!effort.empty() && !is_effort(effort)) skipped.notes.push_back("output_config.effort " + effort.substr(0, 60));
  }
  const auto nested = config ? config->find("format") : std::nullopt;
  const auto format = nested ? nested : body.find("output_format");
  if (!format) return;
  if (format->at("type").string() != "json_schema") format->at("type").wrong("\"json_schema\"");
  format->at("schema");  // says what is missing
  const OrderedJson& ordered = nested ? in_order["output_config"]["format"] : in_order["output_format"];
  chat["response_format"] = {{"type", "json_schema"},
                             {"json_schema", {{"name", "answer"}, {"schema", ordered["schema"]}}}};
}

OrderedJson chat_of(const Body& whole, const RequestContext& context, std::optional<std::int32_t> max_tokens,
                    Skipped& skipped) {
  const JsonRef& body = whole.json;
  const OrderedJson in_order = OrderedJson::parse(whole.text);
  note_unknown_fields(body, {kMessageFields, kMessageFieldsWithoutEffect}, skipped);
  OrderedJson chat;
  // Clients ask for a small model of the family beside the one they were told: all of them are the one that is here.
  const std::string model = body.string("model", "");
  if (!model.empty() && !model.starts_with("claude-")) chat["model"] = model;
  copy_shared_fields(in_order, chat);
  const JsonRef messages = body.at("messages");
  if (!messages.is_array() || messages.value().empty()) messages.wrong("an array of at least one message");
  ChatTurns turns([&] { return late_system_of(*context.model.text); });
  MessageBlocks blocks(turns, skipped);
  if (const auto system = body.find("system")) blocks.read_system(*system);
  std::size_t i = 0;
  for (const JsonRef& message : messages.elements()) blocks.read_message(message, in_order["messages"][i++]);
  chat["messages"] = turns.messages();
  if (turns.ends_with_answer()) chat["continue_final_message"] = true;
  set_tools(body, tools_of(body, in_order, blocks.references(), skipped), chat);
  set_thinking(body, max_tokens, chat);
  set_output(body, in_order, chat, skipped);
  if (const auto stop = body.find("stop_sequences")) chat["stop"] = stop->value();
  chat["stream"] = body.boolean("stream", false);
  return chat;
}

std::string_view without_blanks(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t");
  return at == std::string_view::npos ? std::string_view() : text.substr(at);
}

}  // namespace

bool remove_billing_line(std::string& text) {
  constexpr std::string_view kName = "x-anthropic-billing-header:";
  if (!text.starts_with(kName)) return false;
  const std::size_t end = text.find('\n');
  std::string_view line =
      std::string_view(text).substr(kName.size(), end == std::string::npos ? end : end - kName.size());
  // KEY=VALUE; again and again. What follows on the same line is the prompt.
  bool pairs = false;
  for (;;) {
    line = without_blanks(line);
    const std::size_t semicolon = line.find(';');
    const std::string_view pair = line.substr(0, semicolon);
    const std::size_t equals = pair.find('=');
    if (semicolon == std::string_view::npos || equals == std::string_view::npos || equals == 0 ||
        pair.find_first_of(" \t") != std::string_view::npos)
      break;
    line.remove_prefix(semicolon + 1);
    pairs = true;
  }
  if (!pairs && end == std::string::npos) return false;
  std::string kept(pairs ? line : std::string_view());
  if (end != std::string::npos) kept += kept.empty() ? text.substr(end + 1) : text.substr(end);
  text = std::move(kept);
  return true;
}

MessagesRequest parse_messages(const Body& body, const RequestContext& context, Skipped& skipped) {
  if (!body.json.is_object()) body.json.wrong("an object");
  const std::int32_t max_tokens = int_in(body.json.at("max_tokens"), 1, std::numeric_limits<std::int32_t>::max());
  MessagesRequest request;
  try {
    request.chat = parse_made_chat(chat_of(body, context, max_tokens, skipped), context, max_tokens);
  } catch (const ContextError& e) {
    throw ContextError(fmt::format("prompt is too long: {} tokens > {} maximum", e.prompt, e.context - 1), "messages",
                       e.prompt, e.context);
  }
  GenerationInput& input = request.chat.inputs.front();
  input.report_progress = request.chat.stream;  // message_start tells the cached tokens
  request.model = body.json.string("model", context.served_name);
  const auto thinking = body.json.find("thinking");
  request.shows_thought = !thinking || thinking->string("display", "") != "omitted";
  return request;
}

std::int64_t count_messages(const Body& body, const RequestContext& context, Skipped& skipped) {
  if (!body.json.is_object()) body.json.wrong("an object");
  return count_prompt(chat_of(body, context, {}, skipped), context);
}

}  // namespace mneme::server
