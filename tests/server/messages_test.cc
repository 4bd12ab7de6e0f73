// Anthropic's API: messages whole and streamed, what of a request reaches the model, errors as its clients read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "src/server/messages/messages_request.h"
#include "tests/server/agent_fixture.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const json kUseTools = json::parse(R"([
  {"name": "add", "description": "Adds.", "input_schema": {"type": "object",
   "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}, "cache_control": {"type": "ephemeral"}},
  {"name": "now", "input_schema": {"type": "object", "properties": {}}}])");

class Messages : public AgentServer {
 protected:
  using AgentServer::AgentServer;

  static json body(const json& more = json::object()) {
    json all = {{"model", "claude-any"},
                {"max_tokens", 400},
                {"temperature", 0},
                {"messages", {{{"role", "user"}, {"content", "One and one?"}}}}};
    all.update(more);
    return all;
  }
  Response answered(const std::string& answer, const json& more = json::object()) {
    script(answer);
    return post_to("/v1/messages?beta=true", body(more), {{"anthropic-version", "2023-06-01"}});
  }
  json message(const std::string& answer, const json& more = json::object()) {
    const Response r = answered(answer, more);
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  }
  std::int64_t tokens(json more) {
    json all = body(more);
    all.erase("max_tokens");
    const Response r = post_to("/v1/messages/count_tokens", all);
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json().value("input_tokens", std::int64_t{-1});
  }
  std::int64_t tokens_of(const json& messages) { return tokens({{"messages", messages}}); }
};

// What a client adds up from the events of a stream.
json accumulated(const std::vector<NamedEvent>& events) {
  json message;
  std::vector<std::string> inputs;
  bool open = false;
  for (const NamedEvent& e : events) {
    const json& d = e.data;
    if (e.name == "message_start") message = d["message"];
    if (e.name == "content_block_start") {
      EXPECT_FALSE(open);
      open = true;
      EXPECT_EQ(d["index"], message["content"].size());
      message["content"].push_back(d["content_block"]);
      inputs.emplace_back();
    }
    if (e.name == "content_block_delta") {
      EXPECT_TRUE(open);
      EXPECT_EQ(d["index"], message["content"].size() - 1);
      json& block = message["content"].back();
      const std::string type = d["delta"]["type"];
      if (type == "text_delta")
        block["text"] = block["text"].get<std::string>() + d["delta"]["text"].get<std::string>();
      if (type == "thinking_delta")
        block["thinking"] = block["thinking"].get<std::string>() + d["delta"]["thinking"].get<std::string>();
      if (type == "signature_delta") block["signature"] = d["delta"]["signature"];
      if (type == "input_json_delta") inputs.back() += d["delta"]["partial_json"].get<std::string>();
    }
    if (e.name == "content_block_stop") {
      EXPECT_TRUE(open);
      open = false;
      if (!inputs.back().empty()) message["content"].back()["input"] = json::parse(inputs.back());
    }
    if (e.name == "message_delta") {
      message.update(d["delta"]);
      message["usage"].update(d["usage"]);
    }
  }
  return message;
}

TEST_F(Messages, HaveThoughtTextAndCalls) {
  const json m = message(kThoughtTextCalls, {{"tools", kUseTools}});
  EXPECT_EQ(m["type"], "message");
  EXPECT_EQ(m["role"], "assistant");
  EXPECT_EQ(m["model"], "claude-any");
  EXPECT_EQ(m["stop_reason"], "tool_use");
  EXPECT_TRUE(m["stop_sequence"].is_null());
  ASSERT_EQ(m["content"].size(), 4u);
  EXPECT_EQ(m["content"][0]["type"], "thinking");
  EXPECT_EQ(m["content"][0]["thinking"], "I add.");
  EXPECT_NE(m["content"][0]["signature"], "");
  EXPECT_EQ(m["content"][1], (json{{"type", "text"}, {"text", "Adding."}}));
  EXPECT_EQ(m["content"][2]["type"], "tool_use");
  EXPECT_EQ(m["content"][2]["name"], "add");
  EXPECT_EQ(m["content"][2]["input"], (json{{"a", 1}, {"b", "ü}"}}));
  EXPECT_EQ(m["content"][3]["input"], json::object());
  EXPECT_THAT(m["content"][2]["id"].get<std::string>(), testing::StartsWith("toolu_"));
  EXPECT_NE(m["content"][2]["id"], m["content"][3]["id"]);
}

TEST_F(Messages, AreStreamedInTheOrderOfTheirBlocks) {
  const Response r = answered(kThoughtTextCalls, {{"tools", kUseTools}, {"stream", true}});
  const std::vector<NamedEvent> events = named_events(r.body);
  EXPECT_THAT(names_of(events),
              ElementsAre("message_start", "ping", "content_block_start", "content_block_delta", "content_block_stop",
                          "content_block_start", "content_block_delta", "content_block_stop", "content_block_start",
                          "content_block_delta", "content_block_stop", "content_block_start", "content_block_delta",
                          "content_block_stop", "message_delta", "message_stop"));
  EXPECT_EQ(events.front().data["message"]["content"], json::array());
  EXPECT_TRUE(events.front().data["message"]["stop_reason"].is_null());
  std::vector<std::string> thinking;
  for (const NamedEvent& e : events)
    if (e.name == "content_block_delta" && e.data["index"] == 0) thinking.push_back(e.data["delta"]["type"]);
  ASSERT_GE(thinking.size(), 2u);
  EXPECT_EQ(thinking.back(), "signature_delta") << "once, at the end";
  EXPECT_EQ(std::count(thinking.begin(), thinking.end(), "signature_delta"), 1);
}

// Clients show it as soon as the answer begins.
TEST_F(Messages, BeginWithTheTokensThatAreCached) {
  std::string words;
  for (int i = 0; i < 200; ++i) words += "word ";
  const json asked = {{"messages", {{{"role", "user"}, {"content", words}}}}, {"stream", true}};
  const auto usage = [&] { return named_events(answered("Yes.", asked).body).front().data["message"]["usage"]; };
  const json cold = usage(), warm = usage();
  EXPECT_EQ(cold["cache_read_input_tokens"], 0);
  EXPECT_GT(warm["cache_read_input_tokens"], 64);
  EXPECT_EQ(warm["cache_read_input_tokens"].get<int>() + warm["input_tokens"].get<int>(), cold["input_tokens"]);
}

TEST_F(Messages, AreStreamedAsTheyAreWhole) {
  for (const std::string answer :
       {kThoughtTextCalls, "Only text. ", "<think>Only a thought", "", "<tool_call>{\"name\": \"now\"}"}) {
    SCOPED_TRACE(answer);
    json whole = message(answer, {{"tools", kUseTools}});
    json streamed = accumulated(named_events(answered(answer, {{"tools", kUseTools}, {"stream", true}}).body));
    EXPECT_NE(whole["id"], streamed["id"]) << "clients join answers of one id";
    for (json* m : {&whole, &streamed}) {
      m->erase("id");
      for (const char* key : {"input_tokens", "cache_read_input_tokens"}) (*m)["usage"].erase(key);
      for (json& block : (*m)["content"]) block.erase("id");
    }
    EXPECT_EQ(whole, streamed);
  }
}

TEST_F(Messages, SayWhyTheyStopped) {
  EXPECT_EQ(message("Text.")["stop_reason"], "end_turn");
  EXPECT_EQ(message("")["content"], (json::array({{{"type", "text"}, {"text", ""}}}))) << "clients read content[0]";
  EXPECT_EQ(message("A text that goes on and on", {{"max_tokens", 3}})["stop_reason"], "max_tokens");
  const json stopped = message("One, two, three.", {{"stop_sequences", {"nine", "two"}}});
  EXPECT_EQ(stopped["stop_reason"], "stop_sequence");
  EXPECT_EQ(stopped["stop_sequence"], "two");
  EXPECT_EQ(stopped["content"][0]["text"], "One, ");
  const std::vector<NamedEvent> events =
      named_events(answered("One, two, three.", {{"stop_sequences", {"two"}}, {"stream", true}}).body);
  EXPECT_EQ(accumulated(events)["stop_sequence"], "two");
}

// max_tokens within a call: the client gets what there is, never an error.
TEST_F(Messages, ThatEndInACallAreToldAsTheyAre) {
  const std::string answer = "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1234567}}</tool_call>";
  const auto whole = std::ssize(tokenizer_->encode(answer, {.parse_special = true}));
  std::set<std::string> seen;
  for (std::int64_t n = 1; n < whole; ++n) {
    const json cut = message(answer, {{"tools", kUseTools}, {"max_tokens", n}});
    EXPECT_EQ(cut["stop_reason"], "max_tokens") << cut;
    const json& block = cut["content"].back();
    seen.insert(block["type"]);
    if (block["type"] == "tool_use" && block["input"].contains("_raw")) seen.insert("raw");
  }
  EXPECT_THAT(seen, testing::IsSupersetOf({"tool_use", "raw"}));
}

TEST_F(Messages, CountTheTokensThatTheyTake) {
  const json more = {{"tools", kUseTools},
                     {"system",
                      {{{"type", "text"}, {"text", "Be brief."}, {"cache_control", {{"type", "ephemeral"}}}},
                       {{"type", "text"}, {"text", "Add."}}}}};
  const std::int64_t counted = tokens(more);
  const json first = message("Two.", more)["usage"];
  EXPECT_EQ(first["input_tokens"].get<std::int64_t>() + first["cache_read_input_tokens"].get<std::int64_t>(), counted);
  const json again = message("Two.", more)["usage"];
  EXPECT_GT(again["cache_read_input_tokens"], 0) << "what the server had computed before";
  EXPECT_EQ(again["input_tokens"].get<std::int64_t>() + again["cache_read_input_tokens"].get<std::int64_t>(), counted);
  EXPECT_EQ(again["cache_creation_input_tokens"], 0);
  EXPECT_EQ(tokens(more), tokens({{"tools", kUseTools}, {"system", "Be brief.\n\nAdd."}}));
}

// A conversation comes back as the client keeps it: the prompt is the same, however the parts are written.
TEST_F(Messages, GoOnFromEarlierTurns) {
  const json use = {{"type", "tool_use"}, {"id", "toolu_1"}, {"name", "add"}, {"input", {{"a", 1}}}};
  const auto result = [](const json& content) {
    return json{{"type", "tool_result"}, {"tool_use_id", "toolu_1"}, {"content", content}};
  };
  const auto loop = [&](const json& user) {
    return json::array({{{"role", "user"}, {"content", "Add."}},
                        {{"role", "assistant"}, {"content", json::array({{{"type", "text"}, {"text", "Now."}}, use})}},
                        {{"role", "user"}, {"content", user}}});
  };
  const json text = {{"type", "text"}, {"text", "Go on."}};
  EXPECT_EQ(tokens_of(loop(json::array({result("2"), text}))), tokens_of(loop(json::array({text, result("2")}))))
      << "results precede the text";
  EXPECT_EQ(tokens_of(loop(json::array({result("2")}))),
            tokens_of(loop(json::array({result(json::array({{{"type", "text"}, {"text", "2"}}}))}))));
  EXPECT_EQ(tokens_of(loop(json::array({text}))), tokens_of(loop(json::array({result("(no result)"), text}))));
  json failed = result("no");
  failed["is_error"] = true;
  EXPECT_EQ(tokens_of(loop(json::array({failed}))), tokens_of(loop(json::array({result("Error: no")}))));
  const json image = {{"type", "image"}, {"source", {{"type", "base64"}, {"media_type", "image/png"}, {"data", ""}}}};
  EXPECT_EQ(tokens_of(loop(json::array({result(json::array({image}))}))),
            tokens_of(loop(json::array({result("[image omitted: the model reads text]")}))))
      << "a tool that read a picture does not end the session";
  const Response refused = answered("x", {{"messages", loop(json::array({image}))}});
  EXPECT_EQ(refused.status, 400);
  EXPECT_THAT(refused.error_message(), HasSubstr("messages[2].content[0]"));
}

TEST_F(Messages, TakeThoughtsBackThatTheClientDoesNotShow) {
  const json shown = message("<think>I see.</think>Yes.");
  const json hidden =
      message("<think>I see.</think>Yes.", {{"thinking", {{"type", "adaptive"}, {"display", "omitted"}}}});
  const auto turns = [](const json& content) {
    return json::array({{{"role", "user"}, {"content", "Well?"}},
                        {{"role", "assistant"}, {"content", content}},
                        {{"role", "user"}, {"content", "Go on."}}});
  };
  // enable_thinking opened the thought in the prompt: the answer has it again.
  ASSERT_EQ(hidden["content"][0]["type"], "thinking") << hidden;
  EXPECT_EQ(hidden["content"][0]["thinking"], "");
  json visible = hidden["content"];
  visible[0]["thinking"] = shown["content"][0]["thinking"];
  EXPECT_EQ(tokens_of(turns(hidden["content"])), tokens_of(turns(visible)));
  EXPECT_LT(tokens_of(turns(json::array({visible[1]}))), tokens_of(turns(visible)));
  json forged = hidden["content"];
  forged[0]["signature"] = "EuYBCkQ";
  EXPECT_EQ(tokens_of(turns(forged)), tokens_of(turns(json::array({visible[1]})))) << "another server's signature";
}

TEST_F(Messages, ContinueAnAnswerThatTheClientBegan) {
  const json begun =
      json::array({{{"role", "user"}, {"content", "One and one?"}}, {{"role", "assistant"}, {"content", "It is"}}});
  EXPECT_EQ(message(" two.", {{"messages", begun}})["content"][0]["text"], " two.");
  EXPECT_LT(tokens_of(begun), tokens_of(json::array({begun[0], begun[1], begun[0]})));
}

// The template raises where a system text is not the first message: it stays where it is, within the user's turn.
TEST_F(Messages, TakeSystemTextsAnywhere) {
  const json late =
      json::array({{{"role", "user"}, {"content", "Hello."}}, {{"role", "system"}, {"content", "It is Monday."}}});
  const json inside =
      json::array({{{"role", "user"}, {"content", "Hello.\n\n<system-reminder>\nIt is Monday.\n</system-reminder>"}}});
  EXPECT_EQ(tokens_of(late), tokens_of(inside));
}

TEST_F(Messages, LeaveTheBillingLineOut) {
  const std::string line = "x-anthropic-billing-header: cc_version=2.1.332.201; cc_entrypoint=sdk-cli; cch=1a2b3;";
  const auto system = [](const json& blocks) { return json{{"system", blocks}}; };
  const auto block = [](const std::string& text) { return json{{"type", "text"}, {"text", text}}; };
  const std::int64_t without = tokens(system(json::array({block("You are an agent.")})));
  EXPECT_EQ(tokens(system(json::array({block(line), block("You are an agent.")}))), without);
  EXPECT_EQ(tokens(system(json::array({block(line + "\nYou are an agent.")}))), without);
  EXPECT_EQ(tokens(system(line + "You are an agent.")), without);
  EXPECT_TRUE(has_logged("billing line"));
}

TEST(BillingLine, IsRemovedAlone) {
  const auto rest = [](std::string text) {
    const bool removed = server::remove_billing_line(text);
    return std::pair(removed, text);
  };
  EXPECT_EQ(rest("x-anthropic-billing-header: a=1; b=2;"), std::pair(true, std::string()));
  EXPECT_EQ(rest("x-anthropic-billing-header: a=1; b=2;\nText; c=3;"), std::pair(true, std::string("Text; c=3;")));
  EXPECT_EQ(rest("x-anthropic-billing-header: a=1; You are; x"), std::pair(true, std::string("You are; x")));
  EXPECT_EQ(rest("x-anthropic-billing-header: a=1; You are\nmore"), std::pair(true, std::string("You are\nmore")));
  EXPECT_EQ(rest("x-anthropic-billing-header: words\nText"), std::pair(true, std::string("Text")));
  EXPECT_EQ(rest("x-anthropic-billing-header: words").first, false);
  EXPECT_EQ(rest(" x-anthropic-billing-header: a=1;").first, false);
}

TEST_F(Messages, ShowTheToolsOfTheClientAlone) {
  json tools = kUseTools;
  const std::int64_t both = tokens({{"tools", tools}});
  tools.push_back({{"type", "web_search_20250305"}, {"name", "web_search"}, {"max_uses", 3}});
  EXPECT_EQ(tokens({{"tools", tools}}), both) << "Anthropic's servers run it";
  EXPECT_TRUE(has_logged("web_search"));
  EXPECT_EQ(answered("x", {{"tools", tools}}).headers.at("x-mneme-skipped-tools"), "web_search");
  json deferred = {{"name", "later"}, {"input_schema", {{"type", "object"}}}, {"defer_loading", true}};
  tools.push_back(deferred);
  EXPECT_EQ(tokens({{"tools", tools}}), both);
  const json found = json::array(
      {{{"role", "user"}, {"content", "a"}},
       {{"role", "assistant"},
        {"content", json::array({{{"type", "tool_use"}, {"id", "t"}, {"name", "now"}, {"input", json::object()}}})}},
       {{"role", "user"},
        {"content",
         json::array({{{"type", "tool_result"},
                       {"tool_use_id", "t"},
                       {"content", json::array({{{"type", "tool_reference"}, {"tool_name", "later"}}})}}})}}});
  EXPECT_GT(tokens({{"tools", tools}, {"messages", found}}), tokens({{"tools", kUseTools}, {"messages", found}}));
  EXPECT_EQ(tokens({{"tools", kUseTools}, {"tool_choice", {{"type", "none"}}}}), tokens(json::object()));
  EXPECT_EQ(answered("x", {{"tools", kUseTools}, {"tool_choice", {{"type", "tool"}, {"name", "other"}}}}).status, 400);
  EXPECT_EQ(answered("x", {{"tool_choice", {{"type", "any"}}}}).status, 400);
}

TEST_F(Messages, AcceptFieldsThatTheyDoNotKnow) {
  const json more = {{"metadata", {{"user_id", "u"}}},
                     {"context_management", {{"edits", json::array({{{"type", "clear_thinking_20251015"}}})}}},
                     {"output_config", {{"effort", "high"}}},
                     {"field_of_tomorrow", {{"a", 1}}}};
  EXPECT_EQ(message("Well.</think>Yes.", more)["content"].back()["text"], "Yes.");
  EXPECT_TRUE(has_logged("field_of_tomorrow"));
  EXPECT_FALSE(has_logged("context_management"));
}

TEST_F(Messages, HaveErrorsAsClientsReadThem) {
  const auto error = [&](const json& more) {
    const Response r = answered("x", more);
    EXPECT_EQ(r.json()["type"], "error") << r.body;
    EXPECT_EQ(r.json()["request_id"], r.headers.at("request-id"));
    return std::pair(r.status, r.json()["error"]["type"].get<std::string>());
  };
  EXPECT_EQ(error({{"max_tokens", nullptr}}), std::pair(400, std::string("invalid_request_error")));
  EXPECT_EQ(error({{"max_tokens", 0}}), std::pair(400, std::string("invalid_request_error")));
  EXPECT_EQ(error({{"messages", json::array()}}), std::pair(400, std::string("invalid_request_error")));
  EXPECT_EQ(error({{"temperature", -1}}), std::pair(400, std::string("invalid_request_error")));
  EXPECT_EQ(error({{"speculative", "mtp"}}), std::pair(400, std::string("invalid_request_error")));
  EXPECT_EQ(error({{"model", "gpt-4"}}), std::pair(404, std::string("not_found_error")));
  EXPECT_EQ(error({{"thinking", {{"type", "enabled"}, {"budget_tokens", 400}}}}),
            std::pair(400, std::string("invalid_request_error")));
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  const Response r = answered("x", {{"messages", {{{"role", "user"}, {"content", text}}}}});
  EXPECT_EQ(r.status, 400);
  EXPECT_THAT(r.error_message(), testing::MatchesRegex("prompt is too long: [0-9]+ tokens > 2047 maximum"))
      << "the words that Claude Code acts on";
  EXPECT_EQ(message("Yes.", {{"max_tokens", 32000}})["content"][0]["text"], "Yes.") << "clamped to the room";
}

TEST_F(Messages, TellWhatIsServed) {
  const json model = get(server_.port(), "/v1/models").json()["data"][0];
  EXPECT_EQ(model["context_length"], 2048);
  EXPECT_EQ(model["capabilities"], (json::array({"completion", "structured_output", "tools", "thinking"})));
  EXPECT_EQ(model["modalities"], (json{{"input", {"text"}}, {"output", {"text"}}}));
  EXPECT_EQ(model["answer_format"], "hermes");
  const json list = get(server_.port(), "/v1/models", {{"anthropic-version", "2023-06-01"}}).json();
  EXPECT_EQ(list["data"][0]["type"], "model");
  EXPECT_EQ(list["first_id"], model["id"]);
  EXPECT_EQ(list["has_more"], false);
  EXPECT_THAT(list["data"][0]["created_at"].get<std::string>(), testing::MatchesRegex("20[0-9-]+T[0-9:]+Z"));
}

TEST_F(Messages, AreReadUncompressed) {
  const Response r = post(server_.port(), "/v1/messages", body(), {{"Content-Encoding", "zstd"}});
  EXPECT_EQ(r.status, 415) << r.body;
}

class HeldMessages : public Messages {
 protected:
  static server::ServerOptions options() {
    server::ServerOptions o = agent_options();
    o.heartbeat_seconds = 0.002;
    return o;
  }
  HeldMessages() : Messages(options()) {}
};

// A client that waits hears of it: its clock would end the stream.
TEST_F(HeldMessages, Ping) {
  script("Yes.");
  script_.holds = true;
  Client client(server_.port());
  client.send_request("POST", "/v1/messages", body({{"stream", true}}).dump());
  for (const char* text : {"message_start", "event: ping", "event: ping", "event: ping"})
    EXPECT_TRUE(client.read_until(text)) << text;
  script_.holds = false;
  EXPECT_TRUE(client.read_until("message_stop"));
}

TEST(MessagesWithKeys, TakeThemAsAnthropicsClientsSendThem) {
  server::ServerOptions options = RunningServer::small();
  options.listen.api_keys = {"secret"};
  RunningServer server(options);
  EXPECT_EQ(get(server.port(), "/v1/models", {{"x-api-key", "secret"}}).status, 200);
  EXPECT_EQ(get(server.port(), "/v1/models", {{"x-api-key", "other"}}).status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", {{"x-api-key", "secret"}, {"Authorization", "Bearer other"}}).status, 401);
  const Response r = post(server.port(), "/v1/messages", json{{"max_tokens", 1}}, {{"x-api-key", "other"}});
  EXPECT_EQ(r.status, 401);
  EXPECT_EQ(r.json()["error"]["type"], "authentication_error") << r.body;
}

}  // namespace
}  // namespace mneme::server_test
