#include "src/server/api/request_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/most_like.h"
#include "src/base/size32.h"
#include "src/server/api/api_error.h"

namespace mneme::server {
namespace {

enum class Endpoint { kBoth, kCompletion, kChat };

struct ReadField {
  std::string_view name;
  Endpoint endpoint = Endpoint::kBoth;
};

constexpr ReadField kRead[] = {
    {"model"},
    {"n"},
    {"best_of"},
    {"stream"},
    {"stream_options"},
    {"temperature"},
    {"top_k"},
    {"top_p"},
    {"min_p"},
    {"repetition_penalty"},
    {"repeat_penalty"},
    {"presence_penalty"},
    {"frequency_penalty"},
    {"seed"},
    {"logit_bias"},
    {"allowed_token_ids"},
    {"stop"},
    {"stop_token_ids"},
    {"include_stop_str_in_output"},
    {"ignore_eos"},
    {"max_tokens"},
    {"logprobs"},
    {"truncate_prompt_tokens"},
    {"response_format"},
    {"structured_outputs"},
    {"guided_json"},
    {"guided_regex"},
    {"guided_choice"},
    {"json_schema"},
    {"return_token_ids"},
    {"priority"},
    {"timeout"},
    {"cache_salt"},
    {"id_slot"},
    {"kv"},
    {"kv_reads"},
    {"kv_retrieval"},
    {"prompt", Endpoint::kCompletion},
    {"echo", Endpoint::kCompletion},
    {"add_special_tokens", Endpoint::kCompletion},
    {"parse_special", Endpoint::kCompletion},
    {"messages", Endpoint::kChat},
    {"max_completion_tokens", Endpoint::kChat},
    {"top_logprobs", Endpoint::kChat},
    {"tools", Endpoint::kChat},
    {"tool_choice", Endpoint::kChat},
    {"parallel_tool_calls", Endpoint::kChat},
    {"thinking_token_budget", Endpoint::kChat},
    {"thinking_budget", Endpoint::kChat},
    {"thinking_budget_tokens", Endpoint::kChat},
    {"reasoning_budget_tokens", Endpoint::kChat},
    {"chat_template_kwargs", Endpoint::kChat},
    {"enable_thinking", Endpoint::kChat},
    {"reasoning_effort", Endpoint::kChat},
    {"add_generation_prompt", Endpoint::kChat},
    {"continue_final_message", Endpoint::kChat},
    {"chat_template", Endpoint::kChat},
};

// They say something about the request, or qualify a field that is refused: no answer depends on them.
constexpr std::string_view kWithoutEffect[] = {
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "request_id",
    "prompt_cache_retention",
    "mirostat_tau",
    "mirostat_eta",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "dry_sequence_breakers",
    "xtc_threshold",
    "dynatemp_exponent",
};

struct RefusedField {
  std::string_view name;
  std::string_view neutral = "null";  // JSON: a value that asks for nothing, beside those of is_given()
  std::string_view advice = "not supported";
};

constexpr std::string_view kFormatAdvice =
    "not supported: response_format takes JSON schemas, structured_outputs also regex and choice";
constexpr std::string_view kBanAdvice = "not supported: a logit_bias of -100 forbids a token";

constexpr RefusedField kRefused[] = {
    {"functions", "null", "not supported: use tools"},
    {"function_call", "\"none\"", "not supported: use tools"},
    {"suffix"},
    {"min_tokens"},
    {"use_beam_search"},
    {"length_penalty", "1", "only with beam search, which is not supported"},
    {"guided_grammar", "null", kFormatAdvice},
    {"grammar", "null", kFormatAdvice},
    {"audio"},
    {"modalities", "[\"text\"]"},
    {"prediction"},
    {"web_search_options"},
    {"verbosity", "\"medium\""},
    {"documents", "null", "not supported: put the documents into a message"},
    {"prompt_logprobs", "null", "not supported: a completion with echo and logprobs scores its prompt"},
    {"prompt_embeds"},
    {"bad_words", "null", kBanAdvice},
    {"skip_special_tokens", "true"},
    {"spaces_between_special_tokens", "true"},
    {"detokenize", "true"},
    {"return_tokens_as_token_ids"},
    {"return_cached_tokens_details"},
    {"logits_processors"},
    {"mm_processor_kwargs"},
    {"include_reasoning", "true"},
    {"typical_p", "1"},
    {"mirostat"},
    {"dry_multiplier"},
    {"xtc_probability"},
    {"dynatemp_range"},
    {"tfs_z", "1"},
    {"top_a"},
    {"repeat_last_n", "-1", "not supported: repetition_penalty looks at the whole prompt and answer"},
    {"cache_prompt", "true", "not supported: a cache_salt of its own keeps a request from shared prefixes"},
    {"n_probs", "0", "not supported: use logprobs"},
    {"n_predict", "null", "not supported: use max_tokens"},
    {"max_new_tokens", "null", "not supported: use max_tokens"},
    {"max_length", "null", "not supported: use max_tokens"},
    {"stop_sequences", "null", "not supported: use stop"},
    {"n_keep"},
    {"samplers"},
    // SGLang's: routers add them to every request.
    {"no_stop_trim"},
    {"return_hidden_states"},
    {"separate_reasoning", "true"},
    {"stream_reasoning", "true"},
    {"extra_body", "null", "its members belong into the body itself"},
    // Read by the other endpoint.
    {"echo"},
    {"top_logprobs", "0", "only in chats"},
    {"chat_template", "null", "only in chats, by name; the server's --chat-template takes any other"},
    {"add_special_tokens", "false", "only in completions: the chat template has them"},
    {"parse_special", "false", "only in completions: a message's text is never a special token"},
};

bool asks_for_something(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  return value.is_string() ? !value.get_ref<const std::string&>().empty() : !value.empty();
}

bool read_here(const ReadField& field, bool chat) {
  return field.endpoint == Endpoint::kBoth || (field.endpoint == Endpoint::kChat) == chat;
}

std::vector<std::string_view> names_of(bool chat) {
  std::vector<std::string_view> names;
  for (const ReadField& field : kRead)
    if (read_here(field, chat)) names.push_back(field.name);
  return names;
}

[[noreturn]] void unknown(const std::string& key, std::span<const std::string_view> names) {
  const std::string shown = key.substr(0, 60);
  const std::string_view like = most_like(key, names);
  throw ApiError(400,
                 like.empty() ? fmt::format("unknown field \"{}\"", shown)
                              : fmt::format("unknown field \"{}\": did you mean \"{}\"?", shown, like),
                 shown, "unknown_parameter");
}

// A field that an endpoint with these names does not read; `elsewhere` is said of those that others read.
void check_field(const std::string& key, const Json& value, std::span<const std::string_view> names,
                 std::string_view elsewhere) {
  const auto* read = std::find_if(std::begin(kRead), std::end(kRead), [&](const auto& f) { return f.name == key; });
  if (std::find(names.begin(), names.end(), key) != names.end()) return;
  if (std::find(std::begin(kWithoutEffect), std::end(kWithoutEffect), key) != std::end(kWithoutEffect)) return;
  const auto* refused =
      std::find_if(std::begin(kRefused), std::end(kRefused), [&](const auto& f) { return f.name == key; });
  const bool known = refused != std::end(kRefused) || read != std::end(kRead);
  if (!known) unknown(key, names);
  if (refused == std::end(kRefused)) {
    if (asks_for_something(value)) unsupported(key, elsewhere);
    return;
  }
  const Json neutral = Json::parse(refused->neutral);
  if (value.is_null() || value == neutral) return;
  // Zero, false and nothing ask for nothing, but of a field that is on by default they ask to turn it off.
  if (!asks_for_something(neutral) && !asks_for_something(value)) return;
  unsupported(key, refused->advice);
}

}  // namespace

std::int32_t int_in(const JsonRef& value, std::int64_t low, std::int64_t high) {
  const std::int64_t n = value.integer();
  if (n < low || n > high) value.wrong(fmt::format("an integer from {} to {}", low, high));
  return count32(n);
}

[[noreturn]] void unsupported(std::string_view key, std::string_view why) {
  throw ApiError(400, fmt::format("{}: {}", key, why), std::string(key), "unsupported_parameter");
}

bool is_given(const JsonRef& body, std::string_view key) {
  const auto v = body.find(key);
  return v && asks_for_something(v->value());
}

void check_fields(const JsonRef& body, bool chat) {
  const std::vector<std::string_view> names = names_of(chat);
  const std::string_view elsewhere = chat ? "only in completions" : "only in chats";
  for (const auto& [key, value] : body.value().items()) check_field(key, value, names, elsewhere);
}

void expect_fields(const JsonRef& body, std::span<const std::string_view> names) {
  if (!body.is_object()) body.wrong("an object");
  for (const auto& [key, value] : body.value().items()) check_field(key, value, names, "only in chats and completions");
}

}  // namespace mneme::server
