// Turns of another API as the "messages" of a chat, in an order that templates take.
#pragma once

#include <deque>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/engine/session/running_model.h"

namespace mneme::server {

// Leading system texts become one. The assistant's thought, text and calls that follow each other are one turn; texts of
// the user are one too. Results follow the turn that made the calls, in its order, whatever came between; a call without
// a result has "(no result)", a result without a call is text of the user's.
class ChatTurns {
 public:
  using Json = nlohmann::ordered_json;

  // Where a system text is that is not the first turn.
  enum class LateSystem { kInPlace, kInUserTurn };
  // late_system: asked once, where there is one.
  explicit ChatTurns(std::function<LateSystem()> late_system) : late_system_(std::move(late_system)) {}

  void system(std::string text);
  void user(std::string text);
  void thought(std::string text);
  void answer(std::string text);
  // arguments: an object, or text.
  void call(std::string id, std::string name, Json arguments);
  void result(const std::string& id, std::string text);

  // The last turn is the assistant's, without calls: an answer would go on from it.
  bool ends_with_answer() const;
  // At least one turn: an empty one of the user's where there was none.
  Json messages() const;

 private:
  struct Call {
    std::string id, name;
    Json arguments;
    std::optional<std::string> result;
  };
  struct Turn {
    std::string role, text, thought;
    std::vector<Call> calls;
    bool answered = false;  // some of them
  };
  Turn& turn_of(std::string_view role);
  static void append(std::string& text, std::string_view more);

  std::function<LateSystem()> late_system_;
  std::optional<LateSystem> known_late_system_;
  std::vector<Turn> turns_;
  // Calls without a result, by id: turn and position in it. Equal ids are paired in order.
  std::unordered_map<std::string, std::deque<std::pair<std::size_t, std::size_t>>> open_;
};

// Whether the model's chat template shows a system text behind the user's, found by rendering one: many raise.
ChatTurns::LateSystem late_system_of(const TextSide& text);

}  // namespace mneme::server
