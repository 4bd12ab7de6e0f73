// Items of /v1/responses, as requests and stored responses have them, to turns.
#pragma once

#include <functional>
#include <string>

#include "src/formats/json.h"
#include "src/server/turns/chat_turns.h"
#include "src/server/turns/made_chat.h"

namespace mneme::server {

class InputItems {
 public:
  // find: the stored item of an id, null where there is none.
  InputItems(ChatTurns& turns, Skipped& skipped, std::function<nlohmann::ordered_json(const std::string&)> find)
      : turns_(turns), skipped_(skipped), find_(std::move(find)) {}

  // Errors  kFormat; ApiError 400: content that the model cannot read (image, file, audio), a reference to an item that
  //         is not stored. An item of an unknown type is left out: a history may come from elsewhere.
  void read(const JsonRef& item);

 private:
  void read_message(const JsonRef& item);
  void read_thought(const JsonRef& item);
  void read_reference(const JsonRef& item);

  ChatTurns& turns_;
  Skipped& skipped_;
  std::function<nlohmann::ordered_json(const std::string&)> find_;
};

}  // namespace mneme::server
