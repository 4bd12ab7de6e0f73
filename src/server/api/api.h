// The routes: who may ask what, and which code answers.
//
// Threads  handle() and drain() on the I/O thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "src/base/function_ref.h"
#include "src/engine/loop/engine_loop.h"
#include "src/server/answer/answer_formats.h"
#include "src/server/api/api_error.h"
#include "src/server/api/api_request.h"
#include "src/server/api/completion_json.h"
#include "src/server/api/key_use.h"
#include "src/server/events/kv_event_publisher.h"
#include "src/server/http/http.h"
#include "src/server/metrics.h"
#include "src/server/reply/reply.h"
#include "src/server/responses/response_store.h"
#include "src/server/server_options.h"
#include "src/server/slots/slot_files.h"
#include "src/server/turns/made_chat.h"

namespace mneme::server {

// A response of 200 whose body is `json`.
void answer(ResponseWriter& writer, const OrderedJson& json);
HttpResponse response_of(const ApiError& error);
// The API key that a request has: of "Authorization: Bearer KEY", or else of "x-api-key: KEY", which Anthropic's clients
// send. Empty: none.
std::string_view key_of(const HttpRequest& request);

class Api {
 public:
  //   events  null, or where the prefix cache's events go
  //
  // Requires  all outlive the object. Errors  kOption: a preset that does not combine with the model.
  Api(const ServerOptions& options, std::string served_name, EngineLoop& loop, Metrics& metrics, Executors executors,
      const KvEventPublisher* events = nullptr);

  void handle(HttpRequest request, std::shared_ptr<ResponseWriter> writer);
  // Makes health 503 from now on, so that routers send requests elsewhere; requests are still answered.
  void drain() { draining_ = true; }
  // Answers everything that computes with 503 too, from now on.
  void refuse() { refuses_ = true; }

 private:
  using Writer = std::shared_ptr<ResponseWriter>;
  using Handler = void (Api::*)(const HttpRequest&, Writer);
  struct Route {
    std::string_view method, path;
    Handler handler;
    bool open = false;      // to everybody, whatever the keys are
    bool computes = false;  // refused while the server stops
  };
  static std::span<const Route> routes();

  void dispatch(const HttpRequest& request, const Writer& writer);
  void answer_options(const HttpRequest& request, const Writer& writer) const;
  static std::string meant_path(std::string_view path);
  void check_caller(const HttpRequest& request, const Route& route) const;
  // The use of the caller's key among ListenOptions::key_policies; null: another key, or none.
  std::shared_ptr<KeyUse> use_of(const HttpRequest& request) const;
  // Reads the body on a worker; what `answer` returns is done on the I/O thread.
  using BodyReader = std::function<std::function<void()>(const Body& body, Writer writer)>;
  void with_body(const HttpRequest& request, Writer writer, BodyReader answer_of);

  void page(const HttpRequest&, Writer writer);
  void health(const HttpRequest&, Writer writer);
  void version_info(const HttpRequest&, Writer writer);
  void models(const HttpRequest& request, Writer writer);
  void props(const HttpRequest&, Writer writer);
  void metrics_text(const HttpRequest&, Writer writer);
  // What routers ask of a replica.
  void tokenizer_info(const HttpRequest&, Writer writer);
  void server_info(const HttpRequest&, Writer writer);
  void model_info(const HttpRequest&, Writer writer);
  void loads(const HttpRequest&, Writer writer);
  void completions(const HttpRequest& request, Writer writer);
  void chat(const HttpRequest& request, Writer writer);
  void complete(const HttpRequest& request, Writer writer, bool chat);
  void responses(const HttpRequest& request, Writer writer);
  void input_tokens(const HttpRequest& request, Writer writer);
  void stored_response(const HttpRequest& request, Writer writer);
  void delete_response(const HttpRequest& request, Writer writer);
  void messages(const HttpRequest& request, Writer writer);
  void count_tokens(const HttpRequest& request, Writer writer);
  Reply::Setting setting_of(const CompletionRequest& request, ResponseWriter& writer,
                            const std::shared_ptr<KeyUse>& use);
  // Says in the log what of a request was left out, and in a header which tools.
  void tell(const Skipped& skipped, ResponseWriter& writer, Reply::Setting* setting) const;
  void tokenize(const HttpRequest& request, Writer writer);
  void detokenize(const HttpRequest& request, Writer writer);
  void apply_template(const HttpRequest& request, Writer writer);
  void slots(const HttpRequest&, Writer writer);
  void slot_action(const HttpRequest& request, Writer writer);
  void answer_slot(const Writer& writer, FunctionRef<void(OrderedJson&)> act, std::int32_t slot);

  // The entry of the model itself (null), or of a preset.
  OrderedJson model_json(const Preset* preset) const;
  OrderedJson anthropic_model_json(const Preset* preset) const;
  OrderedJson capabilities() const;
  void compile_preset(const Preset& preset);

  RequestContext context() { return {loop_.model(), options_, served_name_, plans_, formats_, memory_, constraints_}; }
  RequestContext context_of(const std::shared_ptr<KeyUse>& use);

  const ServerOptions& options_;
  std::string served_name_;
  EngineLoop& loop_;
  Metrics& metrics_;
  Executors executors_;
  const KvEventPublisher* events_;
  SlotFiles slot_files_;
  std::vector<std::shared_ptr<KeyUse>> key_uses_;  // by policy
  RequestPlans plans_;
  AnswerFormats formats_;
  static constexpr std::size_t kRememberedTokens = 1 << 20;  // 4 MiB
  AnswerMemory memory_{kRememberedTokens};
  KeptConstraints constraints_;
  ResponseStore responses_;
  std::int64_t created_;
  bool draining_ = false, refuses_ = false;
};

}  // namespace mneme::server
