#include "src/server/responses/responses_reply.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

#include "src/server/api/api_error.h"
#include "src/server/reply/unique_id.h"
#include "src/server/turns/sealed_thought.h"

namespace mneme::server {
namespace {

// The codes that clients tell apart; others they try again.
std::string code_of(const ApiError& error) {
  if (!error.error_code.empty()) return error.error_code;
  return error.status == 429 ? "rate_limit_exceeded" : "server_error";
}

// The text of a custom tool's input, of the arguments of the function that the model was shown.
std::string custom_input_of(const std::string& arguments) {
  const OrderedJson json = OrderedJson::parse(arguments, nullptr, false);
  return json.is_object() && json.contains("input") && json["input"].is_string() ? json["input"].get<std::string>()
                                                                                 : arguments;
}

std::int64_t seconds_now() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

ResponsesReply::ResponsesReply(Setting setting, ResponsesRequest request, std::shared_ptr<ResponseWriter> writer,
                               ResponseStore& store, std::string owner)
    : AnswerReply(std::move(setting), std::move(request.chat), std::move(writer)),
      tools_(std::move(request.tools)),
      repeated_(std::move(request.repeated)),
      input_(std::move(request.input)),
      previous_(std::move(request.previous)),
      id_("resp_" + unique_id()),
      owner_(std::move(owner)),
      stored_(request.stored),
      summarises_(request.summarises),
      seals_(request.seals),
      logprobs_(request.logprobs),
      store_(store) {}

// ---- objects

std::string ResponsesReply::item_id(std::size_t item) const {
  const AnswerItem& i = items()[item];
  std::string_view prefix = "msg_";
  if (i.kind == ItemKind::kThought) prefix = "rs_";
  if (i.kind == ItemKind::kCall) prefix = tools_.origin_of(i.name).custom ? "ctc_" : "fc_";
  return fmt::format("{}{}{}", prefix, id_.substr(id_.find('_') + 1), item);
}

OrderedJson ResponsesReply::logprobs_of(std::span<const TokenScore> tokens) const {
  if (!logprobs_) return OrderedJson::array();
  return chat_logprobs(*setting().text.tokenizer, tokens)["content"];
}

OrderedJson ResponsesReply::part_json(std::size_t item, Form form) const {
  const AnswerItem& i = items()[item];
  const std::string text = form == Form::kDone ? i.text : "";
  if (i.kind == ItemKind::kThought) return {{"type", summarises_ ? "summary_text" : "reasoning_text"}, {"text", text}};
  OrderedJson part = {{"type", "output_text"}, {"text", text}, {"annotations", OrderedJson::array()}};
  part["logprobs"] = form == Form::kDone ? logprobs_of(i.tokens) : OrderedJson::array();
  return part;
}

OrderedJson ResponsesReply::call_json(std::size_t item, Form form, const OrderedJson& status) const {
  const AnswerItem& i = items()[item];
  const ResponseTools::Origin origin = tools_.origin_of(i.name);
  const std::string text = form == Form::kDone ? i.text : "";
  OrderedJson json = {{"id", item_id(item)},
                      {"type", origin.custom ? "custom_tool_call" : "function_call"},
                      {"status", status},
                      {"call_id", i.id},
                      {"name", origin.name}};
  if (!origin.space.empty()) json["namespace"] = origin.space;
  if (origin.custom)
    json["input"] = form == Form::kDone ? custom_input_of(text) : "";
  else
    json["arguments"] = text;
  return json;
}

OrderedJson ResponsesReply::item_json(std::size_t item, Form form) const {
  const AnswerItem& i = items()[item];
  const OrderedJson status = form == Form::kBegun ? "in_progress" : (i.cut ? "incomplete" : "completed");
  if (i.kind == ItemKind::kCall) return call_json(item, form, status);
  OrderedJson parts = OrderedJson::array();
  if (form == Form::kDone) parts.push_back(part_json(item, form));
  if (i.kind == ItemKind::kText) {
    return {{"id", item_id(item)},
            {"type", "message"},
            {"status", status},
            {"role", "assistant"},
            {"content", std::move(parts)}};
  }
  OrderedJson json = {{"id", item_id(item)}, {"type", "reasoning"}, {"status", status}};
  json["summary"] = summarises_ ? parts : OrderedJson::array();
  json["content"] = summarises_ ? OrderedJson::array() : parts;
  json["encrypted_content"] = seals_ && form == Form::kDone ? OrderedJson(seal_thought(i.text)) : OrderedJson();
  return json;
}

OrderedJson ResponsesReply::usage_json() const {
  const Usage u = usage();
  return {{"input_tokens", u.prompt},
          {"input_tokens_details", {{"cached_tokens", u.cached}, {"cache_write_tokens", 0}}},
          {"output_tokens", u.answer},
          {"output_tokens_details", {{"reasoning_tokens", u.thought}}},
          {"total_tokens", u.prompt + u.answer}};
}

std::string ResponsesReply::status() const {
  return summary().reason == StopReason::kLength ? "incomplete" : "completed";
}

OrderedJson ResponsesReply::response_json(std::string_view status) const {
  OrderedJson json = {{"id", id_}, {"object", "response"}, {"created_at", created()}, {"status", status}};
  json["completed_at"] = status == "completed" ? OrderedJson(completed_at_) : OrderedJson();
  json["background"] = false;
  json["error"] = nullptr;
  json["incomplete_details"] = nullptr;
  if (status == "incomplete") json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  json["output"] = OrderedJson::array();
  json["usage"] = nullptr;
  json.update(repeated_);
  return json;
}

OrderedJson ResponsesReply::object() {
  OrderedJson json = response_json(status());
  for (std::size_t i = 0; i < items().size(); ++i) json["output"].push_back(item_json(i, Form::kDone));
  json["usage"] = usage_json();
  return json;
}

void ResponsesReply::on_end() {
  completed_at_ = seconds_now();
  if (!stored_) return;
  store_.put({.owner = owner_, .id = id_, .previous = previous_, .input = std::move(input_), .response = object()});
}

// ---- events

std::string ResponsesReply::event(std::string_view type, OrderedJson data) {
  OrderedJson json = {{"type", type}, {"sequence_number", events_++}};
  json.update(data);
  return fmt::format("event: {}\ndata: {}\n\n", type, json_text(json));
}

std::string ResponsesReply::item_event(std::string_view type, std::size_t item, OrderedJson more) {
  OrderedJson data = {{"item_id", item_id(item)}, {"output_index", item}};
  const AnswerItem& i = items()[item];
  if (i.kind != ItemKind::kCall)
    data[i.kind == ItemKind::kThought && summarises_ ? "summary_index" : "content_index"] = 0;
  data.update(more);
  return event(type, std::move(data));
}

std::string ResponsesReply::first_events() {
  // Each event takes the next number: they are made one after the other.
  std::string events = event("response.created", {{"response", response_json("in_progress")}});
  events += waiting_events();
  return events;
}

std::string ResponsesReply::waiting_events() {
  return event("response.in_progress", {{"response", response_json("in_progress")}});
}

std::string ResponsesReply::change_events(const AnswerItems::Change& change) {
  switch (change.what) {
    case AnswerItems::Change::kOpened:
      return opened(change.item);
    case AnswerItems::Change::kGrew:
      return grew(change);
    case AnswerItems::Change::kClosed:
      break;
  }
  return closed(change.item);
}

std::string ResponsesReply::opened(std::size_t item) {
  std::string events =
      event("response.output_item.added", {{"output_index", item}, {"item", item_json(item, Form::kBegun)}});
  const ItemKind kind = items()[item].kind;
  if (kind == ItemKind::kCall) return events;
  const bool summary = kind == ItemKind::kThought && summarises_;
  events += item_event(summary ? "response.reasoning_summary_part.added" : "response.content_part.added", item,
                       {{"part", part_json(item, Form::kBegun)}});
  return events;
}

std::string ResponsesReply::grew(const AnswerItems::Change& change) {
  const AnswerItem& item = items()[change.item];
  OrderedJson delta = {{"delta", change.text}};
  switch (item.kind) {
    case ItemKind::kThought:
      return item_event(summarises_ ? "response.reasoning_summary_text.delta" : "response.reasoning_text.delta",
                        change.item, std::move(delta));
    case ItemKind::kText:
      delta["logprobs"] = logprobs_of(change.tokens);
      return item_event("response.output_text.delta", change.item, std::move(delta));
    case ItemKind::kCall:
      break;
  }
  // The input of a custom tool is known when its arguments are complete.
  if (tools_.origin_of(item.name).custom) return {};
  return item_event("response.function_call_arguments.delta", change.item, std::move(delta));
}

std::string ResponsesReply::closed(std::size_t item) {
  const AnswerItem& i = items()[item];
  const OrderedJson whole = item_json(item, Form::kDone);
  std::string events;
  if (i.kind == ItemKind::kCall && tools_.origin_of(i.name).custom) {
    events += item_event("response.custom_tool_call_input.delta", item, {{"delta", whole["input"]}});
    events += item_event("response.custom_tool_call_input.done", item, {{"input", whole["input"]}});
  } else if (i.kind == ItemKind::kCall) {
    events +=
        item_event("response.function_call_arguments.done", item, {{"name", whole["name"]}, {"arguments", i.text}});
  } else if (i.kind == ItemKind::kText) {
    const OrderedJson part = part_json(item, Form::kDone);
    events += item_event("response.output_text.done", item, {{"text", i.text}, {"logprobs", part["logprobs"]}});
    events += item_event("response.content_part.done", item, {{"part", part}});
  } else {
    events += item_event(summarises_ ? "response.reasoning_summary_text.done" : "response.reasoning_text.done", item,
                         {{"text", i.text}});
    events += item_event(summarises_ ? "response.reasoning_summary_part.done" : "response.content_part.done", item,
                         {{"part", part_json(item, Form::kDone)}});
  }
  events += event("response.output_item.done", {{"output_index", item}, {"item", whole}});
  return events;
}

std::string ResponsesReply::last_events() {
  return event("response." + status(), {{"response", object()}});
}

std::string ResponsesReply::error_events(const ApiError& error) {
  OrderedJson response = response_json("failed");
  response["error"] = {{"code", code_of(error)}, {"message", error.what()}};
  for (std::size_t i = 0; i < items().size(); ++i) response["output"].push_back(item_json(i, Form::kDone));
  return event("response.failed", {{"response", std::move(response)}});
}

}  // namespace mneme::server
