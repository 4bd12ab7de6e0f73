// Thoughts and calls in chats: whole and streamed answers, and what of a conversation reaches the template.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/server/http_client.h"
#include "tests/server/running_server.h"
#include "tests/server/scripted_pass.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kTemplate =
    "{% if tools %}<tools>{% for t in tools %}{{ t.function.name }} {% endfor %}</tools>\n{% endif %}"
    "{% for m in messages %}<|user|>{{ m.role }}: "
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if reasoning_effort == 'high' %}hard{% elif reasoning_effort %}{{ raise_exception('no such effort') }}{% endif "
    "%}"
    "{% if add_generation_prompt %}<|assistant|>{% if enable_thinking %}<think>\n{% endif %}{% endif %}";

const json kTools = json::parse(R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
  "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}}, {"type": "function", "function": {"name": "now"}}])");

constexpr const char* kThoughtTextCalls =
    "<think>\nI add.\n</think>\n\nAdding.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": "
    "\"ü}\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";

class ChatAnswers : public testing::Test {
 protected:
  explicit ChatAnswers(server::ServerOptions options = with_template({}))
      : server_(options, [this, options] { return start_scripted(options, script_); }),
        tokenizer_(Tokenizer::make(Checkpoint::open(options.model)->tokenizer())) {}

  static server::ServerOptions with_template(std::string format) {
    server::ServerOptions o = RunningServer::small();
    o.engine.context = 1024;
    o.chat_template = kTemplate;
    o.answer_format = std::move(format);
    return o;
  }
  static json body(const json& more = json::object()) {
    json all = {{"messages", {{{"role", "user"}, {"content", "One and one?"}}}}, {"temperature", 0}};
    all.update(more);
    return all;
  }
  // The model answers with this text, special tokens in it.
  Response answered(const std::string& answer, const json& more = json::object()) {
    script_.tokens = tokenizer_->encode(answer, {.parse_special = true});
    script_.begin.reset();
    return post(server_.port(), "/v1/chat/completions", body(more));
  }
  json choice(const std::string& answer, const json& more = json::object()) {
    const Response r = answered(answer, more);
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json()["choices"][0];
  }
  std::string prompt(const json& more) {
    const Response r = post(server_.port(), "/apply-template", body(more));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json()["prompt"];
  }

  Script script_;
  RunningServer server_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

// The message that the deltas of a choice add up to, as clients do.
struct Streamed {
  json message = json::object();
  std::string reason;
  std::size_t chunks = 0, tokens = 0;
};

void add_delta(const json& delta, json& message) {
  std::size_t kinds = 0;
  for (const char* key : {"content", "reasoning_content", "reasoning"}) {
    if (!delta.contains(key)) continue;
    ASSERT_TRUE(delta[key].is_string());
    if (delta[key] != "") ++kinds;
    message[key] = message.value(key, "") + delta[key].get<std::string>();
  }
  for (const json& part : delta.value("tool_calls", json::array())) {
    ++kinds;
    json& calls = message["tool_calls"];
    const std::size_t index = part["index"];
    if (part.contains("id")) {
      ASSERT_EQ(index, calls.size()) << "begins in order";
      calls.push_back({{"id", part["id"]}, {"type", part["type"]}, {"function", part["function"]}});
    } else {
      ASSERT_EQ(index + 1, calls.size()) << "one call at a time";
      ASSERT_FALSE(part["function"].contains("name"));
      json& text = calls[index]["function"]["arguments"];
      text = text.get<std::string>() + part["function"]["arguments"].get<std::string>();
    }
  }
  ASSERT_LE(kinds, 1u) << delta;
}

Streamed streamed(const Response& r, std::size_t index = 0) {
  Streamed out;
  for (const std::string& event : r.events()) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    for (const json& choice : chunk["choices"]) {
      if (choice["index"] != index) continue;
      if (out.chunks++ == 0) {
        EXPECT_EQ(choice["delta"], (json{{"role", "assistant"}, {"content", ""}}));
      }
      add_delta(choice["delta"], out.message);
      if (!choice["finish_reason"].is_null()) out.reason = choice["finish_reason"];
      if (!choice["logprobs"].is_null()) out.tokens += choice["logprobs"]["content"].size();
    }
  }
  return out;
}

TEST_F(ChatAnswers, HaveThoughtTextAndCalls) {
  const json c = choice(kThoughtTextCalls, {{"tools", kTools}});
  EXPECT_EQ(c["finish_reason"], "tool_calls");
  const json& m = c["message"];
  EXPECT_EQ(m["reasoning_content"], "I add.");
  EXPECT_EQ(m["content"], "Adding.");
  ASSERT_EQ(m["tool_calls"].size(), 2u);
  EXPECT_EQ(m["tool_calls"][0]["type"], "function");
  EXPECT_EQ(m["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(m["tool_calls"][0]["function"]["arguments"], R"({"a": 1, "b": "ü}"})");
  EXPECT_EQ(m["tool_calls"][1]["function"]["arguments"], "{}");
  EXPECT_THAT(m["tool_calls"][0]["id"].get<std::string>(), testing::MatchesRegex("call_[0-9A-Za-z]+"));
  EXPECT_NE(m["tool_calls"][0]["id"], m["tool_calls"][1]["id"]);
  EXPECT_TRUE(
      choice("<tool_call>{\"name\": \"now\"}</tool_call>", {{"tools", kTools}})["message"]["content"].is_null());
}

TEST_F(ChatAnswers, AreStreamedAsTheyAreWhole) {
  for (const std::string answer : {kThoughtTextCalls, "Only text. ", "<think>Only a thought", "<tool_call> in prose",
                                   "<tool_call>{\"name\": \"now\"}"}) {
    SCOPED_TRACE(answer);
    const json whole = choice(answer, {{"tools", kTools}, {"logprobs", true}});
    const Streamed s = streamed(
        answered(answer, {{"tools", kTools}, {"logprobs", true}, {"stream", true}, {"return_token_ids", true}}));
    EXPECT_EQ(s.reason, whole["finish_reason"]);
    for (const char* key : {"content", "reasoning_content"})
      EXPECT_EQ(s.message.value(key, ""), whole["message"].contains(key) && whole["message"][key].is_string()
                                              ? whole["message"][key].get<std::string>()
                                              : "");
    EXPECT_EQ(s.tokens, whole["logprobs"]["content"].size());
    const json none = json::array();
    const json calls = s.message.value("tool_calls", none), all = whole["message"].value("tool_calls", none);
    ASSERT_EQ(calls.size(), all.size());
    for (std::size_t i = 0; i < calls.size(); ++i) EXPECT_EQ(calls[i]["function"], all[i]["function"]);
  }
}

// Tokens of thoughts and calls have no place among those of the content; token_ids has all of them.
TEST_F(ChatAnswers, ScoreTheTokensOfTheirText) {
  const json c = choice("<think>a b c</think>x y", {{"logprobs", true}, {"return_token_ids", true}});
  std::string text;
  for (const json& token : c["logprobs"]["content"]) text += token["token"].get<std::string>();
  EXPECT_THAT(text, HasSubstr("x y"));
  EXPECT_THAT(text, Not(HasSubstr("b")));
  EXPECT_EQ(c["token_ids"].size(), script_.tokens.size());
  const Response stream = answered("<think>a b c</think>x y", {{"stream", true}, {"return_token_ids", true}});
  std::size_t ids = 0;
  for (const std::string& event : stream.events())
    if (event != "[DONE]") ids += json::parse(event)["choices"][0].value("token_ids", json::array()).size();
  EXPECT_EQ(ids, script_.tokens.size());
}

TEST_F(ChatAnswers, LeaveCallsInTheTextWithoutTools) {
  const std::string call = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
  for (const json& more :
       {json::object(), json{{"tools", kTools}, {"tool_choice", "none"}}, json{{"tools", json::array()}}}) {
    const json c = choice("<think>t</think>" + call, more);
    EXPECT_EQ(c["message"]["content"], call);
    EXPECT_EQ(c["message"]["reasoning_content"], "t");
    EXPECT_FALSE(c["message"].contains("tool_calls"));
    EXPECT_EQ(c["finish_reason"], "stop");
  }
  EXPECT_THAT(prompt({{"tools", kTools}}), HasSubstr("add now"));
  EXPECT_THAT(prompt({{"tools", kTools}, {"tool_choice", "none"}}), Not(HasSubstr("add now")));
}

TEST_F(ChatAnswers, CallAToolWhereOneIsRequired) {
  const std::string call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const auto forced = [&](const json& choice, const json& more = json::object()) {
    json body = {{"tools", kTools}, {"tool_choice", choice}, {"max_tokens", 200}};
    body.update(more);
    return body;
  };
  const json named = {{"type", "function"}, {"function", {{"name", "add"}}}};
  const json allowed = {
      {"type", "allowed_tools"},
      {"allowed_tools", {{"mode", "required"}, {"tools", {{{"type", "function"}, {"function", {{"name", "add"}}}}}}}}};
  for (const json& c : {json("required"), named, allowed}) {
    const json answer = choice(call, forced(c));
    EXPECT_EQ(answer["finish_reason"], "tool_calls");
    ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u);
    EXPECT_EQ(answer["message"]["tool_calls"][0]["function"], (json{{"name", "add"}, {"arguments", "{\"a\": 1}"}}));
  }
  // The model would rather write prose: it cannot.
  for (const char* prose : {"I would rather not.", "{}", "<tool_call>\n{\"name\": \"subtract\"}"}) {
    const json answer = choice(prose, forced("required", {{"parallel_tool_calls", false}, {"max_tokens", 400}}));
    if (answer["finish_reason"] == "length") continue;  // a number may go on and on
    ASSERT_EQ(answer["message"]["tool_calls"].size(), 1u) << answer;
    EXPECT_TRUE(answer["message"]["content"].is_null());
    const json& function = answer["message"]["tool_calls"][0]["function"];
    EXPECT_TRUE(function["name"] == "add" || function["name"] == "now");
    EXPECT_TRUE(json::parse(function["arguments"].get<std::string>()).is_object());
  }
}

TEST_F(ChatAnswers, KeepToTheSchemasOfTheirTools) {
  // The template opens a call; its arguments cannot be others than the schema's.
  const json c = choice("Adding. <tool_call>{\"name\": \"add\", \"arguments\": {\"c\": 1}}</tool_call>",
                        {{"tools", kTools}, {"max_tokens", 60}});
  EXPECT_EQ(c["message"]["content"], "Adding.");
  ASSERT_EQ(c["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(c["message"]["tool_calls"][0]["function"]["name"], "add");
  EXPECT_EQ(c["message"]["tool_calls"][0]["function"]["arguments"].get<std::string>().find("\"c\""), std::string::npos);
}

// A call that max_tokens cuts is told as far as it was written.
TEST_F(ChatAnswers, AreCutWithinACall) {
  const std::string call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 123456789";
  const auto length = static_cast<std::int32_t>(tokenizer_->encode(call, {.parse_special = true}).size());
  const json c = choice(call, {{"tools", kTools}, {"tool_choice", "required"}, {"max_tokens", length}});
  EXPECT_EQ(c["finish_reason"], "length");
  ASSERT_EQ(c["message"]["tool_calls"].size(), 1u);
  EXPECT_EQ(c["message"]["tool_calls"][0]["function"]["arguments"], "{\"a\": 123456789");
}

TEST_F(ChatAnswers, AreOneOfSomeTexts) {
  const auto answer = [&](const json& outputs, const std::string& wanted) {
    return choice(wanted,
                  {{"structured_outputs", outputs}, {"max_tokens", 40}, {"thinking_budget", 0}})["message"]["content"]
        .get<std::string>();
  };
  const json choice_of = {{"choice", {"yes", "no", "not now"}}};
  EXPECT_EQ(answer(choice_of, "not now"), "not now");
  EXPECT_THAT(answer(choice_of, "maybe"), testing::AnyOf("yes", "no", "not now"));
  EXPECT_EQ(answer({{"regex", "[A-Z]{2}-\\d{1,3}"}}, "QX-12"), "QX-12");
  EXPECT_THAT(answer({{"regex", "[A-Z]{2}-\\d{1,3}"}}, "lower"), testing::MatchesRegex("[A-Z][A-Z]-[0-9]+"));
  EXPECT_EQ(answer({{"json", {{"type", "boolean"}}}}, "true"), "true");
  EXPECT_EQ(choice("no", {{"guided_choice", {"yes", "no"}}})["message"]["content"], "no");
  EXPECT_EQ(answered("x", {{"structured_outputs", {{"grammar", "root ::= x"}}}}).status, 400);
  EXPECT_EQ(answered("x", {{"structured_outputs", choice_of}, {"response_format", {{"type", "json_object"}}}}).status,
            400);
  EXPECT_EQ(answered("x", {{"guided_regex", "(?=a)b"}}).status, 400);
}

TEST_F(ChatAnswers, RefuseChoicesThatCannotBeMet) {
  const auto refused = [&](json more) {
    const Response r = answered("x", more);
    EXPECT_EQ(r.status, 400) << more;
    return r.error_message();
  };
  EXPECT_THAT(refused({{"tool_choice", "required"}}), HasSubstr("no tools"));
  EXPECT_THAT(refused({{"tools", kTools}, {"tool_choice", "always"}}), HasSubstr("tool_choice"));
  EXPECT_THAT(refused({{"tools", kTools}, {"tool_choice", {{"type", "function"}, {"function", {{"name", "sub"}}}}}}),
              HasSubstr("no tool is named \"sub\""));
  json tools = kTools;
  tools[0]["function"]["strict"] = true;
  tools[0]["function"]["parameters"]["properties"]["a"]["multipleOf"] = 3;
  EXPECT_THAT(refused({{"tools", tools}}), HasSubstr("multipleOf"));
  tools[0]["function"]["strict"] = false;
  EXPECT_EQ(answered("x", {{"tools", tools}}).status, 200) << "arguments of a tool that is not strict are free then";
  tools[0]["function"]["name"] = "x\"},\"y";
  EXPECT_THAT(refused({{"tools", tools}}), HasSubstr("name"));
}

// A stop string ends the text of an answer, not its thought nor the arguments of a call.
TEST_F(ChatAnswers, EndAtStopStringsOfTheirText) {
  const std::string call = "<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 77}}\n</tool_call>";
  const std::string answer = "<think>\na 77 b\n</think>\n\nfour, 77 and more";
  for (const bool stream : {false, true}) {
    const auto read = [&](const std::string& text, const json& more) {
      json body = {{"tools", kTools}, {"stop", {"77", "\n"}}, {"stream", stream}};
      body.update(more);
      if (!stream) {
        const json c = choice(text, body);
        return std::pair(c["message"], c["finish_reason"].get<std::string>());
      }
      const Streamed s = streamed(answered(text, body));
      return std::pair(s.message, s.reason);
    };
    const auto [cut, reason] = read(answer, json::object());
    EXPECT_EQ(cut["content"], "four, ");
    EXPECT_EQ(cut["reasoning_content"], "a 77 b");
    EXPECT_EQ(reason, "stop");
    EXPECT_EQ(read(answer, {{"include_stop_str_in_output", true}}).first["content"], "four, 77");
    const auto [called, calls] = read("Adding. " + call, json::object());
    EXPECT_EQ(called["content"], "Adding.");
    ASSERT_EQ(called["tool_calls"].size(), 1u);
    EXPECT_EQ(called["tool_calls"][0]["function"]["arguments"], "{\"a\": 77}");
    EXPECT_EQ(calls, "tool_calls");
  }
  const json none = choice("<think>a 77 b</think>c", {{"stop", "7 "}});
  EXPECT_EQ(none["message"]["reasoning_content"], "a 77 b") << "no tools";
}

TEST_F(ChatAnswers, EndThoughtsAtTheirBudget) {
  const std::string long_thought = "one two three four five six seven eight nine ten eleven twelve";
  for (const char* field :
       {"thinking_token_budget", "thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens"}) {
    const json c = choice(long_thought, {{"enable_thinking", true}, {field, 3}, {"return_token_ids", true}});
    const std::string thought = c["message"]["reasoning_content"];
    EXPECT_THAT(long_thought, testing::StartsWith(thought)) << field;
    EXPECT_EQ(tokenizer_->encode(thought, {.parse_special = false, .continues = true}).size(), 3u) << field;
    EXPECT_NE(c["message"]["content"], "") << "the answer goes on";
  }
  const json none = choice(long_thought, {{"enable_thinking", true}, {"thinking_token_budget", 0}});
  EXPECT_FALSE(none["message"].contains("reasoning_content"));
  const json free = choice(long_thought, {{"enable_thinking", true}, {"thinking_token_budget", -1}});
  EXPECT_EQ(free["message"]["reasoning_content"], long_thought);
  // The template opens a thought whatever the effort: chat_template_kwargs win.
  const json off =
      choice(long_thought, {{"reasoning_effort", "none"}, {"chat_template_kwargs", {{"enable_thinking", true}}}});
  EXPECT_FALSE(off["message"].contains("reasoning_content"));
}

TEST_F(ChatAnswers, BeginInTheThoughtThatThePromptOpens) {
  const json c = choice("I wonder.\n</think>\n\nDone.", {{"enable_thinking", true}});
  EXPECT_EQ(c["message"]["reasoning_content"], "I wonder.");
  EXPECT_EQ(c["message"]["content"], "Done.");
  const json cut = choice("I wonder and wonder", {{"enable_thinking", true}, {"max_tokens", 2}});
  EXPECT_TRUE(cut["message"]["content"].is_null());
  EXPECT_NE(cut["message"]["reasoning_content"], "");
  EXPECT_EQ(cut["finish_reason"], "length");
  EXPECT_EQ(choice("No thought.")["message"]["content"], "No thought.");
}

TEST_F(ChatAnswers, TellTheTemplateHowToThink) {
  EXPECT_THAT(prompt({{"enable_thinking", true}}), testing::EndsWith("<think>\n"));
  EXPECT_THAT(prompt({{"enable_thinking", false}}), testing::EndsWith("<|assistant|>"));
  EXPECT_THAT(prompt({{"reasoning_effort", "high"}}), testing::EndsWith("hard<|assistant|><think>\n"));
  EXPECT_THAT(prompt({{"reasoning_effort", "max"}}), HasSubstr("hard")) << "the nearest that the template knows";
  EXPECT_THAT(prompt({{"reasoning_effort", "low"}}), Not(HasSubstr("hard"))) << "which this template refuses";
  EXPECT_THAT(prompt({{"reasoning_effort", "none"}}), testing::EndsWith("<|assistant|>"));
  EXPECT_THAT(prompt({{"reasoning_effort", "high"}, {"chat_template_kwargs", {{"enable_thinking", false}}}}),
              testing::EndsWith("hard<|assistant|>"));
  EXPECT_EQ(answered("x", {{"reasoning_effort", "hardest"}}).status, 400);
  for (const char* field : {"reasoning_content", "reasoning"}) {
    json body = {{"messages",
                  {{{"role", "user"}, {"content", "a"}},
                   {{"role", "assistant"}, {"content", "b"}},
                   {{"role", "user"}, {"content", "c"}}}}};
    body["messages"][1][field] = "because";
    EXPECT_THAT(prompt(body), HasSubstr("<think>because</think>b")) << field;
  }
}

TEST_F(ChatAnswers, AreInTheFormatBehindTheThought) {
  const json format = {{"response_format", {{"type", "json_object"}}}, {"max_tokens", 60}};
  json thinks = format;
  thinks["enable_thinking"] = true;
  const json c = choice("{\"not\": 1\n</think>\n\n{\"a\": 1}", thinks);
  EXPECT_EQ(c["message"]["content"], "{\"a\": 1}");
  EXPECT_EQ(c["message"]["reasoning_content"], "{\"not\": 1");
  EXPECT_EQ(choice("{\"a\": 2}", format)["message"]["content"], "{\"a\": 2}");
  EXPECT_EQ(choice("<think>why</think>{\"a\": 3}", format)["message"]["content"], "{\"a\": 3}");
  json unwilling = format;  // the end of a thought is the least that it may write
  unwilling["thinking_budget"] = 0;
  const json prose = choice("Sure: {\"a\": 4}", unwilling);
  EXPECT_THAT(prose["message"]["content"].get<std::string>(), testing::StartsWith("{"));
  json either = format;
  either["tools"] = kTools;
  const json called = choice("<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", either);
  EXPECT_EQ(called["finish_reason"], "tool_calls");
  EXPECT_EQ(choice("{\"a\": 5}", either)["message"]["content"], "{\"a\": 5}");
}

TEST_F(ChatAnswers, AreReadEachOnItsOwn) {
  const Response r = answered(kThoughtTextCalls, {{"tools", kTools}, {"n", 2}, {"stream", true}});
  std::set<std::string> ids;
  for (const std::size_t index : {0, 1}) {
    const Streamed s = streamed(r, index);
    EXPECT_EQ(s.message["reasoning_content"], "I add.");
    EXPECT_EQ(s.reason, "tool_calls");
    for (const json& call : s.message["tool_calls"]) ids.insert(call["id"].get<std::string>());
  }
  EXPECT_EQ(ids.size(), 4u);
}

TEST_F(ChatAnswers, TellTheirFormat) {
  const json props = get(server_.port(), "/props").json();
  EXPECT_EQ(props["answer_format"], (json{{"name", "hermes"}, {"found", "known"}}));
}

class PlainAnswers : public ChatAnswers {
 protected:
  PlainAnswers() : ChatAnswers(with_template("none")) {}
};

TEST_F(PlainAnswers, CannotBeForcedIntoCalls) {
  const Response r = answered("x", {{"tools", kTools}, {"tool_choice", "required"}});
  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.error_message(), HasSubstr("--answer-format"));
}

TEST_F(PlainAnswers, AreTheirText) {
  const json c = choice(kThoughtTextCalls, {{"tools", kTools}});
  EXPECT_EQ(c["message"], (json{{"role", "assistant"}, {"content", kThoughtTextCalls}, {"refusal", nullptr}}));
  EXPECT_EQ(c["finish_reason"], "stop");
}

// Marks that are special tokens, which are no text of an answer; and the other name of a thought.
class TokenAnswers : public ChatAnswers {
 protected:
  static server::ServerOptions options() {
    server::ServerOptions o = with_template(
        R"({"name": "own", "thought_open": "<|user|>t", "thought_close": "<|bos|>", "calls": "json",
            "call_open": "<|user|>c", "name_end": "<|assistant|>", "call_close": "<|bos|>"})");
    o.thought_field = "reasoning";
    return o;
  }
  TokenAnswers() : ChatAnswers(options()) {}
};

TEST_F(TokenAnswers, AreReadByTheirSpecialTokens) {
  const std::string answer = "<|user|>thinking<|bos|>text<|user|>cadd<|assistant|>{\"a\": 1}<|bos|>";
  for (const bool stream : {false, true}) {
    json m;
    if (stream) {
      m = streamed(answered(answer, {{"tools", kTools}, {"stream", true}})).message;
    } else {
      m = choice(answer, {{"tools", kTools}})["message"];
    }
    EXPECT_EQ(m["reasoning"], "hinking");
    EXPECT_EQ(m["content"], "text");
    ASSERT_EQ(m["tool_calls"].size(), 1u);
    EXPECT_EQ(m["tool_calls"][0]["function"], (json{{"name", "add"}, {"arguments", "{\"a\": 1}"}}));
  }
  EXPECT_EQ(choice("a<|assistant|>b<|user|>x", {{"tools", kTools}})["message"]["content"], "a<|assistant|>b<|user|>x")
      << "what is no call, with the marks of the format";
}

TEST_F(TokenAnswers, EndHalfACharacterAtAMark) {
  TokenId half = 0;
  while (half < tokenizer_->vocab_size() && tokenizer_->token_bytes(half) != "\xC3") ++half;
  ASSERT_LT(half, tokenizer_->vocab_size());
  for (const bool stops : {false, true}) {
    script_.tokens.clear();
    for (const char* part : {"<|user|>thinking", "<|bos|>text", "<|user|>cadd<|assistant|>{\"a\": 1}<|bos|>"}) {
      if (!script_.tokens.empty()) script_.tokens.push_back(half);
      for (const TokenId id : tokenizer_->encode(part, {.parse_special = true, .add_bos = false}))
        script_.tokens.push_back(id);
    }
    script_.begin.reset();
    json asked = {{"tools", kTools}, {"tool_choice", "auto"}};
    if (stops) asked["stop"] = "never";
    const json m = post(server_.port(), "/v1/chat/completions", body(asked)).json()["choices"][0]["message"];
    EXPECT_EQ(m["reasoning"], "hinking\uFFFD");
    EXPECT_EQ(m["content"], "text\uFFFD");
    ASSERT_EQ(m["tool_calls"].size(), 1u);
    EXPECT_EQ(m["tool_calls"][0]["function"]["name"], "add");
  }
}

TEST(AnswerFormat, ThatIsNoneIsRefusedAtTheStart) {
  server::ServerOptions options = RunningServer::small();
  options.answer_format = "nonsense";
  EXPECT_THAT([&] { RunningServer server(options); }, testing::ThrowsMessage<Error>(HasSubstr("hermes")));
}

}  // namespace
}  // namespace mneme::server_test
