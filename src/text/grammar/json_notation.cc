#include "src/text/grammar/json_notation.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "src/base/error.h"
#include "src/text/grammar/json_matcher.h"
#include "src/text/grammar/pattern.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

// `quote`: around strings, which have no escapes; empty: as Python writes them.
void write(const Json& value, const std::string& quote, std::string& out) {
  const bool python = quote.empty();
  if (value.is_string()) {
    out += python ? value.dump() : quote + value.get<std::string>() + quote;
  } else if (value.is_object()) {
    out += '{';
    for (bool first = true; const auto& [key, member] : value.items()) {
      if (!std::exchange(first, false)) out += python ? ", " : ",";
      out += python ? Json(key).dump() + ": " : key + ":";
      write(member, quote, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (bool first = true; const Json& element : value) {
      if (!std::exchange(first, false)) out += python ? ", " : ",";
      write(element, quote, out);
    }
    out += ']';
  } else if (python && value.is_boolean()) {
    out += value.get<bool>() ? "True" : "False";
  } else if (python && value.is_null()) {
    out += "None";
  } else {
    out += value.dump();
  }
}

ByteTree written(const ByteTree& literals, const std::string& quote) {
  ByteTree out;
  for (std::int32_t i = 0; const std::string& text : literals.texts()) {
    std::string rewritten;
    write(Json::parse(text), quote, rewritten);
    out.add(rewritten, i++);
  }
  return out;
}

void expect_bare_names(const JsonNode& object) {
  for (const std::string& name : object.names.texts()) {
    const bool bare =
        !name.empty() && name.size() <= kLongestBareName && std::none_of(name.begin(), name.end(), [](unsigned char c) {
          return c <= 0x20 || std::string_view("{}[](),\"':=\xFE").find(static_cast<char>(c)) != std::string_view::npos;
        });
    if (!bare)
      fail(ErrorKind::kUnsupported, "the property \"{}\" has a name that this model's calls cannot write",
           name.substr(0, 80));
  }
}

void collect(const JsonGrammar& grammar, NodeId id, std::set<NodeId>& seen, std::vector<NodeId>& out) {
  const JsonNode& node = grammar.nodes[id];
  if (node.depth > JsonMatcher::kDeepest || !seen.insert(id).second) return;
  if (node.kind != JsonNode::Kind::kUnion) {
    out.push_back(id);
    return;
  }
  for (const NodeId one : node.alternatives) collect(grammar, one, seen, out);
}

}  // namespace

JsonGrammar with_bare_keys(JsonGrammar grammar, const std::string& quote) {
  const auto raw =
      std::make_shared<const RawText>(RawText{.open = quote, .close = quote, .never = quote, .reads_as_text = false});
  for (JsonNode& node : grammar.nodes) {
    if (node.kind == JsonNode::Kind::kString) node.raw = raw;
    if (node.kind == JsonNode::Kind::kLiteral) node.literals = written(node.literals, quote);
    if (node.kind != JsonNode::Kind::kObject) continue;
    expect_bare_names(node);
    node.form = ObjectForm::kBareKeys;
  }
  return grammar;
}

JsonGrammar as_arguments(JsonGrammar grammar) {
  grammar.escapes_slash = false;
  for (JsonNode& node : grammar.nodes)
    if (node.kind == JsonNode::Kind::kLiteral) node.literals = written(node.literals, "");
  JsonNode root;
  for (const NodeId id : kinds_of(grammar, grammar.root)) {
    if (grammar.nodes[id].kind != JsonNode::Kind::kObject) continue;
    JsonNode object = grammar.nodes[id];  // which may also be a value within the arguments
    expect_bare_names(object);
    object.form = ObjectForm::kArguments;
    root.alternatives.push_back(static_cast<NodeId>(grammar.nodes.size()));
    grammar.nodes.push_back(std::move(object));
  }
  grammar.root = static_cast<NodeId>(grammar.nodes.size());
  grammar.nodes.push_back(std::move(root));
  return grammar;
}

JsonGrammar one_of(const std::vector<std::string>& texts) {
  JsonNode node;
  node.kind = JsonNode::Kind::kLiteral;
  node.raw = std::make_shared<const RawText>();
  for (std::int32_t i = 0; const std::string& text : texts) node.literals.add(text, i++);
  JsonGrammar grammar;
  grammar.nodes.push_back(std::move(node));
  return grammar;
}

JsonGrammar text_like(const std::string& pattern) {
  JsonNode node;
  node.kind = JsonNode::Kind::kString;
  node.raw = std::make_shared<const RawText>();
  node.pattern = std::make_shared<const Pattern>("^(" + pattern + ")$");
  JsonGrammar grammar;
  grammar.nodes.push_back(std::move(node));
  return grammar;
}

std::vector<NodeId> kinds_of(const JsonGrammar& grammar, NodeId root) {
  std::vector<NodeId> out;
  std::set<NodeId> seen;
  collect(grammar, root, seen, out);
  return out;
}

}  // namespace mneme
