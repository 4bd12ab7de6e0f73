// Compiled JSON schema, as the matcher uses it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/text/grammar/json_decimal.h"
#include "src/text/grammar/pattern.h"

namespace mneme {

// Byte trie of texts. Node 0 is the root.
class ByteTree {
 public:
  struct Node {
    std::map<std::uint8_t, std::int32_t> children;
    std::int32_t text = -1;   // index of the text that ends here
    std::uint64_t below = 0;  // texts 0 to 63 that end here or below, as bits
  };
  void add(std::string_view text, std::int32_t index);
  // -1: no text continues this way.
  std::int32_t child(std::int32_t node, std::uint8_t byte) const;
  const Node& node(std::int32_t i) const { return nodes_[i]; }
  std::vector<std::string> texts() const;  // in byte order

 private:
  std::vector<Node> nodes_ = std::vector<Node>(1);
};

using NodeId = std::int32_t;
inline constexpr NodeId kNoNode = -1;

// A string without escapes, as some models write arguments: every byte between its marks is its own.
struct RawText {
  std::string open, close;     // without `close`, the text ends with the document
  std::string never;           // no part of the text; empty: any text
  bool reads_as_text = false;  // never what a reader would take for a number, an array, true, None, ...
};

// How an object is written.
enum class ObjectForm : std::uint8_t {
  kJson,       // {"key": value}
  kBareKeys,   // {key:value}
  kArguments,  // (key=value)
};

struct JsonNode {
  enum class Kind : std::uint8_t { kUnion, kLiteral, kString, kNumber, kObject, kArray };
  Kind kind = Kind::kUnion;
  std::vector<NodeId> alternatives;  // of a union
  ByteTree literals;                 // true, false, null, enum, const: as JSON without white space

  std::uint32_t least = 0;  // characters of a string, items of an array
  std::optional<std::uint32_t> most;
  std::shared_ptr<const Pattern> pattern;  // of a string; null: none
  std::shared_ptr<const RawText> raw;      // of a string, and of literals that are its text; null: JSON's

  bool integer = false;
  NumberRange range;

  ObjectForm form = ObjectForm::kJson;
  std::vector<NodeId> properties;  // of an object, at most 64
  bool ordered = false;            // they come in this order
  ByteTree names;
  std::uint64_t required = 0;   // bits of properties
  NodeId additional = kNoNode;  // type of other properties; kNoNode: not allowed
  NodeId items = kNoNode;       // of an array; kNoNode: it is empty

  int depth = 0;  // arrays and objects that the shallowest value nests
};

struct JsonGrammar {
  std::vector<JsonNode> nodes;
  NodeId root = 0;
  bool escapes_slash = true;  // "\\/" is an escape: not in Python
};

// Errors  kRequest: a union refers to itself without consuming input.
void check_unions(const JsonGrammar& grammar);
// Sets every node's depth; very large where no finite value exists.
void measure_depths(JsonGrammar& grammar);

}  // namespace mneme
