#include "src/text/chat/chat_template.h"

#include <algorithm>
#include <array>
#include <utility>

#include "src/base/size32.h"
#include "src/text/jinja/value/input.h"
#include "src/text/tokenizer/added_tokens.h"
#include "src/text/unicode/utf8.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

std::size_t bytes_in(const Json& json) {
  if (json.is_string()) return json.get_ref<const std::string&>().size();
  std::size_t n = 0;
  if (json.is_structured())
    for (const auto& [key, value] : json.items()) n += key.size() + 16 + bytes_in(value);
  return n;
}

std::string token_text(const Tokenizer& tokenizer, std::optional<TokenId> id) {
  return id ? tokenizer.token_bytes(*id, true) : std::string();
}

void expect_utf8(std::string_view text) {
  if (find_invalid_utf8(text) != kValidUtf8) fail(ErrorKind::kRequest, "a text of the conversation is not UTF-8");
}

// Well-known roles get the template's origin: some templates form special tokens from them ("<|" + role + "|>").
jinja::Value message_value(jinja::Run& run, const Json& message) {
  constexpr std::array<std::string_view, 9> kRoles = {"system", "developer", "user",     "assistant",   "tool",
                                                      "model",  "ipython",   "function", "tool_results"};
  jinja::Value given = jinja::from_json(message, ChatTemplate::kGiven);
  const jinja::Value* role = given.dict() != nullptr ? given.dict()->find("role") : nullptr;
  if (role == nullptr || role->text() == nullptr) return given;
  if (std::find(kRoles.begin(), kRoles.end(), role->text()->view()) == kRoles.end()) return given;
  auto items = given.dict()->items;
  for (auto& [key, value] : items)
    if (key.text() != nullptr && key.text()->view() == "role") value = jinja::make_text(role->text()->view());
  return jinja::make_dict(run, std::move(items));
}

// Special tokens and their positions in the bytes written by the template.
struct Special {
  std::size_t begin, end;
  TokenId id;
};

AddedTokens tokens_in_text(const Tokenizer& tokenizer) {
  AddedTokens all;
  const TokenizerData& data = tokenizer.data();
  for (std::size_t i = 0; i < data.tokens.size(); ++i) {
    const TokenType type = data.types[i];
    if (type != TokenType::kControl && type != TokenType::kUserDefined && type != TokenType::kUnknown) continue;
    const TokenId id = count32(i);
    all.add(tokenizer.token_bytes(id, true), id);
  }
  return all;
}

std::vector<Special> specials_in(const Tokenizer& tokenizer, const jinja::Text& text, std::size_t begin,
                                 std::size_t end) {
  const AddedTokens added = tokens_in_text(tokenizer);
  std::vector<Special> found;
  for (std::size_t from = begin; from < end;) {
    const bool of_template = text.origin(from) == jinja::kTemplate;
    std::size_t to = from + 1;
    if (text.uniform()) {
      to = end;
    } else {
      while (to < end && (text.origin(to) == jinja::kTemplate) == of_template) ++to;
    }
    const std::string_view run = text.view().substr(from, to - from);
    for (std::size_t at = 0; of_template && at < run.size();) {
      const auto hit = added.find(run, at);
      if (!hit) break;
      const auto [first, last] = with_white_space(run, *hit, tokenizer.added_flags(hit->id), at);
      at = last;
      const bool user_defined = tokenizer.data().types[hit->id] == TokenType::kUserDefined;
      // User-defined tokens are found in any text, by encode().
      if (!user_defined) found.push_back({from + first, from + at, hit->id});
    }
    from = to;
  }
  return found;
}

}  // namespace

ChatTemplate::ChatTemplate(std::string source) : source_(std::move(source)), template_(source_) {}

jinja::Template::Input ChatTemplate::names(const ChatInput& input, const Tokenizer& tokenizer) const {
  jinja::Template::Input out;
  const auto set = [&](std::string name, jinja::Value value) {
    out.names.emplace_back(std::move(name), std::move(value));
  };
  set("bos_token", jinja::make_text(token_text(tokenizer, tokenizer.bos())));
  set("eos_token", jinja::make_text(token_text(tokenizer, tokenizer.eos())));
  set("pad_token", jinja::make_text(token_text(tokenizer, tokenizer.data().pad)));
  set("add_generation_prompt", input.add_generation_prompt);
  set("tools", jinja::from_json(input.tools, kGiven));
  set("documents", jinja::from_json(input.documents, kGiven));
  for (const auto& [name, value] : input.arguments.items()) set(name, jinja::from_json(value, kGiven));
  const std::size_t given =
      bytes_in(input.messages) + bytes_in(input.tools) + bytes_in(input.documents) + bytes_in(input.arguments);
  out.limits.memory += given * 64;
  out.limits.work += given * 8;
  out.now = input.now;
  return out;
}

jinja::Text ChatTemplate::render(const ChatInput& input, const Tokenizer& tokenizer) const {
  return render(input, tokenizer, {});
}

jinja::Text ChatTemplate::render(const ChatInput& input, const Tokenizer& tokenizer, const std::vector<Marked>& marked,
                                 std::string* undefined) const {
  auto in = names(input, tokenizer);
  in.undefined = undefined;
  for (const Marked& m : marked)
    for (const Part& p : m.parts) in.limits.memory += std::ssize(p.text) * 64;
  jinja::Run run(in.limits);
  std::vector<jinja::Value> messages;
  for (const Json& message : input.messages) messages.push_back(message_value(run, message));
  for (const Marked& m : marked) {
    jinja::TextBuilder text(run);
    for (const Part& p : m.parts) {
      expect_utf8(p.text);
      text.add(p.text, p.origin);
    }
    auto items = messages.at(m.message).dict()->items;
    for (auto& [key, value] : items)
      if (key.text() != nullptr && key.text()->view() == "content") value = text.finish();
    messages[m.message] = jinja::make_dict(run, std::move(items));
  }
  in.names.emplace_back("messages", jinja::make_list(run, std::move(messages)));
  return template_.render(in);
}

std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer, const jinja::Text& text) {
  return encode_rendered(tokenizer, text, 0, text.size(), false);
}

std::vector<TokenId> encode_rendered(const Tokenizer& tokenizer, const jinja::Text& text, std::size_t begin,
                                     std::size_t end, bool continues) {
  std::vector<TokenId> ids;
  const auto add_text = [&](std::size_t from, std::size_t to) {
    if (from >= to) return;
    const auto more =
        tokenizer.encode(text.view().substr(from, to - from), {.continues = continues, .after_tokens = from > 0});
    ids.insert(ids.end(), more.begin(), more.end());
  };
  std::size_t at = begin;
  for (const Special& s : specials_in(tokenizer, text, begin, end)) {
    add_text(at, s.begin);
    ids.push_back(s.id);
    at = s.end;
    continues = false;
  }
  add_text(at, end);
  return ids;
}

}  // namespace mneme
