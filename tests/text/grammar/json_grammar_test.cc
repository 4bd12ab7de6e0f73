// Random walks through the mask give valid documents; every valid document is accepted; nothing else is.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "mneme/error.h"
#include "src/formats/checkpoint.h"
#include "src/sampler/sampler.h"
#include "src/text/grammar/json_constraint.h"
#include "src/text/grammar/json_matcher.h"
#include "src/text/grammar/json_schema.h"
#include "tests/text/grammar/json_testing.h"
#include "tests/text/tokenizer/test_data.h"

namespace mneme {
namespace {

using test::OrderedJson;
using Mask = std::vector<std::uint64_t>;

const Tokenizer& shipped() {
  static const auto t =
      Tokenizer::make(Checkpoint::open_tokenizer(std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf"));
  return *t;
}
std::shared_ptr<const TokenTrie> shipped_trie() {
  static const auto trie = std::make_shared<const TokenTrie>(shipped());
  return trie;
}

Mask mask_of(const TokenConstraint& c, const Tokenizer& t) {
  Mask mask((static_cast<std::size_t>(t.vocab_size()) + 63) / 64);
  c.allowed(mask);
  return mask;
}
bool has(const Mask& mask, TokenId id) {
  return (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) != 0;
}
bool ends(const Mask& mask, const TokenTrie& trie) {
  return has(mask, trie.ends().front());
}

bool accepts(const JsonGrammar& grammar, std::string_view text) {
  const JsonMatcher m(std::make_shared<const JsonGrammar>(grammar));
  JsonMatcher::Threads from = m.begin(), to;
  for (const char c : text) {
    if (!m.step_all(from, c, to)) return false;
    from.swap(to);
  }
  return std::any_of(from.begin(), from.end(), [](const auto& t) { return t.done; });
}

// Allowed tokens, checked one by one.
Mask naive_mask(const JsonMatcher& m, const JsonMatcher::Threads& threads, const Tokenizer& t, const TokenTrie& trie) {
  Mask mask((static_cast<std::size_t>(t.vocab_size()) + 63) / 64);
  bool some = false;
  for (TokenId id = 0; id < t.vocab_size(); ++id) {
    const std::string bytes = t.token_bytes(id);
    if (t.is_control(id) || t.is_end(id) || bytes.empty()) continue;
    JsonMatcher::Threads from = threads, to;
    bool fits = true;
    for (const char c : bytes) {
      fits = fits && m.step_all(from, c, to);
      from.swap(to);
    }
    if (fits) mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
    some = some || fits;
  }
  const bool done = std::any_of(threads.begin(), threads.end(), [](const auto& x) { return x.done; });
  if (done || !some)
    for (const TokenId id : trie.ends()) mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64);
  return mask;
}

TokenId random_token(const Mask& mask, std::mt19937& random) {
  std::vector<TokenId> all;
  for (std::size_t i = 0; i < mask.size() * 64; ++i)
    if (has(mask, static_cast<TokenId>(i))) all.push_back(static_cast<TokenId>(i));
  return all[random() % all.size()];
}

TEST(JsonGrammar, RandomWalksGiveDocumentsThatParseAndAreValid) {
  std::mt19937 random(1);
  int finished = 0, walks = 0;
  for (const std::string& text : test::schemas()) {
    const auto schema = OrderedJson::parse(text);
    for (int n = 0; n < 12; ++n, ++walks) {
      auto c = json_constraint(shipped_trie(), compile_json_schema(schema));
      std::string out;
      bool ended = false;
      for (int step = 0; step < 300 && !ended; ++step) {
        const Mask mask = mask_of(*c, shipped());
        // Long walks prefer the end: the shortest closing byte that is allowed.
        TokenId id = random_token(mask, random);
        if (step > 30 || (ends(mask, *shipped_trie()) && random() % 2 == 0)) {
          if (ends(mask, *shipped_trie())) {
            id = shipped_trie()->ends().front();
          } else {
            for (const char* close : {"}", "]", "\"", "null"}) {
              const auto ids = shipped().encode(close, {.continues = true});
              if (ids.size() == 1 && has(mask, ids[0]) && random() % 4 != 0) {
                id = ids[0];
                break;
              }
            }
          }
        }
        ended = shipped().is_end(id);
        ASSERT_TRUE(!ended || ends(mask, *shipped_trie()));
        if (!ended) out += shipped().token_bytes(id);
        c = c->after(id);
      }
      if (!ended) continue;
      ++finished;
      const auto value = OrderedJson::parse(out, nullptr, false);
      ASSERT_FALSE(value.is_discarded()) << text << "\n" << out;
      EXPECT_TRUE(test::is_valid(value, schema, schema)) << text << "\n" << out;
    }
  }
  EXPECT_GE(finished * 10, walks * 8);  // deep recursion may be unfinished
}

void expect_accepted(const Tokenizer& t, const std::shared_ptr<const TokenTrie>& trie, const OrderedJson& schema,
                     const std::string& document) {
  auto c = json_constraint(trie, compile_json_schema(schema));
  for (const TokenId id : t.encode(document, {.continues = true})) {
    ASSERT_TRUE(has(mask_of(*c, t), id)) << schema << "\n" << document << "\nat " << t.token_bytes(id);
    c = c->after(id);
  }
  EXPECT_TRUE(ends(mask_of(*c, t), *trie)) << document;
}

TEST(JsonGrammar, EveryValidDocumentPassesTokenByToken) {
  std::mt19937 random(2);
  for (const std::string& text : test::schemas()) {
    const auto schema = OrderedJson::parse(text);
    for (int n = 0; n < 40; ++n) {
      const OrderedJson v = test::random_document(schema, schema, random);
      ASSERT_TRUE(test::is_valid(v, schema, schema)) << v;
      const bool fixed = text.find("enum") != std::string::npos || text.find("pattern") != std::string::npos;
      // Constants have one form; other values may be written in any JSON form.
      const std::string document = fixed || n % 3 == 0 ? v.dump() : n % 3 == 1 ? v.dump(2) : v.dump(-1, ' ', false);
      expect_accepted(shipped(), shipped_trie(), schema, document);
    }
  }
}

TEST(JsonGrammar, DocumentsPassWithLlama3sVocabulary) {
  const auto path = test::shared_folder() / "data" / "tokenizers" / "llama-3.tiktoken";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no " << path;
  TokenizerData data = test::read_tiktoken(path);
  data.eos = test::add_token(data, "<|eot_id|>", TokenType::kControl);
  const auto t = Tokenizer::make(data);
  const auto trie = std::make_shared<const TokenTrie>(*t);
  std::mt19937 random(3);
  for (const std::string& text : test::schemas()) {
    const auto schema = OrderedJson::parse(text);
    for (int n = 0; n < 4; ++n) expect_accepted(*t, trie, schema, test::random_document(schema, schema, random).dump());
  }
}

TEST(JsonGrammar, TheMaskIsThatOfEachTokenAlone) {
  std::mt19937 random(4);
  for (const std::string& text : test::schemas()) {
    const auto schema = OrderedJson::parse(text);
    const JsonGrammar grammar = compile_json_schema(schema);
    const JsonMatcher m(std::make_shared<const JsonGrammar>(grammar));
    auto c = json_constraint(shipped_trie(), grammar);
    JsonMatcher::Threads from = m.begin(), to;
    for (int step = 0; step < 12; ++step) {
      const Mask mask = mask_of(*c, shipped());
      ASSERT_EQ(mask, naive_mask(m, from, shipped(), *shipped_trie())) << text;
      const TokenId id = random_token(mask, random);
      if (shipped().is_end(id)) break;
      for (const char b : shipped().token_bytes(id)) {
        m.step_all(from, b, to);
        from.swap(to);
      }
      c = c->after(id);
    }
  }
}

TEST(JsonGrammar, WhatIsNotValidDoesNotPass) {
  const auto refuses = [](const char* schema, const char* document) {
    EXPECT_FALSE(accepts(compile_json_schema(OrderedJson::parse(schema)), document)) << schema << "\n" << document;
  };
  const auto takes = [](const char* schema, const char* document) {
    EXPECT_TRUE(accepts(compile_json_schema(OrderedJson::parse(schema)), document)) << schema << "\n" << document;
  };
  for (const char* d : {"",
                        "{",
                        "{}}",
                        "{} ",
                        "{\"a\"}",
                        "{\"a\":}",
                        "{,}",
                        "{\"a\":1,}",
                        "{a:1}",
                        "{\"a\":01}",
                        "{\"a\":1.}",
                        "{\"a\":.5}",
                        "{\"a\":+1}",
                        "{\"a\":-}",
                        "{\"a\":1e}",
                        "{\"a\":tru}",
                        "{\"a\":\"\n\"}",
                        "{\"a\":\"\\x\"}",
                        "{\"a\":\"\\ud800\"}",
                        "{\"a\":\"\\udc00\"}",
                        "{\"a\":\"\xff\"}",
                        "{\"a\":\"\xc0\x80\"}",
                        "{\"a\":\"\xed\xa0\x80\"}",
                        "{\"a\":[1,]}",
                        "{\"a\":[,1]}",
                        "[]",
                        "1",
                        "{\"a\":1e999}",
                        "{\"a\":1e281}",
                        "{\"a\":1e400}",
                        "{\"a\":-1E+309}"})
    EXPECT_FALSE(accepts(any_json_object(), d)) << d;
  for (const char* d : {"{}", " {\n}", "{\"a\":1e280}", "{\"a\":-0.5e-3,\"b\":[],\"c\":{\"\":null}}",
                        "{\"a\":\"\\ud83d\\uDE00\\u00e9\\/\"}", "{\"\xf0\x9f\x98\x80\" : [ true , false ] }"})
    EXPECT_TRUE(accepts(any_json_object(), d)) << d;
  const char* person =
      R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"],"additionalProperties":false})";
  for (const char* d : {"{}", R"({"b":"x"})", R"({"a":1,"a":2})", R"({"a":"1"})", R"({"a":1,"c":2})", R"({"a":1.0})",
                        R"({"\u0061":1})", R"({"a":1,})"})
    refuses(person, d);
  for (const char* d : {R"({"a":1})", R"({"b":"","a":-3})", "{ \"a\" : 0 , \"b\" : \"\" }"}) takes(person, d);
  refuses(R"({"type":"object","properties":{"a\"b":{"type":"null"}}})", R"({"a\"b":1})");
  takes(R"({"type":"object","properties":{"a\"b":{"type":"null"}}})", R"({"a\"b":null})");
  for (const char* d : {"4", "106", "-5", "5.5", "1e1", "007"})
    refuses(R"({"type":"integer","minimum":5,"maximum":105})", d);
  for (const char* d : {"5", "9", "10", "99", "105"}) takes(R"({"type":"integer","minimum":5,"maximum":105})", d);
  for (const char* d : {"-1.6", "2.25", "2.3", "3", "-2", "1e0"})
    refuses(R"({"type":"number","minimum":-1.5,"exclusiveMaximum":2.25})", d);
  for (const char* d : {"-1.5", "-0", "0.0", "2.249999999", "2"})
    takes(R"({"type":"number","minimum":-1.5,"exclusiveMaximum":2.25})", d);
  takes(R"({"type":"number","minimum":0.1})", "0.1");
  refuses(R"({"type":"number","minimum":0.1})", "0.09");
  for (const char* d : {R"("a")", R"("abcde")", R"("é")"})
    refuses(R"({"type":"string","minLength":2,"maxLength":4})", d);
  for (const char* d : {R"("éé")", R"("\ud83d\ude00a")", R"("\n\n\n\n")"})
    takes(R"({"type":"string","minLength":2,"maxLength":4})", d);
}

TEST(JsonGrammar, WhatIsNotSupportedIsNamed) {
  for (
      const char* s :
      {R"({"type":"object","patternProperties":{}})", R"({"not":{}})", R"({"type":"array","uniqueItems":true})",
       R"({"type":"integer","multipleOf":3})", R"({"allOf":[{"type":"object"},{"type":"object"}]})",
       R"({"oneOf":[{"type":"number"},{"type":"integer"}]})", R"({"$ref":"http://a/b"})", "false",
       R"({"type":"object","properties":{"a":{"type":"string","format":"date","foo":1}}})",
       R"({"type":"integer","minimum":3,"maximum":2})",
       R"({"$defs":{"a":{"type":"object","properties":{"a":{"$ref":"#/$defs/a"}},"required":["a"]}},"$ref":"#/$defs/a"})",
       R"({"type":"array","prefixItems":[]})", R"({"properties":{"a":{}}})",
       R"({"type":"string","minLength":3,"maxLength":2})", R"({"enum":[]})",
       R"({"type":"object","required":["a"],"additionalProperties":false})"}) {
    try {
      compile_json_schema(OrderedJson::parse(s));
      ADD_FAILURE() << s;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported) << s << ": " << e.what();
    }
  }
  for (const char* s : {"1", R"({"type":"thing"})", R"({"$ref":"#/nowhere"})", R"({"$ref":"#"})", R"({"anyOf":[]})",
                        R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})", R"({"type":"object","properties":3})",
                        R"({"type":"object","required":[1]})", R"({"type":"string","maxLength":-1})"}) {
    try {
      compile_json_schema(OrderedJson::parse(s));
      ADD_FAILURE() << s;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kRequest) << s << ": " << e.what();
    }
  }
}

// Padding of the embedding has names ("[PAD261]") and no text; one that a file lists as an end is none.
TEST(JsonGrammar, IdsWithoutATokenAreNeverAllowed) {
  TokenizerData data = test::byte_bpe({{"{", "}"}, {"1", "2"}});
  data.eos = test::add_token(data, "</s>", TokenType::kControl);
  std::vector<TokenId> absent;
  for (int i = 0; i < 70; ++i)
    absent.push_back(test::add_token(data, "[PAD" + std::to_string(data.tokens.size()) + "]", TokenType::kAbsent));
  data.eog = {absent[0], absent[69]};
  const auto t = Tokenizer::make(data);
  EXPECT_EQ(t->end_tokens(), std::vector<TokenId>{*data.eos});
  const auto trie = std::make_shared<const TokenTrie>(*t);
  std::mt19937 random(3);
  for (const std::string& text : test::schemas()) {
    auto c = json_constraint(trie, compile_json_schema(OrderedJson::parse(text)));
    for (int step = 0; step < 60; ++step) {
      const Mask mask = mask_of(*c, *t);
      for (const TokenId id : absent) ASSERT_FALSE(has(mask, id)) << id << " of " << text;
      const TokenId id = random_token(mask, random);
      if (t->is_end(id)) break;
      c = c->after(id);
    }
  }
}

// Where the document is complete, the mask would be empty: the sampler ended the process.
TEST(JsonGrammar, AVocabularyWithoutAnEndIsRefused) {
  TokenizerData data = test::byte_bpe({});
  data.eos = test::add_token(data, "[PAD256]", TokenType::kAbsent);
  for (const bool padded : {false, true}) {
    const auto t = Tokenizer::make(padded ? data : test::byte_bpe({}));
    try {
      json_constraint(std::make_shared<const TokenTrie>(*t), any_json_object());
      ADD_FAILURE() << "taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported);
      EXPECT_NE(std::string(e.what()).find("no token that ends an answer"), std::string::npos) << e.what();
    }
  }
}

TEST(JsonGrammar, TheSamplerSelectsOnlyWhatIsAllowed) {
  const auto schema = OrderedJson::parse(test::schemas()[0]);
  std::mt19937 random(5);
  for (const float temperature : {0.0f, 1.5f}) {
    Sampler sampler({.temperature = temperature, .top_k = 3, .repetition_penalty = 1.3f, .seed = 1});
    sampler.constrain(json_constraint(shipped_trie(), compile_json_schema(schema)));
    std::vector<float> logits(shipped().vocab_size());
    std::string out;
    for (int step = 0; step < 400; ++step) {
      for (float& l : logits) l = static_cast<float>(random() % 1000) / 100.0f;
      for (const char* close : {"\"", "}", "name", "age", "1"})
        for (const TokenId id : shipped().encode(close, {.continues = true})) logits[id] += 8;
      logits[0] = std::numeric_limits<float>::infinity();  // forbidden: it must not exclude the others
      logits[1] = std::numeric_limits<float>::quiet_NaN();
      const Sampler copy = sampler;
      const auto sampled = sampler.next(logits);
      EXPECT_EQ(Sampler(copy).next(logits).token, sampled.token);
      if (shipped().is_end(sampled.token)) break;
      out += shipped().token_bytes(sampled.token);
    }
    const auto value = OrderedJson::parse(out, nullptr, false);
    EXPECT_TRUE(!value.is_discarded() && test::is_valid(value, schema, schema)) << out;
  }
}

}  // namespace
}  // namespace mneme
