// What a model's answers look like: how a thought, a call of a tool and its arguments are marked.
//
// A format is data. White space in a mark is optional on reading; a mark may contain special tokens.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace mneme {

// How a call is written.
enum class CallForm : std::uint8_t {
  kNone,      // no calls: the format has thoughts alone, or nothing
  kObject,    // a JSON object that holds the name: {"name": "f", "arguments": {"k": 1}}
  kJson,      // the name between marks, then the arguments as JSON
  kTagged,    // the name between marks, then a mark for each argument
  kNotation,  // the name between marks, then {key:value} with bare keys (Gemma 4)
  kPython,    // f(key="value", other=1)
  kHarmony,   // messages with a channel and a recipient (gpt-oss)
};

struct CallMarks {
  std::string section_open, section_close;  // around one call or several
  std::string open, close;                  // around a call
  std::string id_open;                      // between the name and the model's id of the call
  std::string id_end;                       // behind the id, where it precedes the name
  std::string name_end;                     // empty: the name ends where the first argument or the call's end begins
  std::string name_tail;                    // what is between name_end and this is skipped; empty: nothing
};

// CallForm::kTagged. Where value_open is set, attributes may stand before it: string="true", type="string".
struct ArgumentMarks {
  std::string key_open, key_end, value_open, value_end;  // "{key}" in value_end is the key
  bool lines = false;                                    // a newline on each side of a value is not part of it
  std::string attribute;  // what tells a value's type: "string" ("true" or "false"), "type"; empty: the schema alone
};

// CallForm::kObject: the members that hold the parts of a call.
struct CallKeys {
  std::vector<std::string> name{"name"}, arguments{"arguments", "parameters"}, id{"id"};
  bool key_is_name = false;  // {"f": {"k": 1}}
};

struct AnswerFormat {
  std::string name;                         // "plain": the answer is its text
  std::string thought_open, thought_close;  // empty: no thoughts
  std::vector<std::string> framing;         // marks around the answer's text that are not part of it
  CallForm calls = CallForm::kNone;
  CallMarks call;
  ArgumentMarks argument;
  CallKeys keys;
  std::string quote;               // kNotation: on both sides of a string
  bool call_ends_thought = false;  // a call that opens in a thought ends it
  bool bare_calls = false;         // an answer may begin with a call without marks
  bool id_holds_name = false;      // "functions.f:0" is the id of a call of f
  bool short_ids = false;          // the template takes ids of nine letters and digits alone

  bool reads_calls() const { return calls != CallForm::kNone; }
  bool is_plain() const { return calls == CallForm::kNone && thought_close.empty() && framing.empty(); }
};

// All that differs from an empty format, as --answer-format reads it and `mneme inspect` shows it.
nlohmann::ordered_json json_of(const AnswerFormat& format);

// Errors  kFormat: not an object of these members, an unknown one, marks that a form of calls needs are missing.
AnswerFormat answer_format_of(const nlohmann::ordered_json& json);

// Why the format cannot be read by; empty: it can.
std::string problem_of(const AnswerFormat& format);

// The format of this name in the table of known ones; null: none.
const AnswerFormat* known_answer_format(std::string_view name);
std::vector<std::string> known_answer_formats();
// The known format whose marks a chat template writes, without thoughts where the template never closes one.
std::optional<AnswerFormat> known_format_of(std::string_view template_source);

}  // namespace mneme
