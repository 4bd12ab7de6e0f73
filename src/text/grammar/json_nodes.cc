#include "src/text/grammar/json_nodes.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/size32.h"

namespace mneme {
namespace {

constexpr int kNever = 1 << 20;  // depth of nodes without a finite value

int depth_of(const JsonGrammar& grammar, const JsonNode& n) {
  const auto of = [&](NodeId id) { return grammar.nodes[id].depth; };
  int depth = 0;
  if (n.kind == JsonNode::Kind::kUnion) {
    depth = kNever;
    for (const NodeId a : n.alternatives) depth = std::min(depth, of(a));
  } else if (n.kind == JsonNode::Kind::kArray) {
    depth = 1 + (n.least > 0 ? of(n.items) : 0);
  } else if (n.kind == JsonNode::Kind::kObject) {
    int below = 0;
    for (std::size_t i = 0; i < n.properties.size(); ++i)
      if ((n.required >> i & 1) != 0) below = std::max(below, of(n.properties[i]));
    depth = 1 + below;
  }
  return std::min(depth, kNever);
}

}  // namespace

void ByteTree::add(std::string_view text, std::int32_t index) {
  std::int32_t at = 0;
  const std::uint64_t bit = index < 64 ? std::uint64_t{1} << index : 0;
  nodes_[0].below |= bit;
  for (const unsigned char c : text) {
    std::int32_t next = child(at, c);
    if (next < 0) {
      next = size32(nodes_);
      nodes_[at].children.emplace(static_cast<std::uint8_t>(c), next);
      nodes_.emplace_back();
    }
    at = next;
    nodes_[at].below |= bit;
  }
  nodes_[at].text = index;
}

std::vector<std::string> ByteTree::texts() const {
  std::vector<std::string> out;
  std::vector<std::pair<std::int32_t, std::string>> open{{0, ""}};
  while (!open.empty()) {
    const auto [at, text] = std::move(open.back());
    open.pop_back();
    if (nodes_[at].text >= 0) out.push_back(text);
    for (auto it = nodes_[at].children.rbegin(); it != nodes_[at].children.rend(); ++it)
      open.emplace_back(it->second, text + static_cast<char>(it->first));
  }
  return out;
}

std::int32_t ByteTree::child(std::int32_t node, std::uint8_t byte) const {
  const auto& children = nodes_[node].children;
  const auto it = children.find(byte);
  return it == children.end() ? -1 : it->second;
}

// A union must not refer to itself without consuming input.
void check_unions(const JsonGrammar& grammar) {
  const std::size_t n = grammar.nodes.size();
  std::vector<int> state(n, 0);
  std::vector<std::pair<NodeId, std::size_t>> way;
  for (std::size_t begin = 0; begin < n; ++begin) {
    if (state[begin] != 0) continue;
    way.emplace_back(static_cast<NodeId>(begin), 0);
    state[begin] = 1;
    while (!way.empty()) {
      auto& [id, next] = way.back();
      if (next == grammar.nodes[id].alternatives.size()) {
        state[id] = 2;
        way.pop_back();
        continue;
      }
      const NodeId to = grammar.nodes[id].alternatives[next++];
      int& s = state[to];
      if (s == 1) fail(ErrorKind::kRequest, "JSON schema: a $ref leads to itself");
      if (s == 0) {
        s = 1;
        way.emplace_back(to, 0);
      }
    }
  }
}

// Least fixed point, from above.
void measure_depths(JsonGrammar& grammar) {
  for (JsonNode& n : grammar.nodes) n.depth = kNever;
  for (bool changed = true; changed;) {
    changed = false;
    for (JsonNode& n : grammar.nodes) {
      const int depth = depth_of(grammar, n);
      changed = changed || depth < n.depth;
      n.depth = depth;
    }
  }
}

}  // namespace mneme
