// What a constraint costs a step: the mask of allowed tokens, and taking a token on.
//
//   grammar_bench RANKS    a tiktoken rank file (Llama 3's: 128,000 tokens)
#include <benchmark/benchmark.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench/micro/counters.h"
#include "src/text/grammar/json_constraint.h"
#include "src/text/grammar/json_schema.h"
#include "tests/text/tokenizer/test_data.h"

namespace {

using namespace mneme;

std::unique_ptr<Tokenizer> tokenizer;
std::shared_ptr<const TokenTrie> trie;

constexpr const char* kSchema =
    R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"},
  "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}}}, "required": ["name", "age", "tags"], "additionalProperties": false})";

void mask_after(benchmark::State& state, bool any, const std::string& text) {
  auto c = json_constraint(trie, any ? any_json_object() : compile_json_schema(nlohmann::ordered_json::parse(kSchema)));
  for (const TokenId id : tokenizer->encode(text, {.continues = true})) c = c->after(id);
  std::vector<std::uint64_t> mask((tokenizer->vocab_size() + 63) / 64);
  for (auto _ : state) {
    c->allowed(mask);
    benchmark::DoNotOptimize(mask.data());
  }
}

void whole_document(benchmark::State& state) {
  const auto ids = tokenizer->encode(
      R"({"name": "Ada Lovelace, Countess of Lovelace", "age": 36, "tags": ["mathematics", "computing", "poetry"]})",
      {.continues = true});
  const auto begin = json_constraint(trie, compile_json_schema(nlohmann::ordered_json::parse(kSchema)));
  std::vector<std::uint64_t> mask((tokenizer->vocab_size() + 63) / 64);
  for (auto _ : state) {
    auto c = begin;
    for (const TokenId id : ids) {
      c->allowed(mask);
      c = c->after(id);
    }
  }
  state.counters["per_token"] = mneme::seconds_each(ids.size());
}

void make_trie(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(TokenTrie(*tokenizer));
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (argc != 2) {
    std::fprintf(stderr, "usage: grammar_bench RANKS\n");
    return 2;
  }
  auto data = test::read_tiktoken(argv[1]);
  data.eos = test::add_token(data, "<|eot_id|>", TokenType::kControl);
  tokenizer = Tokenizer::make(data);
  trie = std::make_shared<const TokenTrie>(*tokenizer);
  const auto add = [](const char* name, bool any, const char* text) {
    benchmark::RegisterBenchmark(name, [any, text](benchmark::State& s) {
      mask_after(s, any, text);
    })->Unit(benchmark::kMicrosecond);
  };
  add("mask/schema/begin", false, "");
  add("mask/schema/key", false, "{\"");
  add("mask/schema/string", false, "{\"name\": \"Ada");
  add("mask/schema/short_string", false, "{\"tags\": [\"Ada");
  add("mask/schema/integer", false, "{\"age\": 1");
  add("mask/object/key", true, "{\"");
  add("mask/object/value", true, "{\"a\":");
  add("mask/object/string", true, "{\"a\": \"b");
  add("mask/object/number", true, "{\"a\": 1");
  benchmark::RegisterBenchmark("document", whole_document)->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark("make_trie", make_trie)->Unit(benchmark::kMillisecond);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
