// The fields of a completion or chat request: what they do, and what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/sanitized.h"
#include "tests/server/api_fixture.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;

class RequestFields : public ApiFixture {};

TEST_F(RequestFields, EndsAtTokensAndKeepsStopStrings) {
  const json body = {{"prompt", "Once upon a time"},
                     {"max_tokens", 12},
                     {"temperature", 0},
                     {"ignore_eos", true},
                     {"return_token_ids", true}};
  const json whole = complete(body).json()["choices"][0];
  const std::string text = whole["text"], stop = text.substr(9, 3);
  json kept = body;
  kept.update({{"stop", stop}, {"include_stop_str_in_output", true}});
  for (const bool stream : {false, true}) {
    kept["stream"] = stream;
    const Response r = complete(kept);
    std::string answer;
    if (stream) {
      for (const std::string& e : r.events())
        if (e != "[DONE]") answer += json::parse(e)["choices"][0]["text"];
    } else {
      answer = r.json()["choices"][0]["text"];
    }
    EXPECT_EQ(answer, text.substr(0, text.find(stop) + stop.size()));
  }
  json ended = body;
  const json token = whole["token_ids"][5];
  ended["stop_token_ids"] = json::array({token});
  const json a = complete(ended).json()["choices"][0];
  const auto first = std::find(whole["token_ids"].begin(), whole["token_ids"].end(), token);
  EXPECT_EQ(a["token_ids"].size(), static_cast<std::size_t>(first - whole["token_ids"].begin()));
  EXPECT_EQ(a["finish_reason"], "stop");
}

TEST_F(RequestFields, AllowsNamedTokensOnly) {
  json body = {{"prompt", "Once upon a time"},
               {"max_tokens", 20},
               {"seed", 3},
               {"temperature", 5},
               {"ignore_eos", true},
               {"return_token_ids", true},
               {"allowed_token_ids", {300, 301, 4000}}};
  std::set<int> seen;
  const json answer = complete(body).json();
  for (const json& id : answer["choices"][0]["token_ids"]) seen.insert(id.get<int>());
  EXPECT_GT(seen.size(), 1u);
  for (const int id : seen) EXPECT_TRUE(id == 300 || id == 301 || id == 4000) << id;
  body["response_format"] = {{"type", "json_object"}};
  EXPECT_NE(complete(body).error_message().find("allowed_token_ids"), std::string::npos);
}

// nlohmann::json sorts members and rounds 12345678901234567 to a double: the schema is read from the body's own text.
TEST_F(RequestFields, ASchemaHasItsMembersInOrderAndItsDigits) {
  const std::string schema = R"({"type": "object", "properties": {"zeta": {"type": "boolean"},
    "mid": {"type": "integer", "minimum": 12345678901234567.0, "maximum": 12345678901234567.0},
    "alpha": {"type": "boolean"}}, "required": ["alpha", "mid", "zeta"]})";
  const std::string format = R"("response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": )" +
                             schema + R"(}}, "max_tokens": 200, "temperature": 1.5)";
  for (const char* seed : {"1", "2", "3"}) {
    const std::string end = "," + format + ", \"seed\": " + seed + "}";
    const Response whole = post(port(), "/v1/completions", R"({"prompt": "Say something.")" + end);
    const Response turn =
        post(port(), "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "Say something."}])" + end);
    ASSERT_EQ(whole.status, 200) << whole.body;
    ASSERT_EQ(turn.status, 200) << turn.body;
    for (const json& choice : {whole.json()["choices"][0], turn.json()["choices"][0]}) {
      const std::string text = choice.contains("text") ? choice["text"] : choice["message"]["content"];
      EXPECT_EQ(choice["finish_reason"], "stop") << text;
      const auto value = nlohmann::ordered_json::parse(text, nullptr, false);
      ASSERT_TRUE(value.is_object()) << text;
      std::vector<std::string> names;
      for (const auto& [name, member] : value.items()) names.push_back(name);
      EXPECT_EQ(names, (std::vector<std::string>{"zeta", "mid", "alpha"})) << text;
      EXPECT_EQ(value["mid"].dump(), "12345678901234567") << text;
    }
  }
  const Response absent =
      post(port(), "/v1/completions", std::string(R"({"prompt": "x", "response_format": {"type": "json_schema",
                                               "json_schema": {"name": "x", "schema": null}}})"));
  EXPECT_EQ(absent.status, 400);
  EXPECT_NE(absent.error_message().find("'response_format.json_schema.schema' is missing"), std::string::npos)
      << absent.body;
}

TEST_F(RequestFields, TruncatesPromptsFromTheLeft) {
  const json ids = {5, 6, 7, 8, 9, 10};
  const json a =
      complete({{"prompt", ids}, {"max_tokens", 1}, {"truncate_prompt_tokens", 4}, {"return_token_ids", true}})
          .json()["choices"][0];
  EXPECT_EQ(a["prompt_token_ids"], (json{7, 8, 9, 10}));
  EXPECT_EQ(
      complete({{"prompt", ids}, {"max_tokens", 1}, {"truncate_prompt_tokens", 6}}).json()["usage"]["prompt_tokens"],
      6);
  EXPECT_EQ(chat({{"max_tokens", 1}, {"truncate_prompt_tokens", 3}}).json()["usage"]["prompt_tokens"], 3);
}

// Prompt and answer fill the context to its last token, and not beyond.
TEST_F(RequestFields, AnswersUpToTheLastTokenOfTheContext) {
  const json fits = {{"prompt", {5, 6, 7}}, {"max_tokens", 4093}, {"stop_token_ids", json::array()}, {"timeout", 0.01}};
  EXPECT_EQ(complete(fits).status, 408);  // accepted
  json over = fits;
  over["max_tokens"] = 4094;
  const json error = complete(over).json()["error"];
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["param"], "prompt");
  EXPECT_EQ(chat({{"max_tokens", 4096}}).json()["error"]["param"], "messages");
  EXPECT_EQ(chat({{"max_tokens", 4096}}).json()["error"]["code"], "context_length_exceeded");
}

TEST_F(RequestFields, RefusesFieldsThatItDoesNotKnow) {
  const auto error_of = [&](const json& field, bool is_chat) {
    json body = is_chat ? json{{"messages", kMessages}} : json{{"prompt", "x"}};
    body["max_tokens"] = 1;
    body.update(field);
    const Response r = is_chat ? chat(body) : complete(body);
    EXPECT_EQ(r.status, 400) << field << r.body;
    const json error = r.json()["error"];
    EXPECT_EQ(error["param"].get<std::string>(), field.begin().key()) << r.body;
    return error["message"].get<std::string>();
  };
  const std::vector<std::pair<json, std::string>> cases = {
      {{{"temprature", 0.5}}, "did you mean \"temperature\"?"},
      {{{"max_token", 5}}, "did you mean \"max_tokens\"?"},
      {{{"Stream", true}}, "did you mean \"stream\"?"},
      {{{"tpo_p", 0.5}}, "did you mean \"top_p\"?"},
      {{{"zzzzzzzzzzzz", 1}}, "unknown field \"zzzzzzzzzzzz\""},
      {{{"bad_words", {"x"}}}, "logit_bias"},
      {{{"n_predict", 5}}, "max_tokens"},
      {{{"dry_multiplier", 0.8}}, "not supported"},
      {{{"xtc_probability", 0.5}}, "not supported"},
      {{{"length_penalty", 2}}, "beam search"},
      {{{"chat_template", "x"}}, "--chat-template"},
      {{{"documents", {{{"text", "x"}}}}}, "message"},
      {{{"prompt_logprobs", 1}}, "echo"},
      {{{"skip_special_tokens", false}}, "not supported"},
      {{{"min_tokens", 3}}, "not supported"},
      {{{"extra_body", {{"top_k", 1}}}}, "body itself"},
  };
  for (const auto& [field, words] : cases) {
    for (const bool is_chat : {false, true})
      EXPECT_NE(error_of(field, is_chat).find(words), std::string::npos)
          << field << is_chat << error_of(field, is_chat);
  }
  EXPECT_NE(error_of({{"echo", true}}, true).find("not supported"), std::string::npos);
  EXPECT_NE(error_of({{"top_logprobs", 2}}, false).find("only in chats"), std::string::npos);
  EXPECT_NE(error_of({{"add_generation_prompt", false}}, true).find("without a template"), std::string::npos);
  // Values that ask for nothing, and fields that no answer depends on.
  const json harmless = {{"user", "me"},
                         {"metadata", {{"a", "b"}}},
                         {"store", true},
                         {"min_tokens", 0},
                         {"use_beam_search", false},
                         {"length_penalty", 1.0},
                         {"bad_words", nullptr},
                         {"skip_special_tokens", true},
                         {"typical_p", 1.0},
                         {"mirostat", 0},
                         {"mirostat_tau", 5.0},
                         {"suffix", ""},
                         {"cache_prompt", true},
                         {"max_tokens", 1}};
  for (const bool is_chat : {false, true}) {
    json body = harmless;
    if (!is_chat) body["prompt"] = "x";
    const Response r = is_chat ? chat(body) : complete(body);
    EXPECT_EQ(r.status, 200) << r.body;
  }
  const json options = {{"prompt", "x"}, {"stream", true}, {"stream_options", {{"continuous_usage_stats", true}}}};
  EXPECT_NE(complete(options).error_message().find("stream_options.continuous_usage_stats"), std::string::npos);
}

TEST_F(RequestFields, WantsAMethodBesideABudget) {
  const json body = {{"prompt", "x"}, {"max_tokens", 1}, {"kv", {{"budget", 512}}}};
  const Response r = complete(body);
  EXPECT_EQ(r.status, 400) << r.body;
  EXPECT_NE(r.error_message().find("kv.budget"), std::string::npos) << r.body;
  EXPECT_EQ(complete({{"prompt", "x"}, {"max_tokens", 1}, {"kv", json::object()}}).status, 200);
  // Where the server has a method of its own, a budget is that method's.
  server::ServerOptions options = RunningServer::small();
  options.engine.kv = {.method = "quest", .budget = 256};
  RunningServer server(options);
  json asked = {{"prompt", "x"}, {"max_tokens", 1}, {"kv", {{"budget", 512}}}, {"kv_retrieval", true}};
  EXPECT_EQ(post(server.port(), "/v1/completions", asked).json()["choices"][0]["kv_retrieval"]["method"], "quest");
}

// Everywhere, not in completions and chats alone: a misspelt field used to be ignored here.
TEST_F(RequestFields, TextEndpointsRefuseWhatTheyDoNotKnow) {
  const auto refused = [&](const char* path, const json& body, const char* param, const char* words) {
    const Response r = post(port(), path, body);
    EXPECT_EQ(r.status, 400) << path << r.body;
    EXPECT_EQ(r.json()["error"]["param"], param) << r.body;
    EXPECT_NE(r.error_message().find(words), std::string::npos) << r.body;
  };
  refused("/tokenize", {{"content", "x"}, {"with_piece", true}}, "with_piece", "did you mean \"with_pieces\"?");
  refused("/tokenize", {{"content", "x"}, {"max_tokens", 5}}, "max_tokens", "only in chats and completions");
  refused("/detokenize", {{"tokens", json::array({300})}, {"special", true}}, "special", "unknown field");
  refused("/apply-template", {{"messages", kMessages}, {"tool", 1}}, "tool", "did you mean \"tools\"?");
  refused("/apply-template", {{"messages", kMessages}, {"chat_template", "x"}}, "chat_template", "--chat-template");
  EXPECT_EQ(post(port(), "/tokenize", json::array({1})).status, 400);
  const json known = {{"prompt", "x"}, {"model", "m"}, {"user", "u"}, {"add_special_tokens", false}, {"suffix", ""}};
  EXPECT_EQ(post(port(), "/tokenize", known).status, 200);
}

// 10 MB of spaces: more steps than PCRE2 allows by default.
TEST_F(RequestFields, TokenizesLongRunsOfWhiteSpace) {
  // One kind at the length that failed: they take the same way through the pattern.
  const std::size_t longest = kSanitized ? 500'000 : 10'000'000, others = longest / 10;
  for (const auto& [what, bytes] : {std::pair{" ", longest}, {"\t", others}, {" \n", others}}) {
    std::string text;
    while (text.size() < bytes) text += what;
    const Response r = post(port(), "/tokenize", json{{"content", text + "x"}});
    ASSERT_EQ(r.status, 200) << r.body.substr(0, 300);
    EXPECT_GT(r.json()["count"], 1);
  }
}

}  // namespace
}  // namespace mneme::server_test
