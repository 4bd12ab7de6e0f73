#include "src/server/turns/made_chat.h"

#include <algorithm>
#include <array>

#include "src/base/size32.h"
#include "src/server/api/api_error.h"
#include "src/server/api/completion_json.h"

namespace mneme::server {
namespace {

constexpr auto kShared = std::to_array<std::string_view>(
    {"temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty", "repetition_penalty",
     "logit_bias", "cache_salt", "priority", "timeout", "kv", "id_slot", "speculative", "chat_template_kwargs",
     "enable_thinking"});

}  // namespace

void note_unknown_fields(const JsonRef& body, std::initializer_list<std::span<const std::string_view>> known,
                         Skipped& skipped) {
  const auto has = [](std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [name, value] : body.value().items())
    if (!has(kShared, name) && std::none_of(known.begin(), known.end(), [&](auto names) { return has(names, name); }))
      skipped.fields.push_back(name.substr(0, 60));
}

bool is_effort(std::string_view effort) {
  constexpr auto kEfforts =
      std::to_array<std::string_view>({"none", "minimal", "low", "medium", "high", "xhigh", "max"});
  return std::find(kEfforts.begin(), kEfforts.end(), effort) != kEfforts.end();
}

void copy_shared_fields(const nlohmann::ordered_json& body, nlohmann::ordered_json& chat) {
  for (const std::string_view name : kShared) {
    const auto member = body.find(name);
    if (member != body.end() && !member->is_null()) chat[std::string(name)] = *member;
  }
}

CompletionRequest parse_made_chat(const nlohmann::ordered_json& chat, const RequestContext& context,
                                  std::optional<std::int32_t> max_tokens) {
  const std::string text = json_text(chat);
  const Json json = parse_json(text, "body", text.size());
  CompletionRequest request = parse_chat({.json = JsonRef(json, "body"), .text = text}, context);
  GenerationInput& input = request.inputs.front();
  const std::int64_t room = context.model.engine->options().context - std::ssize(input.prompt);
  if (max_tokens) input.max_tokens = count32(std::min<std::int64_t>(*max_tokens, room));
  return request;
}

std::int64_t count_prompt(const nlohmann::ordered_json& chat, const RequestContext& context) {
  const std::string text = json_text(chat);
  const Json json = parse_json(text, "body", text.size());
  const JsonRef body(json, "body");
  return std::ssize(prompt_of_chat(context, parse_conversation(body, text), body.string("cache_salt", "")).tokens);
}

}  // namespace mneme::server
