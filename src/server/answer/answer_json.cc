#include "src/server/answer/answer_json.h"

#include <fmt/format.h>

namespace mneme::server {

std::string delta_json(const ChatAnswer::Piece& piece, std::string_view thought_field) {
  const AnswerEvent& e = piece.event;
  switch (e.part) {
    case AnswerPart::kThought:
      return fmt::format("{{\"{}\":{}}}", thought_field, json_string(e.text));
    case AnswerPart::kText:
      return fmt::format("{{\"content\":{}}}", json_string(e.text));
    case AnswerPart::kCallBegin:
      return fmt::format(
          "{{\"tool_calls\":[{{\"index\":{},\"id\":{},\"type\":\"function\","
          "\"function\":{{\"name\":{},\"arguments\":\"\"}}}}]}}",
          e.call, json_string(e.id), json_string(e.text));
    case AnswerPart::kArguments:
      return fmt::format("{{\"tool_calls\":[{{\"index\":{},\"function\":{{\"arguments\":{}}}}}]}}", e.call,
                         json_string(e.text));
    case AnswerPart::kCallEnd:
      break;
  }
  return {};
}

OrderedJson message_json(const ChatAnswer& answer, std::string_view thought_field) {
  OrderedJson message = {{"role", "assistant"}, {"content", answer.text()}};
  const bool other = !answer.thought().empty() || !answer.calls().empty();
  if (answer.text().empty() && other) message["content"] = nullptr;
  if (!answer.thought().empty()) message[std::string(thought_field)] = answer.thought();
  for (const ChatAnswer::Call& call : answer.calls()) {
    message["tool_calls"].push_back(
        {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
  }
  message["refusal"] = nullptr;
  return message;
}

}  // namespace mneme::server
