// What the page at / asks of the server beside OpenAI's API: progress of prompts, pieces of tokens, reads by page.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/size32.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;

std::string facts(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += "fact" + std::to_string(i) + " ";
  return text;
}

std::vector<json> chunks_of(const Response& r) {
  std::vector<json> chunks;
  for (const std::string& e : r.events())
    if (e != "[DONE]") chunks.push_back(json::parse(e));
  return chunks;
}

TEST(PageApi, PromptProgressIsToldOnRequest) {
  server::ServerOptions options = RunningServer::small();
  options.engine.max_batched_tokens = 128;
  RunningServer server(options);
  json body = {{"messages", {{{"role", "user"}, {"content", facts(300)}}}},
               {"max_tokens", 2},
               {"stream", true},
               {"stream_options", {{"include_progress", true}, {"include_usage", true}}}};
  const auto progress = [&](const json& request) {
    std::vector<json> out;
    bool began = false;
    for (const json& chunk : chunks_of(post(server.port(), "/v1/chat/completions", request))) {
      began = began || !chunk["choices"].empty();
      if (!chunk.contains("prompt_progress")) continue;
      EXPECT_FALSE(began) << "progress after the answer's first piece";
      EXPECT_TRUE(chunk["choices"].empty() && chunk["usage"].is_null());
      out.push_back(chunk["prompt_progress"]);
    }
    return out;
  };
  const std::vector<json> cold = progress(body);
  ASSERT_GT(cold.size(), 5u);
  for (std::size_t i = 0; i < cold.size(); ++i) {
    EXPECT_EQ(cold[i]["processed"], 128 * (i + 1));
    EXPECT_EQ(cold[i]["cache"], 0);
    EXPECT_GT(cold[i]["total"].get<int>(), 128 * size32(cold));
    EXPECT_GE(cold[i]["time_ms"].get<double>(), i == 0 ? 0.0 : cold[i - 1]["time_ms"].get<double>());
  }
  // The same document again, with more after it: what the prefix cache has counts as processed.
  body["messages"][0]["content"] = facts(400);
  const std::vector<json> warm = progress(body);
  ASSERT_FALSE(warm.empty());
  EXPECT_GT(warm[0]["cache"].get<int>(), 128 * static_cast<int>(cold.size() - 1));
  EXPECT_EQ(warm[0]["processed"], warm[0]["cache"].get<int>() + 128);

  body["messages"][0]["content"] = "Again. " + facts(300);
  body["stream_options"].erase("include_progress");
  EXPECT_TRUE(progress(body).empty());
  body["stream_options"]["include_progress"] = 1;
  EXPECT_EQ(post(server.port(), "/v1/chat/completions", body).status, 400);
}

// Bytes of tokens that are no whole characters, in place of U+FFFD.
TEST(PageApi, PiecesKeepEveryByte) {
  RunningServer server;
  const std::string text = "na\xc3\xafve \xe6\xb8\xaf\xe5\x8f\xa3 \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x9a\x80.";
  const json reply = post(server.port(), "/tokenize", json{{"content", text}, {"with_pieces", true}}).json();
  std::string bytes;
  int partial = 0;
  for (const json& t : reply["tokens"]) {
    const json& piece = t["piece"];
    if (piece.is_string()) {
      bytes += piece.get<std::string>();
      continue;
    }
    ++partial;
    for (const json& byte : piece) bytes += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(bytes, text);
  EXPECT_GT(partial, 0);
  EXPECT_EQ(reply["count"], reply["tokens"].size());
  EXPECT_EQ(reply["max_model_len"], 4096);
}

TEST(PageApi, TokenizeRefusesAnAnswerOfManyTimesTheBody) {
  server::ServerOptions options = RunningServer::small();
  options.limits.max_body_bytes = 4000;
  RunningServer server(options);
  std::string numbers;
  for (int i = 0; i < 1200; ++i) numbers += static_cast<char>('0' + i % 10) + std::string(1, '\n');
  const json body = {{"content", numbers}, {"with_pieces", true}};
  const Response r = post(server.port(), "/tokenize", body);
  EXPECT_EQ(r.status, 413);
  EXPECT_NE(r.error_message().find("32000 bytes"), std::string::npos) << r.body;
  EXPECT_EQ(post(server.port(), "/tokenize", json{{"content", numbers}}).status, 200);
}

// Two bytes for keys and for values, in every layer and head, of every token up to the step's own.
TEST(PageApi, FullAttentionTellsWhatItReads) {
  RunningServer server;
  const json body = {{"prompt", facts(200)}, {"max_tokens", 5},  {"temperature", 0},          {"ignore_eos", true},
                     {"kv_retrieval", true}, {"kv_reads", true}, {"kv", {{"method", "full"}}}};
  const json reply = post(server.port(), "/v1/completions", body).json();
  const json& full = reply["choices"][0]["kv_retrieval"];
  const double token_bytes = get(server.port(), "/props").json()["kv_bytes_per_token"];
  EXPECT_GT(token_bytes, 0);
  // Steps after the first token attend n + 1 to n + 4 tokens.
  const double mean = reply["usage"]["prompt_tokens"].get<double>() + 2.5;
  EXPECT_DOUBLE_EQ(full["kv_bytes_per_step"].get<double>(), mean * token_bytes);
  EXPECT_EQ(full["index_bytes_per_step"], 0);
  for (const json& layer : full["layers"]) {
    EXPECT_TRUE(layer["dense"].get<bool>());
    EXPECT_DOUBLE_EQ(layer["achieved_budget"].get<double>(), mean);
  }
  EXPECT_FALSE(full["layers"].empty());
}

TEST(PageApi, ReadsHaveTheirLargestAndTheEndsThatAreAlwaysRead) {
  RunningServer server;
  const json body = {
      {"prompt", facts(300)},
      {"max_tokens", 8},
      {"temperature", 0},
      {"ignore_eos", true},
      {"kv_reads", true},
      {"kv", {{"method", "quest"}, {"budget", 256}, {"sink", 32}, {"recent", 64}, {"dense_layers", "none"}}}};
  const json choice = post(server.port(), "/v1/completions", body).json()["choices"][0];
  const json& reads = choice["kv_reads"];
  EXPECT_EQ(reads["sink"], 32);
  EXPECT_EQ(reads["recent"], 64);
  const std::vector<double> pages = reads["reads"];
  const double most = *std::max_element(pages.begin(), pages.end());
  EXPECT_GT(most, 0);
  EXPECT_LE(most, reads["max_reads"].get<double>());
  EXPECT_EQ(reads["max_reads"].get<std::int64_t>() % (7 * 32), 0);  // steps times tokens of a page
}

TEST(PageApi, ThePageRunsItsOwnScriptsAlone) {
  RunningServer server;
  const Response a = get(server.port(), "/"), b = get(server.port(), "/");
  const std::string& policy = a.headers.at("content-security-policy");
  EXPECT_EQ(policy.find("unsafe"), std::string::npos) << policy;
  const std::size_t at = a.body.find("<script nonce=\"");
  ASSERT_NE(at, std::string::npos);
  const std::string nonce = a.body.substr(at + 15, 32);
  EXPECT_NE(policy.find("script-src 'nonce-" + nonce + "'"), std::string::npos) << policy;
  EXPECT_EQ(b.body.find(nonce), std::string::npos) << "the next answer has the same nonce";
  EXPECT_EQ(a.body.find("{{"), std::string::npos);
  for (const char* outside : {"src=", "@import", "url("}) EXPECT_EQ(a.body.find(outside), std::string::npos) << outside;
}

}  // namespace
}  // namespace mneme::server_test
