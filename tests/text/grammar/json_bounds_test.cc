// Bounds of numbers, compared exactly with a plain reference on decimal digits.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>

#include "mneme/error.h"
#include "src/text/grammar/json_decimal.h"
#include "src/text/grammar/json_exact.h"
#include "src/text/grammar/json_matcher.h"
#include "src/text/grammar/json_schema.h"

namespace mneme {
namespace {

constexpr std::size_t kPlaces = 400;  // before and after the point

// Every number as a sign and 800 digits. Its order is that of the strings.
struct Plain {
  bool negative = false;
  std::string digits = std::string(2 * kPlaces, '0');
};
Plain plain(const std::string& text) {
  Plain p;
  const std::size_t e = std::min(text.find_first_of("eE"), text.size());
  const int exponent = e < text.size() ? std::stoi(text.substr(e + 1)) : 0;
  std::string mantissa = text.substr(0, e);
  p.negative = mantissa[0] == '-';
  if (p.negative) mantissa.erase(0, 1);
  const std::size_t point = std::min(mantissa.find('.'), mantissa.size());
  std::ptrdiff_t at = static_cast<std::ptrdiff_t>(kPlaces) - static_cast<std::ptrdiff_t>(point) - exponent;
  for (const char c : mantissa)
    if (c != '.') {
      if (at >= 0 && at < static_cast<std::ptrdiff_t>(2 * kPlaces)) p.digits[static_cast<std::size_t>(at)] = c;
      ++at;
    }
  if (p.digits.find_first_not_of('0') == std::string::npos) p.negative = false;
  return p;
}
int compared(const std::string& left, const std::string& right) {
  const Plain a = plain(left), b = plain(right);
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const int order = a.digits.compare(b.digits);
  return (order > 0) - (order < 0) == 0 ? 0 : (order > 0) != a.negative ? 1 : -1;
}

struct Bounds {
  std::string minimum, exclusive_minimum, maximum, exclusive_maximum;
  bool integer = false;

  bool hold(const std::string& v) const {
    return (minimum.empty() || compared(v, minimum) >= 0) && (maximum.empty() || compared(v, maximum) <= 0) &&
           (exclusive_minimum.empty() || compared(v, exclusive_minimum) > 0) &&
           (exclusive_maximum.empty() || compared(v, exclusive_maximum) < 0);
  }
  std::string schema() const {
    std::string s = std::string(R"({"type":)") + (integer ? "\"integer\"" : "\"number\"");
    const auto add = [&](const char* key, const std::string& value) {
      if (!value.empty()) s += std::string(",\"") + key + "\":" + value;
    };
    add("minimum", minimum);
    add("exclusiveMinimum", exclusive_minimum);
    add("maximum", maximum);
    add("exclusiveMaximum", exclusive_maximum);
    return s + "}";
  }
};

std::shared_ptr<const JsonGrammar> grammar_of(const std::string& schema) {
  return std::make_shared<const JsonGrammar>(compile_json_schema(read_exact_json(schema, "schema")));
}
bool accepts(const JsonMatcher& m, const std::string& text) {
  JsonMatcher::Threads from = m.begin(), to;
  for (const char c : text) {
    if (!m.step_all(from, c, to)) return false;
    from.swap(to);
  }
  return std::any_of(from.begin(), from.end(), [](const auto& t) { return t.done; });
}
bool takes(const std::string& schema, const std::string& text) {
  return accepts(JsonMatcher(grammar_of(schema)), text);
}

// A number that the grammar lets through, byte by byte.
std::string walk(const JsonMatcher& m, std::mt19937& random) {
  JsonMatcher::Threads here = m.begin(), to;
  std::string text;
  for (;;) {
    std::string bytes;
    for (const char c : std::string("-0123456789.eE+"))
      if (m.step_all(here, c, to)) bytes += c;
    const bool done = std::any_of(here.begin(), here.end(), [](const auto& t) { return t.done; });
    if (bytes.empty() || (done && random() % 8 == 0)) return done ? text : text + "?";
    text += bytes[random() % bytes.size()];
    m.step_all(here, text.back(), to);
    here.swap(to);
  }
}

std::string random_literal(std::mt19937& random) {
  static const std::string kOnes[] = {"9223372036854775807",
                                      "-9223372036854775808",
                                      "18446744073709551615",
                                      "9007199254740993",
                                      "100000000000000000",
                                      "1000000000000000000",
                                      "999999999999999999",
                                      "3.4028234663852886e38",
                                      "1e308",
                                      "-1e308",
                                      "0",
                                      "-0.0",
                                      "1e-320",
                                      "0.1",
                                      "-0.1000000000000000000001"};
  if (random() % 4 == 0) return kOnes[random() % std::size(kOnes)];
  std::string s = random() % 2 == 0 ? "-" : "";
  const auto digits = [&](std::size_t n) {
    for (; n > 0; --n) s += static_cast<char>('0' + random() % 10);
  };
  s += static_cast<char>('1' + random() % 9);
  digits(random() % 20);
  if (random() % 2 == 0) {
    s += '.';
    digits(1 + random() % 14);
  }
  if (random() % 4 == 0) s += "e" + std::to_string(static_cast<int>(random() % 30) - 15);
  return s;
}

TEST(JsonBounds, WhatComesOutIsInsideByExactComparison) {
  std::mt19937 random(11);
  int compiled = 0;
  for (int n = 0; n < 1500; ++n) {
    Bounds b;
    b.integer = random() % 2 == 0;
    for (std::string* one : {&b.minimum, &b.exclusive_minimum, &b.maximum, &b.exclusive_maximum})
      if (random() % 2 == 0) *one = random_literal(random);
    std::shared_ptr<const JsonGrammar> grammar;
    try {
      grammar = grammar_of(b.schema());
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kUnsupported) << b.schema() << e.what();
      continue;
    }
    ++compiled;
    const JsonMatcher m(grammar);
    for (int k = 0; k < 8; ++k) {
      const std::string v = walk(m, random);
      ASSERT_EQ(v.find('?'), std::string::npos) << "a dead end: " << v << " of " << b.schema();
      ASSERT_TRUE(b.hold(v)) << v << " of " << b.schema();
    }
    for (const std::string& v : {b.minimum, b.exclusive_minimum, b.maximum, b.exclusive_maximum}) {
      const std::size_t point = std::min(v.find('.'), v.size());
      const bool short_enough = v.find('e') == std::string::npos && point - (v[0] == '-' ? 1 : 0) <= 18 &&
                                v.size() - point <= 10 && (!b.integer || point == v.size());
      // "-0" is not an integer that anybody means, and is left out with bounds.
      if (!v.empty() && short_enough && v[0] != '-') {
        EXPECT_EQ(accepts(m, v), b.hold(v)) << v << " of " << b.schema();
      }
    }
  }
  EXPECT_GT(compiled, 500);
}

TEST(JsonBounds, IntegersBeyond2To53AreExact) {
  const std::string one = R"({"type":"integer","minimum":9007199254740993,"maximum":9007199254740993})";
  EXPECT_TRUE(takes(one, "9007199254740993"));
  EXPECT_FALSE(takes(one, "9007199254740992"));
  EXPECT_FALSE(takes(one, "9007199254740994"));
}

TEST(JsonBounds, OfInt64AndUint64AndFloatsAreTaken) {
  for (const char* s : {R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})",
                        R"({"type":"integer","minimum":0,"maximum":18446744073709551615})",
                        R"({"type":"integer","minimum":0,"maximum":340282366920938463463374607431768211455})",
                        R"({"type":"number","minimum":-3.4028234663852886e38,"maximum":3.4028234663852886e38})",
                        R"({"type":"number","minimum":-1.7976931348623157e308,"maximum":1e308})"}) {
    EXPECT_TRUE(takes(s, "999999999999999999")) << s;
    EXPECT_TRUE(takes(s, "0")) << s;
  }
  // No number that comes out reaches 10^298: the bound is dropped, and with it the limit of digits.
  EXPECT_TRUE(takes(R"({"type":"number","maximum":1e308})", "1.5e280"));
  EXPECT_FALSE(takes(R"({"type":"number","maximum":1e38})", "1.5e280"));
  EXPECT_FALSE(takes(R"({"type":"integer","minimum":0,"maximum":18446744073709551615})", "-1"));
}

TEST(JsonBounds, DigitsBeyondADoubleCount) {
  const std::string s = R"({"type":"number","minimum":0.30000000000000000001})";
  EXPECT_FALSE(takes(s, "0.3"));
  EXPECT_TRUE(takes(s, "0.300000001"));
  EXPECT_FALSE(takes(R"({"type":"integer","maximum":123456789012345678.99999999999})", "123456789012345679"));
  EXPECT_TRUE(takes(R"({"type":"integer","maximum":123456789012345678.99999999999})", "123456789012345678"));
}

TEST(JsonBounds, AnExclusiveBoundCountsBesideAnEqualInclusiveOne) {
  EXPECT_FALSE(takes(R"({"type":"integer","minimum":3,"exclusiveMinimum":3})", "3"));
  EXPECT_TRUE(takes(R"({"type":"integer","minimum":3,"exclusiveMinimum":3})", "4"));
  EXPECT_FALSE(takes(R"({"type":"integer","maximum":3,"exclusiveMaximum":3})", "3"));
  EXPECT_TRUE(takes(R"({"type":"integer","maximum":3,"exclusiveMaximum":3})", "2"));
}

TEST(JsonBounds, WithoutANumberWithinThemAreNamedWithTheirPlace) {
  for (const char* s : {R"({"type":"object","properties":{"a":{"type":"integer","minimum":1e18}}})",
                        R"({"type":"object","properties":{"a":{"type":"integer","minimum":0.1,"maximum":0.9}}})",
                        R"({"type":"object","properties":{"a":{"type":"number","maximum":-1e20}}})"}) {
    try {
      grammar_of(s);
      ADD_FAILURE() << s;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("#/properties/a"), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("imum"), std::string::npos) << e.what();
    }
  }
}

TEST(Decimal, IsTheNumberAsWritten) {
  for (const auto& [a, b] : {std::pair("1", "1.0"),
                             {"10", "1e1"},
                             {"-0.0", "0"},
                             {"0.00120", "12e-4"},
                             {"1e999999999999999999", "1e9999999999999999999"}})
    EXPECT_EQ(Decimal::of(std::string_view(a)), Decimal::of(std::string_view(b))) << a << " " << b;
  for (const auto& [a, b] :
       {std::pair("1", "-1"), {"10", "1"}, {"0.1", "0.01"}, {"9007199254740993", "9007199254740992"}})
    EXPECT_NE(Decimal::of(std::string_view(a)), Decimal::of(std::string_view(b))) << a << " " << b;
  EXPECT_EQ(Decimal::of(0.1), Decimal::of(std::string_view("0.1")));
}

}  // namespace
}  // namespace mneme
