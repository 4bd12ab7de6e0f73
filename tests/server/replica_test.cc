// What a router in front of several replicas relies on: infos, loads, models by preset, a drain that it can see.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "mneme/recipe.h"
#include "src/engine/kv_method.h"
#include "src/recipes/fields.h"
#include "src/recipes/override.h"
#include "src/server/api/presets.h"
#include "tests/error_message.h"
#include "tests/server/http_client.h"
#include "tests/server/running_server.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using server::parse_preset;
using testing::HasSubstr;

const std::string kModel = "needle-27m-q8_0";

// Every method's own settings as a request's fields, in the JSON type that the table gives them.
TEST(RequestFields, EveryFieldOfTheTableIsAFieldOfKv) {
  for (const MethodInfo& method : methods()) {
    Json kv = {{"method", method.name}};
    for (const RecipeField& f : recipe_fields()) {
      const std::string value = override_value(make_recipe(method.name), f.name);
      if (value.empty()) continue;
      const std::string name(f.public_name());
      const bool number = f.kind == FieldKind::kInteger || f.kind == FieldKind::kNumber;
      if (f.kind == FieldKind::kLayers) {
        kv[name] = Json::array();
        std::istringstream layers(value);
        for (std::string layer; value != "none" && std::getline(layers, layer, '+');)
          kv[name].push_back(std::stoi(layer));
      } else if (f.kind == FieldKind::kFlag) {
        kv[name] = value == "yes";
      } else if (number && value != f.word) {
        kv[name] = Json::parse(value);
      } else {
        kv[name] = value;
      }
    }
    const KvMethodOptions read = server::parse_kv(JsonRef(kv, "kv"), {});
    EXPECT_EQ(recipe_of(read), make_recipe(method.name)) << method.name;
  }
}

TEST(RequestFields, AKvOfTextIsTheSpellingOfTheCommandLine) {
  const Json text = "freekv:tau=0.9,budget=512";
  EXPECT_EQ(recipe_of(server::parse_kv(JsonRef(text, "kv"), {})),
            recipe_of({.method = "freekv", .overrides = "tau=0.9,budget=512"}));
  const Json old = {{"method", "freekv"}, {"overrides", "tau=0.9,budget=512"}};
  EXPECT_EQ(recipe_of(server::parse_kv(JsonRef(old, "kv"), {})), recipe_of(server::parse_kv(JsonRef(text, "kv"), {})));
}

TEST(Presets, ReadANameAndARecipe) {
  const server::Preset fast = parse_preset(R"(fast={"method":"freekv","budget":512,"sink":32})", {});
  EXPECT_EQ(fast.name, "fast");
  EXPECT_EQ(fast.kv.method, "freekv");
  EXPECT_EQ(fast.kv.budget, 512);
  EXPECT_EQ(fast.kv.sink, 32);
  // What is left out is the server's, where the method is.
  const KvMethodOptions quest{.method = "quest", .budget = 1024};
  EXPECT_EQ(parse_preset(R"(a={"recent":64})", quest).kv.budget, 1024);
  EXPECT_FALSE(parse_preset(R"(a={"method":"fier"})", quest).kv.budget);
  const server::Preset recipe = parse_preset("fast=freekv:budget=512,sink=32", {});
  EXPECT_EQ(recipe.kv.method, "freekv");
  EXPECT_EQ(recipe.kv.overrides, "budget=512,sink=32");
  EXPECT_EQ(parse_preset("all=full", {}).kv.method, "full");
}

TEST(Presets, ErrorsNameThePreset) {
  const auto message = [](const char* text) {
    return error_message(ErrorKind::kOption, [&] { parse_preset(text, {}); });
  };
  for (const char* text : {"fast", "={}", "a b={}", "a:b={}", "a/b={}"})
    EXPECT_THAT(message(text), HasSubstr("--preset: expected NAME=METHOD:KEY=VALUE,... or NAME=JSON")) << text;
  EXPECT_THAT(message("fast={"), HasSubstr("--preset fast:"));
  EXPECT_THAT(message("fast=[]"), HasSubstr("--preset fast:"));
  EXPECT_THAT(message(R"(fast={"methode":"quest"})"), HasSubstr("found \"methode\""));
  EXPECT_THAT(message(R"(fast={"budget":512})"), HasSubstr("without a method"));
}

TEST(Presets, AreFoundByTheWholeName) {
  const std::vector<server::Preset> presets = {{.name = "fast", .kv = {}}, {.name = "a", .kv = {}}};
  EXPECT_EQ(server::find_preset(presets, "m", "m:fast"), &presets[0]);
  EXPECT_EQ(server::find_preset(presets, "m:fast", "m:fast:a"), &presets[1]);
  for (const char* other : {"m", "m:", "m:fas", "m:fastt", "n:fast", "fast", ":fast", "mm:fast"})
    EXPECT_EQ(server::find_preset(presets, "m", other), nullptr) << other;
}

TEST(Replica, APresetIsAModelOfItsOwn) {
  server::ServerOptions options = RunningServer::small();
  options.presets = {parse_preset(R"(near={"method":"window","budget":128,"sink":32,"recent":64})", {})};
  RunningServer server(options);
  const std::string preset = kModel + ":near";
  const json list = get(server.port(), "/v1/models").json()["data"];
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0]["id"], kModel);
  EXPECT_EQ(list[1]["id"], preset);
  EXPECT_EQ(list[1]["root"], kModel);
  EXPECT_EQ(get(server.port(), "/v1/models/" + preset).json()["meta"]["kv_method"], "window");
  EXPECT_EQ(get(server.port(), "/v1/models/" + kModel + ":far").status, 404);

  std::string text;
  for (int i = 0; i < 150; ++i) text += "word" + std::to_string(i * 7) + " ";
  const json by_name = {{"model", preset},  {"prompt", text},       {"max_tokens", 8},
                        {"temperature", 0}, {"kv_retrieval", true}, {"return_token_ids", true}};
  json by_field = by_name;
  by_field["model"] = kModel;
  by_field["kv"] = {{"method", "window"}, {"budget", 128}, {"sink", 32}, {"recent", 64}};
  const json a = post(server.port(), "/v1/completions", by_name).json();
  const json b = post(server.port(), "/v1/completions", by_field).json();
  EXPECT_EQ(a["model"], preset);
  EXPECT_EQ(b["model"], kModel);
  EXPECT_EQ(a["choices"][0]["token_ids"], b["choices"][0]["token_ids"]);
  EXPECT_EQ(a["choices"][0]["kv_retrieval"]["method"], "window") << a.dump();
  json other = by_name;
  other["model"] = kModel + ":far";
  EXPECT_EQ(post(server.port(), "/v1/completions", other).status, 404);
}

TEST(Replica, APresetThatDoesNotCombineStopsTheStart) {
  server::ServerOptions options = RunningServer::small();
  options.presets = {parse_preset(R"(odd={"method":"nosuch"})", {})};
  EXPECT_THAT(error_message(ErrorKind::kOption, [&] { RunningServer server(options); }), HasSubstr("--preset odd:"));
}

TEST(Replica, AnswersWhatRoutersAsk) {
  RunningServer server;
  const json tokens = get(server.port(), "/tokenizer_info").json();
  for (const char* field : {"eos_token", "bos_token", "pad_token", "chat_template"})
    EXPECT_TRUE(tokens.contains(field));
  EXPECT_TRUE(tokens["eos_token"].is_string());
  for (const char* path : {"/server_info", "/get_server_info"}) {
    const json info = get(server.port(), path).json();
    EXPECT_EQ(info["served_model_name"], kModel);
    EXPECT_EQ(info["page_size"], 32);
    EXPECT_EQ(info["context_length"], 4096);
    EXPECT_GE(info["max_total_num_tokens"], 4096);
    EXPECT_TRUE(info["kv_events"].is_null());
  }
  for (const char* path : {"/model_info", "/get_model_info"})
    EXPECT_EQ(get(server.port(), path).json()["model_path"], kModel);
}

TEST(Replica, LoadsCountTokensInTheCache) {
  RunningServer server;
  EXPECT_EQ(get(server.port(), "/v1/loads?include=core").json()["loads"][0]["num_used_tokens"], 0);
  std::string text;
  for (int i = 0; i < 100; ++i) text += "word" + std::to_string(i) + " ";
  const json answer = post(server.port(), "/v1/completions", json{{"prompt", text}, {"max_tokens", 1}}).json();
  ASSERT_TRUE(server.idle());
  const json load = get(server.port(), "/loads?model=x").json()["loads"][0];
  const int prompt = answer["usage"]["prompt_tokens"];
  EXPECT_GE(load["num_used_tokens"], prompt / 32 * 32);
  EXPECT_LE(load["num_used_tokens"], prompt + 64);
  EXPECT_EQ(load["num_running_reqs"], 0);
  EXPECT_GT(load["token_usage"], 0.0);
}

TEST(Replica, MetricsUnderAnotherName) {
  server::ServerOptions options = RunningServer::small();
  options.metrics_prefix = "vllm";
  RunningServer server(options);
  const std::string text = get(server.port(), "/metrics").body;
  for (const char* name : {"vllm:num_requests_waiting{", "vllm:num_requests_running{", "vllm:kv_cache_usage_perc{"})
    EXPECT_THAT(text, HasSubstr(name));
  EXPECT_THAT(text, HasSubstr(",block_size=\"32\",num_gpu_blocks="));
  EXPECT_EQ(text.find("mneme:"), std::string::npos);
}

// A probe sees the drain; a request that comes meanwhile is answered. A second order ends it.
TEST(Replica, DrainsWhereAProbeCanSee) {
  server::ServerOptions options = RunningServer::small();
  options.timeouts.drain_seconds = 3600;
  RunningServer server(options);
  server.request_stop();
  while (get(server.port(), "/health").status == 200) {
  }
  EXPECT_EQ(get(server.port(), "/health").status, 503);
  EXPECT_EQ(post(server.port(), "/v1/completions", json{{"prompt", "x"}, {"max_tokens", 2}}).status, 200);
  server.stop();
}

}  // namespace
}  // namespace mneme::server_test
