#include "src/server/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/error.h"
#include "src/grammar/json_constraint.h"
#include "src/grammar/json_schema.h"
#include "src/server/api_error.h"

namespace mneme::server {
namespace {

constexpr int kMostTopLogprobs = 20;
constexpr std::size_t kMostStops = 16, kMostStopBytes = 1024;

std::int32_t int_in(const JsonRef& v, std::int64_t low, std::int64_t high) {
  const std::int64_t n = v.integer();
  if (n < low || n > high) v.wrong(fmt::format("a whole number from {} to {}", low, high));
  return static_cast<std::int32_t>(n);
}

std::int32_t int_in(const JsonRef& body, std::string_view key, std::int64_t low, std::int64_t high,
                    std::int32_t otherwise) {
  const auto v = body.find(key);
  return v ? int_in(*v, low, high) : otherwise;
}

float float_of(const JsonRef& body, std::string_view key, float otherwise) {
  const auto v = body.find(key);
  if (!v) return otherwise;
  const double number = v->number();
  if (std::fabs(number) > static_cast<double>(std::numeric_limits<float>::max())) v->wrong("a number that f32 holds");
  return static_cast<float>(number);
}

[[noreturn]] void unsupported(std::string_view key, std::string_view why) {
  throw ApiError(400, fmt::format("{}: {}", key, why), std::string(key), "unsupported_parameter");
}

bool is_given(const JsonRef& body, std::string_view key) {
  const auto v = body.find(key);
  if (!v) return false;
  const Json& json = v->value();
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number()) return json.get<double>() != 0;
  return json.is_string() ? !json.get_ref<const std::string&>().empty() : !json.empty();
}

// Fields of OpenAI's and vLLM's that would change the answer, and that are not there.
void refuse_unsupported(const JsonRef& body) {
  for (const char* key : {"functions", "suffix", "min_tokens", "use_beam_search", "guided_json", "guided_regex",
                          "guided_choice", "guided_grammar", "structured_outputs", "grammar", "audio", "prediction",
                          "typical_p", "mirostat", "continue_final_message"}) {
    if (is_given(body, key)) unsupported(key, "not supported");
  }
  if (const auto format = body.find("response_format")) {
    const std::string& type = format->at("type").string();
    if (type != "text" && type != "json_object" && type != "json_schema")
      format->at("type").wrong("\"text\", \"json_object\" or \"json_schema\"");
  }
}

void check_model(const JsonRef& body, const RequestContext& context) {
  const auto model = body.find("model");
  if (!model || model->string() == context.served_name) return;
  throw ApiError(404,
                 fmt::format("the model \"{}\" is not served here; there is \"{}\"", model->string().substr(0, 200),
                             context.served_name),
                 "model", "model_not_found");
}

std::vector<TokenBias> parse_logit_bias(const JsonRef& v, std::int64_t vocabulary) {
  if (!v.is_object()) v.wrong("an object");
  std::vector<TokenBias> biases;
  for (const auto& [key, value] : v.value().items()) {
    const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t id = digits ? std::stoll(key) : -1;
    if (id < 0 || id >= vocabulary) {
      fail(ErrorKind::kRequest, "logit_bias: expected ids of tokens from 0 to {}, found \"{}\"", vocabulary - 1,
           key.substr(0, 40));
    }
    if (!value.is_number() || !(std::fabs(value.get<double>()) <= 100)) {
      fail(ErrorKind::kRequest, "logit_bias.{}: expected a number from -100 to 100", key);
    }
    biases.push_back({.token = static_cast<std::int32_t>(id), .bias = value.get<float>()});
  }
  return biases;
}

std::shared_ptr<const TokenConstraint> parse_response_format(const JsonRef& body, const TextSide& text) {
  const auto format = body.find("response_format");
  if (!format || format->at("type").string() == "text") return nullptr;
  if (format->at("type").string() == "json_object") return json_constraint(text.token_trie(), any_json_object());
  const JsonRef schema = format->at("json_schema").at("schema");
  return json_constraint(text.token_trie(), compile_json_schema(nlohmann::ordered_json(schema.value())));
}

// What a client that leaves everything out gets is OpenAI's default, not the library's: temperature 1.
SamplingOptions parse_sampling(const JsonRef& body, std::int64_t vocabulary) {
  SamplingOptions s;
  s.temperature = float_of(body, "temperature", 1.0f);
  s.top_k = std::max(int_in(body, "top_k", -1, std::numeric_limits<std::int32_t>::max(), 0), 0);
  s.top_p = float_of(body, "top_p", 1.0f);
  s.min_p = float_of(body, "min_p", 0.0f);
  s.repetition_penalty = float_of(body, "repetition_penalty", float_of(body, "repeat_penalty", 1.0f));
  s.presence_penalty = float_of(body, "presence_penalty", 0.0f);
  s.frequency_penalty = float_of(body, "frequency_penalty", 0.0f);
  if (const auto seed = body.find("seed")) s.seed = static_cast<std::uint64_t>(seed->integer());
  if (const auto bias = body.find("logit_bias")) s.logit_bias = parse_logit_bias(*bias, vocabulary);
  const Sampler check(s);  // says what is out of range
  return s;
}

std::vector<std::string> parse_stop(const JsonRef& body) {
  const auto v = body.find("stop");
  std::vector<std::string> stop;
  if (!v) return stop;
  if (v->is_string()) {
    stop.push_back(v->string());
  } else {
    if (!v->is_array()) v->wrong("a string, or an array of strings");
    if (v->value().size() > kMostStops) v->wrong(fmt::format("at most {} strings", kMostStops));
    for (const JsonRef& s : v->elements()) stop.push_back(s.string());
  }
  for (const std::string& s : stop)
    if (s.size() > kMostStopBytes) fail(ErrorKind::kRequest, "stop: expected at most {} bytes each", kMostStopBytes);
  return stop;
}

KvMethodOptions parse_kv(const JsonRef& body, const KvMethodOptions& defaults) {
  const auto kv = body.find("kv");
  if (!kv) return defaults;
  if (!kv->is_object()) kv->wrong("an object");
  for (const auto& [key, value] : kv->value().items()) {
    if (key != "method" && key != "budget" && key != "sink" && key != "recent" && key != "dense_layers" &&
        key != "overrides") {
      fail(ErrorKind::kRequest, "kv: expected method, budget, sink, recent, dense_layers and overrides, found \"{}\"",
           key.substr(0, 40));
    }
  }
  const std::string method = kv->string("method", defaults.method);
  KvMethodOptions o = method == defaults.method ? defaults : KvMethodOptions{.method = method};
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (const auto v = kv->find("budget")) o.budget = int_in(*v, 1, kMost);
  if (const auto v = kv->find("sink")) o.sink = int_in(*v, 0, kMost);
  if (const auto v = kv->find("recent")) o.recent = int_in(*v, 0, kMost);
  o.dense_layers = kv->string("dense_layers", o.dense_layers);
  o.overrides = kv->string("overrides", o.overrides);
  return o;
}

// All that completions and chats have in common; the prompt and the number of tokens are still to come.
GenerationInput parse_common(const JsonRef& body, const RequestContext& context, CompletionRequest& request) {
  if (!body.is_object()) body.wrong("an object");
  check_model(body, context);
  refuse_unsupported(body);
  GenerationInput input;
  input.n = int_in(body, "n", 1, std::min<std::int64_t>(context.options.engine.max_sequences * 4, 128), 1);
  if (const auto best = body.find("best_of"); best && best->integer() != input.n)
    unsupported("best_of", "not supported: leave it out, or let it be n");
  input.sampling = parse_sampling(body, context.model.text->info.vocabulary);
  input.constraint = parse_response_format(body, *context.model.text);
  input.stop = parse_stop(body);
  input.ignore_end = body.boolean("ignore_eos", false);
  // vLLM's meaning: smaller first.
  input.priority = -int_in(body, "priority", -1000000, 1000000, 0);
  input.timeout_seconds = context.options.request_seconds;
  if (const auto timeout = body.find("timeout")) {
    if (!(timeout->number() > 0)) timeout->wrong("a number of seconds larger than 0");
    input.timeout_seconds = std::min(input.timeout_seconds, timeout->number());
  }
  input.kv = parse_kv(body, context.options.engine.kv);
  input.method = context.plans.plan_for(input.kv);
  input.count_reads = body.boolean("kv_reads", false);
  input.cache_salt = body.string("cache_salt", "");
  if (const auto slot = body.find("id_slot"); slot && slot->integer() != -1)
    input.slot = int_in(*slot, 0, context.options.n_slots - 1);
  if (input.slot && input.method != nullptr && input.method->binds_sequence())
    unsupported("id_slot", "not with '" + input.kv.method + "', which decides how a prompt is read");
  request.stream = input.stream = body.boolean("stream", false);
  if (const auto options = body.find("stream_options")) {
    if (!request.stream) fail(ErrorKind::kRequest, "stream_options: only with stream");
    request.include_usage = options->boolean("include_usage", false);
  }
  request.kv_retrieval = body.boolean("kv_retrieval", false);
  request.return_token_ids = body.boolean("return_token_ids", false);
  return input;
}

// Checks what the engine would refuse only when the request's turn comes.
void check_length(const GenerationInput& input, std::int64_t context) {
  if (input.prompt.empty()) fail(ErrorKind::kRequest, "the prompt is empty: expected at least one token");
  const auto n = static_cast<std::int64_t>(input.prompt.size());
  if (n + input.max_tokens <= context) return;
  throw ApiError(400,
                 fmt::format("{} tokens of prompt and up to {} of answer are {}; the context has {}", n,
                             input.max_tokens, n + input.max_tokens, context),
                 "messages", "context_length_exceeded");
}

std::vector<TokenId> encode_prompt(const std::string& text, const JsonRef& body, const RequestContext& context) {
  const Tokenizer& tokenizer = *context.model.text->tokenizer;
  const bool special = body.boolean("add_special_tokens", true);
  return tokenizer.encode(
      text, {.parse_special = body.boolean("parse_special", true), .add_bos = special && tokenizer.adds_bos()});
}

std::vector<std::vector<TokenId>> parse_prompts(const JsonRef& body, std::int32_t n, const RequestContext& context) {
  const JsonRef prompt = body.at("prompt");
  const std::int64_t vocabulary = context.model.text->info.vocabulary;
  if (prompt.is_string()) return {encode_prompt(prompt.string(), body, context)};
  if (!prompt.is_array() || prompt.value().empty())
    prompt.wrong("a string, strings, token ids, or arrays of token ids");
  if (prompt.value().front().is_number()) return {parse_tokens(prompt, vocabulary)};
  const std::int64_t most = context.options.max_queue + context.options.engine.max_sequences;
  if (static_cast<std::int64_t>(prompt.value().size()) * n > most) {
    prompt.wrong(fmt::format("at most {} answers, which are all that run and wait", most));
  }
  std::vector<std::vector<TokenId>> prompts;
  for (const JsonRef& p : prompt.elements()) {
    prompts.push_back(p.is_string() ? encode_prompt(p.string(), body, context) : parse_tokens(p, vocabulary));
  }
  return prompts;
}

}  // namespace

std::shared_ptr<const Plan> PlanCache::plan_for(const KvMethodOptions& o) {
  constexpr std::size_t kMostPlans = 256;
  const auto number = [](const std::optional<std::int32_t>& v) { return v.value_or(-1); };
  const std::string key = fmt::format("{}\n{} {} {}\n{}\n{}", o.method, number(o.budget), number(o.sink),
                                      number(o.recent), o.dense_layers, o.overrides);
  const std::lock_guard lock(mutex_);
  const auto it = plans_.find(key);
  if (it != plans_.end()) return it->second;
  std::shared_ptr<const Plan> plan = plan_of(o, *model_.engine);
  if (plans_.size() >= kMostPlans) plans_.clear();
  return plans_[key] = std::move(plan);
}

std::vector<TokenId> parse_tokens(const JsonRef& list, std::int64_t vocabulary) {
  if (!list.is_array()) list.wrong("an array of token ids");
  std::vector<TokenId> tokens;
  tokens.reserve(list.value().size());
  for (const Json& v : list.value()) {
    const bool whole = v.is_number_integer() && (!v.is_number_unsigned() || v.get<std::uint64_t>() < (1ull << 31));
    const std::int64_t id = whole ? v.get<std::int64_t>() : -1;
    if (id < 0 || id >= vocabulary) {
      list.wrong(fmt::format("ids of tokens from 0 to {}, not {} at {}", vocabulary - 1,
                             v.is_number() ? v.dump() : v.type_name(), tokens.size()));
    }
    tokens.push_back(static_cast<TokenId>(id));
  }
  return tokens;
}

CompletionRequest parse_completion(const JsonRef& body, const RequestContext& context) {
  CompletionRequest request;
  if (is_given(body, "tools")) unsupported("tools", "only in chats");
  const GenerationInput common = parse_common(body, context, request);
  request.echo = body.boolean("echo", false);
  std::int32_t top = 0;
  if (const auto v = body.find("logprobs")) {
    request.logprobs = true;
    top = int_in(*v, 0, kMostTopLogprobs);
  }
  const std::int64_t most = context.model.engine->options().context;
  const std::int32_t max_tokens = int_in(body, "max_tokens", 0, std::numeric_limits<std::int32_t>::max(), 16);
  for (std::vector<TokenId>& prompt : parse_prompts(body, common.n, context)) {
    GenerationInput input = common;
    input.prompt = std::move(prompt);
    input.max_tokens = max_tokens;
    input.top_logprobs = top;
    if (request.echo && request.logprobs) input.score_prompt = top;
    check_length(input, most);
    request.inputs.push_back(std::move(input));
  }
  return request;
}

CompletionRequest parse_chat(const Body& whole, const RequestContext& context) {
  const JsonRef& body = whole.json;
  CompletionRequest request;
  request.chat = true;
  GenerationInput input = parse_common(body, context, request);
  request.logprobs = body.boolean("logprobs", false);
  input.top_logprobs = int_in(body, "top_logprobs", 0, kMostTopLogprobs, 0);
  if (input.top_logprobs > 0 && !request.logprobs) fail(ErrorKind::kRequest, "top_logprobs: only with logprobs");
  input.prompt = chat_prompt(*context.model.text, parse_conversation(body, whole.text));
  const std::int64_t room = context.model.engine->options().context - static_cast<std::int64_t>(input.prompt.size());
  const auto otherwise =
      static_cast<std::int32_t>(std::clamp<std::int64_t>(room, 1, context.options.default_max_tokens));
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  input.max_tokens = int_in(body, "max_completion_tokens", 1, kMost, int_in(body, "max_tokens", 1, kMost, otherwise));
  check_length(input, context.model.engine->options().context);
  request.inputs.push_back(std::move(input));
  return request;
}

}  // namespace mneme::server
