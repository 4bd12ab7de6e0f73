// A JSON schema as the matcher reads it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/grammar/json_decimal.h"
#include "src/grammar/pattern.h"

namespace mneme {

// Texts as a tree of bytes. Node 0 is the root.
class ByteTree {
 public:
  struct Node {
    std::map<std::uint8_t, std::int32_t> children;
    std::int32_t text = -1;   // which of the texts ends here
    std::uint64_t below = 0;  // texts 0 to 63 that end here or below
  };
  void add(std::string_view text, std::int32_t index);
  // -1: no text goes on so.
  std::int32_t child(std::int32_t node, std::uint8_t byte) const;
  const Node& node(std::int32_t i) const { return nodes_[static_cast<std::size_t>(i)]; }

 private:
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

struct JsonNode {
  enum class Kind : std::uint8_t { kUnion, kLiteral, kString, kNumber, kObject, kArray };
  Kind kind = Kind::kUnion;
  std::vector<NodeId> alternatives;  // of a union
  ByteTree literals;                 // true, false, null, enum, const: as JSON without blanks

  std::uint32_t least = 0;  // characters of a string, items of an array
  std::optional<std::uint32_t> most;
  std::shared_ptr<const Pattern> pattern;  // of a string; null: none

  bool integer = false;
  NumberRange range;

  std::vector<NodeId> properties;  // of an object, at most 64
  ByteTree names;
  std::uint64_t required = 0;   // bits of properties
  NodeId additional = kNoNode;  // what other properties are; kNoNode: there are none
  NodeId items = kNoNode;       // of an array; kNoNode: it is empty

  int depth = 0;  // lists and objects that the shallowest value nests
};

struct JsonGrammar {
  std::vector<JsonNode> nodes;
  NodeId root = 0;
};

// Errors  kRequest: a union leads to itself before something is read.
void check_unions(const JsonGrammar& grammar);
// Sets every node's depth; huge where no finite value exists.
void measure_depths(JsonGrammar& grammar);

}  // namespace mneme
