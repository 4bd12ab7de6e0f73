#include "src/server/responses/response_tools.h"

#include <fmt/format.h>

#include <utility>

#include "src/server/api/api_error.h"

namespace mneme::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Of a custom tool: what it says of itself, and the grammar that its input should follow.
std::string description_of(const JsonRef& tool) {
  std::string text = tool.string("description", "");
  const auto format = tool.find("format");
  const auto definition = format ? format->find("definition") : std::nullopt;
  if (!definition) return text;
  if (!text.empty()) text += "\n\n";
  return text + fmt::format("The input follows this grammar ({}):\n{}", format->string("syntax", "text"),
                            definition->string());
}

}  // namespace

std::string ResponseTools::shown_name(std::string_view space, std::string_view name) {
  return space.empty() ? std::string(name) : fmt::format("{}__{}", space, name);
}

void ResponseTools::add(const JsonRef& list, const OrderedJson& in_order, Skipped& skipped) {
  if (!list.is_array()) list.wrong("an array of tools");
  std::size_t i = 0;
  for (const JsonRef& tool : list.elements()) add_tool(tool, in_order[i++], {}, skipped);
}

void ResponseTools::add_tool(const JsonRef& tool, const OrderedJson& in_order, std::string_view space,
                             Skipped& skipped) {
  const std::string& type = tool.at("type").string();
  if (type == "namespace" && space.empty()) {
    const JsonRef tools = tool.at("tools");
    if (!tools.is_array()) tools.wrong("an array of tools");
    std::size_t i = 0;
    for (const JsonRef& inner : tools.elements())
      add_tool(inner, in_order["tools"][i++], tool.at("name").string(), skipped);
    return;
  }
  if (type != "function" && type != "custom") {
    skipped.tools.push_back(type.substr(0, 60));
    return;
  }
  Origin origin{.name = tool.at("name").string(), .space = std::string(space), .custom = type == "custom"};
  const std::string name = shown_name(space, origin.name);
  OrderedJson function = {{"name", name}};
  if (origin.custom) {
    const std::string description = description_of(tool);
    if (!description.empty()) function["description"] = description;
    function["parameters"] = {{"type", "object"},
                              {"properties", {{"input", {{"type", "string"}}}}},
                              {"required", OrderedJson::array({"input"})}};
  } else {
    if (tool.find("description")) function["description"] = tool.at("description").string();
    if (tool.find("parameters")) function["parameters"] = in_order["parameters"];
    if (tool.boolean("strict", false)) function["strict"] = true;
  }
  shown_.push_back({{"type", "function"}, {"function", std::move(function)}});
  origins_[name] = std::move(origin);
}

ResponseTools::Origin ResponseTools::origin_of(const std::string& shown_name) const {
  const auto found = origins_.find(shown_name);
  return found != origins_.end() ? found->second : Origin{.name = shown_name, .space = {}};
}

OrderedJson ResponseTools::named(const JsonRef& tool) const {
  const std::string name = shown_name(tool.string("namespace", ""), tool.at("name").string());
  if (!origins_.contains(name)) {
    throw ApiError(400,
                   fmt::format("{}: expected the name of a tool that the model is shown, found \"{}\"", tool.path(),
                               name.substr(0, 60)),
                   "tool_choice");
  }
  return {{"type", "function"}, {"function", {{"name", name}}}};
}

OrderedJson ResponseTools::choice_of(const JsonRef& choice) const {
  if (choice.is_string()) return choice.string();
  const std::string& type = choice.at("type").string();
  if (type == "function" || type == "custom") return named(choice);
  if (type != "allowed_tools") {
    throw ApiError(400, fmt::format("tool_choice: tools of the type \"{}\" are not run here", type.substr(0, 60)),
                   "tool_choice", "unsupported_parameter");
  }
  OrderedJson tools = OrderedJson::array();
  for (const JsonRef& tool : choice.at("tools").elements()) tools.push_back(named(tool));
  return {{"type", "allowed_tools"},
          {"allowed_tools", {{"mode", choice.string("mode", "auto")}, {"tools", std::move(tools)}}}};
}

}  // namespace mneme::server
