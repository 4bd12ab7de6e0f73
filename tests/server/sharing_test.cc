// What is computed once and used again: prefixes, slots on disk; and that it changes no answer.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/apps/mneme/program.h"
#include "tests/sanitized.h"
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
  for (const std::string method : {"full", "freekv", "quest", "fier", "window"}) {
    if (kSanitized && method == "quest") break;
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
      together[i] =
          tokens_of(post(server.port(), "/v1/completions", request(document(20 + 5 * i, "a" + std::to_string(i)))));
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(together, alone);
}

// What these bodies are answered when they are sent at once, in their order.
std::vector<Response> together(std::uint16_t port, const std::vector<json>& bodies) {
  std::vector<Response> answers(bodies.size());
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < bodies.size(); ++i)
    threads.emplace_back([&, i] { answers[i] = post(port, "/v1/completions", bodies[i]); });
  for (std::thread& t : threads) t.join();
  return answers;
}

// One computes the document, the others their own question and what is left of a page.
TEST(Sharing, EightQuestionsAtOnceAboutOneDocumentCostOneReading) {
  server::ServerOptions options = RunningServer::small();
  options.engine.context = 8192;
  options.engine.max_batched_tokens = 512;  // read in several steps
  RunningServer server(options);
  for (const std::string method : {"full", "freekv", "quest"}) {
    if (kSanitized && method != "freekv") continue;
    const std::string book = document(kSanitized ? 150 : 500, method);
    std::vector<json> bodies;
    for (int i = 0; i < 8; ++i) bodies.push_back(request(book + " question number " + std::to_string(i), method));
    int computed = 0, longest = 0;
    for (const Response& r : together(server.port(), bodies)) {
      ASSERT_EQ(r.status, 200) << r.body;
      const int n = r.json()["usage"]["prompt_tokens"];
      computed += n - cached_of(r);
      longest = std::max(longest, n);
    }
    EXPECT_GT(longest, 300) << method;
    EXPECT_LT(computed, longest + 7 * 64) << method;
  }
}

// Answers are those of requests that share nothing, whatever the method.
TEST(Sharing, WaitingForAPrefixChangesNoAnswer) {
  server::ServerOptions options = deterministic(true);
  options.engine.max_batched_tokens = 128;  // so that shared parts end in the middle of a prefill
  RunningServer with(options);
  options.prefix_cache = false;
  RunningServer without(options);
  for (const std::string method : {"full", "freekv", "snapkv", "quest", "fier", "window"}) {
    if (kSanitized && method == "quest") break;
    const std::string book = document(150, method);
    std::vector<json> bodies;
    for (const char* question : {"one", "two, and more than that", "", " three"}) {
      bodies.push_back(request(book + question, method));
      if (method != "full") bodies.back()["kv"].update({{"budget", 256}, {"sink", 32}, {"recent", 64}});
    }
    int cached = 0;
    const std::vector<Response> answers = together(with.port(), bodies);
    for (std::size_t i = 0; i < bodies.size(); ++i) {
      ASSERT_EQ(answers[i].status, 200) << answers[i].body;
      EXPECT_EQ(tokens_of(answers[i]), tokens_of(post(without.port(), "/v1/completions", bodies[i]))) << method << i;
      cached += cached_of(answers[i]);
    }
    if (method != "snapkv") {  // drops tokens: there is nothing to share
      EXPECT_GT(cached, 3 * 400) << method;
    }
  }
}

// Its reader goes away in the middle of the document: those who waited for it read the rest, once.
TEST(Sharing, WhoWaitsForAPrefixSurvivesItsReader) {
  server::ServerOptions options = RunningServer::small();
  options.engine.context = 8192;
  options.engine.max_batched_tokens = 32;
  RunningServer server(options);
  const std::string book = document(900, "fact");
  Client reader(server.port()), second(server.port()), third(server.port());
  reader.send_request("POST", "/v1/completions", request(book + "one").dump());
  while (server.metric("num_requests_running") < 1) std::this_thread::yield();
  second.send_request("POST", "/v1/completions", request(book + "two").dump());
  third.send_request("POST", "/v1/completions", request(book + "three").dump());
  while (server.metric("num_requests_waiting") < 2) std::this_thread::yield();
  reader.close();
  const Response a = second.read_response(), b = third.read_response();
  ASSERT_EQ(a.status, 200) << a.body;
  ASSERT_EQ(b.status, 200) << b.body;
  EXPECT_GT(std::min(cached_of(a), cached_of(b)), 0);
  EXPECT_GT(std::max(cached_of(a), cached_of(b)), 2000);
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

TEST(Sharing, WhatMakesRoomComesBackFromTheHostTier) {
  server::ServerOptions options = deterministic(true);
  options.engine.context = 1024;
  options.engine.kv_memory_bytes = 9 << 20;
  options.host_bytes = 64 << 20;
  RunningServer server(options);
  EXPECT_GE(server.metric("kv_host_total_bytes"), 63 << 20);
  const auto ask = [&](int i) {
    return post(server.port(), "/v1/completions", request(document(60, "d" + std::to_string(i) + "x")));
  };
  const json first = tokens_of(ask(0));
  for (int i = 1; i < 12; ++i) ASSERT_EQ(ask(i).status, 200);
  EXPECT_GT(server.metric("kv_host_used_bytes"), 0);
  EXPECT_EQ(server.metric("kv_host_pages_read_total"), 0);
  const Response again = ask(0);
  EXPECT_GT(cached_of(again), 0);
  EXPECT_EQ(tokens_of(again), first);
  EXPECT_GT(server.metric("kv_host_pages_read_total"), 5);
  EXPECT_EQ(server.metric("kv_host_pages_evicted_total"), 0);
}

// With a method as well: its index is built again from the keys.
TEST(Disk, PromptsComeBackInAnotherServer) {
  cli_test::TempFolder folder;
  server::ServerOptions options = deterministic(true);
  options.disk = DiskOptions{.folder = folder.path() / "kv", .bytes = 64 << 20};
  const std::string book = document(150, "fact");
  std::vector<json> bodies;
  for (const char* method : {"full", "freekv"}) {
    bodies.push_back(request(book + "and more than that", method));
    if (bodies.size() > 1) bodies.back()["kv"].update({{"budget", 256}, {"sink", 32}, {"recent", 64}});
  }
  std::vector<json> expected;
  {
    RunningServer server(options);
    for (const json& body : bodies) expected.push_back(tokens_of(post(server.port(), "/v1/completions", body)));
    EXPECT_GT(server.metric("kv_disk_total_bytes"), 0);
  }
  RunningServer server(options);
  EXPECT_GT(server.metric("kv_disk_used_bytes"), 0);
  for (std::size_t i = 0; i < bodies.size(); ++i) {
    const Response r = post(server.port(), "/v1/completions", bodies[i]);
    ASSERT_EQ(r.status, 200) << r.body;
    EXPECT_GT(cached_of(r), 400) << i;
    EXPECT_EQ(tokens_of(r), expected[i]) << i;
  }
  EXPECT_GT(server.metric("kv_disk_pages_read_total"), 10);
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

// Names are checked before anything is written: nothing appears outside of the folder, nor hidden in it.
TEST_F(Slots, SaveUnderPlainNamesOnly) {
  RunningServer server(options());
  json kept = request(document(30, "fact"));
  kept["id_slot"] = 2;
  ASSERT_EQ(post(server.port(), "/v1/completions", kept).status, 200);
  const std::filesystem::path folder = folder_.path();
  const std::filesystem::path outside = folder.parent_path() / "mneme-outside";
  std::filesystem::remove(outside);
  for (const std::string& name : {std::string("../mneme-outside"), outside.string(), std::string(".hidden"),
                                  std::string("a b"), std::string(201, 'x'), std::string("")}) {
    for (const char* action : {"save", "restore"}) {
      const Response r = act(server.port(), 2, action, {{"filename", name}});
      EXPECT_EQ(r.status, 400) << name;
      EXPECT_TRUE(r.error_message().starts_with("filename: expected")) << r.body;
    }
  }
  EXPECT_FALSE(std::filesystem::exists(outside));
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_EQ(act(server.port(), 2, "save", {{"filename", std::string(200, 'x')}}).status, 200);
}

TEST_F(Slots, FollowNoLinks) {
  RunningServer server(options());
  json kept = request(document(30, "fact"));
  kept["id_slot"] = 2;
  ASSERT_EQ(post(server.port(), "/v1/completions", kept).status, 200);
  ASSERT_EQ(act(server.port(), 2, "save", {{"filename", "plain"}}).status, 200);
  const std::filesystem::path folder = folder_.path();
  cli_test::TempFolder elsewhere;
  elsewhere.write("precious", "of somebody else");
  std::filesystem::create_symlink(std::filesystem::path(elsewhere.path()) / "precious", folder / "link");
  std::filesystem::create_symlink(folder / "plain", folder / "inside");
  std::filesystem::create_symlink(std::filesystem::path(elsewhere.path()) / "new", folder / "dangling");
  std::filesystem::create_directory(folder / "folder");
  for (const char* name : {"link", "inside", "dangling", "folder"}) {
    for (const char* action : {"save", "restore"}) {
      const Response r = act(server.port(), 2, action, {{"filename", name}});
      EXPECT_EQ(r.status, 400) << action << name << r.body;
      // What clients read says nothing of where the server keeps its files.
      EXPECT_EQ(r.error_message().find(folder.string()), std::string::npos) << r.body;
      EXPECT_NE(r.error_message().find(name), std::string::npos) << r.body;
    }
  }
  std::ifstream in(std::filesystem::path(elsewhere.path()) / "precious");
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), "of somebody else");
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(elsewhere.path()) / "new"));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(act(server.port(), 2, "restore", {{"filename", "missing"}}).error_message().find(folder.string()),
            std::string::npos);
  EXPECT_EQ(act(server.port(), 2, "restore", {{"filename", "plain"}}).status, 200);
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
