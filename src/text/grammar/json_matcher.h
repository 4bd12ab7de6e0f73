// Matches a JSON document byte by byte. Where a schema has alternatives, all that are still possible are followed in
// parallel.
#pragma once

#include <bitset>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/text/grammar/json_nodes.h"
#include "src/text/grammar/json_text.h"

namespace mneme {

class JsonMatcher {
 public:
  static constexpr int kDeepest = 60;  // nested arrays and objects
  // Between two parts at most one space, or a newline with this many spaces per level: models tend to fill answers with
  // white space.
  static constexpr int kMaxIndent = 4;

  // Hashes of names. An equal hash of another name only refuses that name.
  using Names = std::vector<std::uint64_t>;
  // State of a value within the values around it.
  struct Frame {
    enum class Phase : std::uint8_t {
      kStart,      // before the value
      kLiteral,    // at: index in the literals
      kString,     // count: characters, bits: states of the pattern; at: of RawText::never, name: of a value's word
      kOpen,       // in RawText::open, at: bytes of it
      kClose,      // in RawText::close, likewise
      kSign,       // a number: after "-",
      kZero,       // its integer part is 0,
      kWhole,      // digits of the integer part,
      kPoint,      // after ".",
      kFraction,   // digits after it,
      kE,          // after "e",
      kESign,      // after "e-",
      kExponent,   // count: its value
      kFirstKey,   // after "{"; bits: properties seen, or behind in order
      kNextKey,    // after ",",
      kKey,        // in a name; at: node among the names, -1: another name; count: bytes of a bare one
      kColon,      // after a name; at: which property, -1: another one
      kMember,     // after a member
      kFirstItem,  // after "["; count: items
      kItem,       // after an item
    };
    NodeId node = 0;
    Phase phase = Phase::kStart;
    std::uint8_t blanks = 0;  // current run: 1: a space, 2: a newline, plus the spaces after it
    JsonText text;
    std::int32_t at = 0;
    std::uint32_t count = 0;
    std::uint64_t bits = 0;
    NumberRange::Digits digits;
    bool more_names = true;               // a bare name may be one that is not declared
    std::uint64_t name = 0;               // in a name: hash of its characters, however they are escaped
    std::shared_ptr<const Names> others;  // names of an object that are not among its properties
  };
  struct Link {
    Frame frame;
    std::shared_ptr<const Link> below;
  };
  // One parse of the input so far. Without a frame, the document is complete.
  struct Thread {
    bool done = false;
    int depth = 0;
    Frame top;
    std::shared_ptr<const Link> below;
  };
  using Threads = std::vector<Thread>;

  explicit JsonMatcher(std::shared_ptr<const JsonGrammar> grammar) : grammar_(std::move(grammar)) {}

  using ByteSet = std::bitset<256>;

  Threads begin() const { return begin(grammar_->root); }
  Threads begin(NodeId root) const;
  // Appends the continuations after a byte; none: no document has this prefix.
  void step(const Thread& from, std::uint8_t byte, Threads& to) const;
  bool step_all(const Threads& from, std::uint8_t byte, Threads& to) const;
  // Maximum characters of escape-free text that may follow in any form; nothing where some text is not allowed.
  std::optional<std::size_t> plain_room(const Thread& thread) const;
  // Where RawText makes an exception of that: tokens that begin with one of `first`, or have one of `anywhere`, must be
  // matched. Adds to both.
  void not_plain(const Thread& thread, ByteSet& first, ByteSet& anywhere) const;
  const JsonGrammar& grammar() const { return *grammar_; }
  // Properties of an object that may come next, of those of which none in `seen` comes twice.
  static std::uint64_t open_members(const JsonNode& object, std::uint64_t seen);

 private:
  using Phase = Frame::Phase;
  const JsonNode& node(NodeId id) const { return grammar_->nodes[id]; }
  const JsonNode& node(const Thread& t) const { return node(t.top.node); }

  void start(Thread t, std::uint8_t byte, Threads& to) const;
  void literal(Thread t, std::uint8_t byte, Threads& to) const;
  void string(Thread t, std::uint8_t byte, Threads& to) const;
  void begin_text(Thread& t) const;
  void raw_mark(Thread t, std::uint8_t byte, Threads& to) const;
  void raw_text(Thread t, std::uint8_t byte, Threads& to) const;
  bool text_may_end(const Thread& t) const;
  void number(Thread t, std::uint8_t byte, Threads& to) const;
  void put_number(Thread t, Phase phase, Threads& to) const;
  void object(Thread t, std::uint8_t byte, Threads& to) const;
  void key(Thread t, std::uint8_t byte, Threads& to) const;
  void bare_key(Thread t, std::uint8_t byte, Threads& to) const;
  static std::uint64_t with_byte(std::uint64_t name, std::uint8_t byte);
  void array(Thread t, std::uint8_t byte, Threads& to) const;
  // The top value is complete.
  void finish(const Thread& t, Threads& to) const;
  // Pushes a value of this node within the top value.
  void push(Thread t, NodeId id, Threads& to) const;
  bool fits(const Thread& t, NodeId id) const;
  bool can_have_key(const Thread& t) const;
  // Of open_members(), those that fit.
  std::uint64_t open_properties(const Thread& t) const;
  // The name is complete; false: it may not occur here.
  bool take_name(Thread& t) const;
  bool can_have_item(const Thread& t) const;

  std::shared_ptr<const JsonGrammar> grammar_;
};

}  // namespace mneme
