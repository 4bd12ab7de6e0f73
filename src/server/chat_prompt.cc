#include "src/server/chat_prompt.h"

#include "src/base/error.h"

namespace mneme::server {
namespace {

bool is_system(const ChatMessage& m) {
  return m.role == "system" || m.role == "developer";
}

}  // namespace

std::vector<TokenId> chat_prompt(const TextSide& text, std::span<const ChatMessage> messages) {
  if (messages.empty()) fail(ErrorKind::kRequest, "messages: expected the user's at the end, found none");
  if (text.chat.chat_template() != nullptr) {
    ChatInput input;
    for (const ChatMessage& m : messages)
      input.messages.push_back({{"role", m.role == "developer" ? "system" : m.role}, {"content", m.content}});
    return text.chat.conversation(input);
  }
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
