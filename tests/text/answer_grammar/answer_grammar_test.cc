// Answers drawn from the masks of every format come back from the parser as calls that are valid.
//
// MNEME_WALKS sets how many answers of each format and rule are drawn; the default is for every change, 2,000 for a
// record.
#include <gtest/gtest.h>

#include <cstdlib>

#include "src/text/grammar/json_schema.h"
#include "tests/text/answer_grammar/answer_walk.h"
#include "tests/text/grammar/json_testing.h"

namespace mneme {
namespace {

using answer_test::marks_of;
using answer_test::rules_of;
using answer_test::shipped_tokenizer;
using answer_test::Walk;
using answer_test::Walker;
using Json = nlohmann::ordered_json;

const Json& tools() {
  static const Json kTools = Json::parse(R"([
    {"type": "function", "function": {"name": "find", "strict": true, "parameters": {"type": "object", "properties": {
      "where": {"type": "string", "minLength": 1, "maxLength": 6}, "limit": {"type": "integer", "minimum": 1, "maximum": 12},
      "exact": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 2},
      "near": {"type": "object", "properties": {"x": {"type": "number"}, "label": {"type": ["string", "null"]}},
        "required": ["x"], "additionalProperties": false},
      "mode": {"enum": ["new", "new day", "it's \"so\""]}}, "required": ["where", "mode"],
      "additionalProperties": false}}},
    {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}},
    {"type": "function", "function": {"name": "note.set", "parameters": {"type": "object", "properties": {
      "value": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "integer"}, {"type": "null"}]},
      "color": {"$ref": "#/$defs/color"}, "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,3}$"},
      "any": {}, "level": {"enum": [1, "1", null, true, "low"]}},
      "required": ["value", "color"], "$defs": {"color": {"enum": ["red", "green", "true"]}}}}},
    {"type": "function", "function": {"name": "find_all", "parameters": {"type": "object",
      "additionalProperties": {"type": "integer"}}}}])");
  return kTools;
}

const AnswerTools& types() {
  static const AnswerTools kTypes = answer_tools_of(tools());
  return kTypes;
}

int walks() {
  const char* const given = std::getenv("MNEME_WALKS");
  return given == nullptr ? 4 : std::atoi(given);
}

std::vector<std::string> calling_formats() {
  std::vector<std::string> names;
  for (const std::string& name : known_answer_formats())
    if (known_answer_format(name)->reads_calls()) names.push_back(name);
  return names;
}

const Json& schema_of(const std::string& name) {
  for (const Json& tool : tools())
    if (tool["function"]["name"] == name) return tool["function"]["parameters"];
  throw std::runtime_error("no tool " + name);
}

void expect_valid(const Walk& walk) {
  for (const auto& [name, arguments] : walk.calls) {
    ASSERT_TRUE(types().contains(name)) << name << " in " << walk.text;
    const auto value = Json::parse(arguments, nullptr, false);
    ASSERT_TRUE(value.is_object()) << arguments << " in " << walk.text;
    const Json& schema = schema_of(name);
    EXPECT_TRUE(test::is_valid(value, schema, schema)) << name << " " << arguments << "\n" << walk.text;
  }
}

// What the two tokenizers and the rules make of a format.
struct Tally {
  int ended = 0, called = 0, several = 0;
};

Tally walk_all(const std::string& name, Calls calls, bool parallel, bool special) {
  Tally tally;
  const AnswerRules rules{.marks = marks_of(name, special),
                          .in_thought = false,
                          .calls = calls,
                          .parallel = parallel,
                          .tools = rules_of(tools()),
                          .document = {}};
  Walker walker(rules, types(), special);
  std::mt19937 random(7);
  for (int n = 0; n < walks(); ++n) {
    const Walk walk = walker.walk(random, 25, 1500, true);
    if (!walk.ended) continue;
    ++tally.ended;
    tally.called += walk.calls.empty() ? 0 : 1;
    tally.several += walk.calls.size() > 1 ? 1 : 0;
    expect_valid(walk);
    if (calls == Calls::kRequired) {
      EXPECT_FALSE(walk.calls.empty()) << walk.text;
      EXPECT_EQ(walk.content, "") << walk.text;
    }
    if (!parallel) {
      EXPECT_LE(walk.calls.size(), 1u) << walk.text;
    }
    if (testing::Test::HasFailure()) break;
  }
  return tally;
}

class AnswerGrammar : public testing::TestWithParam<std::string> {};

TEST_P(AnswerGrammar, GivesValidCallsWhereOneIsRequired) {
  for (const bool special : {false, true}) {
    const Tally tally = walk_all(GetParam(), Calls::kRequired, true, special);
    EXPECT_GE(tally.ended * 4, walks() * 3) << "walks that ended by themselves";
    EXPECT_EQ(tally.called, tally.ended);
  }
}

TEST_P(AnswerGrammar, GivesOneCallWhereTheyAreNotParallel) {
  walk_all(GetParam(), Calls::kRequired, false, true);
  walk_all(GetParam(), Calls::kPossible, false, false);
}

TEST_P(AnswerGrammar, GivesValidCallsInFreeText) {
  for (const bool special : {false, true}) {
    const Tally tally = walk_all(GetParam(), Calls::kPossible, true, special);
    EXPECT_GE(tally.ended * 4, walks() * 3);
    EXPECT_GE(tally.called, walks() >= 100 ? 1 : 0);
  }
}

std::string test_name(const testing::TestParamInfo<std::string>& format) {
  std::string name = format.param;
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Families, AnswerGrammar, testing::ValuesIn(calling_formats()), test_name);

// Free text is sampled without a mask.
TEST_P(AnswerGrammar, AllowsEverythingWhereTextIsFree) {
  for (const bool special : {false, true}) {
    const AnswerRules rules{.marks = marks_of(GetParam(), special),
                            .in_thought = false,
                            .calls = Calls::kPossible,
                            .parallel = true,
                            .tools = rules_of(tools()),
                            .document = {}};
    const Walker walker(rules, types(), special);
    EXPECT_TRUE(walker.begin()->everything());
    const auto word = shipped_tokenizer(special).encode("Well, ", {.parse_special = false, .continues = true});
    auto constraint = walker.begin();
    for (const TokenId id : word) constraint = constraint->after(id);
    EXPECT_TRUE(constraint->everything());
  }
}

// ---- what may and what may not follow

bool allows(const AnswerRules& rules, std::string_view text) {
  const AnswerMatcher matcher(std::make_shared<const AnswerProgram>(answer_program(rules)));
  AnswerMatcher::State state = matcher.begin();
  return matcher.step_all(state, text) && matcher.may_end(state);
}

AnswerRules rules_for(const std::string& format, Calls calls, bool parallel = true) {
  return {.marks = std::make_shared<const AnswerMarks>(*known_answer_format(format)),
          .in_thought = false,
          .calls = calls,
          .parallel = parallel,
          .tools = rules_of(tools()),
          .document = {}};
}

const std::string kFind = R"({"name": "find", "arguments": {"where": "x", "mode": "new"}})";
const std::string kNow = R"({"name": "now", "arguments": {}})";

std::string hermes(const std::string& call) {
  return "<tool_call>\n" + call + "\n</tool_call>";
}

TEST(AnswerRules, AllowOnlyTheToolsThatThereAre) {
  for (const Calls calls : {Calls::kPossible, Calls::kRequired}) {
    const AnswerRules rules = rules_for("hermes", calls);
    EXPECT_TRUE(allows(rules, hermes(kNow)));
    EXPECT_FALSE(allows(rules, hermes(R"({"name": "nowhere", "arguments": {}})")));
    EXPECT_FALSE(allows(rules, hermes(R"({"name": "no", "arguments": {}})")));
    EXPECT_FALSE(allows(rules, hermes(R"({"name": "find", "arguments": {"mode": "new"}})"))) << "where is missing";
    EXPECT_FALSE(allows(rules, hermes(R"({"name": "find", "arguments": {"where": "x", "mode": "old"}})")));
    EXPECT_FALSE(allows(rules, hermes("no call")));
  }
}

TEST(AnswerRules, LeaveTextFreeUntilACallOpens) {
  const AnswerRules rules = rules_for("hermes", Calls::kPossible);
  EXPECT_TRUE(allows(rules, "Any text, {\"name\": 1}, <tool_cal> too."));
  EXPECT_TRUE(allows(rules, "I look. " + hermes(kFind) + "\n" + hermes(kNow) + " Done."));
  EXPECT_TRUE(allows(rules, "<think>I may quote <tool_call> here.</think>" + hermes(kNow)));
  EXPECT_FALSE(allows(rules, "Text <tool_call> in prose"));
}

TEST(AnswerRules, DemandACallAndNothingBefore) {
  const AnswerRules rules = rules_for("hermes", Calls::kRequired);
  EXPECT_TRUE(allows(rules, hermes(kFind)));
  EXPECT_TRUE(allows(rules, hermes(kFind) + "\n" + hermes(kNow)));
  EXPECT_TRUE(allows(rules, "<think>\nwhy\n</think>\n\n" + hermes(kNow)));
  EXPECT_FALSE(allows(rules, "I look. " + hermes(kNow)));
  EXPECT_FALSE(allows(rules, "<think>\nonly a thought\n</think>\n\n"));
  EXPECT_FALSE(allows(rules, "<think>\nno end"));
  EXPECT_FALSE(allows(rules, hermes(kNow) + " Done."));
  EXPECT_FALSE(allows(rules, ""));
}

TEST(AnswerRules, BeginInTheThoughtThatThePromptOpens) {
  AnswerRules rules = rules_for("hermes", Calls::kRequired);
  rules.in_thought = true;
  EXPECT_TRUE(allows(rules, "hm\n</think>\n\n" + hermes(kNow)));
  EXPECT_FALSE(allows(rules, hermes(kNow))) << "all of it is thought";
}

// Qwen3-Coder and others end a thought with a call.
TEST(AnswerRules, LetACallEndAThoughtWhereTheFormatSaysSo) {
  AnswerRules rules = rules_for("qwen-xml", Calls::kPossible);
  rules.in_thought = true;
  const std::string call = "<tool_call>\n<function=now>\n</function>\n</tool_call>";
  EXPECT_TRUE(allows(rules, "hm " + call));
  EXPECT_FALSE(allows(rules, "hm <tool_call> no call"));
}

TEST(AnswerRules, AllowOneCallWhereTheyAreNotParallel) {
  for (const Calls calls : {Calls::kPossible, Calls::kRequired}) {
    EXPECT_TRUE(allows(rules_for("hermes", calls, false), hermes(kNow)));
    EXPECT_FALSE(allows(rules_for("hermes", calls, false), hermes(kNow) + hermes(kNow)));
    EXPECT_TRUE(allows(rules_for("mistral", calls, true), "[TOOL_CALLS] [" + kNow + ", " + kFind + "]"));
    EXPECT_FALSE(allows(rules_for("mistral", calls, false), "[TOOL_CALLS] [" + kNow + ", " + kFind + "]"));
  }
}

// The answers of the parser's goldens that call these tools are allowed as they are written.
TEST(AnswerRules, AllowWhatModelsWrite) {
  const std::vector<std::pair<std::string, std::string>> all = {
      {"qwen-xml",
       "<tool_call>\n<function=find>\n<parameter=where>\na\n</b>\n</parameter>\n<parameter=mode>\nnew "
       "day\n</parameter>\n<parameter=limit>\n3\n</parameter>\n</function>\n</tool_call>"},
      {"glm",
       "<tool_call>find\n<arg_key>where</arg_key>\n<arg_value>here</arg_value>\n<arg_key>mode</arg_key>\n"
       "<arg_value>new</arg_value>\n</tool_call>\n<tool_call>now</tool_call>"},
      {"gemma4",
       "<|tool_call>call:find{mode:<|\"|>new<|\"|>,where:<|\"|>Say "
       "\"<|\"|>}<tool_call|><|tool_call>call:now{}<tool_call|>"},
      {"lfm2", R"(<|tool_call_start|>[find(where="it's", mode="new", exact=True), now()]<|tool_call_end|>Done.)"},
      {"pythonic", R"([find(where="a", mode="new"), now()])"},
      {"llama3", R"({"name": "find", "parameters": {"where": "a", "mode": "new"}}; {"name": "now", "parameters": {}})"},
      {"llama3", R"(<|python_tag|>{"type": "function", "name": "now", "parameters": {}})"},
      {"llama3", R"({"name": "Ann", "age": 3})"},
      {"kimi-k2",
       "<think>Go.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}"
       "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}"
       "<|tool_call_end|><|tool_calls_section_end|>"},
      {"kimi-k3",
       "<|open|>tools<|sep|><|open|>call tool=\"find\" index=\"1\"<|sep|><|open|>argument key=\"where\" "
       "type=\"string\"<|sep|>a \"b\"<|close|>argument<|sep|><|open|>argument key=\"mode\" type=\"string\"<|sep|>new"
       "<|close|>argument<|sep|><|open|>argument key=\"limit\" type=\"number\"<|sep|>3<|close|>argument<|sep|>"
       "<|close|>call<|sep|><|close|>tools<|sep|>"},
      {"deepseek-v3.2",
       "Text.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"find\">\n<｜DSML｜parameter name=\"where\" "
       "string=\"true\">5</｜DSML｜parameter>\n<｜DSML｜parameter name=\"mode\" "
       "string=\"true\">new</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
      {"deepseek-r1",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n"
       "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
      {"mistral-v11", R"([TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}[TOOL_CALLS]now[ARGS]{})"},
      {"cohere",
       "<|START_THINKING|>Plan.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": "
       "\"now\", \"parameters\": {}}\n]<|END_ACTION|>"},
      {"apertus", R"(<|tools_prefix|>[{"now": {}}, {"now": {}}]<|tools_suffix|>)"},
      {"solar", "<|tool_call:begin|>id12<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>"},
      {"harmony",
       "<|channel|>analysis<|message|>Think to=functions.x.<|end|><|start|>assistant<|channel|>commentary<|message|>I "
       "look.<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>"},
      {"harmony",
       "<|channel|>analysis<|message|>T<|end|><|start|>assistant to=functions.now<|channel|>commentary "
       "json<|message|>{}<|call|>"},
      {"harmony", "<|channel|>final<|message|>a < b<|return|>"},
  };
  for (const auto& [format, answer] : all) EXPECT_TRUE(allows(rules_for(format, Calls::kPossible), answer)) << answer;
  EXPECT_FALSE(
      allows(rules_for("harmony", Calls::kPossible), "<|channel|>commentary to=python<|message|>print(1)<|call|>"));
  EXPECT_FALSE(allows(rules_for("llama3", Calls::kPossible), R"({"name": "now", "parameters": {"a": 1}})"));
}

// Trap 11: in a tagged value its closing tag cannot be written; text that spells Gemma's quote is a part of a string
// where the quote is a special token.
TEST(AnswerRules, EndAValueByItsOwnMarkAlone) {
  const AnswerRules tagged = rules_for("minimax-m2", Calls::kRequired);
  const auto call = [](const std::string& where) {
    return "<minimax:tool_call>\n<invoke name=\"find\">\n<parameter name=\"where\">" + where +
           "</parameter>\n<parameter name=\"mode\">new</parameter>\n</invoke>\n</minimax:tool_call>";
  };
  EXPECT_TRUE(allows(tagged, call("</b>")));
  EXPECT_TRUE(allows(tagged, call(" x\n")));
  EXPECT_FALSE(allows(tagged, call("a</parameter>b")));
  const AnswerRules gemma{.marks = marks_of("gemma4", true),
                          .in_thought = false,
                          .calls = Calls::kRequired,
                          .parallel = true,
                          .tools = rules_of(tools()),
                          .document = {}};
  const auto special = [&](std::string_view spelling) { return gemma.marks->mark_of(spelling); };
  const std::string quote = special("<|\"|>");
  ASSERT_NE(quote, "<|\"|>") << "a special token of this vocabulary";
  EXPECT_TRUE(allows(gemma, special("<|tool_call>") + "call:find{where:" + quote + "<|\"|>" + quote + ",mode:" + quote +
                                "new" + quote + "}" + special("<tool_call|>")));
}

// Where nothing tells the type of a text, it must not read as another value.
TEST(AnswerRules, WriteNoTextThatReadsAsAnotherValue) {
  const AnswerRules rules = rules_for("glm", Calls::kRequired);
  const auto call = [](const std::string& value, const std::string& color = "red") {
    return "<tool_call>note.set\n<arg_key>value</arg_key>\n<arg_value>" + value +
           "</arg_value>\n<arg_key>color</arg_key>\n<arg_value>" + color + "</arg_value>\n</tool_call>";
  };
  EXPECT_TRUE(allows(rules, call("text")));
  EXPECT_TRUE(allows(rules, call("5")));
  EXPECT_TRUE(allows(rules, call("null")));
  EXPECT_FALSE(allows(rules, call("5.5"))) << "a number that is no integer";
  EXPECT_FALSE(allows(rules, call("true")));
  EXPECT_FALSE(allows(rules, call("True")));
  EXPECT_TRUE(allows(rules, call("tru")));
  EXPECT_FALSE(allows(rules, call("[]")));
  EXPECT_FALSE(allows(rules, call("\"a\"")));
  EXPECT_FALSE(allows(rules, call("x", "blue")));
  EXPECT_TRUE(allows(rules, call("x", "true"))) << "an enum of strings tells that it is one";
}

// ---- documents behind thoughts

// A reader takes a text without an end for no key.
TEST(AnswerRules, WriteNoBareNameThatReadersDoNotTake) {
  const std::pair<const char*, std::pair<const char*, const char*>> kAround[] = {
      {"gemma4", {"<|tool_call>call:find_all{", ":1}<tool_call|>"}},
      {"lfm2", {"<|tool_call_start|>[find_all(", "=1)]<|tool_call_end|>"}},
      {"qwen-xml", {"<tool_call>\n<function=find_all>\n<parameter=", ">\n1\n</parameter>\n</function>\n</tool_call>"}}};
  for (const auto& [format, around] : kAround) {
    const AnswerRules rules = rules_for(format, Calls::kRequired);
    EXPECT_TRUE(allows(rules, around.first + std::string(64, 'a') + around.second)) << format;
    EXPECT_FALSE(allows(rules, around.first + std::string(65, 'a') + around.second)) << format;
  }
}

// Where a reader ends the message, the demand would be met by what it takes for the next one.
TEST(AnswerRules, KeepTheMarksOfMessagesOutOfThoughtsBeforeADemand) {
  const AnswerRules rules = rules_for("harmony", Calls::kRequired);
  const std::string thought = "<|channel|>analysis<|message|>I look",
                    call = "<|end|><|start|>assistant<|channel|>commentary to=functions.now<|message|>{}<|call|>";
  EXPECT_TRUE(allows(rules, thought + call));
  for (const char* mark : {"<|channel|>commentary to=functions.find", "<|start|>", "<|call|>", "<|return|>"})
    EXPECT_FALSE(allows(rules, thought + mark + call)) << mark;
}

TEST(AnswerDocuments, StandBehindTheThought) {
  AnswerRules rules = rules_for("hermes", Calls::kNone);
  rules.tools.clear();
  rules.document = compile_json_schema(Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer"}}})"));
  EXPECT_TRUE(allows(rules, R"({"a": 1})"));
  EXPECT_TRUE(allows(rules, "<think>{\"b\": 2}</think>\n\n{\"a\": 1}"));
  EXPECT_FALSE(allows(rules, "Sure: {\"a\": 1}"));
  EXPECT_FALSE(allows(rules, "<think>{\"a\": 1}")) << "the thought has not ended";
  rules.in_thought = true;
  EXPECT_TRUE(allows(rules, "{\"b\": 2}</think>{\"a\": 1}"));
  EXPECT_FALSE(allows(rules, "{\"a\": 1}"));
}

TEST(AnswerDocuments, OrCallsWhereThereAreTools) {
  AnswerRules rules = rules_for("hermes", Calls::kPossible);
  rules.document = compile_json_schema(Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer"}}})"));
  EXPECT_TRUE(allows(rules, R"({"a": 1})"));
  EXPECT_TRUE(allows(rules, hermes(kNow)));
  EXPECT_FALSE(allows(rules, "text"));
  rules.calls = Calls::kRequired;
  EXPECT_FALSE(allows(rules, R"({"a": 1})"));
}

TEST(AnswerDocuments, StandInTheFinalMessage) {
  AnswerRules rules = rules_for("harmony", Calls::kNone);
  rules.tools.clear();
  rules.document = any_json_object();
  EXPECT_TRUE(allows(rules, "<|channel|>analysis<|message|>why<|end|><|start|>assistant<|channel|>final<|message|>{}"));
  EXPECT_TRUE(allows(rules, "<|channel|>final <|constrain|>json<|message|>{}"));
  EXPECT_FALSE(allows(rules, "<|channel|>analysis<|message|>{}"));
}

// ---- budgets of thoughts

struct Budgeted {
  std::string text;
  std::size_t thought = 0;  // tokens before the first that is forced
};

// The thought that a model writes that never ends one.
Budgeted endless_thought(const std::string& format, bool special, bool in_thought, std::int32_t budget) {
  AnswerRules rules{.marks = marks_of(format, special),
                    .in_thought = in_thought,
                    .calls = Calls::kNone,
                    .parallel = true,
                    .tools = {},
                    .document = {}};
  const Tokenizer& tokenizer = shipped_tokenizer(special);
  const std::vector<TokenId> close = close_of_thought(rules, tokenizer);
  std::shared_ptr<const TokenConstraint> at = answer_constraint(answer_test::shipped_trie(special), rules.marks,
                                                                answer_program(rules), ThoughtBudget{budget, close});
  Budgeted out;
  const auto take = [&](TokenId id) {
    out.text += tokenizer.token_bytes(id, true);
    at = at->after(id);
  };
  if (!in_thought)
    for (const TokenId id :
         tokenizer.encode(rules.marks->shown().thought_open, {.parse_special = true, .continues = true}))
      take(id);
  std::vector<std::uint64_t> mask((static_cast<std::size_t>(tokenizer.vocab_size()) + 63) / 64);
  const TokenId word = tokenizer.encode(" a", {.parse_special = false, .continues = true}).front();
  for (std::size_t n = 0; n < 40; ++n) {
    at->allowed(mask);
    std::size_t allowed = 0;
    for (const std::uint64_t w : mask) allowed += std::popcount(w);
    if (allowed == 1) break;
    ++out.thought;
    take(word);
  }
  for (const TokenId id : close) {
    at->allowed(mask);
    EXPECT_NE(mask[id / 64] >> (id % 64) & 1, 0u);
    take(id);
  }
  at->allowed(mask);
  EXPECT_NE(mask[word / 64] >> (word % 64) & 1, 0u) << "text follows";
  return out;
}

TEST(ThoughtBudget, EndsAThoughtAfterItsTokens) {
  for (const std::int32_t budget : {0, 1, 7}) {
    for (const bool in_thought : {false, true}) {
      const Budgeted text = endless_thought("hermes", false, in_thought, budget);
      EXPECT_EQ(text.thought, static_cast<std::size_t>(budget));
      EXPECT_TRUE(text.text.ends_with("\n</think>\n\n")) << text.text;
      const Budgeted token = endless_thought("mistral-v11", true, in_thought, budget);
      EXPECT_EQ(token.thought, static_cast<std::size_t>(budget));
      EXPECT_TRUE(token.text.ends_with("[/THINK]")) << token.text;
    }
  }
}

// ---- tools of agents

// As coding agents send them, in shape: a dozen tools, $schema, bounds at 2^53, long texts, lists of objects.
Json agent_tools() {
  const auto tool = [](const char* name, const char* properties, const char* required) {
    return Json::parse(std::string(R"({"type": "function", "function": {"name": ")") + name +
                       R"(", "parameters": {"$schema": "https://json-schema.org/draft/2020-12/schema",
      "type": "object", "properties": )" +
                       properties + R"(, "required": )" + required + R"(, "additionalProperties": false}}})");
  };
  const char* const kText = R"({"x": {"type": "string", "description": "What."}})";
  const char* const kLines = R"({"file_path": {"type": "string"},
    "offset": {"type": "integer", "minimum": 0, "maximum": 9007199254740991},
    "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}, "pages": {"type": "string"}})";
  Json all = Json::array();
  all.push_back(tool("Read", kLines, R"(["file_path"])"));
  all.push_back(tool("Write",
                     R"({"file_path": {"type": "string"}, "content": {"type": "string", "maxLength": 524288}})",
                     R"(["file_path", "content"])"));
  all.push_back(tool("Edit", R"({"file_path": {"type": "string"}, "old_string": {"type": "string"},
    "new_string": {"type": "string"}, "replace_all": {"default": false, "type": "boolean"}})",
                     R"(["file_path", "old_string", "new_string"])"));
  all.push_back(tool("Shell", R"({"command": {"type": "string"}, "timeout": {"type": "number"},
    "run_in_background": {"type": "boolean"}, "sandbox": {"type": "string", "enum": ["none", "network", "full"]}})",
                     R"(["command"])"));
  all.push_back(tool("Ask", R"({"questions": {"minItems": 1, "maxItems": 4, "type": "array", "items": {"type": "object",
    "properties": {"question": {"type": "string"}, "header": {"type": "string", "maxLength": 12}, "options": {"minItems": 2,
      "maxItems": 4, "type": "array", "items": {"type": "object", "properties": {"label": {"type": "string"},
      "description": {"type": "string"}, "preview": {"type": "string"}}, "required": ["label", "description"],
      "additionalProperties": false}}, "multiSelect": {"default": false, "type": "boolean"}},
    "required": ["question", "header", "options"], "additionalProperties": false}},
    "answers": {"type": "object", "additionalProperties": {"type": "string"}}})",
                     R"(["questions"])"));
  all.push_back(tool("Todo", R"({"todos": {"type": "array", "items": {"type": "object", "properties": {
    "content": {"type": "string", "minLength": 1}, "status": {"enum": ["pending", "in_progress", "completed"]}},
    "required": ["content", "status"], "additionalProperties": false}}})",
                     R"(["todos"])"));
  all.push_back(tool("Search", R"({"pattern": {"type": "string"}, "mode": {"enum": ["content", "files", "count"]},
    "-A": {"type": "number"}, "-n": {"type": "boolean"}, "head_limit": {"anyOf": [{"type": "integer"}, {"type": "null"}]}})",
                     R"(["pattern"])"));
  for (const char* name : {"Fetch", "Skill", "Plan", "Wait", "mcp__files__list"})
    all.push_back(tool(name, kText, R"(["x"])"));
  return all;
}

// Time follows these counts: 12 tools compile in well under 50 ms where they are this small.
TEST(AgentTools, CompileToFewSteps) {
  for (const std::string& format : calling_formats()) {
    AnswerRules rules = rules_for(format, Calls::kPossible);
    rules.tools = rules_of(agent_tools());
    std::size_t nodes = 0;
    for (const CallRule& tool : rules.tools) nodes += tool.arguments.nodes.size();
    EXPECT_LT(nodes, 250u);
    const AnswerProgram program = answer_program(rules);
    EXPECT_LT(program.steps.size(), 2000u) << format;
    std::size_t ways = 0;
    for (const AnswerStep& step : program.steps) ways += step.ways.size();
    EXPECT_LT(ways, 2000u) << format;
  }
}

// A maximum length is counted: it makes no states.
TEST(AgentTools, CountLengthsWithoutStates) {
  const auto steps = [](int length) {
    AnswerRules rules = rules_for("qwen-xml", Calls::kPossible);
    rules.tools = rules_of(Json::array(
        {{{"type", "function"},
          {"function",
           {{"name", "f"},
            {"parameters",
             {{"type", "object"}, {"properties", {{"a", {{"type", "string"}, {"maxLength", length}}}}}}}}}}}));
    return answer_program(rules).steps.size();
  };
  EXPECT_EQ(steps(4), steps(524288));
}

}  // namespace
}  // namespace mneme
