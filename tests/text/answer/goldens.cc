#include "tests/text/answer/goldens.h"

namespace mneme::answer_test {

const char* const kTools = R"([
  {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {
    "where": {"type": "string"}, "limit": {"type": "integer"}, "exact": {"type": "boolean"},
    "tags": {"type": "array", "items": {"type": "string"}}, "near": {"type": "object"}}}}},
  {"type": "function", "function": {"name": "now"}}])";

namespace {

const std::string kFirst = R"({"where": "Köln \"am\" Rhein", "limit": 3})";

std::vector<Golden> json_goldens() {
  return {
      {"hermes",
       "<think>\nI need it.\n\nTwice.\n</think>\n\nLooking.\n<tool_call>\n{\"name\": \"find\", \"arguments\": " +
           kFirst + "}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
       "I need it.\n\nTwice.",
       "Looking.",
       {{"find", kFirst}, {"now", "{}"}}},
      {"hermes",
       "because.\n</think>\n\nNo call: {\"a\": \"<b>\"} ",
       "because.",
       "No call: {\"a\": \"<b>\"} ",
       {},
       true},
      {"hermes",
       "<tool_call>{\"arguments\": {\"where\": \"}{\"}, \"name\": \"find\"}</tool_call>",
       "",
       "",
       {{"find", R"({"where": "}{"})"}}},
      {"llama3",
       R"({"name": "find", "parameters": {"where": "a"}}; {"name": "now", "parameters": {}})",
       "",
       "",
       {{"find", R"({"where": "a"})"}, {"now", "{}"}}},
      {"llama3",
       R"(<|python_tag|>{"type": "function", "name": "find", "parameters": {"limit": 1.0}})",
       "",
       "",
       {{"find", R"({"limit": 1.0})"}}},
      {"llama3", R"({"name": "Ann", "age": 3})", "", R"({"name": "Ann", "age": 3})", {}},
      {"mistral",
       R"([TOOL_CALLS] [{"name": "find", "arguments": {"where": "x"}, "id": "a1b2c3d4e"}, {"name": "now", "arguments": {}}])",
       "",
       "",
       {{"find", R"({"where": "x"})"}, {"now", "{}"}}},
      {"mistral-v11",
       R"([TOOL_CALLS]find[CALL_ID]a1b2c3d4e[ARGS]{"where": "x"}[TOOL_CALLS]now[ARGS]{})",
       "",
       "",
       {{"find", R"({"where": "x"})"}, {"now", "{}"}}},
      {"mistral-v11",
       R"([THINK]Hm.[/THINK]So: [TOOL_CALLS]find[ARGS]{"tags": ["]", "["]})",
       "Hm.",
       "So:",
       {{"find", R"({"tags": ["]", "["]})"}}},
      {"deepseek-r1",
       "Why\n</think>\n\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>find\n```json\n{\"limit\": "
       "3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n"
       "```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "Why",
       "",
       {{"find", R"({"limit": 3})"}, {"now", "{}"}},
       true},
      {"deepseek-v3.1",
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>find<｜tool▁sep｜>{\"limit\": 3}<｜tool▁call▁end｜>"
       "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
       "",
       "",
       {{"find", R"({"limit": 3})"}, {"now", "{}"}}},
      {"kimi-k2",
       "<think>Go.</think><|tool_calls_section_begin|><|tool_call_begin|>functions.find:0<|tool_call_argument_begin|>"
       "{\"where\": \"q\"}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}"
       "<|tool_call_end|><|tool_calls_section_end|>",
       "Go.",
       "",
       {{"find", R"({"where": "q"})"}, {"now", "{}"}}},
      {"solar",
       "<|tool_call:begin|>id12<|tool_call:name|>find<|tool_call:args|>{\"limit\": 2}<|tool_call:end|>",
       "",
       "",
       {{"find", R"({"limit": 2})"}}},
      {"functionary",
       "<function=find>{\"limit\": 2}</function><function=now>{}</function>",
       "",
       "",
       {{"find", R"({"limit": 2})"}, {"now", "{}"}}},
      {"apertus",
       R"(<|tools_prefix|>[{"find": {"limit": 2}}, {"now": {}}]<|tools_suffix|>)",
       "",
       "",
       {{"find", R"({"limit": 2})"}, {"now", "{}"}}},
      {"nemotron-v2",
       "\n</think>\n<TOOLCALL>[{\"name\": \"find\", \"arguments\": {\"limit\": 2}}]</TOOLCALL>",
       "",
       "",
       {{"find", R"({"limit": 2})"}},
       true},
      {"apriel",
       "I will.\n[BEGIN FINAL RESPONSE]\nDone.\n<tool_calls>[{\"name\": \"now\", \"arguments\": {}}]</tool_calls>",
       "I will.",
       "Done.",
       {{"now", "{}"}},
       true},
      {"cohere",
       "<|START_THINKING|>Plan.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": "
       "\"find\", "
       "\"parameters\": {\"limit\": 2}}\n]<|END_ACTION|>",
       "Plan.",
       "",
       {{"find", R"({"limit": 2})"}}},
      {"cohere", "<|START_RESPONSE|>Hello.<|END_RESPONSE|>", "", "Hello.", {}},
      {"harmony",
       "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
       "<|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>{\"limit\":2}<|call|>",
       "Think.",
       "I look.",
       {{"find", R"({"limit":2})"}}},
      {"harmony",
       "<|channel|>analysis<|message|>T<|end|><|start|>assistant to=functions.now<|channel|>commentary "
       "json<|message|>{}<|call|>",
       "T",
       "",
       {{"now", "{}"}}},
      {"harmony", "<|channel|>final<|message|>a < b<|return|>", "", "a < b", {}},
      {"harmony", "No header.", "", "No header.", {}},
  };
}

std::vector<Golden> tagged_goldens() {
  const std::string kV = R"({"where": "a\n</b>  ", "limit": 3, "exact": true, "tags": ["x"]})";
  return {
      {"qwen-xml",
       "I think\n</think>\n\nText\n\n<tool_call>\n<function=find>\n<parameter=where>\na\n</b>  \n</parameter>\n"
       "<parameter=limit>\n3\n</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=tags>\n[\"x\"]\n"
       "</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
       "I think",
       "Text",
       {{"find", kV}, {"now", "{}"}},
       true},
      // The opening tag is missing, the value holds a closing tag, and the call ends the thought.
      {"qwen-xml",
       "<think>\nfirst\n<function=find>\n<parameter=where>\nsay </parameter> "
       "now\n</parameter>\n</function>\n</tool_call>",
       "first",
       "",
       {{"find", R"({"where": "say </parameter> now"})"}}},
      {"seed-oss",
       "<seed:think>t</seed:think><seed:tool_call>\n<function=find>\n<parameter=where> x </parameter>\n"
       "<parameter=limit>3</parameter>\n</function>\n</seed:tool_call>",
       "t",
       "",
       {{"find", R"({"where": " x ", "limit": 3})"}}},
      {"glm",
       "<think>t</think>\nok\n<tool_call>find\n<arg_key>where</arg_key>\n<arg_value>here</arg_value>\n"
       "<arg_key>limit</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n<tool_call>now</tool_call>",
       "t",
       "ok",
       {{"find", R"({"where": "here", "limit": 3})"}, {"now", "{}"}}},
      {"hy3",
       "<think:opensource>t</"
       "think:opensource><tool_calls:opensource>\n<tool_call:opensource>find<tool_sep:opensource>\n"
       "<arg_key:opensource>where</arg_key:opensource>\n<arg_value:opensource>x</arg_value:opensource>\n"
       "</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n"
       "</tool_calls:opensource>",
       "t",
       "",
       {{"find", R"({"where": "x"})"}, {"now", "{}"}}},
      {"minimax-m2",
       "t\n</think>\n\n<minimax:tool_call>\n<invoke name=\"find\">\n<parameter name=\"where\"> a\n</parameter>\n"
       "<parameter name=\"near\">{\"x\": 1}</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n"
       "</minimax:tool_call>",
       "t",
       "",
       {{"find", R"({"where": " a\n", "near": {"x": 1}})"}, {"now", "{}"}},
       true},
      {"minimax-m3",
       "<mm:think>t</mm:think>]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name=\"find\">\n"
       "]<]minimax[>[<where>a]<]minimax[>[</where>\n]<]minimax[>[<limit>3]<]minimax[>[</limit>\n"
       "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
       "t",
       "",
       {{"find", R"({"where": "a", "limit": 3})"}}},
      {"deepseek-v3.2",
       "Text.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"find\">\n<｜DSML｜parameter name=\"limit\" "
       "string=\"false\">3</｜DSML｜parameter>\n<｜DSML｜parameter name=\"other\" "
       "string=\"true\">5</｜DSML｜parameter>\n"
       "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
       "",
       "Text.",
       {{"find", R"({"limit": 3, "other": "5"})"}, {"now", "{}"}}},
      {"deepseek-v4",
       "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
       "",
       "",
       {{"now", "{}"}}},
      {"kimi-k3",
       "t<|close|>think<|sep|><|open|>response<|sep|>Hi<|close|>response<|sep|><|open|>tools<|sep|><|open|>call "
       "tool=\"find\" index=\"1\"<|sep|><|open|>argument key=\"where\" type=\"string\"<|sep|>a \"b\""
       "<|close|>argument<|sep|><|open|>argument key=\"limit\" type=\"number\"<|sep|>3<|close|>argument<|sep|>"
       "<|close|>call<|sep|><|open|>call tool=\"now\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
       "t",
       "Hi",
       {{"find", R"({"where": "a \"b\"", "limit": 3})"}, {"now", "{}"}},
       true},
      {"minicpm5",
       "<function name=\"find\"><param name=\"where\">a</param><param name=\"limit\">3</param></function>",
       "",
       "",
       {{"find", R"({"where": "a", "limit": 3})"}}},
  };
}

std::vector<Golden> literal_goldens() {
  return {
      {"gemma4",
       "<|channel>thought\nHm.\n<channel|>Well.<|tool_call>call:find{exact:true,limit:-3,near:{city:<|\"|>a,}b<|\"|>,"
       "at:[1,"
       "<|\"|>x<|\"|>]},where:<|\"|>Say \"hi\"\n<|\"|>}<tool_call|><|tool_call>call:now{}<tool_call|>",
       "Hm.",
       "Well.",
       {{"find", R"({"exact": true, "limit": -3, "near": {"city": "a,}b", "at": [1, "x"]}, "where": "Say \"hi\"\n"})"},
        {"now", "{}"}}},
      {"lfm2",
       R"(<|tool_call_start|>[find(where="it's \"a\" \x41é", limit=7, exact=True, tags=['x', "y"], near={'a': None, 'b': (1, 2.5)}), now()]<|tool_call_end|>Done.)",
       "",
       "Done.",
       {{"find",
         R"({"where": "it's \"a\" \u0041é", "limit": 7, "exact": true, "tags": ["x", "y"], "near": {"a": null, "b": [1, 2.5]}})"},
        {"now", "{}"}}},
      {"pythonic",
       R"([find(where='a', limit=1), now()])",
       "",
       "",
       {{"find", R"({"where": "a", "limit": 1})"}, {"now", "{}"}}},
      {"pythonic", "[1, 2] and [find it]", "", "[1, 2] and [find it]", {}},
      {"think", "<think>a</think>b", "a", "b", {}},
  };
}

// Habits of models, and what is no call.
std::vector<Golden> odd_goldens() {
  return {
      {"hermes",
       "Use <tool_call> tags, <tool_calls> or <tool_call",
       "",
       "Use <tool_call> tags, <tool_calls> or <tool_call",
       {}},
      {"hermes", "<tool_call>\nnot json</tool_call>", "", "<tool_call>\nnot json</tool_call>", {}},
      {"hermes", "<tool_call></tool_call>", "", "<tool_call></tool_call>", {}},
      {"hermes",
       "<tool_call>{\"name\": \"find\", \"arguments\": {\"where\": \"x",
       "",
       "",
       {{"find", R"({"where": "x)"}}},
      {"hermes",
       "<tool_call>{\"name\": \"find\", \"arguments\": {\"limit\": 3}</tool_call>ok",
       "",
       "ok",
       {{"find", R"({"limit": 3})"}}},
      {"hermes", "<tool_call>{\"name\": \"now\"}</tool_call>", "", "", {{"now", "{}"}}},
      {"hermes",
       "<tool_call>{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
       "",
       "",
       {{"now", R"({"a": 1})"}}},
      {"hermes", "<think>the <tool_call> tag</think>x", "the <tool_call> tag", "x", {}},
      {"hermes", "<think>\n\n</think>\n\nx", "", "x", {}},
      {"hermes", "<think>twice</think>\n</think>x", "twice", "x", {}},
      {"hermes", "<think>\nagain</think>x", "again", "x", {}, true},
      {"hermes", "never closed\n", "never closed\n", "", {}, true},
      {"hermes", "  plain text \n", "", "  plain text \n", {}},
      {"hermes", "a <think> b </think> c", "", "a <think> b </think> c", {}},
      {"qwen-xml",
       "<tool_call>\n<function=find>\n<parameter=where>\ncut sho",
       "",
       "",
       {{"find", R"({"where": "cut sho)"}}},
      {"qwen-xml",
       "<tool_call>\n<function=find>\n<parameter=limit>\nmany\n</parameter>\n<parameter=limit>\n3\n</parameter>\n"
       "<parameter=free>\n{\"a\": 1}\n</parameter>\n</tool_call>",
       "",
       "",
       {{"find", R"({"limit": "many", "free": {"a": 1}})"}}},
      {"glm", "The <tool_call> tag", "", "The <tool_call> tag", {}},
      {"mistral-v11", "[TOOL_CALLS] and more", "", "[TOOL_CALLS] and more", {}},
      {"kimi-k2",
       "a <|tool_calls_section_begin|><|tool_calls_section_end|>",
       "",
       "a <|tool_calls_section_begin|><|tool_calls_section_end|>",
       {}},
  };
}

}  // namespace

const std::vector<Golden>& goldens() {
  static const std::vector<Golden> kAll = [] {
    std::vector<Golden> all = json_goldens();
    for (const auto& more : {tagged_goldens(), literal_goldens(), odd_goldens()})
      all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  return kAll;
}

}  // namespace mneme::answer_test
