// What is computed once and used again: prefixes, slots on disk; and that it changes no answer.
#include <gtest/gtest.h>

#include <filesystem>
#include <thread>

#include "tests/cli/program.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;

std::string document(int words, const std::string& name) {
  std::string text;
  for (int i = 0; i < words; ++i) text += name + std::to_string(i * 7) + (i % 9 == 8 ? ".\n" : " ");
  return text;
}

json request(const std::string& prompt, const std::string& method = "full") {
  return {{"prompt", prompt},   {"max_tokens", 8},          {"temperature", 0},
          {"ignore_eos", true}, {"return_token_ids", true}, {"kv", {{"method", method}}}};
}

json tokens_of(const Response& r) {
  return r.json()["choices"][0]["token_ids"];
}
int cached_of(const Response& r) {
  return r.json()["usage"]["prompt_tokens_details"]["cached_tokens"];
}

server::ServerOptions deterministic(bool prefix_cache) {
  server::ServerOptions o = RunningServer::small();
  o.engine.deterministic = true;
  o.prefix_cache = prefix_cache;
  return o;
}

TEST(Sharing, APrefixChangesNoAnswer) {
  RunningServer with(deterministic(true)), without(deterministic(false));
  const std::string book = document(150, "fact");
  for (const std::string method : {"full", "quest", "freekv", "fier", "window"}) {
    for (const char* question : {"one", "two, and more than that", ""}) {
      json body = request(book + question, method);
      if (method != "full") body["kv"].update({{"budget", 256}, {"sink", 32}, {"recent", 64}});
      const Response a = post(with.port(), "/v1/completions", body), b = post(without.port(), "/v1/completions", body);
      ASSERT_EQ(a.status, 200) << a.body;
      EXPECT_EQ(tokens_of(a), tokens_of(b)) << method << question;
      EXPECT_EQ(cached_of(b), 0);
      if (method != "full") {
        EXPECT_GT(cached_of(a), 400) << method << question;
      }
    }
  }
}

TEST(Sharing, ARequestThatStillRunsIsSharedToo) {
  RunningServer server;
  const std::string book = document(150, "fact");
  json long_one = request(book);
  long_one["max_tokens"] = 3000;
  long_one["stream"] = true;
  Client running(server.port());
  running.send_request("POST", "/v1/completions", long_one.dump());
  ASSERT_TRUE(running.read_until("\"text\""));
  EXPECT_GT(cached_of(post(server.port(), "/v1/completions", request(book + "more"))), 400);
}

// Eight at once, and each has the tokens that it has alone.
TEST(Sharing, ABatchChangesNoAnswer) {
  RunningServer server(deterministic(false));
  std::vector<json> alone, together(8);
  for (int i = 0; i < 8; ++i)
    alone.push_back(
        tokens_of(post(server.port(), "/v1/completions", request(document(20 + 5 * i, "a" + std::to_string(i))))));
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      together[static_cast<std::size_t>(i)] =
          tokens_of(post(server.port(), "/v1/completions", request(document(20 + 5 * i, "a" + std::to_string(i)))));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(together, alone);
}

TEST(Sharing, WhatIsKeptGoesWhenRoomIsWanted) {
  server::ServerOptions options = RunningServer::small();
  options.engine.context = 1024;
  options.engine.kv_memory_bytes = 9 << 20;
  RunningServer server(options);
  const double total = server.metric("kv_cache_blocks_total");
  for (int i = 0; i < 12; ++i) {
    const Response r = post(server.port(), "/v1/completions", request(document(60, "d" + std::to_string(i) + "x")));
    ASSERT_EQ(r.status, 200) << r.body;
    EXPECT_LE(server.metric("kv_cache_blocks_used"), total);
  }
  EXPECT_LT(server.metric("cached_sequences"), 12);
  EXPECT_GT(server.metric("cached_sequences"), 0);
  // The last one is there still, the first one is not.
  EXPECT_GT(cached_of(post(server.port(), "/v1/completions", request(document(60, "d11x")))), 0);
  EXPECT_EQ(cached_of(post(server.port(), "/v1/completions", request(document(60, "d0x")))), 0);
}

class Slots : public testing::Test {
 protected:
  server::ServerOptions options() const {
    server::ServerOptions o = deterministic(false);
    o.slot_path = folder_.path();
    return o;
  }
  static Response act(std::uint16_t port, int slot, const std::string& action, const json& body = {}) {
    return post(port, "/slots/" + std::to_string(slot) + "?action=" + action, body.is_null() ? "" : body.dump());
  }
  cli_test::TempFolder folder_;
};

TEST_F(Slots, GoOnInAnotherServer) {
  const std::string book = document(150, "fact");
  json first = request(book), second = request(book + " and so on");
  first["id_slot"] = second["id_slot"] = 2;
  json expected;
  int cached = 0;
  {
    RunningServer server(options());
    EXPECT_EQ(cached_of(post(server.port(), "/v1/completions", first)), 0);
    const json saved = act(server.port(), 2, "save", {{"filename", "book.session"}}).json();
    EXPECT_GT(saved["n_saved"], 400);
    EXPECT_EQ(get(server.port(), "/slots").json()[2]["n_tokens"], saved["n_saved"]);
    const Response live = post(server.port(), "/v1/completions", second);
    expected = tokens_of(live);
    cached = cached_of(live);
    EXPECT_GT(cached, 400);
    EXPECT_GT(act(server.port(), 2, "erase").json()["n_erased"], 400);
    EXPECT_EQ(server.metric("kv_cache_blocks_used"), 0);
  }
  RunningServer server(options());
  const Response restored = act(server.port(), 2, "restore", {{"filename", "book.session"}});
  ASSERT_EQ(restored.status, 200) << restored.body;
  const Response r = post(server.port(), "/v1/completions", second);
  EXPECT_EQ(tokens_of(r), expected);
  EXPECT_EQ(cached_of(r), cached);
}

// Between two pieces of the file the others get their tokens; the engine never waits for the disk.
TEST_F(Slots, OthersAreAnsweredWhileOneIsSavedAndRestored) {
  RunningServer server(options());
  json kept = request(document(150, "fact"));
  kept["id_slot"] = 2;
  const json expected = tokens_of(post(server.port(), "/v1/completions", kept));
  json long_one = request("Once upon a time");
  long_one["max_tokens"] = 4000;
  long_one["stream"] = true;
  Client running(server.port());
  running.send_request("POST", "/v1/completions", long_one.dump());
  ASSERT_TRUE(running.read_until("\"text\""));
  const double before = server.metric("engine_steps_total");
  ASSERT_EQ(act(server.port(), 2, "save", {{"filename", "book.session"}}).status, 200);
  EXPECT_GT(server.metric("engine_steps_total") - before, 8);
  ASSERT_EQ(act(server.port(), 3, "restore", {{"filename", "book.session"}}).status, 200);
  EXPECT_EQ(server.metric("num_requests_running"), 1);
  kept["id_slot"] = 3;
  EXPECT_EQ(tokens_of(post(server.port(), "/v1/completions", kept)), expected);
}

TEST_F(Slots, RefuseWhatIsNone) {
  RunningServer server(options());
  EXPECT_EQ(act(server.port(), 2, "save", {{"filename", "x"}}).status, 400);  // empty
  EXPECT_EQ(act(server.port(), 99, "erase").status, 400);
  EXPECT_EQ(act(server.port(), 2, "restore", {{"filename", "missing"}}).status, 400);
  EXPECT_EQ(act(server.port(), 2, "steal").status, 400);
  EXPECT_EQ(post(server.port(), "/slots/x?action=save", std::string("{}")).status, 404);
  for (const char* name : {"", "../x", "a/b", ".hidden", "/etc/passwd", "a b"})
    EXPECT_EQ(act(server.port(), 2, "restore", {{"filename", name}}).status, 400) << name;
  folder_.write("junk", "this is no session");
  EXPECT_EQ(act(server.port(), 2, "restore", {{"filename", "junk"}}).status, 400);
  RunningServer without(RunningServer::small());
  EXPECT_NE(act(without.port(), 0, "save", {{"filename", "x"}}).error_message().find("--slot-save-path"),
            std::string::npos);
}

TEST(Reads, AreCountedByPage) {
  RunningServer server;
  json body = request(document(300, "fact"), "quest");
  body["kv"]["budget"] = 256;
  body["kv_reads"] = true;
  const json choice = post(server.port(), "/v1/completions", body).json()["choices"][0];
  const json& reads = choice["kv_reads"];
  EXPECT_EQ(reads["page_tokens"], 32);
  EXPECT_EQ(reads["steps"], 7);
  double sum = 0;
  for (const json& n : reads["reads"]) sum += n.get<double>();
  EXPECT_GT(sum, 0);
  EXPECT_LE(sum, 7.0 * 8 * 64 * 256);  // steps x layers x heads x budget, at most
  body["stream"] = true;
  body["max_tokens"] = 40;
  int told = 0;
  for (const std::string& e : post(server.port(), "/v1/completions", body).events()) {
    if (e == "[DONE]") break;
    told += json::parse(e)["choices"][0].contains("kv_reads") ? 1 : 0;
  }
  EXPECT_EQ(told, 4);  // after 1, 17 and 33 tokens, and at the end
  body["kv"] = {{"method", "full"}};
  body["stream"] = false;
  EXPECT_FALSE(post(server.port(), "/v1/completions", body).json()["choices"][0].contains("kv_reads"));
}

}  // namespace
}  // namespace mneme::server_test
