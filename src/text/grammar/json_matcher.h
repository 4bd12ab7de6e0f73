// Follows a JSON document byte by byte. Where a schema leaves a choice, all that is still possible is followed at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/grammar/json_nodes.h"
#include "src/grammar/json_text.h"

namespace mneme {

class JsonMatcher {
 public:
  static constexpr int kDeepest = 60;  // lists and objects in each other
  // Between two parts stands one blank, or a new line with so many for each level: a model that knows nothing to say
  // would fill an answer with them.
  static constexpr int kMostIndent = 4;

  // Where a value is, within the values around it.
  struct Frame {
    enum class Phase : std::uint8_t {
      kStart,      // the value has not begun
      kLiteral,    // at: place among the literals
      kString,     // count: characters, bits: states of the pattern
      kSign,       // a number: behind "-",
      kZero,       // its whole part is 0,
      kWhole,      // digits of the whole part,
      kPoint,      // behind ".",
      kFraction,   // digits behind it,
      kE,          // behind "e",
      kESign,      // behind "e-",
      kExponent,   // count: its value
      kFirstKey,   // behind "{"; bits: properties seen
      kNextKey,    // behind ",",
      kKey,        // in a name; at: place among the names, -1: another name
      kColon,      // behind a name; at: which property, -1: another one
      kMember,     // behind a member
      kFirstItem,  // behind "["; count: items
      kItem,       // behind an item
    };
    NodeId node = 0;
    Phase phase = Phase::kStart;
    std::uint8_t blanks = 0;  // in a row: 1: one, 2: a new line, and so many more behind it
    JsonText text;
    std::int32_t at = 0;
    std::uint32_t count = 0;
    std::uint64_t bits = 0;
    NumberRange::Digits digits;
  };
  struct Link {
    Frame frame;
    std::shared_ptr<const Link> below;
  };
  // One way to read what has come so far. Without a frame, the document is complete.
  struct Thread {
    bool done = false;
    int depth = 0;
    Frame top;
    std::shared_ptr<const Link> below;
  };
  using Threads = std::vector<Thread>;

  explicit JsonMatcher(std::shared_ptr<const JsonGrammar> grammar) : grammar_(std::move(grammar)) {}

  Threads begin() const;
  // Appends the ways on that a byte leaves; none: no document goes on so.
  void step(const Thread& from, std::uint8_t byte, Threads& to) const;
  bool step_all(const Threads& from, std::uint8_t byte, Threads& to) const;
  // Any text that needs no escape may follow here, of so many characters at most; nothing where that is not all.
  std::optional<std::size_t> plain_room(const Thread& thread) const;

 private:
  using Phase = Frame::Phase;
  const JsonNode& node(NodeId id) const { return grammar_->nodes[static_cast<std::size_t>(id)]; }
  const JsonNode& node(const Thread& t) const { return node(t.top.node); }

  void start(Thread t, std::uint8_t byte, Threads& to) const;
  void literal(Thread t, std::uint8_t byte, Threads& to) const;
  void string(Thread t, std::uint8_t byte, Threads& to) const;
  void number(Thread t, std::uint8_t byte, Threads& to) const;
  void put_number(Thread t, Phase phase, Threads& to) const;
  void object(Thread t, std::uint8_t byte, Threads& to) const;
  void key(Thread t, std::uint8_t byte, Threads& to) const;
  void array(Thread t, std::uint8_t byte, Threads& to) const;
  // The value on top is complete.
  void finish(const Thread& t, Threads& to) const;
  // A value of this node comes next, within the one on top.
  void push(Thread t, NodeId id, Threads& to) const;
  bool fits(const Thread& t, NodeId id) const;
  bool can_have_key(const Thread& t) const;
  bool can_have_item(const Thread& t) const;

  std::shared_ptr<const JsonGrammar> grammar_;
};

}  // namespace mneme
