#include "src/text/answer/derive_format.h"

#include <algorithm>
#include <string>
#include <utility>

#include "mneme/error.h"
#include "src/text/answer/answer_parser.h"
#include "src/text/answer/mark.h"

namespace mneme {
namespace {

using ProbeJson = nlohmann::ordered_json;

// Words that the template does not contain: lower-case letters, which no filter of templates changes.
class Words {
 public:
  explicit Words(std::string_view source) : source_(source) {}
  std::string next() {
    for (;;) {
      std::string word = "zq";
      for (int n = ++count_; n > 0; n /= 20) word += "bcdfghjklmnpqrstvwxz"[n % 20];
      word += "qz";
      if (source_.find(word) == std::string_view::npos) return word;
    }
  }

 private:
  std::string_view source_;
  int count_ = 0;
};

struct Probe {
  explicit Probe(std::string_view source) {
    Words words(source);
    for (std::string* word : {&user, &text, &thought, &first, &second, &text_key, &other_key, &value})
      *word = words.next();
  }
  std::string user, text, thought, first, second, text_key, other_key, value;
};

ProbeJson call_of(const std::string& name, ProbeJson arguments, const char* id) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

class Renderer {
 public:
  Renderer(const ChatTemplate& used, const Tokenizer& tokenizer, const Probe& probe)
      : used_(used), tokenizer_(tokenizer), probe_(probe) {
    const auto property = [](const char* type) { return ProbeJson{{"type", type}}; };
    for (const std::string& name : {probe.first, probe.second}) {
      const ProbeJson properties = {{probe.text_key, property("string")}, {probe.other_key, property("integer")}};
      const ProbeJson parameters = {{"type", "object"}, {"properties", properties}};
      tools_.push_back(
          {{"type", "function"}, {"function", {{"name", name}, {"description", "d"}, {"parameters", parameters}}}});
    }
  }

  // What follows the user's message; nothing where the template refuses the conversation.
  std::optional<std::string> after_user(const ProbeJson& answer) const {
    ChatInput input;
    input.messages.push_back({{"role", "user"}, {"content", probe_.user}});
    input.messages.push_back(answer);
    input.tools = tools_;
    input.add_generation_prompt = false;
    input.now = 0;
    try {
      const std::string all(used_.render(input, tokenizer_).view());
      const std::size_t at = all.rfind(probe_.user);
      if (at == std::string::npos) return std::nullopt;
      return all.substr(at + probe_.user.size());
    } catch (const Error&) {
      return std::nullopt;
    }
  }

 private:
  const ChatTemplate& used_;
  const Tokenizer& tokenizer_;
  const Probe& probe_;
  ProbeJson tools_ = ProbeJson::array();
};

std::size_t common_prefix(std::string_view a, std::string_view b) {
  return std::mismatch(a.begin(), a.begin() + std::min(a.size(), b.size()), b.begin()).first - a.begin();
}
std::size_t common_suffix(std::string_view a, std::string_view b) {
  const std::size_t n = std::min(a.size(), b.size());
  std::size_t same = 0;
  while (same < n && a[a.size() - 1 - same] == b[b.size() - 1 - same]) ++same;
  return same;
}

// Begins where a mark may: not within <...> or [...], nor with white space or the end of a mark.
std::size_t to_mark(std::string_view text, std::size_t at) {
  for (; at < text.size(); ++at) {
    if (text[at] == '<' || text[at] == '[') return at;
    const std::size_t opened = text.substr(0, at).find_last_of("<[");
    const std::size_t closed = text.substr(0, at).find_last_of(">]");
    const bool inside = opened != std::string_view::npos && (closed == std::string_view::npos || closed < opened);
    if (!inside && !is_white(text[at])) return at;
  }
  return at;
}

// Text of a call between the words of a probe.
struct Shown {
  std::string before, name_to_key, key_to_value, after;
};

std::optional<Shown> split(std::string_view text, const std::string& name, const std::string& key,
                           const std::string& value) {
  const std::size_t n = text.find(name);
  const std::size_t k = n == std::string_view::npos ? n : text.find(key, n + name.size());
  const std::size_t v = k == std::string_view::npos ? k : text.find(value, k + key.size());
  if (v == std::string_view::npos) return std::nullopt;
  return Shown{std::string(text.substr(0, n)), std::string(text.substr(n + name.size(), k - n - name.size())),
               std::string(text.substr(k + key.size(), v - k - key.size())),
               std::string(text.substr(v + value.size()))};
}

// Nothing that a template writes of a message's members: quotes, or much text.
bool is_mark(std::string_view text) {
  constexpr std::size_t kLongest = 64;
  return !text.empty() && text.size() <= kLongest && text.find_first_of("\n'\"{}") == std::string_view::npos;
}

class Derivation {
 public:
  Derivation(const ChatTemplate& used, const Tokenizer& tokenizer)
      : probe_(used.source()), renderer_(used, tokenizer, probe_) {}

  std::optional<AnswerFormat> run() {
    const auto text = answer({{"content", probe_.text}});
    if (!text) return std::nullopt;
    const std::size_t at = text->find(probe_.text);
    if (at == std::string::npos) return std::nullopt;
    header_ = text->substr(0, at);
    footer_ = text->substr(at + probe_.text.size());
    format_.name = "derived";
    derive_thought();
    derive_calls();
    if (format_.reads_calls() && !reads_its_probe()) format_.calls = CallForm::kNone;
    if (format_.is_plain() || !problem_of(format_).empty()) return std::nullopt;
    return format_;
  }

 private:
  std::optional<std::string> answer(ProbeJson members) const {
    ProbeJson message = {{"role", "assistant"}};
    message.update(members);
    return renderer_.after_user(message);
  }
  // The answer's own text: behind what precedes a text answer, without what ends one.
  std::string own(std::string_view text) const {
    text.remove_prefix(common_prefix(text, header_));
    if (!footer_.empty()) text.remove_suffix(common_suffix(text, footer_));
    return std::string(text);
  }

  void derive_thought() {
    const auto shown = answer({{"content", probe_.text},
                               {"reasoning_content", probe_.thought},
                               {"thinking", probe_.thought},
                               {"reasoning", probe_.thought}});
    if (!shown) return;
    const std::size_t r = shown->find(probe_.thought), t = shown->find(probe_.text, r == std::string::npos ? 0 : r);
    if (r == std::string::npos || t == std::string::npos) return;
    const std::string_view all = *shown;
    std::string_view open = all.substr(0, r), close = all.substr(r + probe_.thought.size());
    close = close.substr(0, t - r - probe_.thought.size());
    open.remove_prefix(common_prefix(open, header_));
    // Each is one mark. If there is more text, the form is another.
    if (!is_mark(trimmed(open)) || !is_mark(trimmed(close))) return;
    format_.thought_open = trimmed(open);
    format_.thought_close = trimmed(close);
  }

  void derive_calls() {
    const auto one = answer(one_call());
    if (!one) return;
    const auto shown = split(own(*one), probe_.first, probe_.text_key, probe_.value);
    if (!shown) return;
    const std::size_t brace = shown->before.find('{');
    if (brace != std::string::npos) return derive_object(*shown, brace);
    if (trimmed(shown->name_to_key).find('{') != std::string_view::npos) return derive_json(*shown);
    derive_tagged(*shown);
  }

  ProbeJson one_call() const {
    return {{"content", ""}, {"tool_calls", {call_of(probe_.first, {{probe_.text_key, probe_.value}}, "a1b2c3d4e")}}};
  }
  // The format reads from the template's own writing the call that the template was given.
  bool reads_its_probe() const {
    const auto one = answer(one_call());
    if (!one || !problem_of(format_).empty()) return false;
    const AnswerMarks marks(format_);
    const AnswerTools tools = {{probe_.first, {{probe_.text_key, ArgumentType::kString}}}};
    const auto parser = AnswerParser::make(marks, {.tools = &tools});
    std::vector<AnswerEvent> events;
    parser->push(own(*one), events);
    parser->finish(events);
    std::string name, arguments;
    for (const AnswerEvent& event : events) {
      if (event.part == AnswerPart::kCallBegin) name += event.text;
      if (event.part == AnswerPart::kArguments) arguments += event.text;
    }
    const ProbeJson given = {{probe_.text_key, probe_.value}};
    return name == probe_.first && ProbeJson::parse(arguments, nullptr, false) == given;
  }

  // {"name": "f", "arguments": ...}
  void derive_object(const Shown& shown, std::size_t brace) {
    std::string_view open = std::string_view(shown.before).substr(0, brace);
    const bool list = trimmed(open).ends_with('[') && trimmed(open).size() > 1 &&
                      trimmed(shown.after).find(']') != std::string_view::npos;
    if (list) open.remove_suffix(open.size() - open.rfind('['));
    const std::size_t end = shown.after.rfind('}');
    if (trimmed(open).empty() || end == std::string::npos) return;
    std::string_view close = trimmed(std::string_view(shown.after).substr(end + 1));
    if (list && close.starts_with(']')) close = trimmed(close.substr(1));
    format_.calls = CallForm::kObject;
    format_.call.section_open = trimmed(open);
    format_.call.section_close = close;
    const auto key_before = [](std::string_view text) {
      const std::size_t colon = text.rfind(':');
      const std::size_t to = colon == std::string_view::npos ? colon : text.rfind('"', colon);
      const std::size_t from =
          to == std::string_view::npos || to == 0 ? std::string_view::npos : text.rfind('"', to - 1);
      return from == std::string_view::npos ? std::string() : std::string(text.substr(from + 1, to - from - 1));
    };
    const std::string name_key = key_before(shown.before);
    const std::string arguments_key =
        key_before(std::string_view(shown.name_to_key).substr(0, shown.name_to_key.rfind('{')));
    if (name_key.empty()) {
      format_.keys.key_is_name = true;
      return;
    }
    format_.keys.name = {name_key};
    if (!arguments_key.empty()) format_.keys.arguments = {arguments_key};
  }

  // Splits what precedes a call into the section's mark and the call's own: the second call repeats only its own.
  void derive_opening(const std::string& before) {
    format_.call.open = trimmed(before);
    const auto two = answer({{"content", ""},
                             {"tool_calls",
                              {call_of(probe_.first, {{probe_.text_key, probe_.value}}, "a1b2c3d4e"),
                               call_of(probe_.second, {{probe_.text_key, probe_.value}}, "b1b2c3d4e")}}});
    if (!two) return;
    const std::string all = own(*two);
    const std::size_t first = all.find(probe_.value), second = all.find(probe_.second);
    if (first == std::string::npos || second == std::string::npos || second < first) return;
    const std::string_view between =
        std::string_view(all).substr(first + probe_.value.size(), second - first - probe_.value.size());
    const std::size_t same = common_suffix(between, before);
    const std::size_t split_at = to_mark(before, before.size() - same);
    if (split_at < before.size() && split_at > 0) {
      format_.call.section_open = trimmed(std::string_view(before).substr(0, split_at));
      format_.call.open = trimmed(std::string_view(before).substr(split_at));
    }
  }

  void end_calls(std::string_view after) {
    after = trimmed(after);
    if (format_.call.section_open.empty()) {
      format_.call.close = after;
      return;
    }
    // The last mark ends the section.
    const std::size_t last = after.find_last_of("<[");
    if (last == std::string_view::npos || last == 0) {
      format_.call.section_close = after;
      return;
    }
    format_.call.close = trimmed(after.substr(0, last));
    format_.call.section_close = trimmed(after.substr(last));
  }

  // The name between marks, then the arguments as JSON.
  void derive_json(const Shown& shown) {
    const std::size_t brace = shown.name_to_key.find('{'), end = shown.after.rfind('}');
    if (end == std::string::npos || shown.key_to_value.find(':') == std::string::npos) return;
    format_.calls = CallForm::kJson;
    format_.call.name_end = trimmed(std::string_view(shown.name_to_key).substr(0, brace));
    derive_opening(shown.before);
    end_calls(std::string_view(shown.after).substr(end + 1));
  }

  // A mark for each argument: a second argument shows where those of the first end.
  void derive_tagged(const Shown& shown) {
    const auto two = answer(
        {{"content", ""},
         {"tool_calls",
          {call_of(probe_.first, {{probe_.text_key, probe_.value}, {probe_.other_key, probe_.value}}, "a1b2c3d4e")}}});
    if (!two) return;
    const std::string all = own(*two);
    const std::size_t first = all.find(probe_.value), second = all.find(probe_.other_key);
    if (first == std::string::npos || second == std::string::npos || second < first) return;
    const std::string between = all.substr(first + probe_.value.size(), second - first - probe_.value.size());
    const std::size_t same = common_suffix(between, shown.name_to_key);
    const std::size_t key = to_mark(between, between.size() - same);
    const std::size_t in_name = shown.name_to_key.size() - (between.size() - key);
    format_.calls = CallForm::kTagged;
    format_.argument.key_open = trimmed(std::string_view(between).substr(key));
    format_.argument.key_end = trimmed(shown.key_to_value);
    format_.argument.value_end = trimmed(std::string_view(between).substr(0, key));
    format_.argument.lines = shown.key_to_value.ends_with('\n') && between.starts_with('\n');
    format_.call.name_end = trimmed(std::string_view(shown.name_to_key).substr(0, in_name));
    derive_opening(shown.before);
    const std::string_view after = trimmed(shown.after);
    const std::string& value_end = format_.argument.value_end;
    if (!after.starts_with(value_end)) {
      format_.calls = CallForm::kNone;
      return;
    }
    end_calls(after.substr(value_end.size()));
  }

  Probe probe_;
  Renderer renderer_;
  AnswerFormat format_;
  std::string header_, footer_;  // around the text of an answer
};

}  // namespace

std::optional<AnswerFormat> derived_format(const ChatTemplate& used, const Tokenizer& tokenizer) {
  return Derivation(used, tokenizer).run();
}

}  // namespace mneme
