// Which tokens of a layer lie in which list unit: clusters over what was read as a prompt, segments over what was
// decoded. Arithmetic alone, the same for all KV heads of the layer; the clusters of a range are each head's own.
//
// Tokens come in order, those of prompts many at a time, those of answers one at a time. The last of them are the
// buffer; [sink, grouped()) are in units:
//
//   * Tokens of a prompt become clusters, a block at a time while the prompt goes on, and at its end what is not in the
//     last `recent` tokens. What is becomes segments, cut at the largest size.
//   * An answer's segments begin at its boundaries, if the one before then has the smallest size, and otherwise join
//     it; a segment of the largest size ends. At a prompt's beginning a segment ends too, or, below the smallest size,
//     joins the prompt.
//   * While the buffer holds more than `recent` tokens, its oldest segment moves out and becomes a unit.
//
// So a segment has smallest to largest tokens, and at most `recent` tokens are in the buffer when a token was decoded.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace mneme {

struct PartitionRules {
  std::int32_t sink = 0, recent = 0;
  std::int32_t block = 8192;                // tokens that are clustered together, at most
  std::int32_t smallest = 8, largest = 64;  // tokens of a segment
};

// Null when the rules make sense; else the reason, for the user.
const char* check_partition(const PartitionRules& rules);

// Tokens [begin, end): one segment, or several clusters.
struct UnitRange {
  std::int32_t begin = 0, end = 0;
  bool clusters = false;
  bool operator==(const UnitRange&) const = default;
};

class Partition {
 public:
  Partition() = default;
  // Requires  check_partition(rules) is null.
  explicit Partition(const PartitionRules& rules) : rules_(rules), grouped_(rules.sink) {}

  std::int32_t length() const { return length_; }  // tokens seen
  std::int32_t grouped() const {
    return grouped_;
  }  // tokens [sink, grouped()) are in units; those from here on are not
  // Closed, in order; together they are [sink, grouped()).
  std::span<const UnitRange> ranges() const { return ranges_; }

  // Tokens [length(), length) are of a prompt. Requires  length >= length().
  void add_prompt(std::int32_t length);
  // The prompt so far is complete; one that goes on all the same is another.
  void end_prompt();
  // One decoded token. A prompt before it has ended. What leaves the buffer with it does not depend on its own
  // boundary, which may also be told afterwards: add_output(false), then begin_segment().
  void add_output(bool boundary);
  // The last token, a decoded one, was at a boundary.
  void begin_segment();
  // Forgets the tokens from `length` on. What is then left of a unit becomes part of the next prompt.
  void truncate(std::int32_t length);

  std::size_t bytes() const { return ranges_.size() * sizeof(UnitRange) + cuts_.size() * sizeof(std::int32_t); }

 private:
  static constexpr std::int32_t kNone = -1;

  std::int32_t open() const { return cuts_.empty() ? grouped_ : cuts_.back(); }  // where the last segment begins
  void close(std::int32_t end, bool clusters);
  void move_out();

  PartitionRules rules_;
  std::int32_t length_ = 0, grouped_ = 0;
  std::int32_t prompt_from_ = kNone;  // where the prompt begins that has not ended
  std::deque<std::int32_t> cuts_;     // beginnings of segments behind grouped_
  std::vector<UnitRange> ranges_;
};

// The same, from what every token was alone: the specification. Prompts are the longest stretches that were not
// decoded.
struct SeenToken {
  bool decoded = false;
  bool boundary = false;  // where decoded
};
struct PartitionedTokens {
  std::vector<UnitRange> ranges;
  std::int32_t grouped = 0;
};
// Requires  the last token was decoded.
PartitionedTokens partition_ref(const PartitionRules& rules, std::span<const SeenToken> tokens);

}  // namespace mneme
