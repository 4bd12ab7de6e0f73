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
  "properties": {"a": {"type": "integer"}}}}}, {"type": "function", "function": {"name": "now"}}])");

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

TEST_F(ChatAnswers, RefuseForcedCallsInProse) {
  for (const json& forced : {json("required"), json{{"type", "function"}, {"function", {{"name", "add"}}}}}) {
    const Response r = answered("x", {{"tools", kTools}, {"tool_choice", forced}});
    EXPECT_EQ(r.status, 400);
    EXPECT_THAT(r.error_message(), HasSubstr("tool_choice"));
  }
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

TEST_F(ChatAnswers, ThatAResponseFormatAsksForAreText) {
  const json c = choice("{}", {{"response_format", {{"type", "json_object"}}}, {"enable_thinking", true}});
  EXPECT_EQ(c["message"]["content"], "{}");
  EXPECT_FALSE(c["message"].contains("reasoning_content"));
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

TEST(AnswerFormat, ThatIsNoneIsRefusedAtTheStart) {
  server::ServerOptions options = RunningServer::small();
  options.answer_format = "nonsense";
  EXPECT_THAT([&] { RunningServer server(options); }, testing::ThrowsMessage<Error>(HasSubstr("hermes")));
}

}  // namespace
}  // namespace mneme::server_test
