#include "src/server/responses/responses_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "src/server/api/api_error.h"
#include "src/server/api/request_fields.h"
#include "src/server/reply/unique_id.h"
#include "src/server/responses/input_items.h"

namespace mneme::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr auto kResponseFields =
    std::to_array<std::string_view>({"model", "input", "instructions", "stream", "tools", "tool_choice",
                                     "parallel_tool_calls", "max_output_tokens", "top_logprobs", "reasoning", "text",
                                     "include", "store", "previous_response_id", "metadata", "truncation", "stop"});
constexpr auto kResponseFieldsWithoutEffect =
    std::to_array<std::string_view>({"prompt_cache_key", "prompt_cache_retention", "safety_identifier", "user",
                                     "service_tier", "client_metadata", "stream_options"});
// They would change the answer, or where it is found.
constexpr auto kRefusedInResponses =
    std::to_array<std::string_view>({"background", "conversation", "prompt", "max_tool_calls", "n"});

void check_names(const JsonRef& body, Skipped& skipped) {
  if (!body.is_object()) body.wrong("an object");
  for (const std::string_view name : kRefusedInResponses)
    if (is_given(body, name) && body.at(name).value() != 1) unsupported(name, "not supported in responses");
  note_unknown_fields(body, {kResponseFields, kResponseFieldsWithoutEffect, kRefusedInResponses}, skipped);
}

// A string is one message of the user's. Items without an id get one: they are found by it when they are stored.
OrderedJson items_of(const JsonRef& body, const OrderedJson& in_order) {
  const auto input = body.find("input");
  OrderedJson items = OrderedJson::array();
  if (!input) return items;
  if (input->is_string()) {
    items.push_back({{"id", "msg_" + unique_id()},
                     {"type", "message"},
                     {"role", "user"},
                     {"content", OrderedJson::array({{{"type", "input_text"}, {"text", input->string()}}})}});
    return items;
  }
  for (const OrderedJson& item : in_order["input"]) {
    OrderedJson kept = item;
    if (kept.is_object() && (!kept.contains("id") || kept["id"].is_null())) kept["id"] = "item_" + unique_id();
    items.push_back(std::move(kept));
  }
  return items;
}

void read_stored(const StoredResponse& stored, InputItems& items) {
  for (const OrderedJson* list : {&stored.input, &stored.response["output"]}) {
    const Json json(*list);
    for (const JsonRef& item : JsonRef(json, stored.id).elements()) items.read(item);
  }
}

std::vector<ResponseStore::Stored> chain_of(const std::string& previous, ResponseStore& store,
                                            const std::string& owner) {
  if (previous.empty()) return {};
  std::vector<ResponseStore::Stored> chain = store.chain(owner, previous);
  if (!chain.empty()) return chain;
  throw ApiError(404,
                 fmt::format("the response \"{}\" is not stored here{}: send its conversation as input",
                             previous.substr(0, 100), store.is_on() ? " any more" : ", where none are"),
                 "previous_response_id", "previous_response_not_found");
}

void set_messages(const JsonRef& body, const std::vector<ResponseStore::Stored>& chain, InputItems& items,
                  ChatTurns& turns) {
  // Instructions are of this request alone; those of the responses before it do not count.
  if (const auto instructions = body.find("instructions")) turns.system(instructions->string());
  for (const ResponseStore::Stored& stored : chain) read_stored(*stored, items);
  const auto input = body.find("input");
  if (!input) return;
  if (input->is_string()) return turns.user(input->string());
  if (!input->is_array()) input->wrong("a string, or an array of items");
  for (const JsonRef& item : input->elements()) items.read(item);
}

void read_tools(const JsonRef& body, const OrderedJson& in_order, ResponseTools& tools, Skipped& skipped) {
  if (const auto list = body.find("tools")) tools.add(*list, in_order["tools"], skipped);
  const auto input = body.find("input");
  if (!input || !input->is_array()) return;
  std::size_t i = 0;
  for (const JsonRef& item : input->elements()) {
    const OrderedJson& ordered = in_order["input"][i++];
    if (item.is_object() && item.string("type", "") == "additional_tools" && item.find("tools"))
      tools.add(item.at("tools"), ordered["tools"], skipped);
  }
}

void set_tools(const JsonRef& body, const ResponseTools& tools, OrderedJson& chat) {
  const auto choice = body.find("tool_choice");
  OrderedJson selected = choice ? tools.choice_of(*choice) : OrderedJson();
  if (selected == "required" && tools.shown().empty()) choice->wrong("\"auto\" or \"none\" in a request without tools");
  if (tools.shown().empty()) return;
  chat["tools"] = tools.shown();
  if (!selected.is_null()) chat["tool_choice"] = std::move(selected);
  if (const auto parallel = body.find("parallel_tool_calls")) chat["parallel_tool_calls"] = parallel->boolean();
}

// text.format: as response_format, but flat.
void set_format(const JsonRef& body, const OrderedJson& in_order, OrderedJson& chat) {
  const auto text = body.find("text");
  const auto format = text ? text->find("format") : std::nullopt;
  if (!format) return;
  const std::string& type = format->at("type").string();
  if (type != "text" && type != "json_object" && type != "json_schema")
    format->at("type").wrong("\"text\", \"json_object\" or \"json_schema\"");
  if (type == "text") return;
  chat["response_format"] = {{"type", type}};
  if (type != "json_schema") return;
  format->at("schema");  // says what is missing
  chat["response_format"]["json_schema"] = {{"name", format->string("name", "answer")},
                                            {"schema", in_order["text"]["format"]["schema"]}};
}

bool includes(const JsonRef& body, std::string_view what) {
  const auto include = body.find("include");
  if (!include) return false;
  if (!include->is_array()) include->wrong("an array of strings");
  const Json& list = include->value();
  return std::find(list.begin(), list.end(), Json(what)) != list.end();
}

void set_answer(const JsonRef& body, const OrderedJson& in_order, OrderedJson& chat, Skipped& skipped) {
  copy_shared_fields(in_order, chat);
  if (const auto model = body.find("model")) chat["model"] = model->string();
  if (const auto stop = body.find("stop")) chat["stop"] = stop->value();
  chat["stream"] = body.boolean("stream", false);
  const auto reasoning = body.find("reasoning");
  const std::string effort = reasoning ? reasoning->string("effort", "") : "";
  if (is_effort(effort)) chat["reasoning_effort"] = effort;
  if (!effort.empty() && !is_effort(effort)) skipped.notes.push_back("reasoning.effort " + effort.substr(0, 60));
  const std::int64_t top = body.integer("top_logprobs", 0);
  if (top != 0 || includes(body, "message.output_text.logprobs")) {
    chat["logprobs"] = true;
    chat["top_logprobs"] = top;
  }
}

OrderedJson chat_of(const Body& whole, const RequestContext& context, ResponseStore& store, const std::string& owner,
                    ResponseTools& tools, Skipped& skipped) {
  const JsonRef& body = whole.json;
  const OrderedJson in_order = OrderedJson::parse(whole.text);
  check_names(body, skipped);
  OrderedJson chat;
  set_answer(body, in_order, chat, skipped);
  const auto chain = chain_of(body.string("previous_response_id", ""), store, owner);
  ChatTurns turns([&] { return late_system_of(*context.model.text); });
  InputItems items(turns, skipped, [&](const std::string& id) { return store.find_item(owner, id); });
  set_messages(body, chain, items, turns);
  chat["messages"] = turns.messages();
  read_tools(body, in_order, tools, skipped);
  set_tools(body, tools, chat);
  set_format(body, in_order, chat);
  return chat;
}

// Members of a response that say what was asked for.
OrderedJson repeated_of(const JsonRef& body, const OrderedJson& in_order, const ResponsesRequest& request,
                        const std::string& model) {
  const auto given = [&](const char* name, OrderedJson otherwise) {
    return body.find(name) ? in_order[name] : std::move(otherwise);
  };
  OrderedJson reasoning = {{"effort", nullptr}, {"summary", nullptr}};
  if (body.find("reasoning")) reasoning.update(in_order["reasoning"]);
  OrderedJson text = {{"format", {{"type", "text"}}}};
  if (body.find("text")) text.update(in_order["text"]);
  return {{"instructions", given("instructions", nullptr)},
          {"max_output_tokens", given("max_output_tokens", nullptr)},
          {"model", model},
          {"parallel_tool_calls", given("parallel_tool_calls", true)},
          {"previous_response_id", request.previous.empty() ? OrderedJson() : OrderedJson(request.previous)},
          {"reasoning", std::move(reasoning)},
          {"store", request.stored},
          {"temperature", given("temperature", 1.0)},
          {"top_p", given("top_p", 1.0)},
          {"text", std::move(text)},
          {"tool_choice", given("tool_choice", "auto")},
          {"tools", given("tools", OrderedJson::array())},
          {"truncation", "disabled"},
          {"metadata", given("metadata", OrderedJson::object())}};
}

}  // namespace

ResponsesRequest parse_responses(const Body& body, const RequestContext& context, ResponseStore& store,
                                 const std::string& owner, Skipped& skipped) {
  ResponsesRequest request;
  const OrderedJson chat = chat_of(body, context, store, owner, request.tools, skipped);
  std::optional<std::int32_t> most;
  if (const auto given = body.json.find("max_output_tokens"))
    most = int_in(*given, 1, std::numeric_limits<std::int32_t>::max());
  try {
    request.chat = parse_made_chat(chat, context, most);
  } catch (const ContextError& e) {
    throw ContextError(fmt::format("the input has {} tokens, the context {}, answer included", e.prompt, e.context),
                       "input", e.prompt, e.context);
  }
  const OrderedJson in_order = OrderedJson::parse(body.text);
  request.previous = body.json.string("previous_response_id", "");
  request.stored = body.json.boolean("store", true) && store.is_on();
  request.input = items_of(body.json, in_order);
  request.logprobs = request.chat.logprobs;
  request.seals = includes(body.json, "reasoning.encrypted_content");
  if (const auto reasoning = body.json.find("reasoning"))
    request.summarises = is_given(*reasoning, "summary") || is_given(*reasoning, "generate_summary");
  request.repeated = repeated_of(body.json, in_order, request, request.chat.model);
  return request;
}

std::int64_t count_responses(const Body& body, const RequestContext& context, ResponseStore& store,
                             const std::string& owner, Skipped& skipped) {
  ResponseTools tools;
  return count_prompt(chat_of(body, context, store, owner, tools, skipped), context);
}

}  // namespace mneme::server
