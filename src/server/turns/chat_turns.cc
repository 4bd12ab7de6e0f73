#include "src/server/turns/chat_turns.h"

#include <fmt/format.h>

#include <utility>

#include "src/base/error.h"
#include "src/server/api/chat_prompt.h"

namespace mneme::server {

ChatTurns::Turn& ChatTurns::turn_of(std::string_view role) {
  if (turns_.empty() || turns_.back().role != role || turns_.back().answered)
    turns_.push_back({.role = std::string(role), .text = {}, .thought = {}, .calls = {}});
  return turns_.back();
}

void ChatTurns::append(std::string& text, std::string_view more) {
  if (!text.empty() && !more.empty()) text += "\n\n";
  text += more;
}

void ChatTurns::system(std::string text) {
  const bool late = !turns_.empty() && turns_.back().role != "system";
  if (late && !known_late_system_) known_late_system_ = late_system_();
  if (late && known_late_system_ == LateSystem::kInUserTurn)
    return user(fmt::format("<system-reminder>\n{}\n</system-reminder>", text));
  append(turn_of("system").text, text);
}

void ChatTurns::user(std::string text) {
  append(turn_of("user").text, text);
}

void ChatTurns::thought(std::string text) {
  append(turn_of("assistant").thought, text);
}

void ChatTurns::answer(std::string text) {
  append(turn_of("assistant").text, text);
}

void ChatTurns::call(std::string id, std::string name, Json arguments) {
  Turn& turn = turn_of("assistant");
  open_[id].emplace_back(turns_.size() - 1, turn.calls.size());
  turn.calls.push_back({.id = std::move(id), .name = std::move(name), .arguments = std::move(arguments), .result = {}});
}

void ChatTurns::result(const std::string& id, std::string text) {
  const auto calls = open_.find(id);
  if (calls == open_.end() || calls->second.empty())
    return user(fmt::format("[result of an unknown call {}]\n{}", id, text));
  const auto [turn, call] = calls->second.front();
  calls->second.pop_front();
  turns_[turn].calls[call].result = std::move(text);
  turns_[turn].answered = true;
}

bool ChatTurns::ends_with_answer() const {
  return !turns_.empty() && turns_.back().role == "assistant" && turns_.back().calls.empty();
}

ChatTurns::Json ChatTurns::messages() const {
  Json messages = Json::array();
  for (const Turn& turn : turns_) {
    Json message = {{"role", turn.role}, {"content", turn.text}};
    if (!turn.thought.empty()) message["reasoning_content"] = turn.thought;
    for (const Call& call : turn.calls) {
      message["tool_calls"].push_back(
          {{"id", call.id}, {"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}});
    }
    if (!turn.calls.empty() && turn.text.empty()) message["content"] = nullptr;
    messages.push_back(std::move(message));
    for (const Call& call : turn.calls) {
      messages.push_back({{"role", "tool"},
                          {"tool_call_id", call.id},
                          {"name", call.name},
                          {"content", call.result.value_or("(no result)")}});
    }
  }
  if (messages.empty() || messages.back()["role"] == "system") messages.push_back({{"role", "user"}, {"content", ""}});
  return messages;
}

ChatTurns::LateSystem late_system_of(const TextSide& text) {
  constexpr std::string_view kProbe = "zqxlatezqx";
  Conversation conversation;
  for (const auto& [role, content] :
       {std::pair("system", "a"), std::pair("user", "b"), std::pair("system", kProbe.data()), std::pair("user", "c")})
    conversation.messages.push_back({.role = role, .content = content});
  try {
    const std::string prompt = text.tokenizer->decode(chat_prompt(text, conversation), true);
    return prompt.find(kProbe) == std::string::npos ? ChatTurns::LateSystem::kInUserTurn
                                                    : ChatTurns::LateSystem::kInPlace;
  } catch (const Error&) {
    return ChatTurns::LateSystem::kInUserTurn;
  }
}

}  // namespace mneme::server
