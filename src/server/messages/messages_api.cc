// The routes of Anthropic's API.
#include <utility>

#include "src/server/api/api.h"
#include "src/server/messages/messages_reply.h"
#include "src/server/messages/messages_request.h"

namespace mneme::server {

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

}  // namespace mneme::server
