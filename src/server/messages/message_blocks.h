// "system" and "messages" of Anthropic's API to turns.
#pragma once

#include <set>
#include <string>

#include "src/formats/json.h"
#include "src/server/turns/chat_turns.h"
#include "src/server/turns/made_chat.h"

namespace mneme::server {

class MessageBlocks {
 public:
  MessageBlocks(ChatTurns& turns, Skipped& skipped) : turns_(turns), skipped_(skipped) {}

  // A text, or blocks of text; the billing line is left out.
  void read_system(const JsonRef& system);
  // in_order: the same value with its members in order.
  //
  // Errors  kFormat; ApiError 400: a block that the model cannot read (image, document), by its path.
  void read_message(const JsonRef& message, const nlohmann::ordered_json& in_order);

  // Tools that a tool_reference has named.
  const std::set<std::string>& references() const { return references_; }

 private:
  void read_user_block(const JsonRef& block);
  void read_assistant_block(const JsonRef& block, const nlohmann::ordered_json& in_order);
  void read_result(const JsonRef& block);
  std::string text_of_result(const JsonRef& content);

  ChatTurns& turns_;
  Skipped& skipped_;
  std::set<std::string> references_;
};

}  // namespace mneme::server
