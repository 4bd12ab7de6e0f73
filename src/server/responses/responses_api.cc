// The routes of /v1/responses.
#include <fmt/format.h>

#include <utility>

#include "src/server/api/api.h"
#include "src/server/responses/responses_reply.h"
#include "src/server/responses/responses_request.h"

namespace mneme::server {

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
