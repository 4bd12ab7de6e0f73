#include "src/server/api/api_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/engine/kv_method.h"
#include "src/server/answer/answer_limits.h"
#include "src/server/api/api_error.h"
#include "src/server/api/request_fields.h"
#include "src/text/grammar/json_constraint.h"

namespace mneme::server {
namespace {

constexpr int kMaxTopLogprobs = 20;
constexpr std::size_t kMaxStops = 16, kMaxStopBytes = 1024;

using mneme::server::int_in;

std::int32_t int_in(const JsonRef& body, std::string_view key, std::int64_t low, std::int64_t high,
                    std::int32_t otherwise) {
  const auto v = body.find(key);
  return v ? int_in(*v, low, high) : otherwise;
}

float float_of(const JsonRef& body, std::string_view key, float otherwise) {
  const auto v = body.find(key);
  if (!v) return otherwise;
  const double number = v->number();
  if (std::fabs(number) > (std::numeric_limits<float>::max())) v->wrong("a number that f32 holds");
  return static_cast<float>(number);
}

// The preset that the body names as its model; null: the server's own options.
//
// Errors  ApiError 404: another model.
const Preset* preset_of(const JsonRef& body, const RequestContext& context) {
  const auto model = body.find("model");
  if (!model || model->string() == context.served_name) return nullptr;
  const Preset* const preset = find_preset(context.options.presets, context.served_name, model->string());
  if (preset != nullptr) return preset;
  throw ApiError(404,
                 fmt::format("the model \"{}\" is not served here; there is \"{}\"", model->string().substr(0, 200),
                             context.served_name),
                 "model", "model_not_found");
}

// Padding of the embedding and holes of the vocabulary are never sampled, whatever their logits.
void expect_token(const char* field, std::int64_t id, const Tokenizer& tokenizer) {
  if (!tokenizer.is_token(count32(id)))
    fail(ErrorKind::kRequest,
         "{}: the id {} has no token (the embedding has more rows than the tokenizer has tokens, "
         "or the vocabulary a hole there) and is never sampled; leave it out",
         field, id);
}

std::vector<TokenBias> parse_logit_bias(const JsonRef& v, const Tokenizer& tokenizer) {
  const std::int64_t vocabulary = tokenizer.vocab_size();
  if (!v.is_object()) v.wrong("an object");
  std::vector<TokenBias> biases;
  for (const auto& [key, value] : v.value().items()) {
    const bool digits = !key.empty() && key.size() < 10 && key.find_first_not_of("0123456789") == std::string::npos;
    const std::int64_t id = digits ? std::stoll(key) : -1;
    if (id < 0 || id >= vocabulary) {
      fail(ErrorKind::kRequest, "logit_bias: expected ids of tokens from 0 to {}, found \"{}\"", vocabulary - 1,
           key.substr(0, 40));
    }
    expect_token("logit_bias", id, tokenizer);
    if (!value.is_number() || !(std::fabs(value.get<double>()) <= 100)) {
      fail(ErrorKind::kRequest, "logit_bias.{}: expected a number from -100 to 100", key);
    }
    biases.push_back({.token = count32(id), .bias = value.get<float>()});
  }
  return biases;
}

// The same tokens at every step.
class OnlyTokens final : public TokenConstraint, public std::enable_shared_from_this<OnlyTokens> {
 public:
  explicit OnlyTokens(std::vector<TokenId> tokens) : tokens_(std::move(tokens)) {}
  void allowed(std::span<std::uint64_t> mask) const override {
    std::fill(mask.begin(), mask.end(), 0);
    for (const TokenId id : tokens_) mask[id / 64] |= std::uint64_t{1} << (id % 64);
  }
  std::shared_ptr<const TokenConstraint> after(std::int32_t) const override { return shared_from_this(); }

 private:
  std::vector<TokenId> tokens_;
};

std::shared_ptr<const TokenConstraint> only_tokens(std::vector<TokenId> tokens) {
  if (tokens.empty()) fail(ErrorKind::kRequest, "allowed_token_ids: expected at least one token");
  return std::make_shared<const OnlyTokens>(std::move(tokens));
}

// What a client that leaves everything out gets is OpenAI's default, not the library's: temperature 1.
SamplingOptions parse_sampling(const JsonRef& body, const Tokenizer& tokenizer) {
  SamplingOptions s;
  s.temperature = float_of(body, "temperature", 1.0f);
  s.top_k = std::max(int_in(body, "top_k", -1, std::numeric_limits<std::int32_t>::max(), 0), 0);
  s.top_p = float_of(body, "top_p", 1.0f);
  s.min_p = float_of(body, "min_p", 0.0f);
  s.repetition_penalty = float_of(body, "repetition_penalty", float_of(body, "repeat_penalty", 1.0f));
  s.presence_penalty = float_of(body, "presence_penalty", 0.0f);
  s.frequency_penalty = float_of(body, "frequency_penalty", 0.0f);
  if (const auto seed = body.find("seed")) s.seed = seed->integer();
  if (const auto bias = body.find("logit_bias")) s.logit_bias = parse_logit_bias(*bias, tokenizer);
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
    if (v->value().size() > kMaxStops) v->wrong(fmt::format("at most {} strings", kMaxStops));
    for (const JsonRef& s : v->elements()) stop.push_back(s.string());
  }
  for (const std::string& s : stop)
    if (s.size() > kMaxStopBytes) fail(ErrorKind::kRequest, "stop: expected at most {} bytes each", kMaxStopBytes);
  return stop;
}

void parse_stream(const JsonRef& body, CompletionRequest& request, GenerationInput& input) {
  request.stream = body.boolean("stream", false);
  const auto options = body.find("stream_options");
  if (!options) return;
  if (!request.stream) fail(ErrorKind::kRequest, "stream_options: only with stream");
  if (!options->is_object()) options->wrong("an object");
  for (const auto& [key, value] : options->value().items())
    if (key != "include_usage" && key != "include_obfuscation" && key != "include_progress" && is_given(*options, key))
      unsupported("stream_options." + key.substr(0, 60), "not supported");
  request.include_usage = options->boolean("include_usage", false);
  request.include_progress = input.report_progress = options->boolean("include_progress", false);
}

// false, true (the server's own, or ngram), or the text of --speculative.
std::optional<SpeculationOptions> parse_speculative(const JsonRef& body, const SpeculationOptions& own) {
  const auto field = body.find("speculative");
  if (!field) return std::nullopt;
  if (field->value().is_string()) return parse_speculation(field->string());
  if (!field->value().is_boolean()) field->wrong("false, true, or a text as \"ngram:k=7,min=4\"");
  if (!field->value().get<bool>()) return SpeculationOptions{};
  return own.on() ? own : SpeculationOptions{.method = SpeculationOptions::Method::kNgram};
}

// What completions and chats share, without the prompt and the number of tokens.
GenerationInput parse_common(const Body& whole, const RequestContext& context, CompletionRequest& request) {
  const JsonRef& body = whole.json;
  if (!body.is_object()) body.wrong("an object");
  const Preset* const preset = preset_of(body, context);
  request.model = preset == nullptr ? context.served_name : body.at("model").string();
  check_fields(body, request.chat);
  request.document = parse_document(whole);
  GenerationInput input;
  input.n = int_in(body, "n", 1, std::min<std::int64_t>(context.options.engine.max_sequences * 4, 128), 1);
  if (const auto best = body.find("best_of"); best && best->integer() != input.n)
    unsupported("best_of", "not supported: leave it out, or let it be n");
  input.sampling = parse_sampling(body, *context.model.text->tokenizer);
  const std::int64_t vocabulary = context.model.text->info.vocabulary;
  if (const auto allowed = body.find("allowed_token_ids")) {
    if (request.document) unsupported("allowed_token_ids", "not together with response_format");
    std::vector<TokenId> tokens = parse_tokens(*allowed, vocabulary);
    for (const TokenId id : tokens) expect_token("allowed_token_ids", id, *context.model.text->tokenizer);
    input.constraint = only_tokens(std::move(tokens));
  }
  input.stop.strings = parse_stop(body);
  input.stop.keep_string = body.boolean("include_stop_str_in_output", false);
  if (const auto stop = body.find("stop_token_ids")) input.stop.tokens = parse_tokens(*stop, vocabulary);
  input.stop.ignore_end = body.boolean("ignore_eos", false);
  // vLLM's meaning: smaller first. A key may ask for less urgency than it has, never for more.
  const std::int32_t most_urgent = context.key != nullptr ? context.key->priority : -1000000;
  const std::int32_t otherwise = context.key != nullptr ? context.key->priority : 0;
  input.priority = -std::max(most_urgent, int_in(body, "priority", -1000000, 1000000, otherwise));
  input.group = context.group;
  input.group_limit = context.key != nullptr ? context.key->max_running : 0;
  input.timeout_seconds = context.options.timeouts.request_seconds;
  if (const auto timeout = body.find("timeout")) {
    if (!(timeout->number() > 0)) timeout->wrong("a number of seconds larger than 0");
    input.timeout_seconds = std::min(input.timeout_seconds, timeout->number());
  }
  const KvMethodOptions& defaults = preset == nullptr ? context.options.engine.kv : preset->kv;
  const auto kv = body.find("kv");
  input.kv = kv ? parse_kv(*kv, defaults) : defaults;
  input.method = context.plans.plan_for(input.kv);
  input.speculation = parse_speculative(body, context.options.engine.speculation);
  input.count_reads = body.boolean("kv_reads", false);
  input.cache_salt = body.string("cache_salt", "");
  if (const auto slot = body.find("id_slot"); slot && slot->integer() != -1)
    input.slot = int_in(*slot, 0, context.options.n_slots - 1);
  if (input.slot && input.method != nullptr && input.method->binds_sequence())
    unsupported("id_slot", "not with '" + input.kv.method + "', which decides how a prompt is read");
  parse_stream(body, request, input);
  input.stream = request.stream;
  request.kv_retrieval = body.boolean("kv_retrieval", false);
  request.return_token_ids = body.boolean("return_token_ids", false);
  return input;
}

// Checks what the engine would refuse only when the request's turn comes.
void check_length(const GenerationInput& input, std::int64_t context, bool chat) {
  if (input.prompt.empty()) fail(ErrorKind::kRequest, "the prompt is empty: expected at least one token");
  const std::int64_t n = input.prompt.size();
  if (n + input.max_tokens <= context) return;
  throw ContextError(fmt::format("{} tokens of prompt and up to {} of answer are {}; the context has {}", n,
                                 input.max_tokens, n + input.max_tokens, context),
                     chat ? "messages" : "prompt", n, context);
}

// truncate_prompt_tokens: the last so many tokens of the prompt are kept, as in vLLM.
void truncate_prompt(const JsonRef& body, std::int64_t context, std::vector<TokenId>& prompt) {
  const auto kept = body.find("truncate_prompt_tokens");
  if (!kept) return;
  const std::size_t n = int_in(*kept, 1, context);
  if (prompt.size() > n) prompt.erase(prompt.begin(), prompt.end() - n);
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
  const std::int64_t limit = context.options.limits.max_queue + context.options.engine.max_sequences;
  if (std::ssize(prompt.value()) * n > limit) {
    prompt.wrong(fmt::format("at limit {} answers, which are all that run and wait", limit));
  }
  std::vector<std::vector<TokenId>> prompts;
  for (const JsonRef& p : prompt.elements()) {
    prompts.push_back(p.is_string() ? encode_prompt(p.string(), body, context) : parse_tokens(p, vocabulary));
  }
  return prompts;
}

}  // namespace

std::shared_ptr<const Plan> RequestPlans::plan_for(const KvMethodOptions& o) {
  return model_.plans->plan_for(recipe_of(o));
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
    tokens.push_back(count32(id));
  }
  return tokens;
}

CompletionRequest parse_completion(const Body& whole, const RequestContext& context) {
  const JsonRef& body = whole.json;
  CompletionRequest request;
  GenerationInput common = parse_common(whole, context, request);
  if (request.document) common.constraint = json_constraint(context.model.text->token_trie(), *request.document);
  request.echo = body.boolean("echo", false);
  std::int32_t top = 0;
  if (const auto v = body.find("logprobs")) {
    request.logprobs = true;
    top = int_in(*v, 0, kMaxTopLogprobs);
  }
  const std::int64_t model_context = context.model.engine->options().context;
  const std::int32_t max_tokens = int_in(body, "max_tokens", 0, std::numeric_limits<std::int32_t>::max(), 16);
  for (std::vector<TokenId>& prompt : parse_prompts(body, common.n, context)) {
    GenerationInput input = common;
    truncate_prompt(body, model_context, prompt);
    input.prompt = std::move(prompt);
    input.max_tokens = max_tokens;
    input.top_logprobs = top;
    if (request.echo && request.logprobs) input.score_prompt = top;
    check_length(input, model_context, false);
    request.inputs.push_back(std::move(input));
  }
  return request;
}

namespace {

// Where prompts must not depend on earlier requests, they do not.
bool remembers_answers(const ServerOptions& options) {
  return options.prefix_cache && !options.engine.deterministic;
}

}  // namespace

ChatPrompt prompt_of_chat(const RequestContext& context, const Conversation& conversation, std::string_view salt) {
  const TextSide& text = *context.model.text;
  ChatPrompt prompt{.tokens = chat_prompt(text, conversation), .reading = {}};
  prompt.reading = reading_of(context, conversation, prompt.tokens);
  if (remembers_answers(context.options))
    prompt.tokens = context.memory.with_own_tokens(salt, prompt.tokens, prompt.reading.get(), *text.tokenizer);
  return prompt;
}

CompletionRequest parse_chat(const Body& whole, const RequestContext& context) {
  const JsonRef& body = whole.json;
  CompletionRequest request;
  request.chat = true;
  GenerationInput input = parse_common(whole, context, request);
  request.logprobs = body.boolean("logprobs", false);
  input.top_logprobs = int_in(body, "top_logprobs", 0, kMaxTopLogprobs, 0);
  if (input.top_logprobs > 0 && !request.logprobs) fail(ErrorKind::kRequest, "top_logprobs: only with logprobs");
  const Conversation conversation = parse_conversation(body, whole.text);
  ChatPrompt prompt = prompt_of_chat(context, conversation, input.cache_salt);
  input.prompt = std::move(prompt.tokens);
  input.stop.scope = request.reading = std::move(prompt.reading);
  constrain_answer(body, context, conversation, request, input);
  truncate_prompt(body, context.model.engine->options().context, input.prompt);
  if (remembers_answers(context.options))
    request.record = AnswerRecord(context.memory, AnswerMemory::place_of(input.cache_salt, input.prompt));
  const std::int64_t room = context.model.engine->options().context - std::ssize(input.prompt);
  const auto otherwise = count32(std::clamp<std::int64_t>(room, 1, context.options.default_max_tokens));
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  input.max_tokens = int_in(body, "max_completion_tokens", 1, kMost, int_in(body, "max_tokens", 1, kMost, otherwise));
  check_length(input, context.model.engine->options().context, true);
  request.inputs.push_back(std::move(input));
  return request;
}

}  // namespace mneme::server
