#include "tests/text/grammar/json_testing.h"

#include <algorithm>
#include <cmath>
#include <regex>

#include "src/text/grammar/json_exact.h"
#include "src/text/grammar/json_reference.h"

namespace mneme::test {
namespace {

const OrderedJson& target_of(const OrderedJson& schema, const OrderedJson& root) {
  const OrderedJson* s = &schema;
  while (s->is_object() && s->contains("$ref")) s = &resolve_reference(root, (*s)["$ref"], "#");
  return *s;
}

bool has_type(const OrderedJson& v, const std::string& type) {
  if (type == "integer")
    return v.is_number_integer() || (v.is_number_float() && v.get<double>() == std::floor(v.get<double>()));
  if (type == "number") return v.is_number();
  return v.type_name() == type;
}

std::size_t characters(const std::string& s) {
  return std::count_if(s.begin(), s.end(), [](char c) { return (c & 0xC0) != 0x80; });
}

// json_bounds_test compares exactly; here a bound that v may have been rounded to counts as inside.
bool valid_number(const OrderedJson& v, const OrderedJson& s) {
  const auto order = [&](const char* key, int otherwise) {  // -1: v is below the bound, 0: equal, 1: above
    if (!s.contains(key)) return otherwise;
    const OrderedJson bound = s[key].is_binary() ? OrderedJson(std::stod(number_text(s[key]))) : s[key];
    return v < bound ? -1 : bound < v ? 1 : 0;
  };
  const int strictly = v.is_number_integer() || std::abs(v.get<double>()) < 1e6 ? 1 : 0;
  return order("minimum", 1) >= 0 && order("maximum", -1) <= 0 && order("exclusiveMinimum", 1) >= strictly &&
         order("exclusiveMaximum", -1) <= -strictly;
}

bool valid_string(const std::string& v, const OrderedJson& s) {
  const std::size_t n = characters(v);
  if (s.contains("minLength") && n < s["minLength"].get<std::size_t>()) return false;
  if (s.contains("maxLength") && n > s["maxLength"].get<std::size_t>()) return false;
  return !s.contains("pattern") || std::regex_search(v, std::regex(s["pattern"].get<std::string>()));
}

bool valid_object(const OrderedJson& v, const OrderedJson& s, const OrderedJson& root) {
  if (s.contains("required"))
    for (const auto& name : s["required"])
      if (!v.contains(name.get<std::string>())) return false;
  for (const auto& [name, member] : v.items()) {
    if (s.contains("properties") && s["properties"].contains(name)) {
      if (!is_valid(member, s["properties"][name], root)) return false;
    } else if (s.contains("additionalProperties") && !is_valid(member, s["additionalProperties"], root)) {
      return false;
    }
  }
  return true;
}

std::string random_text(std::mt19937& random, std::size_t n) {
  const std::vector<std::string> pieces = {"a", "b",  "Z", " ", "0", "\"", "\\", "\n", "\t",
                                           "é", "日", "😀", "/", "{", "}",  ":",  ","};
  std::string s;
  for (; n > 0; --n) s += pieces[random() % pieces.size()];
  return s;
}

double random_number(const OrderedJson& s, bool integer, std::mt19937& random) {
  const double low = s.value("minimum", s.value("exclusiveMinimum", -1000.0));
  const double high = s.value("maximum", s.value("exclusiveMaximum", std::max(1000.0, low + 10)));
  for (;;) {
    double v = low + (high - low) * (static_cast<double>(random() % 1001) / 1000.0);
    v = integer ? std::round(v) : std::round(v * 1000) / 1000;
    if (valid_number(v, s)) return v;
  }
}

}  // namespace

const std::vector<std::string>& schemas() {
  static const std::vector<std::string> all = {
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
          "required": ["name", "age"], "additionalProperties": false})",
      R"({"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 4}, "ab": {"enum": ["x", "y", 3, null, {"k": [1]}]},
          "\"q": {"type": "boolean"}, "é": {"const": "ü\n"}}, "required": ["ab"], "additionalProperties": {"type": "integer"}})",
      R"({"type": "array", "items": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2.25}, "minItems": 2, "maxItems": 5})",
      R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
          "required": ["v", "next"], "additionalProperties": false}}, "$ref": "#/$defs/node"})",
      R"({"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "n": {"type": "number"}}, "required": ["kind", "n"], "additionalProperties": false},
          {"type": "object", "properties": {"kind": {"const": "b"}, "s": {"type": "string", "pattern": "^[A-Z]{2}-\\d{1,3}$"}}, "required": ["kind", "s"],
          "additionalProperties": false}]})",
      R"({"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3}, "x": {"type": ["integer", "null"]},
          "deep": {"type": "object", "properties": {"p": {"type": "number", "minimum": 0, "maximum": 1}}, "required": ["p"]}}, "required": ["tags", "deep"]})",
      R"({"type": "array", "items": {"anyOf": [{"type": "boolean"}, {"type": "string", "minLength": 1}, {"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 105}]}})",
      R"({"type": "string", "pattern": "a+\"?b"})",
      R"({"enum": ["yes", "no", 1, 12, 1.5, true]})",
      R"({"type": "integer", "minimum": -105, "maximum": -7})",
      R"({"type": "number", "minimum": 0.1, "maximum": 0.12})",
      R"({"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 0}, "minItems": 1, "maxItems": 2})",
      R"({"type": "object", "additionalProperties": {"type": "string", "maxLength": 2}})",
      R"({"type": "object"})",
  };
  return all;
}

bool is_valid(const OrderedJson& v, const OrderedJson& schema, const OrderedJson& root) {
  const OrderedJson& s = target_of(schema, root);
  if (s.is_boolean()) return s.get<bool>();
  const auto holds = [&](const OrderedJson& x) { return is_valid(v, x, root); };
  if (s.contains("anyOf") && std::none_of(s["anyOf"].begin(), s["anyOf"].end(), holds)) return false;
  if (s.contains("oneOf") && std::count_if(s["oneOf"].begin(), s["oneOf"].end(), holds) != 1) return false;
  if (s.contains("enum") && std::find(s["enum"].begin(), s["enum"].end(), v) == s["enum"].end()) return false;
  if (s.contains("const") && v != s["const"]) return false;
  if (s.contains("type")) {
    const OrderedJson types = s["type"].is_array() ? s["type"] : OrderedJson::array({s["type"]});
    if (std::none_of(types.begin(), types.end(),
                     [&](const auto& t) { return has_type(v, t.template get<std::string>()); }))
      return false;
  }
  if (v.is_number()) return valid_number(v, s);
  if (v.is_string()) return valid_string(v.get<std::string>(), s);
  if (v.is_object()) return valid_object(v, s, root);
  if (!v.is_array()) return true;
  if (s.contains("minItems") && v.size() < s["minItems"].get<std::size_t>()) return false;
  if (s.contains("maxItems") && v.size() > s["maxItems"].get<std::size_t>()) return false;
  return !s.contains("items") ||
         std::all_of(v.begin(), v.end(), [&](const auto& x) { return is_valid(x, s["items"], root); });
}

OrderedJson random_document(const OrderedJson& schema, const OrderedJson& root, std::mt19937& random, int depth) {
  const OrderedJson& s = target_of(schema, root);
  const auto pick = [&](const OrderedJson& list) { return list[random() % list.size()]; };
  const auto below = [&](const OrderedJson& x) { return random_document(x, root, random, depth + 1); };
  if (s.is_boolean() || (s.is_object() && s.empty()))
    return pick(OrderedJson::parse(R"([null, true, 1.5, "a\"b", [1, []], {"k": {}}])"));
  for (const char* key : {"anyOf", "oneOf"})
    if (s.contains(key)) return below(depth > 8 ? s[key].back() : pick(s[key]));
  if (s.contains("enum")) return pick(s["enum"]);
  if (s.contains("const")) return s["const"];
  const std::string type = (s["type"].is_array() ? pick(s["type"]) : s["type"]).get<std::string>();
  if (type == "null") return nullptr;
  if (type == "boolean") return random() % 2 == 0;
  if (type == "integer") return static_cast<std::int64_t>(random_number(s, true, random));
  if (type == "number") return random_number(s, false, random);
  if (type == "string") {
    if (s.contains("pattern"))
      return s["pattern"].get<std::string>()[0] == 'a' ? "xaa\"b" : "QX-" + std::to_string(random() % 1000);
    const std::size_t least = s.value("minLength", 0u), most = s.value("maxLength", 12u);
    return random_text(random, least + random() % (most - least + 1));
  }
  if (type == "array") {
    OrderedJson list = OrderedJson::array();
    const std::size_t least = s.value("minItems", 0u), most = s.value("maxItems", 4u);
    for (std::size_t n = least + random() % (most - least + 1); n > 0; --n)
      list.push_back(below(s.value("items", OrderedJson(true))));
    return list;
  }
  std::vector<std::pair<std::string, OrderedJson>> members;
  const OrderedJson required = s.value("required", OrderedJson::array());
  if (s.contains("properties"))
    for (const auto& [name, x] : s["properties"].items())
      if (random() % 2 == 0 || std::find(required.begin(), required.end(), name) != required.end())
        members.emplace_back(name, below(x));
  const OrderedJson more = s.value("additionalProperties", OrderedJson(!s.contains("properties")));
  if (more != false)
    for (auto n = random() % 3; n > 0; --n)
      members.emplace_back("m" + std::to_string(n) + random_text(random, 2), below(more));
  std::shuffle(members.begin(), members.end(), random);
  OrderedJson object = OrderedJson::object();
  for (auto& [name, value] : members) object[name] = std::move(value);
  return object;
}

}  // namespace mneme::test
