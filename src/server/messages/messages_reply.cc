#include "src/server/messages/messages_reply.h"

#include <fmt/format.h>

#include <utility>

#include "src/server/api/api_error.h"
#include "src/server/reply/unique_id.h"
#include "src/server/turns/sealed_thought.h"

namespace mneme::server {
namespace {

std::string message_event(std::string_view type, OrderedJson data) {
  OrderedJson json = {{"type", type}};
  json.update(data);
  return fmt::format("event: {}\ndata: {}\n\n", type, json_text(json));
}

std::string delta(std::size_t index, std::string_view type, std::string_view member, std::string_view text) {
  return message_event("content_block_delta", {{"index", index}, {"delta", {{"type", type}, {member, text}}}});
}

// Ids that the model wrote stay; ours have the prefix that this API's clients know.
std::string use_id(const std::string& id) {
  constexpr std::string_view kOurs = "call_";
  return id.starts_with(kOurs) ? "toolu_" + id.substr(kOurs.size()) : id;
}

// Arguments as the object that they are; those of a call that was cut are no JSON.
OrderedJson tool_input_of(const std::string& arguments) {
  if (arguments.empty()) return OrderedJson::object();
  OrderedJson input = OrderedJson::parse(arguments, nullptr, false);
  return input.is_object() ? input : OrderedJson{{"_raw", arguments}};
}

}  // namespace

MessagesReply::MessagesReply(Setting setting, MessagesRequest request, std::shared_ptr<ResponseWriter> writer)
    : AnswerReply(std::move(setting), std::move(request.chat), std::move(writer)),
      id_("msg_" + unique_id()),
      model_(std::move(request.model)),
      shows_thought_(request.shows_thought) {}

OrderedJson MessagesReply::usage_json() const {
  const Usage u = usage();
  return {{"input_tokens", u.prompt - u.cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", u.cached},
          {"output_tokens", u.answer}};
}

OrderedJson MessagesReply::head() const {
  return {{"id", id_},
          {"type", "message"},
          {"role", "assistant"},
          {"model", model_},
          {"content", OrderedJson::array()},
          {"stop_reason", nullptr},
          {"stop_sequence", nullptr},
          {"usage", usage_json()}};
}

// Where the client does not see the thought, the signature holds it: it comes back with the block.
std::string MessagesReply::signature_of(const AnswerItem& thought) const {
  return seal_thought(shows_thought_ ? std::string_view() : std::string_view(thought.text));
}

OrderedJson MessagesReply::block_json(const AnswerItem& item) const {
  switch (item.kind) {
    case ItemKind::kThought:
      return {{"type", "thinking"},
              {"thinking", shows_thought_ ? item.text : std::string()},
              {"signature", signature_of(item)}};
    case ItemKind::kText:
      return {{"type", "text"}, {"text", item.text}};
    case ItemKind::kCall:
      break;
  }
  return {{"type", "tool_use"}, {"id", use_id(item.id)}, {"name", item.name}, {"input", tool_input_of(item.text)}};
}

std::string MessagesReply::stop_reason() const {
  if (summary().reason == StopReason::kLength) return "max_tokens";
  if (has_calls()) return "tool_use";
  return summary().reason == StopReason::kStopString ? "stop_sequence" : "end_turn";
}

OrderedJson MessagesReply::object() {
  OrderedJson json = head();
  for (const AnswerItem& item : items()) json["content"].push_back(block_json(item));
  json["stop_reason"] = stop_reason();
  if (stop_reason() == "stop_sequence") json["stop_sequence"] = summary().stop_string;
  return json;
}

std::string MessagesReply::first_events() {
  return message_event("message_start", {{"message", head()}}) + waiting_events();
}

std::string MessagesReply::waiting_events() {
  return message_event("ping", OrderedJson::object());
}

std::string MessagesReply::change_events(const AnswerItems::Change& change) {
  const AnswerItem& item = items()[change.item];
  const std::size_t index = change.item;
  switch (change.what) {
    case AnswerItems::Change::kOpened: {
      OrderedJson block = block_json({.kind = item.kind, .text = {}, .id = item.id, .name = item.name, .tokens = {}});
      if (item.kind == ItemKind::kThought) block["signature"] = "";
      return message_event("content_block_start", {{"index", index}, {"content_block", std::move(block)}});
    }
    case AnswerItems::Change::kGrew:
      if (item.kind == ItemKind::kText) return delta(index, "text_delta", "text", change.text);
      if (item.kind == ItemKind::kCall) return delta(index, "input_json_delta", "partial_json", change.text);
      return shows_thought_ ? delta(index, "thinking_delta", "thinking", change.text) : "";
    case AnswerItems::Change::kClosed:
      break;
  }
  const std::string signature =
      item.kind == ItemKind::kThought ? delta(index, "signature_delta", "signature", signature_of(item)) : "";
  return signature + message_event("content_block_stop", {{"index", index}});
}

std::string MessagesReply::last_events() {
  const OrderedJson whole = object();
  return message_event("message_delta",
                       {{"delta", {{"stop_reason", whole["stop_reason"]}, {"stop_sequence", whole["stop_sequence"]}}},
                        {"usage", whole["usage"]}}) +
         message_event("message_stop", OrderedJson::object());
}

std::string MessagesReply::error_body(const ApiError& error) const {
  return error.anthropic_body(setting().request_id);
}

std::string MessagesReply::error_events(const ApiError& error) {
  return fmt::format("event: error\ndata: {}\n\n", error_body(error));
}

}  // namespace mneme::server
