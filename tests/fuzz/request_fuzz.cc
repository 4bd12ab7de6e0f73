// A request's body of any bytes, as a completion and as a chat: an error that names what is wrong, or input that the
// engine takes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "src/base/check.h"
#include "src/server/api/api_error.h"
#include "src/server/api/api_request.h"

namespace {

using namespace mneme;

struct Setting {
  Setting() {
    options.engine.context = 2048;
    options.engine.threads = 1;
    options.engine.pin_threads = false;
    model = start_model(Checkpoint::open(MNEME_MODEL_FILE), nullptr, options.engine, {});
  }
  server::ServerOptions options;
  RunningModel model;
  std::string name = "model";
  server::RequestPlans plans{model};
  server::AnswerFormats formats{"hermes", *model.text};
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
  for (const bool chat : {false, true}) {
    try {
      const server::Body body{.json = JsonRef(json, "body"), .text = text};
      expect_taken(chat ? server::parse_chat(body, context) : server::parse_completion(body, context), setting);
    } catch (const server::ApiError& e) {
      MNEME_CHECK(parse_json(e.body(), "error", 1 << 20).contains("error"), "{}", e.body());
    } catch (const Error& e) {
      MNEME_CHECK(parse_json(server::api_error_of(e).body(), "error", 1 << 20).contains("error"), "{}", e.what());
    }
  }
  return 0;
}
