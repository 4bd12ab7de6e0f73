// What the served models are: the model itself, and its presets.
#include <fmt/chrono.h>
#include <fmt/format.h>

#include <ctime>

#include "src/server/api/api.h"

namespace mneme::server {

// What of the APIs the model can do, by its template and the format of its answers.
OrderedJson Api::capabilities() const {
  const ChatTemplate* const used = loop_.model().text->chat.template_for(true, {});
  const AnswerFormat& format = formats_.of(used).marks->format();
  OrderedJson can = OrderedJson::array({"completion", "structured_output"});
  const bool shows_tools = used != nullptr && used->source().find("tools") != std::string::npos;
  if (shows_tools && format.reads_calls()) can.push_back("tools");
  if (!format.thought_close.empty() || format.calls == CallForm::kHarmony) can.push_back("thinking");
  return can;
}

OrderedJson Api::model_json(const Preset* preset) const {
  const ModelInfo& info = loop_.model().text->info;
  OrderedJson model;
  model["id"] = preset == nullptr ? served_name_ : served_name_ + ":" + preset->name;
  model["object"] = "model";
  model["created"] = created_;
  model["owned_by"] = "mneme";
  if (preset != nullptr) model["root"] = served_name_;
  const std::int64_t context = loop_.model().engine->options().context;
  model["max_model_len"] = context;
  model["context_length"] = context;
  model["modalities"] = {{"input", OrderedJson::array({"text"})}, {"output", OrderedJson::array({"text"})}};
  model["capabilities"] = capabilities();
  model["answer_format"] = formats_.of(loop_.model().text->chat.chat_template()).marks->shown().name;
  model["meta"] = {{"name", info.name},          {"architecture", info.architecture},
                   {"format", info.file_format}, {"vocabulary", info.vocabulary},
                   {"layers", info.layers},      {"made_for", info.context},
                   {"n_ctx", context},           {"n_ctx_train", info.context}};
  if (preset != nullptr) model["meta"]["kv_method"] = preset->kv.method;
  return model;
}

// As Anthropic's clients read a model.
OrderedJson Api::anthropic_model_json(const Preset* preset) const {
  const OrderedJson model = model_json(preset);
  const std::int64_t context = loop_.model().engine->options().context;
  return {{"type", "model"},
          {"id", model["id"]},
          {"display_name", model["id"]},
          {"created_at", fmt::format("{:%Y-%m-%dT%H:%M:%S}Z", fmt::gmtime(static_cast<std::time_t>(created_)))},
          {"max_input_tokens", context - 1},
          {"max_tokens", context}};
}

void Api::models(const HttpRequest& request, Writer writer) {
  const bool anthropic = !request.header("anthropic-version").empty();
  const auto json_of = [&](const Preset* preset) {
    return anthropic ? anthropic_model_json(preset) : model_json(preset);
  };
  if (request.path == "/v1/models") {
    OrderedJson list;
    list["object"] = "list";
    list["data"] = OrderedJson::array({json_of(nullptr)});
    for (const Preset& preset : options_.presets) list["data"].push_back(json_of(&preset));
    if (anthropic) {
      list["has_more"] = false;
      list["first_id"] = list["data"].front()["id"];
      list["last_id"] = list["data"].back()["id"];
    }
    return answer(*writer, list);
  }
  const std::string name = request.path.substr(std::string_view("/v1/models/").size());
  const Preset* const preset = find_preset(options_.presets, served_name_, name);
  if (preset == nullptr && name != served_name_)
    throw ApiError(404, fmt::format("there is no such model here; there is \"{}\"", served_name_), "model",
                   "model_not_found");
  answer(*writer, json_of(preset));
}

}  // namespace mneme::server
