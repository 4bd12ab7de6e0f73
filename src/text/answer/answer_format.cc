#include "src/text/answer/answer_format.h"

#include <array>
#include <utility>

#include "src/base/error.h"

namespace mneme {
namespace {

using FormatJson = nlohmann::ordered_json;

constexpr std::array<std::pair<CallForm, std::string_view>, 7> kForms = {{{CallForm::kNone, "none"},
                                                                          {CallForm::kObject, "object"},
                                                                          {CallForm::kJson, "json"},
                                                                          {CallForm::kTagged, "tagged"},
                                                                          {CallForm::kNotation, "notation"},
                                                                          {CallForm::kPython, "python"},
                                                                          {CallForm::kHarmony, "harmony"}}};

// One list of members for reading and writing. `visit` is called with the name and a reference.
template <typename Format, typename Visit>
void for_each_member(Format& f, const Visit& visit) {
  visit("name", f.name);
  visit("thought_open", f.thought_open);
  visit("thought_close", f.thought_close);
  visit("call_ends_thought", f.call_ends_thought);
  visit("framing", f.framing);
  visit("calls", f.calls);
  visit("section_open", f.call.section_open);
  visit("section_close", f.call.section_close);
  visit("call_open", f.call.open);
  visit("id_end", f.call.id_end);
  visit("id_open", f.call.id_open);
  visit("name_end", f.call.name_end);
  visit("name_tail", f.call.name_tail);
  visit("call_close", f.call.close);
  visit("key_open", f.argument.key_open);
  visit("key_end", f.argument.key_end);
  visit("value_open", f.argument.value_open);
  visit("value_end", f.argument.value_end);
  visit("value_lines", f.argument.lines);
  visit("value_attribute", f.argument.attribute);
  visit("name_keys", f.keys.name);
  visit("argument_keys", f.keys.arguments);
  visit("id_keys", f.keys.id);
  visit("key_is_name", f.keys.key_is_name);
  visit("quote", f.quote);
  visit("bare_calls", f.bare_calls);
  visit("id_holds_name", f.id_holds_name);
  visit("short_ids", f.short_ids);
}

void write_member(FormatJson& out, const char* name, CallForm value) {
  for (const auto& [form, word] : kForms)
    if (form == value) out[name] = word;
}
template <typename T>
void write_member(FormatJson& out, const char* name, const T& value) {
  out[name] = value;
}

[[noreturn]] void wrong_member(const char* name, std::string_view expected) {
  fail(ErrorKind::kFormat, "answer format: {}: expected {}", name, expected);
}

void read_member(const FormatJson& json, const char* name, CallForm& value) {
  for (const auto& [form, word] : kForms) {
    if (json != word) continue;
    value = form;
    return;
  }
  wrong_member(name, "none, object, json, tagged, notation, python or harmony");
}
void read_member(const FormatJson& json, const char* name, bool& value) {
  if (!json.is_boolean()) wrong_member(name, "true or false");
  value = json.get<bool>();
}
void read_member(const FormatJson& json, const char* name, std::string& value) {
  constexpr std::size_t kLongestMark = 256;
  if (!json.is_string() || json.get_ref<const std::string&>().size() > kLongestMark)
    wrong_member(name, "a text of at most 256 bytes");
  value = json.get<std::string>();
}
void read_member(const FormatJson& json, const char* name, std::vector<std::string>& value) {
  if (!json.is_array() || json.size() > 16) wrong_member(name, "an array of at most 16 texts");
  value.clear();
  for (const FormatJson& text : json) read_member(text, name, value.emplace_back());
}

}  // namespace

FormatJson json_of(const AnswerFormat& format) {
  static const AnswerFormat kEmpty;
  FormatJson all = FormatJson::object(), none = FormatJson::object(), out = FormatJson::object();
  for_each_member(format, [&](const char* name, const auto& value) { write_member(all, name, value); });
  for_each_member(kEmpty, [&](const char* name, const auto& value) { write_member(none, name, value); });
  for (const auto& [name, value] : all.items())
    if (value != none[name]) out[name] = value;
  return out;
}

AnswerFormat answer_format_of(const FormatJson& json) {
  if (!json.is_object()) fail(ErrorKind::kFormat, "answer format: expected a JSON object, found {}", json.type_name());
  AnswerFormat format;
  std::size_t read = 0;
  for_each_member(format, [&](const char* name, auto& value) {
    if (!json.contains(name)) return;
    read_member(json[name], name, value);
    ++read;
  });
  for (const auto& [name, value] : json.items()) {
    bool known = false;
    for_each_member(format, [&, &key = name](const char* member, const auto&) { known = known || key == member; });
    if (!known) fail(ErrorKind::kFormat, "answer format: unknown member \"{}\"", name.substr(0, 60));
  }
  if (format.name.empty()) format.name = "custom";
  if (const std::string problem = problem_of(format); !problem.empty())
    fail(ErrorKind::kFormat, "answer format: {}", problem);
  return format;
}

std::string problem_of(const AnswerFormat& f) {
  const auto is_blank = [](std::string_view mark) {
    return mark.find_first_not_of(" \t\r\n") == std::string_view::npos;
  };
  if (!f.thought_open.empty() && is_blank(f.thought_close)) return "thought_open without a thought_close";
  for (const std::string& mark : f.framing)
    if (is_blank(mark)) return "a mark of framing is empty";
  if (f.calls == CallForm::kNone || f.calls == CallForm::kHarmony) return {};
  const bool opens = !is_blank(f.call.section_open) || !is_blank(f.call.open);
  const bool may_be_bare = f.bare_calls && (f.calls == CallForm::kObject || f.calls == CallForm::kPython);
  if (!opens && !may_be_bare) return "calls need a section_open or a call_open";
  if (f.calls == CallForm::kJson && is_blank(f.call.name_end)) return "calls of the form json need a name_end";
  const ArgumentMarks& a = f.argument;
  if (f.calls == CallForm::kTagged && (is_blank(a.key_open) || is_blank(a.key_end) || is_blank(a.value_end)))
    return "calls of the form tagged need key_open, key_end and value_end";
  if (f.calls == CallForm::kNotation && is_blank(f.quote)) return "calls of the form notation need a quote";
  if (f.calls == CallForm::kNotation && is_blank(f.call.open)) return "calls of the form notation need a call_open";
  return {};
}

}  // namespace mneme
