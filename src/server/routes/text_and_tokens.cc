// Text to tokens and back, and a conversation as the prompt that it becomes.
#include <array>
#include <utility>
#include <vector>

#include "src/server/api/api.h"
#include "src/server/api/request_fields.h"
#include "src/server/routes/token_json.h"

namespace mneme::server {
namespace {

constexpr auto kTemplateFields = std::to_array<std::string_view>(
    {"model", "messages", "tools", "tool_choice", "parallel_tool_calls", "chat_template_kwargs", "enable_thinking",
     "reasoning_effort", "add_generation_prompt", "continue_final_message", "chat_template"});
constexpr auto kTextFields = std::to_array<std::string_view>(
    {"prompt", "content", "add_special_tokens", "add_special", "parse_special", "with_pieces"});
constexpr std::string_view kDetokenizeFields[] = {"model", "tokens", "show_special"};

// A text, or what /apply-template takes.
std::vector<std::string_view> tokenize_fields() {
  std::vector<std::string_view> names(kTemplateFields.begin(), kTemplateFields.end());
  names.insert(names.end(), kTextFields.begin(), kTextFields.end());
  return names;
}

}  // namespace

void Api::tokenize(const HttpRequest& request, Writer writer) {
  with_body(request, std::move(writer), [this](const Body& whole, Writer w) -> std::function<void()> {
    const TextSide& text = *loop_.model().text;
    const JsonRef& body = whole.json;
    expect_fields(body, tokenize_fields());
    std::vector<TokenId> tokens;
    if (body.find("messages")) {
      tokens = chat_prompt(text, parse_conversation(body, whole.text));
    } else {
      const auto prompt = body.find("prompt");
      const JsonRef words = prompt ? *prompt : body.at("content");
      const bool bos = body.boolean("add_special_tokens", body.boolean("add_special", prompt.has_value()));
      tokens = text.tokenizer->encode(words.string(), {.parse_special = body.boolean("parse_special", true),
                                                       .add_bos = bos && text.tokenizer->adds_bos()});
    }
    constexpr std::int64_t kMaxGrowth = 8;  // of the answer over the largest body
    std::string out =
        tokenize_json(*text.tokenizer, tokens,
                      {.context = loop_.model().engine->options().context,
                       .with_pieces = body.boolean("with_pieces", false),
                       .max_bytes = static_cast<std::size_t>(kMaxGrowth * options_.limits.max_body_bytes)});
    return [w, out = std::move(out)]() mutable { w->respond({.body = std::move(out)}); };
  });
}

void Api::detokenize(const HttpRequest& request, Writer writer) {
  with_body(request, std::move(writer), [this](const Body& whole, Writer w) -> std::function<void()> {
    const TextSide& text = *loop_.model().text;
    const JsonRef& body = whole.json;
    expect_fields(body, kDetokenizeFields);
    const std::string words = text.tokenizer->decode(parse_tokens(body.at("tokens"), text.info.vocabulary),
                                                     body.boolean("show_special", false));
    OrderedJson json;
    json["prompt"] = words;
    json["content"] = words;
    return [w, out = json_text(json)]() mutable { w->respond({.body = std::move(out)}); };
  });
}

void Api::apply_template(const HttpRequest& request, Writer writer) {
  with_body(request, std::move(writer), [this](const Body& body, Writer w) -> std::function<void()> {
    const TextSide& text = *loop_.model().text;
    expect_fields(body.json, kTemplateFields);
    const std::vector<TokenId> tokens = chat_prompt(text, parse_conversation(body.json, body.text));
    OrderedJson json;
    json["prompt"] = text.tokenizer->decode(tokens, true);
    json["tokens"] = tokens;
    return [w, out = json_text(json)]() mutable { w->respond({.body = std::move(out)}); };
  });
}

}  // namespace mneme::server
