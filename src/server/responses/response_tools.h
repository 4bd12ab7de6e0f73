// "tools" and "tool_choice" of a request of /v1/responses: as a chat has them, and back to what a call is told as.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <unordered_map>

#include "src/formats/json.h"
#include "src/server/turns/made_chat.h"

namespace mneme::server {

// Functions are shown as they are. A custom tool, whose input is text, is shown as a function of one string, `input`;
// tools of a namespace as NAMESPACE__NAME. Tools that a server of OpenAI's runs are left out, and unknown ones.
class ResponseTools {
 public:
  struct Origin {
    std::string name, space;  // space: its namespace; empty: none
    bool custom = false;
  };

  // list: an array of tools; in_order: the same with members in order.
  //
  // Errors  kFormat: no array, a tool without a type or name.
  void add(const JsonRef& list, const nlohmann::ordered_json& in_order, Skipped& skipped);

  const nlohmann::ordered_json& shown() const { return shown_; }
  // What the model calls by this name; a function of that name where there is no such tool.
  Origin origin_of(const std::string& shown_name) const;
  static std::string shown_name(std::string_view space, std::string_view name);

  // A chat's tool_choice; null: the default.
  //
  // Errors  ApiError 400: a tool that is not shown.
  nlohmann::ordered_json choice_of(const JsonRef& choice) const;

 private:
  void add_tool(const JsonRef& tool, const nlohmann::ordered_json& in_order, std::string_view space, Skipped& skipped);
  nlohmann::ordered_json named(const JsonRef& tool) const;

  nlohmann::ordered_json shown_ = nlohmann::ordered_json::array();
  std::unordered_map<std::string, Origin> origins_;  // by shown name
};

}  // namespace mneme::server
