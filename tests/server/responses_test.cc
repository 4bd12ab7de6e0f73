// OpenAI's /v1/responses: whole and streamed, conversations that the server keeps, items and tools of many kinds.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "src/server/responses/response_store.h"
#include "src/server/turns/chat_turns.h"
#include "src/server/turns/sealed_thought.h"
#include "tests/server/agent_fixture.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const json kFlatTools = json::parse(R"([
  {"type": "function", "name": "add", "description": "Adds.", "strict": null,
   "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}},
  {"type": "function", "name": "now", "parameters": {"type": "object", "properties": {}}}])");

class Responses : public AgentServer {
 protected:
  using AgentServer::AgentServer;

  static json body(const json& more = json::object()) {
    json all = {{"input", "One and one?"}, {"temperature", 0}};
    all.update(more);
    return all;
  }
  Response answered(const std::string& answer, const json& more = json::object()) {
    script(answer);
    return post_to("/v1/responses", body(more));
  }
  json response(const std::string& answer, const json& more = json::object()) {
    const Response r = answered(answer, more);
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  }
  std::int64_t tokens(const json& more) {
    const Response r = post_to("/v1/responses/input_tokens", body(more));
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json().value("input_tokens", std::int64_t{-1});
  }
  std::int64_t tokens_of(const json& input) { return tokens({{"input", input}}); }
};

std::vector<std::string> types_of(const json& items) {
  std::vector<std::string> types;
  for (const json& item : items) types.push_back(item["type"]);
  return types;
}

// Ids and indices of a stream are those that OpenAI's client enforces; returns its last response.
json checked(const std::vector<NamedEvent>& events) {
  std::string id;
  std::vector<json> items;
  std::string text;
  for (std::size_t i = 0; i < events.size(); ++i) {
    const json& d = events[i].data;
    EXPECT_EQ(d["sequence_number"], i);
    if (d.contains("response")) {
      if (id.empty()) id = d["response"]["id"];
      EXPECT_EQ(d["response"]["id"], id);
    }
    if (events[i].name == "response.output_item.added") {
      EXPECT_EQ(d["output_index"], items.size());
      EXPECT_EQ(d["item"]["status"], "in_progress");
      items.push_back(d["item"]);
      text.clear();
    }
    if (d.contains("item_id")) {
      EXPECT_EQ(d["item_id"], items.back()["id"]);
      EXPECT_EQ(d["output_index"], items.size() - 1);
    }
    if (d.contains("delta")) text += d["delta"].get<std::string>();
    for (const char* whole : {"text", "arguments", "input"}) {
      if (!d.contains(whole)) continue;
      EXPECT_EQ(d[whole], text) << "the deltas add up";
    }
    if (events[i].name == "response.output_item.done") {
      EXPECT_EQ(d["item"]["id"], items.back()["id"]);
      items.back() = d["item"];
    }
  }
  const json last = events.back().data["response"];
  EXPECT_EQ(last["output"], json(items));
  return last;
}

TEST_F(Responses, HaveThoughtTextAndCalls) {
  const json r = response(kThoughtTextCalls, {{"tools", kFlatTools}, {"metadata", {{"a", "b"}}}});
  EXPECT_EQ(r["object"], "response");
  EXPECT_EQ(r["status"], "completed");
  EXPECT_EQ(r["model"], "needle-27m-q8_0");
  EXPECT_EQ(r["tools"], kFlatTools);
  EXPECT_EQ(r["metadata"], (json{{"a", "b"}}));
  for (const char* key : {"error", "incomplete_details", "instructions", "previous_response_id"})
    EXPECT_TRUE(r.at(key).is_null()) << key;
  EXPECT_THAT(types_of(r["output"]), ElementsAre("reasoning", "message", "function_call", "function_call"));
  const json& thought = r["output"][0];
  EXPECT_EQ(thought["content"], (json::array({{{"type", "reasoning_text"}, {"text", "I add."}}})));
  EXPECT_EQ(thought["summary"], json::array());
  EXPECT_TRUE(thought["encrypted_content"].is_null());
  EXPECT_EQ(r["output"][1]["content"][0]["text"], "Adding.");
  EXPECT_EQ(r["output"][1]["content"][0]["annotations"], json::array());
  const json& call = r["output"][2];
  EXPECT_EQ(call["name"], "add");
  EXPECT_EQ(call["arguments"], R"({"a": 1, "b": "ü}"})");
  EXPECT_NE(call["id"], call["call_id"]);
  EXPECT_EQ(r["output"][3]["arguments"], "{}");
  const json& usage = r["usage"];
  EXPECT_EQ(usage["total_tokens"],
            usage["input_tokens"].get<std::int64_t>() + usage["output_tokens"].get<std::int64_t>());
  EXPECT_TRUE(usage["input_tokens_details"]["cached_tokens"].is_number_integer());
  EXPECT_GT(usage["output_tokens_details"]["reasoning_tokens"], 0);
  EXPECT_LT(usage["output_tokens_details"]["reasoning_tokens"], usage["output_tokens"]);
}

TEST_F(Responses, AreStreamedInTheOrderOfTheirItems) {
  const std::vector<NamedEvent> events =
      named_events(answered(kThoughtTextCalls, {{"tools", kFlatTools}, {"stream", true}}).body);
  EXPECT_THAT(names_of(events),
              ElementsAre("response.created", "response.in_progress",                              //
                          "response.output_item.added", "response.content_part.added",             //
                          "response.reasoning_text.delta", "response.reasoning_text.done",         //
                          "response.content_part.done", "response.output_item.done",               //
                          "response.output_item.added", "response.content_part.added",             //
                          "response.output_text.delta", "response.output_text.done",               //
                          "response.content_part.done", "response.output_item.done",               //
                          "response.output_item.added", "response.function_call_arguments.delta",  //
                          "response.function_call_arguments.done", "response.output_item.done",    //
                          "response.output_item.added", "response.function_call_arguments.delta",  //
                          "response.function_call_arguments.done", "response.output_item.done", "response.completed"));
  EXPECT_EQ(events[0].data["response"]["status"], "in_progress");
  EXPECT_EQ(events[0].data["response"]["output"], json::array());
  checked(events);
}

TEST_F(Responses, AreStreamedAsTheyAreWhole) {
  const auto stripped = [](json r) {
    for (const char* key : {"id", "created_at", "completed_at", "usage"}) r.erase(key);
    for (json& item : r["output"])
      for (const char* key : {"id", "call_id"}) item.erase(key);
    return r;
  };
  for (const std::string answer : {kThoughtTextCalls, "Only text. ", "<think>Only a thought", "<tool_call> in prose",
                                   "", "<tool_call>{\"name\": \"now\"}"}) {
    for (const json& more : {json::object(), json{{"reasoning", {{"summary", "auto"}}}},
                             json{{"include", {"reasoning.encrypted_content", "message.output_text.logprobs"}}}}) {
      SCOPED_TRACE(answer + more.dump());
      json asked = {{"tools", kFlatTools}};
      asked.update(more);
      const json whole = response(answer, asked);
      asked["stream"] = true;
      EXPECT_EQ(stripped(checked(named_events(answered(answer, asked).body))), stripped(whole));
    }
  }
}

TEST_F(Responses, TellThoughtsAsSummariesOnRequest) {
  const json asked = {{"reasoning", {{"summary", "auto"}}}, {"stream", true}};
  const std::vector<NamedEvent> events = named_events(answered("<think>I see.</think>Yes.", asked).body);
  EXPECT_THAT(names_of(events),
              testing::IsSupersetOf({"response.reasoning_summary_part.added", "response.reasoning_summary_text.delta",
                                     "response.reasoning_summary_text.done", "response.reasoning_summary_part.done"}));
  EXPECT_THAT(names_of(events), testing::Not(testing::Contains("response.reasoning_text.delta"))) << "never both";
  const json r = checked(events);
  EXPECT_EQ(r["output"][0]["summary"], (json::array({{{"type", "summary_text"}, {"text", "I see."}}})));
  EXPECT_EQ(r["reasoning"]["summary"], "auto");
}

TEST_F(Responses, ThatAreCutAreIncomplete) {
  const json text = response("A text that goes on and on", {{"max_output_tokens", 3}});
  EXPECT_EQ(text["status"], "incomplete");
  EXPECT_EQ(text["incomplete_details"], (json{{"reason", "max_output_tokens"}}));
  EXPECT_EQ(text["output"][0]["status"], "incomplete");
  const std::vector<NamedEvent> events =
      named_events(answered("<think>I wonder and wonder", {{"max_output_tokens", 6}, {"stream", true}}).body);
  EXPECT_EQ(events.back().name, "response.incomplete");
  EXPECT_EQ(checked(events)["status"], "incomplete");
  EXPECT_EQ(response("Yes.", {{"max_output_tokens", 100000}})["status"], "completed") << "clamped to the room";
}

// Kept for previous_response_id; the prompt is that of the whole conversation.
TEST_F(Responses, GoOnFromEarlierOnes) {
  const json first = response("<think>I see.</think>Yes.", {{"instructions", "Be brief."}});
  const json next = {{"previous_response_id", first["id"]}, {"input", "Go on."}};
  json items = json::array({{{"role", "user"}, {"content", "One and one?"}}});
  items.insert(items.end(), first["output"].begin(), first["output"].end());
  items.push_back({{"role", "user"}, {"content", "Go on."}});
  EXPECT_EQ(tokens(next), tokens_of(items)) << "instructions are of their request alone";
  const json second = response("More.", next);
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  items.insert(items.end(), second["output"].begin(), second["output"].end());
  items.push_back({{"role", "user"}, {"content", "And?"}});
  const json third = {{"previous_response_id", second["id"]}, {"input", "And?"}};
  EXPECT_EQ(tokens(third), tokens_of(items));
  const json usage = response("End.", third)["usage"];
  EXPECT_EQ(usage["input_tokens"], tokens_of(items));

  const std::string path = "/v1/responses/" + second["id"].get<std::string>();
  EXPECT_EQ(get(server_.port(), path).json(), second);
  const json list = get(server_.port(), path + "/input_items").json();
  EXPECT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["content"][0]["text"], "Go on.");
  Client client(server_.port());
  EXPECT_EQ(client.request("DELETE", path).json()["deleted"], true);
  EXPECT_EQ(get(server_.port(), path).status, 404);
  const Response gone = answered("x", third);
  EXPECT_EQ(gone.status, 404);
  EXPECT_EQ(gone.json()["error"]["code"], "previous_response_not_found");
  EXPECT_EQ(gone.json()["error"]["param"], "previous_response_id");
  EXPECT_EQ(get(server_.port(), "/v1/responses/" + response("x", {{"store", false}})["id"].get<std::string>()).status,
            404);
}

TEST_F(Responses, TakeAHistoryOfItems) {
  const auto loop = [](const json& thought, const json& output) {
    return json::array({{{"role", "user"}, {"content", "Add."}},
                        thought,
                        {{"type", "function_call"}, {"call_id", "c"}, {"name", "add"}, {"arguments", "{\"a\":1}"}},
                        {{"type", "function_call_output"}, {"call_id", "c"}, {"output", output}}});
  };
  const json none = {{"type", "reasoning"}, {"id", "rs_1"}, {"summary", json::array()}, {"content", nullptr}};
  json content = none, summary = none, sealed = none;
  content["content"] = json::array({{{"type", "reasoning_text"}, {"text", "I see."}}});
  summary["summary"] = json::array({{{"type", "summary_text"}, {"text", "I see."}}});
  sealed["encrypted_content"] = server::seal_thought("I see.");
  const std::int64_t n = tokens_of(loop(content, "2"));
  EXPECT_EQ(tokens_of(loop(summary, "2")), n);
  EXPECT_EQ(tokens_of(loop(sealed, "2")), n);
  EXPECT_EQ(tokens_of(loop(content, json::array({{{"type", "input_text"}, {"text", "2"}}}))), n);
  EXPECT_LT(tokens_of(loop(none, "2")), n);
  sealed["encrypted_content"] = "gAAAAAB";
  EXPECT_EQ(tokens_of(loop(sealed, "2")), tokens_of(loop(none, "2"))) << "of another server";
  json elsewhere = loop(content, "2");
  elsewhere.push_back({{"type", "web_search_call"}, {"id", "ws_1"}, {"status", "completed"}});
  EXPECT_EQ(tokens_of(elsewhere), n) << "a history made elsewhere loads";
  EXPECT_TRUE(has_logged("web_search_call"));
  const Response image =
      answered("x", {{"input", {{{"role", "user"}, {"content", {{{"type", "input_image"}, {"image_url", "x"}}}}}}}});
  EXPECT_EQ(image.status, 400);
  EXPECT_THAT(image.error_message(), HasSubstr("input[0].content[0]"));
  EXPECT_EQ(answered("Hello.", {{"input", json::array()}}).status, 200) << "clients probe so";
}

TEST_F(Responses, ReferToItemsThatAreKept) {
  const json first = response("Yes.");
  const json reference = {{"type", "item_reference"}, {"id", first["output"][0]["id"]}};
  EXPECT_EQ(tokens_of(json::array({reference, {{"role", "user"}, {"content", "Go on."}}})),
            tokens_of(json::array({first["output"][0], {{"role", "user"}, {"content", "Go on."}}})));
  EXPECT_EQ(answered("x", {{"input", {{{"type", "item_reference"}, {"id", "msg_0"}}}}}).status, 400);
}

// Codex patches files by a tool whose input is plain text, and sends tools that it runs on its own server.
TEST_F(Responses, CallCustomTools) {
  json tools = json::array({{{"type", "custom"},
                             {"name", "apply_patch"},
                             {"description", "Patches."},
                             {"format", {{"type", "grammar"}, {"syntax", "lark"}, {"definition", "start: patch"}}}},
                            {{"type", "web_search"}},
                            {{"type", "namespace"}, {"name", "files"}, {"tools", json::array({kFlatTools[1]})}}});
  const std::string answer =
      "<tool_call>{\"name\": \"apply_patch\", \"arguments\": {\"input\": \"*** Begin\\n+a \\\"b\\\"\"}}</tool_call>"
      "<tool_call>{\"name\": \"files__now\", \"arguments\": {}}</tool_call>";
  const Response streamed = answered(answer, {{"tools", tools}, {"stream", true}});
  EXPECT_EQ(streamed.headers.at("x-mneme-skipped-tools"), "web_search");
  const std::vector<NamedEvent> events = named_events(streamed.body);
  EXPECT_THAT(names_of(events),
              testing::IsSupersetOf({"response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"}));
  const json r = checked(events);
  EXPECT_THAT(types_of(r["output"]), ElementsAre("custom_tool_call", "function_call"));
  EXPECT_EQ(r["output"][0]["name"], "apply_patch");
  EXPECT_EQ(r["output"][0]["input"], "*** Begin\n+a \"b\"");
  EXPECT_EQ(r["output"][1]["name"], "now");
  EXPECT_EQ(r["output"][1]["namespace"], "files");
  EXPECT_EQ(r["tools"], tools) << "as they were sent";
  json items = json::array({{{"role", "user"}, {"content", "Patch."}}});
  items.insert(items.end(), r["output"].begin(), r["output"].end());
  items.push_back({{"type", "custom_tool_call_output"}, {"call_id", r["output"][0]["call_id"]}, {"output", "done"}});
  items.push_back({{"type", "function_call_output"}, {"call_id", r["output"][1]["call_id"]}, {"output", "12:00"}});
  EXPECT_EQ(response("Patched.", {{"tools", tools}, {"input", items}})["output"][0]["content"][0]["text"], "Patched.");
  EXPECT_EQ(answered("x", {{"tools", tools}, {"tool_choice", {{"type", "web_search"}}}}).status, 400);
  EXPECT_EQ(answered("x", {{"tools", {{{"type", "web_search"}}}}, {"tool_choice", "required"}}).status, 400);
}

TEST_F(Responses, HaveTheTextThatAFormatAsksFor) {
  const json format = {{"type", "json_schema"},
                       {"name", "n"},
                       {"strict", true},
                       {"schema",
                        {{"type", "object"},
                         {"properties", {{"a", {{"type", "integer"}}}}},
                         {"required", {"a"}},
                         {"additionalProperties", false}}}};
  const json r = response("{\"a\": 12}", {{"text", {{"format", format}}}});
  EXPECT_EQ(r["output"][0]["content"][0]["text"], "{\"a\": 12}");
  EXPECT_EQ(r["text"]["format"], format);
}

TEST_F(Responses, RefuseWhatWouldChangeTheAnswer) {
  const json refused = {
      {"background", true}, {"conversation", "conv_1"}, {"prompt", {{"id", "p"}}}, {"max_tool_calls", 2}, {"n", 2}};
  for (const auto& [field, value] : refused.items()) {
    const Response r = answered("x", {{field, value}});
    EXPECT_EQ(r.status, 400) << field;
    EXPECT_EQ(r.json()["error"]["param"], field);
  }
  EXPECT_EQ(answered("x", {{"background", false}, {"conversation", nullptr}, {"truncation", "auto"}}).status, 200);
  EXPECT_EQ(answered("x", {{"field_of_tomorrow", 1}, {"prompt_cache_key", "k"}}).status, 200);
  EXPECT_TRUE(has_logged("field_of_tomorrow"));
  EXPECT_FALSE(has_logged("prompt_cache_key"));
  std::string text;
  for (int i = 0; i < 3000; ++i) text += "word ";
  EXPECT_EQ(answered("x", {{"input", text}}).json()["error"]["code"], "context_length_exceeded");
}

class HeldResponses : public Responses {
 protected:
  static server::ServerOptions options() {
    server::ServerOptions o = agent_options();
    o.heartbeat_seconds = 0.002;
    return o;
  }
  HeldResponses() : Responses(options()) {}
};

TEST_F(HeldResponses, SayThatTheyAreInProgress) {
  script("Yes.");
  script_.holds = true;
  Client client(server_.port());
  client.send_request("POST", "/v1/responses", body({{"stream", true}}).dump());
  for (const char* text : {"response.created", "event: response.in_progress", "event: response.in_progress",
                           "\"sequence_number\":2", "event: response.in_progress"})
    EXPECT_TRUE(client.read_until(text)) << text;
  script_.holds = false;
  EXPECT_TRUE(client.read_until("response.completed"));
}

TEST_F(HeldResponses, ThatFailSaySoInTheirStream) {
  script("Yes.");
  script_.holds = true;
  Client client(server_.port());
  client.send_request("POST", "/v1/responses", body({{"stream", true}, {"timeout", 0.001}}).dump());
  EXPECT_TRUE(client.read_until("sequence_number\":2"));
  script_.holds = false;
  EXPECT_TRUE(client.read_until("event: response.failed"));
  EXPECT_TRUE(client.read_until("\"code\":\"timeout\""));
}

// ---- the store

server::StoredResponse stored(const std::string& owner, const std::string& id, const std::string& previous = {}) {
  return {.owner = owner,
          .id = id,
          .previous = previous,
          .input = nlohmann::ordered_json::array({{{"id", "in_" + id}}}),
          .response = {{"id", id}, {"output", {{{"id", "out_" + id}}}}}};
}

TEST(ResponseStore, FindsTheOwnersAlone) {
  server::ResponseStore store(1 << 20, 3600);
  store.put(stored("a", "r1"));
  EXPECT_NE(store.find("a", "r1"), nullptr);
  EXPECT_EQ(store.find("b", "r1"), nullptr);
  EXPECT_TRUE(store.find_item("a", "out_r1").is_object());
  EXPECT_TRUE(store.find_item("a", "in_r1").is_object());
  EXPECT_TRUE(store.find_item("b", "in_r1").is_null());
  EXPECT_TRUE(store.chain("b", "r1").empty());
  EXPECT_FALSE(store.erase("b", "r1"));
  EXPECT_TRUE(store.erase("a", "r1"));
  EXPECT_EQ(store.used_bytes(), 0u);
}

TEST(ResponseStore, DropsTheLeastRecentlyUsed) {
  server::ResponseStore probe(1 << 20, 3600);
  probe.put(stored("a", "r1"));
  server::ResponseStore store(3 * probe.used_bytes() + 20, 3600);
  store.put(stored("a", "r1"));
  store.put(stored("a", "r2", "r1"));
  store.put(stored("a", "r3"));
  ASSERT_EQ(store.chain("a", "r2").size(), 2u);
  EXPECT_EQ(store.chain("a", "r2").front()->id, "r1");
  store.put(stored("a", "r4"));
  EXPECT_EQ(store.find("a", "r3"), nullptr);
  EXPECT_EQ(store.chain("a", "r2").size(), 2u) << "used last, with what it went on from";
  store.put(stored("a", "r5"));
  store.put(stored("a", "r6"));
  EXPECT_TRUE(store.chain("a", "r2").empty()) << "goes before what it went on from";
  EXPECT_LE(store.used_bytes(), 3 * probe.used_bytes() + 20);
  server::ResponseStore none(0, 3600);
  none.put(stored("a", "r1"));
  EXPECT_EQ(none.find("a", "r1"), nullptr);
  EXPECT_FALSE(none.is_on());
}

TEST(ResponseStore, DropsWhatIsOld) {
  server::ResponseStore::Clock::time_point now;
  server::ResponseStore store(1 << 20, 60, [&] { return now; });
  store.put(stored("a", "r1"));
  store.put(stored("a", "r2"));
  now += std::chrono::seconds(50);
  EXPECT_NE(store.find("a", "r1"), nullptr);
  now += std::chrono::seconds(20);
  EXPECT_NE(store.find("a", "r1"), nullptr);
  EXPECT_EQ(store.find("a", "r2"), nullptr);
}

// ---- turns

TEST(SealedThought, ComesBackAsItWas) {
  for (const std::string thought : {"", "a", "ab", "abc", "Grüße \n\t\"", "0123456789 0123456789 0123456789"}) {
    const std::string sealed = server::seal_thought(thought);
    EXPECT_EQ(server::open_thought(sealed), thought);
    EXPECT_THAT(sealed, testing::MatchesRegex("mn1\\.[0-9A-Za-z_-]+"));
    std::string other = sealed;
    other[6] = other[6] == 'A' ? 'B' : 'A';
    EXPECT_EQ(server::open_thought(other), std::nullopt);
  }
  for (const char* foreign : {"", "mn1.", "mn1.!", "gAAAA", "mn1.AAAAAAAAAAA"})
    EXPECT_EQ(server::open_thought(foreign), std::nullopt) << foreign;
}

using Turns = server::ChatTurns;

Turns turns_of(Turns::LateSystem late = Turns::LateSystem::kInPlace) {
  return Turns([late] { return late; });
}

TEST(ChatTurns, PutResultsBehindTheirCalls) {
  Turns turns = turns_of();
  turns.user("a");
  turns.call("c1", "f", "{}");
  turns.call("c2", "g", "{}");
  turns.result("c2", "two");
  turns.user("b");
  turns.result("c1", "one");
  turns.answer("d");
  turns.call("c3", "h", "{}");
  turns.user("e");
  turns.result("c9", "nine");
  std::vector<std::string> seen;
  for (const auto& m : turns.messages())
    seen.push_back(m["role"].get<std::string>() + ":" +
                   (m["content"].is_string() ? m["content"].get<std::string>() : "-"));
  EXPECT_THAT(seen, ElementsAre("user:a", "assistant:-", "tool:one", "tool:two", "user:b", "assistant:d",
                                "tool:(no result)", "user:e\n\n[result of an unknown call c9]\nnine"));
}

TEST(ChatTurns, PairEqualIdsInOrder) {
  Turns turns = turns_of();
  turns.call("", "f", "{}");
  turns.call("", "g", "{}");
  turns.result("", "one");
  turns.result("", "two");
  const auto messages = turns.messages();
  EXPECT_EQ(messages[1]["content"], "one");
  EXPECT_EQ(messages[2]["content"], "two");
}

TEST(ChatTurns, BeginAnotherAnswerBehindResults) {
  Turns turns = turns_of();
  for (const char* id : {"c1", "c2"}) {
    turns.thought(std::string("think ") + id);
    turns.call(id, "f", "{}");
    turns.result(id, "r");
  }
  turns.answer("done");
  EXPECT_TRUE(turns.ends_with_answer());
  const auto messages = turns.messages();
  ASSERT_EQ(messages.size(), 5u);
  EXPECT_EQ(messages[2]["reasoning_content"], "think c2");
  EXPECT_EQ(messages[4]["content"], "done");
}

TEST(ChatTurns, JoinSystemTextsAtTheBeginning) {
  for (const auto late : {Turns::LateSystem::kInPlace, Turns::LateSystem::kInUserTurn}) {
    Turns turns = turns_of(late);
    turns.system("a");
    turns.system("b");
    turns.user("c");
    turns.system("d");
    const auto messages = turns.messages();
    EXPECT_EQ(messages[0]["content"], "a\n\nb");
    const bool in_place = late == Turns::LateSystem::kInPlace;
    EXPECT_EQ(messages[1]["content"], in_place ? "c" : "c\n\n<system-reminder>\nd\n</system-reminder>");
  }
  EXPECT_EQ(turns_of().messages().size(), 1u) << "a turn of the user's, which is empty";
}

}  // namespace
}  // namespace mneme::server_test
