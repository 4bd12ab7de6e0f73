// Turns by a model's template. A template renders whole conversations; a session appends turns. So a later turn is what
// the template writes between an earlier answer and the next one.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "src/text/chat/chat_format.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;
using jinja::Origin;

constexpr Origin kDocument = ChatTemplate::kMarked;
constexpr Origin kQuestion = ChatTemplate::kMarked + 1;
constexpr Origin kAnswer = ChatTemplate::kMarked + 2;
constexpr std::size_t kNowhere = -1;
constexpr std::string_view kDefaultTemplate = "default";

Json message(const char* role, std::string_view content) {
  return {{"role", role}, {"content", std::string(content)}};
}

std::vector<ChatTemplate::Part> parts_of(const ChatFormat::Turn& turn, std::string_view system_before) {
  std::vector<ChatTemplate::Part> parts;
  if (!system_before.empty()) parts.push_back({std::string(system_before) + "\n\n", ChatTemplate::kGiven});
  if (!turn.document.empty()) parts.push_back({std::string(turn.document), kDocument});
  if (!turn.document.empty() && !turn.question.empty()) parts.push_back({"\n\n\n", kQuestion});
  parts.push_back({std::string(turn.question), kQuestion});
  return parts;
}

// The first byte of this origin, or one past its last.
std::size_t begin_of(const jinja::Text& text, Origin origin) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (text.origin(i) == origin) return i;
  return kNowhere;
}
std::size_t end_of(const jinja::Text& text, Origin origin) {
  for (std::size_t i = text.size(); i > 0; --i)
    if (text.origin(i - 1) == origin) return i;
  return kNowhere;
}

// End of the mark that closes an answer at `from`: white space and a special token that ends an answer. `from` where
// none follows.
std::size_t end_mark(const Tokenizer& tokenizer, const jinja::Text& text, std::size_t from) {
  const std::size_t mark = text.view().find_first_not_of(" \n", from);
  if (mark == std::string_view::npos) return from;
  for (std::size_t end = mark + 1; end <= text.size() && end - mark <= 64; ++end) {
    if (end < text.size() && (text.view()[end] & 0xC0) == 0x80) continue;
    if (text.view()[end - 1] != '>' && text.view()[end - 1] != ']') continue;
    const auto ids = encode_rendered(tokenizer, text, mark, end, true);
    if (ids.size() == 1 && tokenizer.is_end(ids[0])) return end;
  }
  return from;
}

}  // namespace

// The text of this turn, and the end of its document.
struct ChatFormat::Rendered {
  jinja::Text text;
  std::size_t begin = 0, seam = 0;
};

ChatFormat::Rendered ChatFormat::render_turn(const Turn& turn, bool first) const {
  ChatInput input;
  Rendered out;
  if (first) {
    if (!turn.system.empty()) input.messages.push_back(message("system", turn.system));
    input.messages.push_back(message("user", ""));
    try {
      out.text = template_->render(input, *tokenizer_, {{input.messages.size() - 1, parts_of(turn, {})}});
    } catch (const Error&) {
      if (turn.system.empty()) throw;
      // A template without a system role has it before the document.
      input.messages = Json::array({message("user", "")});
      out.text = template_->render(input, *tokenizer_, {{0, parts_of(turn, turn.system)}});
    }
  } else {
    input.messages = Json::array({message("user", "Hello"), message("assistant", ""), message("user", "")});
    out.text = template_->render(input, *tokenizer_, {{1, {{"Hello", kAnswer}}}, {2, parts_of(turn, {})}});
    const std::size_t answered = end_of(out.text, kAnswer);
    if (answered == kNowhere) fail(ErrorKind::kFormat, "the chat template leaves out an earlier answer");
    out.begin = end_mark(*tokenizer_, out.text, answered);
  }
  const bool has_document = !turn.document.empty();
  out.seam = has_document ? end_of(out.text, kDocument) : begin_of(out.text, kQuestion);
  if (out.seam == kNowhere) out.seam = out.text.size();
  return out;
}

ChatFormat::SplitTurn ChatFormat::template_turn(const Turn& turn, bool first, bool split) const {
  const Rendered r = render_turn(turn, first);
  const bool continues = !first && end_of_answer_.empty();
  if (!split) return {encode_rendered(*tokenizer_, r.text, r.begin, r.text.size(), continues), {}};
  return {encode_rendered(*tokenizer_, r.text, r.begin, r.seam, continues),
          encode_rendered(*tokenizer_, r.text, r.seam, r.text.size(), true)};
}

void ChatFormat::use_template(std::string source) {
  const auto made = std::make_shared<const ChatTemplate>(std::move(source));
  ChatInput input;
  input.messages = Json::array({message("user", "")});
  std::string undefined;
  const auto alone = made->render(input, *tokenizer_, {{0, {{"Hello", kQuestion}}}}, &undefined);
  if (begin_of(alone, kQuestion) == kNowhere) {
    fail(ErrorKind::kFormat,
         "the chat template does not show what the user says: messages[i].content never appears in its output{}",
         undefined.empty() ? "" : "; " + undefined + " is undefined");
  }
  input.messages = Json::array({message("user", "Hello"), message("assistant", ""), message("user", "Hello")});
  const auto turns = made->render(input, *tokenizer_, {{1, {{"Hello", kAnswer}}}});
  const std::size_t answered = end_of(turns, kAnswer);
  if (answered == kNowhere) fail(ErrorKind::kFormat, "the chat template leaves out an earlier answer");
  end_of_answer_ = encode_rendered(*tokenizer_, turns, answered, end_mark(*tokenizer_, turns, answered), true);
  template_ = made;
}

ChatFormat ChatFormat::with_template(const Tokenizer& tokenizer, std::string source) {
  ChatFormat format = detect(tokenizer);
  const TokenizerData& data = tokenizer.data();
  const auto named = std::find_if(data.named_templates.begin(), data.named_templates.end(),
                                  [&](const auto& t) { return t.first == source; });
  const bool is_jinja = source.find("{{") != std::string::npos || source.find("{%") != std::string::npos;
  if (named != data.named_templates.end()) {
    source = named->second;
  } else if (source == kDefaultTemplate && !data.chat_template.empty()) {
    source = data.chat_template;
  } else if (!is_jinja && !format.template_names().empty()) {
    fail(ErrorKind::kFormat, "the chat template '{}': expected Jinja, or the name of one of the model's templates ({})",
         source.substr(0, 60), fmt::join(format.template_names(), ", "));
  }
  format.use_template(std::move(source));
  format.users_template_ = true;
  format.lacks_default_ = false;
  return format;
}

// ---- templates by name

void ChatFormat::read_named_templates() {
  for (const auto& [name, source] : tokenizer_->data().named_templates) {
    NamedTemplate& named = named_.emplace_back();
    named.name = name;
    try {
      named.parsed = std::make_shared<const ChatTemplate>(source);
    } catch (const Error& e) {
      named.problem = e.what();
    }
  }
  lacks_default_ = tokenizer_->data().chat_template.empty() && !named_.empty();
  if (!lacks_default_) return;
  problem_ =
      fmt::format("the model has chat templates by name ({}), and none is named {}: name one with --chat-template",
                  fmt::join(template_names(), ", "), kDefaultTemplate);
}

void ChatFormat::expect_default() const {
  if (lacks_default_) fail(ErrorKind::kRequest, "{}", problem_);
}

const ChatTemplate* ChatFormat::template_for(bool tools, std::string_view name) const {
  if (name.empty()) name = tools && !users_template_ && has_template("tool_use") ? "tool_use" : kDefaultTemplate;
  for (const NamedTemplate& named : named_) {
    if (named.name != name) continue;
    if (named.parsed == nullptr) fail(ErrorKind::kFormat, "the chat template '{}': {}", name, named.problem);
    return named.parsed.get();
  }
  return template_.get();
}

bool ChatFormat::has_template(std::string_view name) const {
  if (name == kDefaultTemplate) return template_ != nullptr || !tokenizer_->data().chat_template.empty();
  return std::any_of(named_.begin(), named_.end(), [&](const NamedTemplate& named) { return named.name == name; });
}

std::vector<std::string> ChatFormat::template_names() const {
  std::vector<std::string> names;
  if (!tokenizer_->data().chat_template.empty()) names.emplace_back(kDefaultTemplate);
  for (const NamedTemplate& named : named_) names.push_back(named.name);
  return names;
}

std::vector<TokenId> ChatFormat::conversation(const ChatInput& input) const {
  const ChatTemplate* const used = template_for(!input.tools.is_null(), input.template_name);
  MNEME_CHECK(used != nullptr, "a conversation without a template");
  if (!input.continue_final_message) return encode_rendered(*tokenizer_, used->render(input, *tokenizer_));
  const std::size_t last = input.messages.size() - 1;
  const jinja::Text text =
      used->render(input, *tokenizer_, {{last, {{input.messages[last]["content"].get<std::string>(), kAnswer}}}});
  const std::size_t end = end_of(text, kAnswer);
  if (end == kNowhere)
    fail(ErrorKind::kRequest, "continue_final_message: the chat template does not show the last message's content");
  return encode_rendered(*tokenizer_, text, 0, end, false);
}

}  // namespace mneme
