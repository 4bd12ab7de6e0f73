// Formats of known families, and the marks in a chat template that tell them apart.
#include <algorithm>
#include <span>

#include "src/text/answer/answer_format.h"

namespace mneme {
namespace {

// The template's source has every text of `marks`, and none of `without`.
struct KnownFormat {
  std::vector<std::string_view> marks, without;
  AnswerFormat format;
};

constexpr const char* kThinkOpen = "<think>";
constexpr const char* kThinkClose = "</think>";

AnswerFormat thinking(std::string name, CallForm calls, CallMarks call, ArgumentMarks argument = {}) {
  AnswerFormat f;
  f.name = std::move(name);
  f.thought_open = kThinkOpen;
  f.thought_close = kThinkClose;
  f.calls = calls;
  f.call = std::move(call);
  f.argument = std::move(argument);
  return f;
}

AnswerFormat without_thought(AnswerFormat f) {
  f.thought_open = f.thought_close = {};
  return f;
}
AnswerFormat with_thought(AnswerFormat f, std::string open, std::string close) {
  f.thought_open = std::move(open);
  f.thought_close = std::move(close);
  return f;
}
AnswerFormat call_ends_thought(AnswerFormat f) {
  f.call_ends_thought = true;
  return f;
}

AnswerFormat gemma4() {
  AnswerFormat f = thinking("gemma4", CallForm::kNotation, {.open = "<|tool_call>call:", .close = "<tool_call|>"});
  f.quote = "<|\"|>";
  return with_thought(std::move(f), "<|channel>thought", "<channel|>");
}

AnswerFormat kimi_k2() {
  AnswerFormat f = thinking("kimi-k2", CallForm::kJson,
                            {.section_open = "<|tool_calls_section_begin|>",
                             .section_close = "<|tool_calls_section_end|>",
                             .open = "<|tool_call_begin|>",
                             .close = "<|tool_call_end|>",
                             .name_end = "<|tool_call_argument_begin|>"});
  f.id_holds_name = true;
  return call_ends_thought(std::move(f));
}

AnswerFormat kimi_k3() {
  AnswerFormat f = thinking("kimi-k3", CallForm::kTagged,
                            {.section_open = "<|open|>tools<|sep|>",
                             .section_close = "<|close|>tools<|sep|>",
                             .open = "<|open|>call tool=\"",
                             .close = "<|close|>call<|sep|>",
                             .name_end = "\"",
                             .name_tail = "<|sep|>"},
                            {.key_open = "<|open|>argument key=\"",
                             .key_end = "\"",
                             .value_open = "<|sep|>",
                             .value_end = "<|close|>argument<|sep|>",
                             .attribute = "type"});
  f.framing = {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"};
  return with_thought(call_ends_thought(std::move(f)), "<|open|>think<|sep|>", "<|close|>think<|sep|>");
}

AnswerFormat llama3() {
  AnswerFormat f = thinking("llama3", CallForm::kObject, {.section_open = "<|python_tag|>"});
  f.bare_calls = true;
  return without_thought(std::move(f));
}

AnswerFormat cohere() {
  AnswerFormat f =
      thinking("cohere", CallForm::kObject, {.section_open = "<|START_ACTION|>", .section_close = "<|END_ACTION|>"});
  f.keys = {.name = {"tool_name"}, .arguments = {"parameters"}, .id = {"tool_call_id"}};
  f.framing = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"};
  return with_thought(std::move(f), "<|START_THINKING|>", "<|END_THINKING|>");
}

AnswerFormat apertus() {
  AnswerFormat f =
      thinking("apertus", CallForm::kObject, {.section_open = "<|tools_prefix|>", .section_close = "<|tools_suffix|>"});
  f.keys.key_is_name = true;
  return with_thought(std::move(f), "<|inner_prefix|>", "<|inner_suffix|>");
}

AnswerFormat pythonic() {
  AnswerFormat f = thinking("pythonic", CallForm::kPython, {});
  f.bare_calls = true;
  return without_thought(std::move(f));
}

AnswerFormat solar_text(AnswerFormat f) {
  f.framing = {"<|content|>", "<|tool_calls|>"};
  return f;
}

AnswerFormat mistral() {
  AnswerFormat f = thinking("mistral", CallForm::kObject, {.section_open = "[TOOL_CALLS]"});
  f.short_ids = true;
  return without_thought(std::move(f));
}

AnswerFormat mistral_v11() {
  AnswerFormat f =
      thinking("mistral-v11", CallForm::kJson, {.open = "[TOOL_CALLS]", .id_open = "[CALL_ID]", .name_end = "[ARGS]"});
  f.short_ids = true;
  return with_thought(std::move(f), "[THINK]", "[/THINK]");
}

AnswerFormat harmony() {
  AnswerFormat f;
  f.name = "harmony";
  f.calls = CallForm::kHarmony;
  return f;
}

AnswerFormat deepseek_dsml(std::string name, const std::string& section) {
  return thinking(std::move(name), CallForm::kTagged,
                  {.section_open = "<｜DSML｜" + section + ">",
                   .section_close = "</｜DSML｜" + section + ">",
                   .open = "<｜DSML｜invoke name=\"",
                   .close = "</｜DSML｜invoke>",
                   .name_end = "\">"},
                  {.key_open = "<｜DSML｜parameter name=\"",
                   .key_end = "\"",
                   .value_open = ">",
                   .value_end = "</｜DSML｜parameter>",
                   .attribute = "string"});
}

const ArgumentMarks kArgTags = {
    .key_open = "<arg_key>", .key_end = "</arg_key>", .value_open = "<arg_value>", .value_end = "</arg_value>"};
const ArgumentMarks kParameterTags = {
    .key_open = "<parameter=", .key_end = ">", .value_open = {}, .value_end = "</parameter>"};
const ArgumentMarks kParameterLines = {
    .key_open = "<parameter=", .key_end = ">", .value_open = {}, .value_end = "</parameter>", .lines = true};

AnswerFormat seed_oss() {
  const CallMarks call{.section_open = "<seed:tool_call>",
                       .section_close = "</seed:tool_call>",
                       .open = "<function=",
                       .close = "</function>",
                       .name_end = ">"};
  return with_thought(thinking("seed-oss", CallForm::kTagged, call, kParameterTags), "<seed:think>", "</seed:think>");
}

AnswerFormat qwen_xml() {
  const CallMarks call{.section_open = "<tool_call>",
                       .section_close = "</tool_call>",
                       .open = "<function=",
                       .close = "</function>",
                       .name_end = ">"};
  return call_ends_thought(thinking("qwen-xml", CallForm::kTagged, call, kParameterLines));
}

AnswerFormat minimax_m2() {
  const CallMarks call{.section_open = "<minimax:tool_call>",
                       .section_close = "</minimax:tool_call>",
                       .open = "<invoke name=\"",
                       .close = "</invoke>",
                       .name_end = "\">"};
  const ArgumentMarks argument{
      .key_open = "<parameter name=\"", .key_end = "\">", .value_open = {}, .value_end = "</parameter>"};
  return call_ends_thought(thinking("minimax-m2", CallForm::kTagged, call, argument));
}

AnswerFormat minimax_m3() {
  const CallMarks call{.section_open = "]<]minimax[>[<tool_call>",
                       .section_close = "]<]minimax[>[</tool_call>",
                       .open = "]<]minimax[>[<invoke name=\"",
                       .close = "]<]minimax[>[</invoke>",
                       .name_end = "\">"};
  const ArgumentMarks argument{
      .key_open = "]<]minimax[>[<", .key_end = ">", .value_open = {}, .value_end = "]<]minimax[>[</{key}>"};
  return with_thought(call_ends_thought(thinking("minimax-m3", CallForm::kTagged, call, argument)), "<mm:think>",
                      "</mm:think>");
}

AnswerFormat hy3() {
  const std::string t = ":opensource>";
  const CallMarks call{.section_open = "<tool_calls" + t,
                       .section_close = "</tool_calls" + t,
                       .open = "<tool_call" + t,
                       .close = "</tool_call" + t,
                       .name_end = "<tool_sep" + t};
  const ArgumentMarks argument{.key_open = "<arg_key" + t,
                               .key_end = "</arg_key" + t,
                               .value_open = "<arg_value" + t,
                               .value_end = "</arg_value" + t};
  return with_thought(thinking("hy3", CallForm::kTagged, call, argument), "<think" + t, "</think" + t);
}

AnswerFormat minicpm5() {
  const CallMarks call{.open = "<function name=\"", .close = "</function>", .name_end = "\">"};
  const ArgumentMarks argument{
      .key_open = "<param name=\"", .key_end = "\">", .value_open = {}, .value_end = "</param>"};
  return thinking("minicpm5", CallForm::kTagged, call, argument);
}

AnswerFormat glm() {
  return thinking("glm", CallForm::kTagged, {.section_open = "<tool_call>", .section_close = "</tool_call>"}, kArgTags);
}

std::vector<KnownFormat> tagged_formats() {
  return {{{"｜DSML｜", "function_calls"}, {}, deepseek_dsml("deepseek-v3.2", "function_calls")},
          {{"｜DSML｜", "tool_calls"}, {}, deepseek_dsml("deepseek-v4", "tool_calls")},
          {{"<|open|>", "<|sep|>"}, {}, kimi_k3()},
          {{"<seed:tool_call>"}, {}, seed_oss()},
          {{"]<]minimax[>["}, {}, minimax_m3()},
          {{"<minimax:tool_call>"}, {}, minimax_m2()},
          {{"<tool_sep{}>", ":opensource"}, {}, hy3()},
          {{"<arg_key>", "<tool_call>"}, {}, glm()},
          {{"<function=", "<parameter="}, {}, qwen_xml()},
          {{"<function name=\"", "<param name=\""}, {}, minicpm5()}};
}

std::vector<KnownFormat> json_formats() {
  return {
      {{"<|channel|>", "<|message|>"}, {}, harmony()},
      {{"<|tool_call>"}, {}, gemma4()},
      {{"<|tool_calls_section_begin|>"}, {}, kimi_k2()},
      {{"<｜tool▁calls▁begin｜>", "```json"},
       {},
       thinking("deepseek-r1", CallForm::kJson,
                {.section_open = "<｜tool▁calls▁begin｜>",
                 .section_close = "<｜tool▁calls▁end｜>",
                 .open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                 .close = "``` <｜tool▁call▁end｜>",
                 .name_end = "```json"})},
      {{"<｜tool▁calls▁begin｜>"},
       {},
       thinking("deepseek-v3.1", CallForm::kJson,
                {.section_open = "<｜tool▁calls▁begin｜>",
                 .section_close = "<｜tool▁calls▁end｜>",
                 .open = "<｜tool▁call▁begin｜>",
                 .close = "<｜tool▁call▁end｜>",
                 .name_end = "<｜tool▁sep｜>"})},
      {{"[TOOL_CALLS]", "[ARGS]"}, {}, mistral_v11()},
      {{"<|tool_call:begin|>"},
       {},
       solar_text(with_thought(thinking("solar", CallForm::kJson,
                                        {.open = "<|tool_call:begin|>",
                                         .close = "<|tool_call:end|>",
                                         .id_end = "<|tool_call:name|>",
                                         .name_end = "<|tool_call:args|>"}),
                               "<|think|>", "<|end|>"))},
      {{"<function="},
       {"<parameter="},
       without_thought(
           thinking("functionary", CallForm::kJson, {.open = "<function=", .close = "</function>", .name_end = ">"}))},
  };
}

std::vector<KnownFormat> object_formats() {
  return {
      {{"[TOOL_CALLS]"}, {}, mistral()},
      {{"<|tools_prefix|>"}, {}, apertus()},
      {{"<|START_ACTION|>"}, {}, cohere()},
      {{"<TOOLCALL>"},
       {},
       thinking("nemotron-v2", CallForm::kObject, {.section_open = "<TOOLCALL>", .section_close = "</TOOLCALL>"})},
      {{"<tool_calls>", "[BEGIN FINAL RESPONSE]"},
       {},
       with_thought(
           thinking("apriel", CallForm::kObject, {.section_open = "<tool_calls>", .section_close = "</tool_calls>"}),
           "Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]")},
      {{"<|tool_call_start|>"},
       {},
       thinking("lfm2", CallForm::kPython,
                {.section_open = "<|tool_call_start|>", .section_close = "<|tool_call_end|>"})},
      {{"<tool_call>"},
       {},
       thinking("hermes", CallForm::kObject, {.section_open = "<tool_call>", .section_close = "</tool_call>"})},
      {{"<|python_tag|>"}, {}, llama3()},
      {{"Environment: ipython", "\"parameters\""}, {}, llama3()},
      {{"func_name1(params_name1="}, {}, pythonic()},
      {{"</think>"}, {}, thinking("think", CallForm::kNone, {})},
      {{"[/THINK]"}, {}, with_thought(thinking("think-mistral", CallForm::kNone, {}), "[THINK]", "[/THINK]")},
  };
}

// In the order in which they are tried: what has the marks of another comes first.
std::span<const KnownFormat> known_formats() {
  static const std::vector<KnownFormat> kAll = [] {
    std::vector<KnownFormat> all = tagged_formats();
    for (const auto& more : {json_formats(), object_formats()}) all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return kAll;
}

}  // namespace

const AnswerFormat* known_answer_format(std::string_view name) {
  for (const KnownFormat& known : known_formats())
    if (known.format.name == name) return &known.format;
  return nullptr;
}

std::vector<std::string> known_answer_formats() {
  std::vector<std::string> names;
  for (const KnownFormat& known : known_formats()) names.push_back(known.format.name);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::optional<AnswerFormat> known_format_of(std::string_view source) {
  const auto has = [source](std::string_view mark) { return source.find(mark) != std::string_view::npos; };
  for (const KnownFormat& known : known_formats()) {
    if (!std::all_of(known.marks.begin(), known.marks.end(), has)) continue;
    if (std::any_of(known.without.begin(), known.without.end(), has)) continue;
    AnswerFormat format = known.format;
    // Qwen2.5 and Qwen3 call alike, and only one of them thinks.
    if (format.thought_close == kThinkClose && !has(kThinkClose)) format.thought_open = format.thought_close = {};
    return format;
  }
  return std::nullopt;
}

}  // namespace mneme
