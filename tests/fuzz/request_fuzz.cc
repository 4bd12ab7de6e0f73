// A request's body of any bytes, to each API that computes: an error that names what is wrong, or input that the
// engine takes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/base/check.h"
#include "src/server/api/api_error.h"
#include "src/server/api/api_request.h"
#include "src/server/messages/messages_request.h"
#include "src/server/responses/responses_request.h"

namespace {

using namespace mneme;

server::ServerOptions small_options() {
  server::ServerOptions options;
  options.engine.context = 2048;
  options.engine.threads = 1;
  options.engine.pin_threads = false;
  return options;
}

struct Setting {
  server::ServerOptions options = small_options();
  RunningModel model = start_model(Checkpoint::open(MNEME_MODEL_FILE), nullptr, options.engine, {});
  std::string name = "model";
  server::RequestPlans plans{model};
  server::AnswerFormats formats{"hermes", *model.text};
  server::ResponseStore store{1 << 20, 3600};
};

void expect_taken(const server::CompletionRequest& request, Setting& setting) {
  for (const GenerationInput& input : request.inputs) {
    RequestInput r;
    r.prompt = input.prompt;
    r.sampling = input.sampling;
    r.constraint = input.constraint;
    r.max_tokens = input.max_tokens;
    r.method = input.method;
    setting.model.engine->cancel(setting.model.engine->start({}, std::move(r)));
  }
  setting.model.engine->step();
  MNEME_CHECK(setting.model.engine->idle(), "a cancelled request runs");
}

enum class Api { kCompletion, kChat, kMessages, kResponses };

server::CompletionRequest parsed(Api api, const server::Body& body, const server::RequestContext& context,
                                 Setting& setting) {
  server::Skipped skipped;
  switch (api) {
    case Api::kCompletion:
      return server::parse_completion(body, context);
    case Api::kChat:
      return server::parse_chat(body, context);
    case Api::kMessages:
      return server::parse_messages(body, context, skipped).chat;
    case Api::kResponses:
      break;
  }
  return server::parse_responses(body, context, setting.store, "key", skipped).chat;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Setting setting;
  const server::RequestContext context{setting.model, setting.options, setting.name, setting.plans, setting.formats};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Json json;
  try {
    json = parse_json(text, "body", 1 << 20);
  } catch (const Error&) {
    return 0;
  }
  for (const Api api : {Api::kCompletion, Api::kChat, Api::kMessages, Api::kResponses}) {
    try {
      const server::Body body{.json = JsonRef(json, "body"), .text = text};
      expect_taken(parsed(api, body, context, setting), setting);
    } catch (const server::ApiError& e) {
      MNEME_CHECK(parse_json(e.body(), "error", 1 << 20).contains("error"), "{}", e.body());
    } catch (const Error& e) {
      MNEME_CHECK(parse_json(server::api_error_of(e).body(), "error", 1 << 20).contains("error"), "{}", e.what());
    }
  }
  return 0;
}
