// The APIs of agents beside chats: Anthropic's messages and OpenAI's responses.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "src/server/api/api.h"
#include "src/server/api/tagged_writer.h"
#include "src/server/messages/messages_reply.h"
#include "src/server/messages/messages_request.h"
#include "src/server/responses/responses_reply.h"
#include "src/server/responses/responses_request.h"

namespace mneme::server {

namespace {

// Names of a client, as a header and a log line may contain them.
std::string printable_list(const std::vector<std::string>& names) {
  std::string list = fmt::format("{}", fmt::join(names, ", "));
  std::replace_if(
      list.begin(), list.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return list.substr(0, 1000);
}

}  // namespace

void Api::tell(const Skipped& skipped, ResponseWriter& writer, Reply::Setting* setting) const {
  const std::string& id = static_cast<TaggedWriter&>(writer).request_id();
  if (!skipped.fields.empty())
    options_.log(fmt::format("{} fields without effect here: {}", id, printable_list(skipped.fields)));
  if (!skipped.tools.empty())
    options_.log(fmt::format("{} tools that the model is not shown: {}", id, printable_list(skipped.tools)));
  if (!skipped.notes.empty()) options_.log(fmt::format("{} left out: {}", id, printable_list(skipped.notes)));
  if (setting != nullptr && !skipped.tools.empty())
    setting->headers.emplace_back("X-Mneme-Skipped-Tools", printable_list(skipped.tools));
}

void Api::messages(const HttpRequest& request, Writer writer) {
  const std::shared_ptr<KeyUse> use = use_of(request);
  with_body(request, std::move(writer), [this, use](const Body& body, Writer w) -> std::function<void()> {
    Skipped skipped;
    MessagesRequest parsed = parse_messages(body, context_of(use), skipped);
    Reply::Setting setting = setting_of(parsed.chat, *w, use);
    tell(skipped, *w, &setting);
    auto reply = std::make_shared<MessagesReply>(std::move(setting), std::move(parsed), std::move(w));
    return [reply] { reply->start(); };
  });
}

void Api::count_tokens(const HttpRequest& request, Writer writer) {
  with_body(request, std::move(writer), [this](const Body& body, Writer w) -> std::function<void()> {
    Skipped skipped;
    const std::int64_t tokens = count_messages(body, context(), skipped);
    tell(skipped, *w, nullptr);
    return [w, tokens] { answer(*w, OrderedJson{{"input_tokens", tokens}}); };
  });
}

// ---- responses

void Api::responses(const HttpRequest& request, Writer writer) {
  const std::shared_ptr<KeyUse> use = use_of(request);
  const std::string owner(key_of(request));
  with_body(request, std::move(writer), [this, use, owner](const Body& body, Writer w) -> std::function<void()> {
    Skipped skipped;
    ResponsesRequest parsed = parse_responses(body, context_of(use), responses_, owner, skipped);
    Reply::Setting setting = setting_of(parsed.chat, *w, use);
    tell(skipped, *w, &setting);
    auto reply =
        std::make_shared<ResponsesReply>(std::move(setting), std::move(parsed), std::move(w), responses_, owner);
    return [reply] { reply->start(); };
  });
}

void Api::input_tokens(const HttpRequest& request, Writer writer) {
  const std::string owner(key_of(request));
  with_body(request, std::move(writer), [this, owner](const Body& body, Writer w) -> std::function<void()> {
    Skipped skipped;
    const std::int64_t tokens = count_responses(body, context(), responses_, owner, skipped);
    tell(skipped, *w, nullptr);
    return [w, tokens] { answer(*w, OrderedJson{{"object", "response.input_tokens"}, {"input_tokens", tokens}}); };
  });
}

namespace {

// ID of /v1/responses/ID.
std::string response_id(std::string_view path) {
  return std::string(path.substr(std::string_view("/v1/responses/").size()));
}

[[noreturn]] void no_response(const std::string& id) {
  throw ApiError(404, fmt::format("there is no stored response \"{}\"", id.substr(0, 100)), {}, "not_found");
}

}  // namespace

void Api::stored_response(const HttpRequest& request, Writer writer) {
  constexpr std::string_view kItems = "/input_items";
  std::string id = response_id(request.path);
  const bool items = id.ends_with(kItems);
  if (items) id.resize(id.size() - kItems.size());
  const ResponseStore::Stored stored = responses_.find(std::string(key_of(request)), id);
  if (stored == nullptr) no_response(id);
  if (!items) return answer(*writer, stored->response);
  OrderedJson list = {{"object", "list"}, {"data", stored->input}, {"has_more", false}};
  list["first_id"] = stored->input.empty() ? OrderedJson() : stored->input.front()["id"];
  list["last_id"] = stored->input.empty() ? OrderedJson() : stored->input.back()["id"];
  answer(*writer, list);
}

void Api::delete_response(const HttpRequest& request, Writer writer) {
  const std::string id = response_id(request.path);
  if (!responses_.erase(std::string(key_of(request)), id)) no_response(id);
  answer(*writer, OrderedJson{{"id", id}, {"object", "response"}, {"deleted", true}});
}

}  // namespace mneme::server
