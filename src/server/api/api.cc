#include "src/server/api/api.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/recipes/recipes.h"
#include "src/server/api/api_error.h"
#include "src/server/api/completion_json.h"
#include "src/server/api/completion_reply.h"
#include "src/server/api/tagged_writer.h"
#include "src/server/page/page.h"

namespace mneme::server {

void answer(ResponseWriter& writer, const OrderedJson& json) {
  writer.respond({.body = json_text(json)});
}

HttpResponse response_of(const ApiError& error) {
  HttpResponse response{.status = error.status, .body = error.body()};
  if (error.status == 401) response.headers.emplace_back("WWW-Authenticate", "Bearer");
  return response;
}

namespace {

// Requires  a TaggedWriter.
void answer(ResponseWriter& writer, const ApiError& error) {
  const auto& tagged = static_cast<TaggedWriter&>(writer);
  HttpResponse response = response_of(error);
  if (tagged.of_messages()) response.body = error.anthropic_body(tagged.request_id());
  writer.respond(std::move(response));
}

// Takes the same time wherever the first difference is.
bool equal_in_constant_time(std::string_view given, std::string_view key) {
  unsigned difference = given.size() == key.size() ? 0u : 1u;
  for (std::size_t i = 0; i < given.size(); ++i) {
    const char k = key.empty() ? '\0' : key[i % key.size()];
    difference |= byte_of(given[i]) ^ byte_of(k);
  }
  return difference == 0;
}

// KEY of "Bearer KEY"; the scheme in any case (RFC 9110, 11.1). Empty: another scheme.
std::string_view bearer_key(std::string_view authorization) {
  constexpr std::string_view kBearer = "bearer ";
  const bool bearer = authorization.size() >= kBearer.size() &&
                      std::equal(kBearer.begin(), kBearer.end(), authorization.begin(),
                                 [](char expected, char c) { return to_lower(c) == expected; });
  return bearer ? authorization.substr(kBearer.size()) : std::string_view();
}

// "[::1]:8000" as "::1", "localhost:8000" as "localhost".
std::string_view host_of(std::string_view header) {
  if (header.starts_with('['))
    return header.substr(1, header.find(']') == std::string_view::npos ? 0 : header.find(']') - 1);
  return header.substr(0, header.rfind(':'));
}

// 128 random bits that name the scripts and styles of one answer.
std::string new_nonce() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

bool is_json(std::string_view content_type) {
  return content_type.substr(0, content_type.find(';')).find("json") != std::string_view::npos;
}

// Names of a client, as a header and a log line may contain them.
std::string printable_list(const std::vector<std::string>& names) {
  std::string list = fmt::format("{}", fmt::join(names, ", "));
  std::replace_if(
      list.begin(), list.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, '?');
  return list.substr(0, 1000);
}

}  // namespace

std::string_view key_of(const HttpRequest& request) {
  const std::string_view key = bearer_key(request.header("authorization"));
  return key.empty() ? request.header("x-api-key") : key;
}

Api::Api(const ServerOptions& options, std::string served_name, EngineLoop& loop, Metrics& metrics, Executors executors,
         const KvEventPublisher* events)
    : options_(options),
      served_name_(std::move(served_name)),
      loop_(loop),
      metrics_(metrics),
      executors_(std::move(executors)),
      events_(events),
      slot_files_(loop, options.slot_path),
      plans_(loop.model()),
      formats_(options.answer_format, *loop.model().text),
      responses_(options.responses.bytes, options.responses.seconds),
      created_(std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
                   .count()) {
  for (const Preset& preset : options.presets) compile_preset(preset);
  for (const KeyPolicy& policy : options.listen.key_policies)
    key_uses_.push_back(std::make_shared<KeyUse>(KeyUse{.policy = policy, .group = size32(key_uses_) + 1}));
}

void Api::compile_preset(const Preset& preset) {
  try {
    static_cast<void>(plans_.plan_for(preset.kv));
  } catch (const Error& e) {
    fail(ErrorKind::kOption, "--preset {}: {}", preset.name, e.what());
  }
}

std::span<const Api::Route> Api::routes() {
  static const Route kRoutes[] = {
      {.method = "GET", .path = "/", .handler = &Api::page, .open = true},
      {.method = "GET", .path = "/health", .handler = &Api::health, .open = true},
      {.method = "GET", .path = "/version", .handler = &Api::version_info},
      {.method = "GET", .path = "/v1/models", .handler = &Api::models},
      {.method = "GET", .path = "/v1/models/*", .handler = &Api::models},
      {.method = "GET", .path = "/props", .handler = &Api::props},
      {.method = "GET", .path = "/metrics", .handler = &Api::metrics_text},
      {.method = "GET", .path = "/tokenizer_info", .handler = &Api::tokenizer_info},
      {.method = "GET", .path = "/server_info", .handler = &Api::server_info},
      {.method = "GET", .path = "/get_server_info", .handler = &Api::server_info},
      {.method = "GET", .path = "/model_info", .handler = &Api::model_info},
      {.method = "GET", .path = "/get_model_info", .handler = &Api::model_info},
      {.method = "GET", .path = "/loads", .handler = &Api::loads},
      {.method = "GET", .path = "/v1/loads", .handler = &Api::loads},
      {.method = "POST", .path = "/v1/completions", .handler = &Api::completions, .computes = true},
      {.method = "POST", .path = "/v1/chat/completions", .handler = &Api::chat, .computes = true},
      {.method = "POST", .path = "/v1/responses", .handler = &Api::responses, .computes = true},
      {.method = "POST", .path = "/v1/responses/input_tokens", .handler = &Api::input_tokens},
      {.method = "GET", .path = "/v1/responses/*", .handler = &Api::stored_response},
      {.method = "DELETE", .path = "/v1/responses/*", .handler = &Api::delete_response},
      {.method = "POST", .path = "/v1/messages", .handler = &Api::messages, .computes = true},
      {.method = "POST", .path = "/v1/messages/count_tokens", .handler = &Api::count_tokens},
      {.method = "POST", .path = "/tokenize", .handler = &Api::tokenize},
      {.method = "POST", .path = "/detokenize", .handler = &Api::detokenize},
      {.method = "POST", .path = "/apply-template", .handler = &Api::apply_template},
      {.method = "GET", .path = "/slots", .handler = &Api::slots},
      {.method = "POST", .path = "/slots/*", .handler = &Api::slot_action, .computes = true},
  };
  return kRoutes;
}

void Api::handle(HttpRequest request, std::shared_ptr<ResponseWriter> inner) {
  const auto writer = std::make_shared<TaggedWriter>(std::move(inner), request, options_, metrics_);
  try {
    dispatch(request, writer);
  } catch (const ApiError& e) {
    answer(*writer, e);
  } catch (const Error& e) {
    answer(*writer, api_error_of(e));
  }
}

// A foreign web page must not reach a server on its reader's machine: its requests carry an origin that is not
// ours, or, after its name was made to point here, a Host that is not ours.
void Api::check_caller(const HttpRequest& request, const Route& route) const {
  if (asks_for_key(options_.listen)) {
    if (route.open) return;
    const std::string_view key = key_of(request);
    bool right = false;
    for (const std::string& expected : options_.listen.api_keys) right |= equal_in_constant_time(key, expected);
    right |= use_of(request) != nullptr;
    if (!right)
      throw ApiError(401, "an API key is needed: Authorization: Bearer KEY, or x-api-key: KEY", {}, "invalid_api_key");
    return;
  }
  const std::string_view host = host_of(request.header("host"));
  const bool known = host.empty() || host == "127.0.0.1" || host == "localhost" || host == "::1" ||
                     std::find(options_.listen.allowed_hosts.begin(), options_.listen.allowed_hosts.end(), host) !=
                         options_.listen.allowed_hosts.end();
  if (is_loopback(options_.listen.host) && !known)
    throw ApiError(403, "this server answers on its own machine only (--allowed-host names others, --api-key all)");
}

std::shared_ptr<KeyUse> Api::use_of(const HttpRequest& request) const {
  const std::string_view key = key_of(request);
  std::shared_ptr<KeyUse> found;
  for (const std::shared_ptr<KeyUse>& use : key_uses_)
    if (equal_in_constant_time(key, use->policy.key)) found = use;
  return found;
}

RequestContext Api::context_of(const std::shared_ptr<KeyUse>& use) {
  RequestContext c = context();
  if (use != nullptr) {
    c.key = &use->policy;
    c.group = use->group;
  }
  return c;
}

void Api::dispatch(const HttpRequest& request, const Writer& writer) {
  std::string allowed;
  for (const Route& route : routes()) {
    const bool prefix = route.path.ends_with('*');
    const std::string_view stem = route.path.substr(0, route.path.size() - (prefix ? 1 : 0));
    if (prefix ? !request.path.starts_with(stem) || request.path.size() == stem.size() : request.path != stem) continue;
    static_cast<TaggedWriter&>(*writer).set_route(route.path);
    if (request.method == "OPTIONS") return answer_options(request, writer);
    const bool get = request.method == "HEAD" && route.method == "GET";
    if (request.method != route.method && !get) {
      allowed = route.method;
      continue;
    }
    check_caller(request, route);
    if (refuses_ && route.computes) throw ApiError(503, "the server is stopping");
    if (route.method == "POST" && !request.body.empty() && !is_json(request.header("content-type")))
      throw ApiError(415, "expected a body of Content-Type: application/json");
    const std::string_view encoding = request.header("content-encoding");
    if (!encoding.empty() && encoding != "identity")
      throw ApiError(415,
                     fmt::format("expected a body without Content-Encoding, found \"{}\"", encoding.substr(0, 60)));
    return (this->*route.handler)(request, writer);
  }
  // Unknown paths are answered too: a browser shows its page the 404 only after this answer.
  if (request.method == "OPTIONS") return answer_options(request, writer);
  if (allowed.empty()) {
    const std::string meant = meant_path(request.path);
    throw ApiError(404, fmt::format("there is nothing at {}{}", request.path.substr(0, 200),
                                    meant.empty() ? "" : ": did you mean " + meant + "?"));
  }
  writer->respond(
      {.status = 405, .headers = {{"Allow", allowed}}, .body = ApiError(405, "expected the method " + allowed).body()});
}

void Api::with_body(const HttpRequest& request, Writer writer, BodyReader answer_of) {
  auto body = std::make_shared<std::string>(request.body);
  executors_.work([this, body, writer = std::move(writer), answer_of = std::move(answer_of)]() mutable {
    std::function<void()> next;
    try {
      const Json json = parse_json(*body, "body", options_.limits.max_body_bytes);
      next = answer_of({.json = JsonRef(json, "body"), .text = *body}, writer);
    } catch (const ApiError& e) {
      next = [writer, e] { answer(*writer, e); };
    } catch (const Error& e) {
      next = [writer, e] { answer(*writer, api_error_of(e)); };
    } catch (const std::exception& e) {
      next = [writer, what = std::string(e.what())] { answer(*writer, ApiError(500, what)); };
    }
    body.reset();
    writer.reset();
    executors_.io(std::move(next));
  });
}

// ---- what the server is

void Api::page(const HttpRequest&, Writer writer) {
  // The page loads nothing, calls this server only, cannot be framed by another page, and runs no script but its own.
  const std::string nonce = new_nonce();
  std::string html(page_html());
  constexpr std::string_view kNonce = "{{nonce}}";
  for (std::size_t at = 0; (at = html.find(kNonce, at)) != std::string::npos;) html.replace(at, kNonce.size(), nonce);
  writer->respond({.content_type = "text/html; charset=utf-8",
                   .headers = {{"Content-Security-Policy",
                                fmt::format("default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
                                            "connect-src 'self'; img-src data:; frame-ancestors 'none'; "
                                            "base-uri 'none'; form-action 'self'",
                                            nonce)},
                               {"Cache-Control", "no-store"},
                               {"X-Content-Type-Options", "nosniff"},
                               {"Referrer-Policy", "no-referrer"}},
                   .body = std::move(html)});
}

void Api::health(const HttpRequest&, Writer writer) {
  if (draining_ || refuses_) throw ApiError(503, "the server is stopping");
  answer(*writer, OrderedJson{{"status", "ok"}});
}

void Api::version_info(const HttpRequest&, Writer writer) {
  answer(*writer, OrderedJson{{"version", version()}});
}

void Api::props(const HttpRequest&, Writer writer) {
  const EngineOptions& o = loop_.model().engine->options();
  const ModelInfo& info = loop_.model().text->info;
  OrderedJson json;
  json["model"] = served_name_;
  json["version"] = version();
  json["chat_family"] = info.chat_family;
  const AnswerFormats::Format format = formats_.of(loop_.model().text->chat.chat_template());
  json["answer_format"] = {{"name", format.marks->shown().name}, {"found", format.how}};
  json["total_slots"] = options_.n_slots;
  json["max_model_len"] = o.context;
  json["max_num_seqs"] = o.max_sequences;
  json["max_num_batched_tokens"] = o.max_batched_tokens;
  json["kv_admission"] = name_of(o.kv_admission);
  json["inter_token_ms"] = o.inter_token_ms;
  json["max_queue"] = options_.limits.max_queue;
  json["threads"] = o.threads;
  json["deterministic"] = o.deterministic;
  json["kv_cache_dtype"] = name_of(o.kv_cache_dtype);
  json["kv"] = {{"method", o.kv.method}};
  if (o.kv.budget) json["kv"]["budget"] = *o.kv.budget;
  json["kv_bytes_per_token"] = loop_.model().engine->pool().shape().bytes_per_token();
  json["kv_methods"] = OrderedJson::array();
  for (const RecipeRow& row : recipe_table()) json["kv_methods"].push_back(row.name);
  json["kv_method_notes"] = OrderedJson::object();
  for (const RecipeRow& row : recipe_table()) json["kv_method_notes"][std::string(row.name)] = row.summary;
  json["prefix_caching"] = options_.prefix_cache;
  json["default_generation_settings"] = {{"temperature", 1.0}, {"max_tokens", options_.default_max_tokens}};
  answer(*writer, json);
}

void Api::metrics_text(const HttpRequest&, Writer writer) {
  writer->respond({.content_type = "text/plain; version=0.0.4; charset=utf-8", .body = metrics_.text()});
}

// ---- completions

void Api::completions(const HttpRequest& request, Writer writer) {
  complete(request, std::move(writer), false);
}
void Api::chat(const HttpRequest& request, Writer writer) {
  complete(request, std::move(writer), true);
}

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

Reply::Setting Api::setting_of(const CompletionRequest& request, ResponseWriter& writer,
                               const std::shared_ptr<KeyUse>& use) {
  return {.text = *loop_.model().text,
          .loop = loop_,
          .model = request.model,
          .method = request.inputs.front().kv.method,
          .request_id = static_cast<TaggedWriter&>(writer).request_id(),
          .key = use,
          .retry_after =
              [this] {
                const double seconds = std::ceil(metrics_.mean_answer_seconds());
                return std::to_string(std::clamp(static_cast<int>(seconds), 1, 60));
              },
          .thought_field = options_.thought_field,
          .headers = {}};
}

void Api::complete(const HttpRequest& request, Writer writer, bool is_chat) {
  const std::shared_ptr<KeyUse> use = use_of(request);
  with_body(request, std::move(writer), [this, is_chat, use](const Body& body, Writer w) -> std::function<void()> {
    const RequestContext how = context_of(use);
    CompletionRequest parsed = is_chat ? parse_chat(body, how) : parse_completion(body, how);
    Reply::Setting setting = setting_of(parsed, *w, use);
    auto reply = std::make_shared<CompletionReply>(std::move(setting), std::move(parsed), std::move(w));
    return [reply] { reply->start(); };  // Reply::start() (reply/reply.cc) submits it
  });
}

}  // namespace mneme::server
