// Ids without a token: padding of the embedding is never sampled, and what is said of it is JSON.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/padded_model.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"
#include "tests/temp_folder.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class AbsentTokens : public testing::Test {
 protected:
  static server::ServerOptions options(const TempFolder& folder) {
    server::ServerOptions o = RunningServer::small();
    o.model = make_padded_model(folder.path());
    o.engine.context = 256;
    return o;
  }
  Response complete(json body) {
    if (!body.contains("prompt")) body["prompt"] = {45, 9, 30};
    return post(server_.port(), "/v1/completions", body);
  }

  TempFolder folder_;
  RunningServer server_{options(folder_)};
};

// Logits of random weights are alike: at this temperature every id that has a logit comes, 4 of 64 in 800 draws surely.
TEST_F(AbsentTokens, AreNeverSampled) {
  const Response r = complete({{"max_tokens", 200},
                               {"n", 4},
                               {"temperature", 100},
                               {"seed", 1},
                               {"ignore_eos", true},
                               {"logprobs", 20},
                               {"return_token_ids", true}});
  ASSERT_EQ(r.status, 200) << r.body;
  std::vector<int> seen(kPaddedVocab);
  const json answer = r.json();
  for (const json& choice : answer["choices"]) {
    for (const json& id : choice["token_ids"]) ++seen[id.get<std::size_t>()];
    for (const json& top : choice["logprobs"]["top_logprobs"])
      for (const auto& [name, logprob] : top.items()) EXPECT_GT(logprob, -9999.0) << name;
  }
  EXPECT_EQ(std::count(seen.begin(), seen.begin() + kPaddedTokens, 0), 0);
  EXPECT_EQ(std::count(seen.begin() + kPaddedTokens, seen.end(), 0), kPaddedVocab - kPaddedTokens);
}

// A prompt may have them. Their probability is 0, whose logarithm is no number of JSON: -9999, as vLLM writes it.
TEST_F(AbsentTokens, OfAPromptHaveALogprobThatJsonCarries) {
  for (const bool stream : {false, true}) {
    const Response r = complete({{"prompt", {45, 61, 9, 63, 62, 30}},
                                 {"max_tokens", 2},
                                 {"echo", true},
                                 {"logprobs", 3},
                                 {"temperature", 0},
                                 {"repetition_penalty", 1.3},
                                 {"stream", stream}});
    ASSERT_EQ(r.status, 200) << r.body;
    const json l = json::parse(stream ? r.events().at(0) : r.body)["choices"][0]["logprobs"];
    const json& logprobs = l["token_logprobs"];
    ASSERT_GE(logprobs.size(), 6u) << l;
    EXPECT_TRUE(logprobs[0].is_null()) << l;
    for (const std::size_t i : {1u, 3u, 4u}) EXPECT_EQ(logprobs[i], -9999.0) << i << l;
    for (const std::size_t i : {2u, 5u}) EXPECT_TRUE(logprobs[i].is_number() && logprobs[i] > -100.0) << i << l;
    EXPECT_EQ(l["top_logprobs"][1].size(), 4u) << "the likeliest three, and the prompt's own: " << l;
    EXPECT_EQ(l["text_offset"][1], l["text_offset"][2]) << "it has no text";
  }
}

TEST_F(AbsentTokens, AreNamedWhereARequestAsksForThem) {
  for (const json& bias : {json{{"61", 100}}, json{{"5", 1}, {"61", -100}}}) {
    const Response r = complete({{"logit_bias", bias}});
    EXPECT_EQ(r.status, 400) << r.body;
    EXPECT_THAT(r.error_message(), testing::StartsWith("logit_bias: the id 61 has no token"));
  }
  const Response r = complete({{"allowed_token_ids", {5, 62}}});
  EXPECT_EQ(r.status, 400) << r.body;
  EXPECT_THAT(r.error_message(), testing::StartsWith("allowed_token_ids: the id 62 has no token"));
  EXPECT_EQ(complete({{"allowed_token_ids", {5, 59}}, {"logit_bias", {{"59", 100}}}}).status, 200);
}

TEST_F(AbsentTokens, AreNotInAnAnswerOfASchema) {
  const json format = {{"type", "json_schema"}, {"json_schema", {{"name", "x"}, {"schema", {{"type", "integer"}}}}}};
  const Response r = complete({{"response_format", format},
                               {"max_tokens", 40},
                               {"n", 8},
                               {"temperature", 100},
                               {"seed", 2},
                               {"return_token_ids", true}});
  ASSERT_EQ(r.status, 200) << r.body;
  const json answer = r.json();
  for (const json& choice : answer["choices"]) {
    EXPECT_TRUE(json::parse(choice["text"].get<std::string>()).is_number_integer()) << choice;
    for (const json& id : choice["token_ids"]) EXPECT_LT(id, kPaddedTokens);
  }
}

}  // namespace
}  // namespace mneme::server_test
