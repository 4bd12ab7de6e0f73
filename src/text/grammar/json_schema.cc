#include "src/text/grammar/json_schema.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/text/grammar/json_exact.h"
#include "src/text/grammar/json_matcher.h"
#include "src/text/grammar/json_reference.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;
using Kind = JsonNode::Kind;

constexpr std::size_t kMaxNodes = 20'000;
constexpr std::array<std::string_view, 7> kTypes = {"object",  "array",   "string", "number",
                                                    "integer", "boolean", "null"};
// Annotations: they do not affect validity.
constexpr std::array<std::string_view, 17> kNotes = {
    "title",       "description", "default",         "examples",         "$schema",      "$id",
    "$comment",    "deprecated",  "readOnly",        "writeOnly",        "format",       "$defs",
    "definitions", "strict",      "contentEncoding", "contentMediaType", "contentSchema"};

template <std::size_t N>
bool is_one_of(const std::array<std::string_view, N>& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class Compiler {
 public:
  Compiler(const Json& schema, MemberOrder order) : document_(schema), order_(order) {}

  JsonGrammar run() {
    grammar_.root = compile(document_, "#");
    check_unions(grammar_);
    measure_depths(grammar_);
    if (at(grammar_.root).depth > JsonMatcher::kDeepest)
      fail(ErrorKind::kUnsupported, "JSON schema: every document nests more than {} levels", JsonMatcher::kDeepest);
    return std::move(grammar_);
  }
  JsonGrammar any_object() {
    grammar_.root = object_of_anything();
    measure_depths(grammar_);
    return std::move(grammar_);
  }

 private:
  NodeId add(Kind kind) {
    if (grammar_.nodes.size() == kMaxNodes) fail(ErrorKind::kRequest, "JSON schema: more than {} parts", kMaxNodes);
    JsonNode node;
    node.kind = kind;
    grammar_.nodes.push_back(std::move(node));
    return static_cast<NodeId>(grammar_.nodes.size() - 1);
  }
  JsonNode& at(NodeId id) { return grammar_.nodes[id]; }

  NodeId literal(std::initializer_list<const char*> texts) {
    const NodeId id = add(Kind::kLiteral);
    for (std::int32_t i = 0; const char* t : texts) at(id).literals.add(t, i++);
    return id;
  }

  NodeId anything() {
    if (any_ != kNoNode) return any_;
    any_ = add(Kind::kUnion);
    const NodeId array = add(Kind::kArray);
    at(array).items = any_;
    const std::vector<NodeId> all = {object_of_anything(), array, add(Kind::kString), add(Kind::kNumber),
                                     literal({"true", "false", "null"})};
    at(any_).alternatives = all;
    return any_;
  }
  NodeId object_of_anything() {
    if (any_object_ != kNoNode) return any_object_;
    any_object_ = add(Kind::kObject);
    const NodeId value = anything();
    at(any_object_).additional = value;
    return any_object_;
  }

  // A reference finds the node that is being compiled, so that a schema may be recursive.
  NodeId compile(const Json& schema, const std::string& path) {
    const auto known = compiled_.find(&schema);
    if (known != compiled_.end()) return known->second;
    if (schema.is_boolean()) {
      if (!schema.get<bool>()) schema_unsupported(path, "nothing satisfies false");
      return anything();
    }
    if (!schema.is_object()) schema_wrong(path, "expected an object or true");
    if (++depth_ > 100) schema_wrong(path, "the schema nests too deeply");
    if (is_schema_resource(schema) && &schema != &document_)
      schema_unsupported(path, "$id: supported at the root alone, as it changes what every $ref means");
    const NodeId id = add(Kind::kUnion);  // filled in below
    compiled_.emplace(&schema, id);
    const std::vector<NodeId> all = alternatives(schema, path);
    at(id).alternatives = all;
    --depth_;
    return id;
  }

  std::vector<NodeId> alternatives(const Json& s, const std::string& path) {
    if (s.contains("$ref")) {
      only(s, path, {"$ref"});
      return {compile(resolve_reference(document_, s["$ref"], path), path + "/$ref")};
    }
    for (const char* key : {"anyOf", "oneOf", "allOf"}) {
      if (!s.contains(key)) continue;
      only(s, path, {key});
      return combined(s[key], key, path + "/" + key);
    }
    if (s.contains("enum") || s.contains("const")) return {fixed(s, path)};
    return by_type(s, path);
  }

  std::vector<NodeId> combined(const Json& list, std::string_view key, const std::string& path) {
    if (!list.is_array() || list.empty()) schema_wrong(path, "expected a list of schemas");
    if (key == "allOf" && list.size() != 1) schema_unsupported(path, "only allOf of one schema is supported");
    if (key == "oneOf") check_apart(list, path);
    std::vector<NodeId> all;
    for (std::size_t i = 0; i < list.size(); ++i) all.push_back(compile(list[i], path + "/" + std::to_string(i)));
    return all;
  }

  // Rejects constraining keywords that are not among `keys`.
  static void only(const Json& s, const std::string& path, std::initializer_list<std::string_view> keys) {
    for (const auto& [key, value] : s.items()) {
      if (is_one_of(kNotes, key) || std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
      schema_unsupported(path, fmt::format("the keyword \"{}\" is not supported here", key.substr(0, 80)));
    }
  }

  static std::vector<std::string> types_of(const Json& s, const std::string& path) {
    std::vector<std::string> types;
    const auto take = [&](const Json& t) {
      if (!t.is_string() || !is_one_of(kTypes, t.get_ref<const std::string&>()))
        schema_wrong(path, "type: expected object, array, string, number, integer, boolean or null");
      types.push_back(t.get<std::string>());
    };
    if (!s.contains("type")) return types;
    if (!s["type"].is_array()) {
      take(s["type"]);
    } else {
      for (const Json& t : s["type"]) take(t);
      if (types.empty()) schema_wrong(path, "type: the list is empty");
    }
    return types;
  }

  static bool is_of_type(const Json& v, std::string_view type) {
    if (type == "integer") return v.is_number_integer() || (v.is_number_float() && v == std::floor(v.get<double>()));
    if (type == "number") return v.is_number();
    return v.type_name() == type;
  }

  NodeId fixed(const Json& s, const std::string& path) {
    only(s, path, {"enum", "const", "type"});
    if (s.contains("enum") && s.contains("const"))
      schema_unsupported(path, "enum and const together are not supported");
    if (s.contains("enum") && !s["enum"].is_array()) schema_wrong(path, "enum: expected a list");
    const Json values = s.contains("const") ? Json::array({s["const"]}) : s["enum"];
    const std::vector<std::string> types = types_of(s, path);
    const NodeId id = add(Kind::kLiteral);
    std::int32_t i = 0;
    for (const Json& v : values) {
      const bool fits =
          types.empty() || std::any_of(types.begin(), types.end(), [&](const auto& t) { return is_of_type(v, t); });
      if (!fits) continue;
      if (has_long_number(v)) schema_unsupported(path, "enum, const: a number with more digits than a double holds");
      at(id).literals.add(v.dump(), i++);
    }
    if (i == 0) schema_unsupported(path, "no value is left of enum");
    return id;
  }

  std::vector<NodeId> by_type(const Json& s, const std::string& path) {
    std::vector<std::string> types = types_of(s, path);
    if (types.empty()) {
      // Keywords apply to one type and leave others free: too permissive to be intended.
      const bool object = s.contains("properties") || s.contains("required") || s.contains("additionalProperties");
      const bool array = s.contains("items") || s.contains("minItems") || s.contains("maxItems");
      if (!object && !array) {
        only(s, path, {});
        return {anything()};
      }
      for (const char* key : {"properties", "required", "additionalProperties", "items", "minItems", "maxItems"})
        if (s.contains(key)) schema_unsupported(path, fmt::format("the keyword \"{}\" needs a type beside it", key));
    }
    std::vector<NodeId> all;
    std::set<std::string> keys = {"type"};
    for (const std::string& type : types) all.push_back(of_type(type, s, path, keys));
    for (const auto& [key, value] : s.items())
      if (!keys.contains(key) && !is_one_of(kNotes, key))
        schema_unsupported(path, fmt::format("the keyword \"{}\" is not supported here", key.substr(0, 80)));
    return all;
  }

  NodeId of_type(const std::string& type, const Json& s, const std::string& path, std::set<std::string>& keys) {
    if (type == "null") return literal({"null"});
    if (type == "boolean") return literal({"true", "false"});
    if (type == "string") {
      keys.insert({"minLength", "maxLength", "pattern"});
      return string(s, path);
    }
    if (type == "number" || type == "integer") {
      keys.insert({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"});
      return number(s, type == "integer", path);
    }
    if (type == "array") {
      keys.insert({"items", "minItems", "maxItems"});
      return array(s, path);
    }
    keys.insert({"properties", "required", "additionalProperties"});
    return object(s, path);
  }

  static std::optional<std::uint32_t> count(const Json& s, const char* key, const std::string& path) {
    if (!s.contains(key)) return std::nullopt;
    const Json& v = s[key];
    if (!v.is_number_integer() || v < 0 || v > 1'000'000'000)
      schema_wrong(path, fmt::format("{}: expected an integer from 0", key));
    return v.get<std::uint32_t>();
  }
  void counts(NodeId id, const Json& s, const char* least, const char* most, const std::string& path) {
    at(id).least = count(s, least, path).value_or(0);
    at(id).most = count(s, most, path);
    if (at(id).most && *at(id).most < at(id).least)
      schema_unsupported(path, fmt::format("{} is larger than {}", least, most));
  }

  NodeId string(const Json& s, const std::string& path) {
    const NodeId id = add(Kind::kString);
    counts(id, s, "minLength", "maxLength", path);
    if (!s.contains("pattern")) return id;
    if (s.contains("minLength") || s.contains("maxLength"))
      schema_unsupported(path, "pattern together with minLength or maxLength is not supported");
    if (!s["pattern"].is_string()) schema_wrong(path, "pattern: expected a string");
    at(id).pattern = std::make_shared<const Pattern>(s["pattern"].get<std::string>());
    return id;
  }

  NodeId number(const Json& s, bool integer, const std::string& path) {
    std::vector<NumberRange::Bound> bounds;
    std::string names;
    const auto bound = [&](const char* key, bool lower, bool excluded) {
      if (!s.contains(key)) return;
      if (!s[key].is_number() && !s[key].is_binary()) schema_wrong(path, fmt::format("{}: expected a number", key));
      bounds.push_back({Decimal::of(number_text(s[key])), lower, excluded});
      names += fmt::format("{}{} {}", names.empty() ? "" : ", ", key, number_text(s[key]).substr(0, 40));
    };
    bound("minimum", true, false);
    bound("exclusiveMinimum", true, true);
    bound("maximum", false, false);
    bound("exclusiveMaximum", false, true);
    const NodeId id = add(Kind::kNumber);
    at(id).integer = integer;
    at(id).range = NumberRange(bounds, integer);
    if (at(id).range.empty())
      schema_unsupported(path, fmt::format("no {} of at most {} digits before and {} after the point is within {}",
                                           integer ? "integer" : "number", NumberRange::kMaxWhole,
                                           integer ? 0 : NumberRange::kMaxFraction, names));
    return id;
  }

  NodeId array(const Json& s, const std::string& path) {
    const NodeId id = add(Kind::kArray);
    counts(id, s, "minItems", "maxItems", path);
    const bool none = at(id).most == 0u || (s.contains("items") && s["items"] == false && at(id).least == 0);
    const NodeId items = none ? kNoNode : s.contains("items") ? compile(s["items"], path + "/items") : anything();
    at(id).items = items;
    return id;
  }

  NodeId object(const Json& s, const std::string& path) {
    const NodeId id = add(Kind::kObject);
    const bool declares = s.contains("properties");
    if (declares && !s["properties"].is_object()) schema_wrong(path, "properties: expected an object");
    const bool says = s.contains("additionalProperties");
    const Json& more = says ? s["additionalProperties"] : kTrue;
    const NodeId undeclared = more == false ? kNoNode : compile(more, path + "/additionalProperties");
    // Valid but undeclared members are left out: small models that may invent members never reach the declared ones.
    const NodeId additional = declares && !says ? kNoNode : undeclared;
    at(id).ordered = declares && !says && order_ == MemberOrder::kDeclared;
    std::vector<std::string> names;
    std::vector<NodeId> nodes;
    if (declares) {
      for (const auto& [name, schema] : s["properties"].items()) {
        names.push_back(name);
        nodes.push_back(compile(schema, path + "/properties/" + name));
      }
    }
    std::uint64_t required = 0;
    if (s.contains("required")) {
      if (!s["required"].is_array()) schema_wrong(path, "required: expected a list of names");
      for (const Json& name : s["required"]) {
        if (!name.is_string()) schema_wrong(path, "required: expected a list of names");
        auto it = std::find(names.begin(), names.end(), name.get_ref<const std::string&>());
        if (it == names.end()) {
          if (undeclared == kNoNode)
            schema_unsupported(path,
                               fmt::format("required: \"{}\" is not among the properties", name.get<std::string>()));
          names.push_back(name.get<std::string>());
          nodes.push_back(undeclared);
          it = names.end() - 1;
        }
        if (names.size() <= 64) required |= std::uint64_t{1} << (it - names.begin());
      }
    }
    if (names.size() > 64) schema_unsupported(path, "an object with more than 64 properties is not supported");
    for (std::size_t i = 0; i < names.size(); ++i) {
      const bool control = std::any_of(names[i].begin(), names[i].end(), [](char c) {
        return byte_of(c) < 0x20 && std::string_view("\b\f\n\r\t").find(c) == std::string_view::npos;
      });
      if (control) schema_unsupported(path, "a property's name with control characters is not supported");
      at(id).names.add(names[i], count32(i));
    }
    at(id).properties = std::move(nodes);
    at(id).required = required;
    at(id).additional = additional;
    return id;
  }

  // At most one alternative is valid: types differ, or a required property (or the whole) has distinct constants.
  void check_apart(const Json& list, const std::string& path) {
    for (std::size_t i = 0; i < list.size(); ++i)
      for (std::size_t k = 0; k < i; ++k)
        if (!apart(list[i], list[k], path))
          schema_unsupported(path, fmt::format("alternatives {} and {} may both hold: write anyOf", k, i));
  }

  const Json& followed(const Json& s, const std::string& path) {
    const Json* at = &s;
    for (int i = 0; i < 20 && at->is_object() && at->contains("$ref"); ++i)
      at = &resolve_reference(document_, (*at)["$ref"], path);
    return *at;
  }

  static Json values_of(const Json& s) {
    if (s.contains("const")) return Json::array({s["const"]});
    return s.value("enum", Json());
  }
  static bool disjoint(const Json& a, const Json& b) {
    return std::none_of(a.begin(), a.end(), [&](const Json& x) { return std::find(b.begin(), b.end(), x) != b.end(); });
  }

  bool apart(const Json& left, const Json& right, const std::string& path) {
    const Json &a = followed(left, path), &b = followed(right, path);
    if (!a.is_object() || !b.is_object()) return false;
    const Json x = values_of(a), y = values_of(b);
    if (x.is_array() && y.is_array()) return disjoint(x, y);
    const auto s = types_of(a, path), t = types_of(b, path);
    const auto overlap = [](const std::string& p, const std::string& q) {
      return p == q || (p == "number" && q == "integer") || (p == "integer" && q == "number");
    };
    const bool meet = s.empty() || t.empty() || std::any_of(s.begin(), s.end(), [&](const auto& p) {
                        return std::any_of(t.begin(), t.end(), [&](const auto& q) { return overlap(p, q); });
                      });
    if (!meet) return true;
    if (s != std::vector<std::string>{"object"} || t != s || !a.contains("properties") || !b.contains("properties"))
      return false;
    const auto needs = [](const Json& o, const std::string& name) {
      return o.contains("required") && o["required"].is_array() &&
             std::find(o["required"].begin(), o["required"].end(), name) != o["required"].end();
    };
    for (const auto& [name, schema] : a["properties"].items()) {
      if (!needs(a, name) || !needs(b, name) || !b["properties"].contains(name)) continue;
      const Json p = values_of(followed(schema, path)), q = values_of(followed(b["properties"][name], path));
      if (p.is_array() && q.is_array() && disjoint(p, q)) return true;
    }
    return false;
  }

  inline static const Json kTrue = true;
  const Json& document_;
  MemberOrder order_;
  JsonGrammar grammar_;
  std::map<const Json*, NodeId> compiled_;
  NodeId any_ = kNoNode, any_object_ = kNoNode;
  int depth_ = 0;
};

}  // namespace

JsonGrammar any_json_object() {
  const nlohmann::ordered_json nothing;
  return Compiler(nothing, MemberOrder::kAny).any_object();
}

JsonGrammar compile_json_schema(const nlohmann::ordered_json& schema, MemberOrder order) {
  return Compiler(schema, order).run();
}

}  // namespace mneme
