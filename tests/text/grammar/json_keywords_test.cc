// Members, references and keywords: what comes out is valid, judged by the jsonschema package too.
#include <gtest/gtest.h>

#include <unistd.h>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "mneme/error.h"
#include "src/text/grammar/json_exact.h"
#include "src/text/grammar/json_matcher.h"
#include "src/text/grammar/json_schema.h"
#include "tests/text/grammar/json_testing.h"

namespace mneme {
namespace {

using test::OrderedJson;

JsonMatcher matcher_of(const std::string& schema, MemberOrder order = MemberOrder::kAny) {
  return JsonMatcher(
      std::make_shared<const JsonGrammar>(compile_json_schema(read_exact_json(schema, "schema"), order)));
}
bool takes(const JsonMatcher& m, const std::string& text) {
  JsonMatcher::Threads from = m.begin(), to;
  for (const char c : text) {
    if (!m.step_all(from, c, to)) return false;
    from.swap(to);
  }
  return std::any_of(from.begin(), from.end(), [](const auto& t) { return t.done; });
}
std::string refusal(const std::string& schema) {
  try {
    matcher_of(schema);
    return "";
  } catch (const Error& e) {
    return e.what();
  }
}

TEST(JsonMembers, NoOtherNameComesTwiceHoweverItIsEscaped) {
  for (const JsonMatcher& m : {JsonMatcher(std::make_shared<const JsonGrammar>(any_json_object())),
                               matcher_of(R"({"type":"object","additionalProperties":{"type":"integer"}})")}) {
    EXPECT_FALSE(takes(m, R"({"a":1,"a":2})"));
    EXPECT_FALSE(takes(m, R"({"a":1,"b":2,"a":3})"));
    EXPECT_FALSE(takes(m, R"({"a/\n":1,"a\/\n":2})"));
    EXPECT_FALSE(takes(m, R"({"":1,"":2})"));
    EXPECT_FALSE(takes(m, R"({"é":1,"é":2})"));
    EXPECT_FALSE(takes(m, R"({"a":1,"\u0061":2})"));
    EXPECT_TRUE(takes(m, R"({"a":1,"aa":2,"":3,"b":4,"ab":5,"ba":6})"));
  }
  // Each object has its own.
  EXPECT_TRUE(takes(matcher_of(R"({"type":"array"})"), R"([{"a":{"a":1},"b":2},{"a":1}])"));
  EXPECT_FALSE(takes(matcher_of(R"({"type":"array"})"), R"([{"a":{"a":1},"a":2}])"));
}

TEST(JsonMembers, ADeclaredNameComesOnceBesideOthers) {
  const JsonMatcher m =
      matcher_of(R"({"type":"object","properties":{"a/":{"type":"integer"}},"additionalProperties":true})");
  EXPECT_FALSE(takes(m, R"({"a/":1,"a\/":2})"));
  EXPECT_FALSE(takes(m, R"({"a\/":"x"})"));
  EXPECT_TRUE(takes(m, R"({"x":"x","a\/":2})"));
}

TEST(JsonMembers, AreNotInventedWhereTheSchemaSaysNothing) {
  const std::string s = R"({"type":"object","properties":{"b":{},"a":{},"c":{}},"required":["a","z"]})";
  const JsonMatcher any = matcher_of(s), ordered = matcher_of(s, MemberOrder::kDeclared);
  for (const JsonMatcher& m : {any, ordered}) {
    EXPECT_TRUE(takes(m, R"({"b":1,"a":2,"c":3,"z":4})"));
    EXPECT_TRUE(takes(m, R"({"a":2,"z":4})"));
    EXPECT_FALSE(takes(m, R"({"a":2,"z":4,"d":5})"));
    EXPECT_FALSE(takes(m, R"({"a":2})"));
    EXPECT_FALSE(takes(m, R"({"b":1,"z":4})"));
  }
  EXPECT_TRUE(takes(any, R"({"z":4,"a":2,"b":1})"));
  EXPECT_FALSE(takes(ordered, R"({"a":2,"b":1,"z":4})"));
  EXPECT_FALSE(takes(ordered, R"({"z":4,"a":2})"));
  EXPECT_FALSE(takes(ordered, R"({"b":1,"c":3)"));
  // No parameters are no members; an object without declarations is free, and so is one that says true.
  EXPECT_FALSE(takes(matcher_of(R"({"type":"object","properties":{}})"), R"({"a":1})"));
  EXPECT_TRUE(takes(matcher_of(R"({"type":"object"})"), R"({"a":1})"));
  const std::string open = R"({"type":"object","properties":{"b":{},"a":{}},"additionalProperties":true})";
  EXPECT_TRUE(takes(matcher_of(open, MemberOrder::kDeclared), R"({"x":1,"a":2,"b":3})"));
}

TEST(JsonReferences, PercentEncodingComesBeforeTildes) {
  for (const auto& [name, pointer] : {std::pair("a b", "a%20b"),
                                      {"a/b", "a~1b"},
                                      {"a~b", "a~0b"},
                                      {"a%b", "a%25b"},
                                      {"a~1b", "a~01b"},
                                      {"a/b", "a%7E1b"},
                                      {"~1", "%7e01"},
                                      {"é", "%C3%A9"}}) {
    const OrderedJson s = {{"$defs", {{name, {{"const", 7}}}}}, {"$ref", std::string("#/$defs/") + pointer}};
    EXPECT_TRUE(takes(matcher_of(s.dump()), "7")) << s;
  }
  for (const char* ref : {"#/$defs/a%2", "#/$defs/a%zz", "#/$defs/b", "#/$defs/~2", "#anchor"})
    EXPECT_NE(refusal(OrderedJson({{"$defs", {{"a", true}}}, {"$ref", ref}}).dump()).find("$ref"), std::string::npos)
        << ref;
}

TEST(JsonReferences, ASchemaWithAnIdOfItsOwnIsRefused) {
  EXPECT_EQ(refusal(R"({"$id":"http://x/y","type":"object","properties":{"a":{"$ref":"#"}}})"), "");
  EXPECT_NE(refusal(R"({"type":"array","items":{"$id":"http://x/z","type":"null"}})").find("$id"), std::string::npos);
  EXPECT_NE(refusal(R"({"$defs":{"a":{"$id":"z","$defs":{"b":true}}},"$ref":"#/$defs/a/$defs/b"})").find("$id"),
            std::string::npos);
}

// Every keyword of draft 2020-12 that is neither in the guide's tables of what is enforced nor an annotation.
TEST(JsonKeywords, WhatIsNotEnforcedIsRefusedByNameAndPlace) {
  for (const char* text : {R"("patternProperties":{})",
                           R"("propertyNames":{})",
                           R"("minProperties":1)",
                           R"("maxProperties":1)",
                           R"("dependentRequired":{})",
                           R"("dependentSchemas":{})",
                           R"("dependencies":{})",
                           R"("unevaluatedProperties":false)",
                           R"("unevaluatedItems":false)",
                           R"("prefixItems":[])",
                           R"("additionalItems":false)",
                           R"("contains":{})",
                           R"("minContains":1)",
                           R"("maxContains":1)",
                           R"("uniqueItems":true)",
                           R"("multipleOf":2)",
                           R"("not":{})",
                           R"("if":{})",
                           R"("then":{})",
                           R"("else":{})",
                           R"("$anchor":"a")",
                           R"("$dynamicRef":"#a")",
                           R"("$dynamicAnchor":"a")",
                           R"("$recursiveRef":"#")",
                           R"("$vocabulary":{})",
                           R"("nullable":true)",
                           R"("x-mine":1)"}) {
    const std::string name = std::string(text).substr(0, std::string(text).find(':'));
    for (const char* type : {"\"object\"", "\"array\"", "\"string\"", "\"integer\"", "[\"null\",\"number\"]"}) {
      const std::string what =
          refusal(R"({"type":"object","properties":{"k":{"type":)" + std::string(type) + "," + text + "}}}");
      EXPECT_NE(what.find(name), std::string::npos) << text << " of " << type << ": " << what;
      EXPECT_NE(what.find("#/properties/k"), std::string::npos) << text << ": " << what;
    }
    for (const char* beside : {R"("anyOf":[{"type":"null"}])", R"("$ref":"#/$defs/a")", R"("enum":[1])"})
      EXPECT_NE(refusal("{\"$defs\":{\"a\":true}," + std::string(beside) + "," + text + "}").find(name),
                std::string::npos)
          << text << " beside " << beside;
  }
  EXPECT_NE(refusal(R"({"properties":{"a":true}})").find("\"properties\" needs a type"), std::string::npos);
  EXPECT_NE(refusal(R"({"enum":[0.1000000000000000000001]})").find("enum"), std::string::npos);
}

TEST(JsonKeywords, AnnotationsChangeNothing) {
  const JsonMatcher m = matcher_of(
      R"({"title":"t","description":"d","default":3,"examples":[1],"$schema":"s","$id":"i","$comment":"c",
          "deprecated":true,"readOnly":true,"writeOnly":true,"format":"date","contentEncoding":"base64",
          "contentMediaType":"a/b","contentSchema":{},"type":"string"})");
  EXPECT_TRUE(takes(m, "\"no date\""));
  EXPECT_FALSE(takes(m, "3"));
}

TEST(ExactJson, KeepsOrderAndDigits) {
  const auto v =
      read_exact_json(R"({"b":1,"a":0.1,"c":0.10000000000000000001,"d":18446744073709551616,"e":1e22})", "x");
  EXPECT_EQ(v.begin().key(), "b");
  EXPECT_TRUE(v["a"].is_number_float());
  EXPECT_EQ(number_text(v["c"]), "0.10000000000000000001");
  EXPECT_EQ(number_text(v["a"]), "0.1");
  EXPECT_TRUE(has_long_number(v));
  for (const char* bad : {"", "{", R"({"a":1,"a":2})", R"({"a":1,"\u0061":2})", "1e999", "[1,]"})
    EXPECT_THROW(read_exact_json(bad, "x"), Error) << bad;
  EXPECT_THROW(read_exact_json(std::string(65, '[') + std::string(65, ']'), "x"), Error);
}

class Schemas {
 public:
  explicit Schemas(unsigned seed) : random_(seed) {}
  auto below(std::size_t n) { return random_() % n; }

  std::string document() {
    return R"({"$defs":{"a/b c":)" + schema(2) +
           R"(,"list":{"anyOf":[{"type":"null"},{"type":"object","properties":)"
           R"({"next":{"$ref":"#/$defs/list"}},"required":["next"]}]}},"type":"object","properties":{"v":)" +
           schema(0) + R"(,"w":)" + schema(1) + R"(},"required":["v","w"]})";
  }

  std::string schema(int depth) {
    switch (below(depth < 3 ? 9 : 6)) {
      case 0:
        return number();
      case 1:
        return text();
      case 2:
        return one({R"({"enum":["a",1,null,{"b":[1.5,true]},"\u00e9\"",-0.0,1e300]})", R"({"const":{"k":[]}})",
                    R"({"type":["string","integer"],"enum":["x",1.0,2.5,7]})", R"({"type":"boolean"})", "true", "{}"});
      case 3:
        return R"({"type":["null",)" + one({"\"string\"", "\"integer\"", "\"number\""}) +
               R"(],"minLength":1,"maxLength":3,"minimum":-7,"exclusiveMaximum":12.5})";
      case 4:
        return one({R"({"$ref":"#/$defs/list"})", R"({"oneOf":[{"type":"string","maxLength":2},{"type":"null"}]})",
                    R"({"allOf":[{"type":"integer","minimum":0,"maximum":255}],"default":1})"});
      case 5:
        return depth < 2 ? R"({"$ref":"#/$defs/a~1b%20c"})" : number();
      case 6:
        return R"({"type":"array","items":)" + schema(depth + 1) + R"(,"minItems":)" + std::to_string(below(3)) +
               R"(,"maxItems":)" + std::to_string(2 + below(3)) + "}";
      case 7:
        return R"({"anyOf":[)" + schema(depth + 1) + "," + schema(depth + 1) + R"(],"title":"t"})";
      default:
        return object(depth);
    }
  }

 private:
  std::string one(std::initializer_list<const char*> of) { return *(of.begin() + below(of.size())); }
  std::string number() {
    std::string s = R"({"type":)" + one({"\"number\"", "\"integer\""});
    const auto bound = [&](const char* key, int low) {
      if (below(2) == 0) return;
      s += std::string(",\"") + key + "\":" + std::to_string(low + static_cast<int>(below(40)));
      if (below(2) == 0) s += "." + std::to_string(below(1000));
      if (below(6) == 0) s += "e" + std::to_string(below(18));
    };
    bound("minimum", -50);
    bound("exclusiveMinimum", -50);
    bound("maximum", 0);
    bound("exclusiveMaximum", 0);
    return s + "}";
  }
  std::string text() {
    if (below(2) == 0)
      return R"({"type":"string","pattern":")" +
             one({"^[a-c]{2,4}$", "x", "^\\\\d{3}-\\\\w+$", "^(yes|no)$", "a$", "^[^\\\\s\\\"]+$", "^$|b\\\\.c"}) +
             "\"}";
    const auto least = below(4);
    return R"({"type":"string","minLength":)" + std::to_string(least) + R"(,"maxLength":)" +
           std::to_string(least + below(4)) + "}";
  }
  std::string object(int depth) {
    std::string s = R"({"type":"object","properties":{"a":)" + schema(depth + 1) + R"(,"q\"/~":)" + schema(depth + 1) +
                    R"(,"\u00fc":{"type":"null"}})";
    s += one({"", R"(,"required":["a"])", R"(,"required":["q\"/~","a"])", R"(,"required":["\u00fc"])"});
    s += one({"", R"(,"additionalProperties":false)", R"(,"additionalProperties":true)",
              R"(,"additionalProperties":{"type":"string","maxLength":4})", R"(,"required":["other"])"});
    // A key twice is refused by read_exact_json; the walk then takes the next schema.
    return s + "}";
  }

  std::mt19937 random_;
};

// Empty: not finished.
std::string walk(const JsonMatcher& m, Schemas& random) {
  JsonMatcher::Threads here = m.begin(), to;
  std::string text;
  while (text.size() < 600) {
    std::vector<char> bytes, ends;
    for (const char c : std::string_view("\"]},:0123456789+-.eE\\/[{ \n_abcdfhklnoqrstuvwxy~\xC3\xBC\xA9")) {
      if (!m.step_all(here, static_cast<std::uint8_t>(c), to)) continue;
      bytes.push_back(c);
      if (std::string_view("\"]},:").find(c) != std::string_view::npos) ends.push_back(c);
    }
    const bool done = std::any_of(here.begin(), here.end(), [](const auto& t) { return t.done; });
    if (done && (bytes.empty() || random.below(4) == 0)) return text;
    EXPECT_FALSE(bytes.empty()) << "a dead end behind " << text;
    if (bytes.empty()) return "";
    const bool closes = !ends.empty() && random.below(text.size() > 60 ? 20 : 3) != 0;
    const auto& from = closes ? ends : bytes;
    text += closes && text.size() > 100 ? ends.back() : from[random.below(from.size())];
    m.step_all(here, static_cast<std::uint8_t>(text.back()), to);
    here.swap(to);
  }
  return "";
}

TEST(JsonKeywords, TwoThousandWalksAreValidForTheJsonschemaPackage) {
  if (std::system("python3 -c 'import jsonschema' >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "python3 has no package jsonschema";
  const auto path = std::filesystem::temp_directory_path() / ("walks." + std::to_string(::getpid()) + ".jsonl");
  std::ofstream out(path);
  Schemas random(13);
  int walks = 0;
  for (int n = 0; walks < 2000 && n < 20'000; ++n) {
    const std::string schema = random.document();
    try {
      const JsonMatcher m = matcher_of(schema, n % 2 == 0 ? MemberOrder::kAny : MemberOrder::kDeclared);
      const std::string document = walk(m, random);
      if (document.empty()) continue;
      out << OrderedJson::array({schema, document}).dump() << "\n";
      ++walks;
    } catch (const Error&) {  // an empty range, or required twice
    }
  }
  out.close();
  EXPECT_EQ(walks, 2000);
  const std::string script = std::string(MNEME_SOURCE_DIR) + "/tests/text/grammar/jsonschema_check.py";
  EXPECT_EQ(std::system(("python3 -B '" + script + "' '" + path.string() + "'").c_str()), 0);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace mneme
