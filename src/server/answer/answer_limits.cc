#include "src/server/answer/answer_limits.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "src/base/error.h"
#include "src/server/api/api_error.h"
#include "src/server/api/completion_json.h"
#include "src/server/api/request_fields.h"
#include "src/text/answer_grammar/answer_rules.h"
#include "src/text/grammar/json_constraint.h"
#include "src/text/grammar/json_exact.h"
#include "src/text/grammar/json_notation.h"
#include "src/text/grammar/json_schema.h"

namespace mneme::server {
namespace {

using OrderedJson = nlohmann::ordered_json;

// Where the answer of an unfinished message goes on within a thought that the message has opened.
bool continues_thought(const AnswerFormat& format, const Conversation& conversation) {
  const std::string& last = conversation.messages.back().content.value_or("");
  const std::size_t open = last.rfind(format.thought_open);
  return open != std::string::npos && last.find(format.thought_close, open) == std::string::npos;
}

// Tokens of a thought; nothing: as many as it likes. Servers name the field differently.
std::optional<std::int32_t> parse_budget(const JsonRef& body, const Conversation& conversation, bool in_thought) {
  for (const char* name :
       {"thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens"}) {
    const auto budget = body.find(name);
    if (!budget) continue;
    const std::int32_t tokens = int_in(*budget, -1, std::numeric_limits<std::int32_t>::max());
    return tokens < 0 ? std::nullopt : std::optional(tokens);
  }
  // A template that has no way to turn thoughts off opens one all the same.
  if (in_thought && conversation.effort == "none") return 0;
  return std::nullopt;
}

// A schema that is not supported leaves the arguments of a call that is not strict free.
JsonGrammar call_arguments(const OrderedJson& function) {
  const bool has = function.contains("parameters") && !function["parameters"].is_null();
  static const OrderedJson kNone = OrderedJson::parse(R"({"type": "object", "properties": {}})");
  const bool strict = function.contains("strict") && function["strict"] == true;
  try {
    return compile_json_schema(has ? function["parameters"] : kNone, MemberOrder::kDeclared);
  } catch (const Error& e) {
    if (!strict) return any_json_object();
    throw ApiError(400, fmt::format("tools: {}: {}", function["name"].get<std::string>(), e.what()), "tools");
  }
}

std::vector<CallRule> call_rules(const Conversation& conversation, const AnswerTools& types) {
  std::vector<CallRule> rules;
  for (const OrderedJson& tool : conversation.tools) {
    const OrderedJson& function = tool["function"];
    const std::string name = function["name"];
    const std::vector<std::string>& names = conversation.choice.names;
    const bool allowed = std::find(names.begin(), names.end(), name) != names.end();
    const bool known = std::any_of(rules.begin(), rules.end(), [&](const CallRule& r) { return r.name == name; });
    if (!allowed || known) continue;
    rules.push_back({.name = name, .arguments = call_arguments(function), .types = types.at(name)});
  }
  return rules;
}

// What cannot be written in the format leaves calls free, unless one is required.
AnswerProgram program_of(AnswerRules& rules, const Conversation& conversation) {
  try {
    return answer_program(rules);
  } catch (const Error& e) {
    const bool strict = std::any_of(conversation.tools.begin(), conversation.tools.end(), [](const OrderedJson& tool) {
      return tool["function"].contains("strict") && tool["function"]["strict"] == true;
    });
    if (strict || rules.calls == Calls::kRequired) throw ApiError(400, e.what(), "tools");
    rules.calls = Calls::kNone;
    return answer_program(rules);
  }
}

// All that a constraint without a document is made of.
std::string key_of(const AnswerRules& rules, const Conversation& conversation, std::optional<std::int32_t> budget) {
  return fmt::format("{}\n{} {} {} {}\n{}\n{}", fmt::ptr(rules.marks.get()), rules.in_thought,
                     static_cast<int>(rules.calls), rules.parallel, budget.value_or(-1),
                     fmt::join(conversation.choice.names, " "),
                     rules.calls == Calls::kNone ? std::string() : json_text(conversation.tools));
}

// Json sorts members by name and rounds numbers to doubles: the schema is read again, as it was written. vLLM's clients
// also send it as text.
JsonGrammar schema_at(const Body& body, const JsonRef& schema, std::initializer_list<const char*> path) {
  if (schema.is_string())
    return compile_json_schema(read_exact_json(schema.string(), *std::rbegin(path)), MemberOrder::kDeclared);
  const OrderedJson exact = read_exact_json(body.text, "body");
  const OrderedJson* at = &exact;
  for (const char* key : path) at = &(*at)[key];
  return compile_json_schema(*at, MemberOrder::kDeclared);
}

std::optional<JsonGrammar> parse_response_format(const Body& body) {
  const auto format = body.json.find("response_format");
  if (!format) return std::nullopt;
  const std::string& type = format->at("type").string();
  if (type == "text") return std::nullopt;
  if (type == "json_object") return any_json_object();
  if (type != "json_schema") format->at("type").wrong("\"text\", \"json_object\" or \"json_schema\"");
  return schema_at(body, format->at("json_schema").at("schema"), {"response_format", "json_schema", "schema"});
}

JsonGrammar choice_of(const JsonRef& choice) {
  constexpr std::size_t kMost = 4096;
  if (!choice.is_array() || choice.value().empty() || choice.value().size() > kMost)
    choice.wrong(fmt::format("an array of at most {} texts", kMost));
  std::vector<std::string> texts;
  for (const JsonRef& text : choice.elements()) {
    if (text.string().empty()) text.wrong("a text that is not empty");
    texts.push_back(text.string());
  }
  return one_of(texts);
}

}  // namespace

std::optional<JsonGrammar> parse_document(const Body& body) {
  std::optional<JsonGrammar> document = parse_response_format(body);
  const auto set = [&](JsonGrammar grammar, const char* field) {
    if (document) unsupported(field, "an answer has one form: leave the others out");
    document = std::move(grammar);
  };
  if (const auto outputs = body.json.find("structured_outputs")) {
    if (!outputs->is_object()) outputs->wrong("an object");
    for (const auto& [key, value] : outputs->value().items())
      if (key != "json" && key != "regex" && key != "choice" && key != "json_object" && is_given(*outputs, key))
        unsupported("structured_outputs." + key.substr(0, 60),
                    "not supported: json, regex, choice and json_object are");
    if (const auto schema = outputs->find("json"))
      set(schema_at(body, *schema, {"structured_outputs", "json"}), "json");
    if (const auto regex = outputs->find("regex")) set(text_like(regex->string()), "regex");
    if (const auto choice = outputs->find("choice")) set(choice_of(*choice), "choice");
    if (outputs->boolean("json_object", false)) set(any_json_object(), "json_object");
  }
  const auto given = [&](const char* field) {
    return is_given(body.json, field) ? body.json.find(field) : std::optional<JsonRef>();
  };
  for (const char* field : {"guided_json", "json_schema"})
    if (const auto schema = given(field)) set(schema_at(body, *schema, {field}), field);
  if (const auto regex = given("guided_regex")) set(text_like(regex->string()), "guided_regex");
  if (const auto choice = given("guided_choice")) set(choice_of(*choice), "guided_choice");
  return document;
}

std::shared_ptr<const AnswerReading> reading_of(const RequestContext& context, const Conversation& conversation,
                                                const std::vector<TokenId>& prompt) {
  const TextSide& text = *context.model.text;
  const bool tools = !conversation.tools.is_null();
  auto reading = std::make_shared<AnswerReading>();
  reading->marks = context.formats.of(text.chat.template_for(tools, conversation.template_name)).marks;
  const AnswerFormat& format = reading->marks->format();
  if (format.is_plain() ||
      (!tools && format.thought_close.empty() && format.framing.empty() && format.calls != CallForm::kHarmony))
    return nullptr;
  reading->has_tools = tools;
  reading->tools = answer_tools_of(conversation.tools);
  reading->in_thought = conversation.continue_final_message
                            ? !format.thought_open.empty() && continues_thought(reading->marks->shown(), conversation)
                            : reading->marks->opens_thought(prompt, *text.tokenizer);
  for (const ChatMessage& message : conversation.messages) {
    if (!message.more.contains("tool_calls")) continue;
    for (const auto& call : message.more["tool_calls"])
      if (call.is_object() && call.contains("id") && call["id"].is_string())
        reading->known_ids.insert(call["id"].get<std::string>());
  }
  return reading;
}

void constrain_answer(const JsonRef& body, const RequestContext& context, const Conversation& conversation,
                      const CompletionRequest& request, GenerationInput& input) {
  const TextSide& text = *context.model.text;
  const AnswerReading* const reading = request.reading.get();
  const bool required = conversation.choice.required && !conversation.tools.is_null();
  const bool calls = reading != nullptr && reading->has_tools && reading->marks->format().reads_calls();
  if (required && !calls)
    throw ApiError(400,
                   "tool_choice: how this model writes calls is not known, so that none can be required; "
                   "--answer-format names a format",
                   "tool_choice", "unsupported_parameter");
  if (required && input.constraint != nullptr) unsupported("allowed_token_ids", "not where a call is required");
  const auto budget = parse_budget(body, conversation, reading != nullptr && reading->in_thought);
  if (reading == nullptr) {
    if (request.document) input.constraint = json_constraint(text.token_trie(), *request.document);
    return;
  }
  const AnswerFormat& format = reading->marks->format();
  const bool thinks = !format.thought_close.empty() || format.calls == CallForm::kHarmony;
  if (input.constraint != nullptr || (!calls && !request.document && !(budget && thinks))) return;
  AnswerRules rules{.marks = reading->marks,
                    .in_thought = reading->in_thought,
                    .calls = required ? Calls::kRequired
                             : calls  ? Calls::kPossible
                                      : Calls::kNone,
                    .parallel = conversation.choice.parallel,
                    .tools = {},
                    .document = request.document};
  std::string key = request.document ? std::string() : key_of(rules, conversation, budget);
  if (!key.empty()) input.constraint = context.constraints.find(key);
  if (input.constraint != nullptr) return;
  if (calls) rules.tools = call_rules(conversation, reading->tools);
  if (rules.tools.empty()) rules.calls = Calls::kNone;
  const auto trie = text.token_trie();
  const bool demands = required || rules.document || budget;
  if (trie->ends().empty() && !demands) return;  // an answer that only its length ends
  AnswerProgram program = program_of(rules, conversation);
  std::optional<ThoughtBudget> limit;
  if (budget && thinks) limit = ThoughtBudget{*budget, close_of_thought(rules, *text.tokenizer)};
  input.constraint = answer_constraint(trie, reading->marks, std::move(program), std::move(limit));
  if (!key.empty()) context.constraints.keep(std::move(key), input.constraint);
}

}  // namespace mneme::server
