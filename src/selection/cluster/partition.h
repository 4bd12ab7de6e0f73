// Assigns a layer's tokens to list units: clusters over prompt tokens, segments over generated tokens. Arithmetic only,
// the same for all KV heads of the layer; each head clusters the tokens of a range by itself.
//
// Tokens arrive in order, prompts in chunks, generated tokens one by one. The last tokens are the buffer; [sink,
// grouped()) are in units:
//
//   * Prompt tokens become clusters: a block at a time while the prompt is fed, and at its end all that are not among
//     the last `recent` tokens. Those become segments, cut at the largest size.
//   * A generated token at a boundary starts a new segment if the current one has the smallest size; otherwise it joins
//     it. A segment of the largest size ends. The start of a prompt ends a segment too; below the smallest size the
//     segment joins the prompt.
//   * While the buffer holds more than `recent` tokens, its oldest segment leaves it and becomes a unit, or clusters.
//
// So a segment has smallest to largest tokens, and the buffer holds at most `recent` tokens after a decoded token.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

namespace mneme {

struct PartitionRules {
  std::int32_t sink = 0, recent = 0;
  std::int32_t block = 8192;                // tokens that are clustered together, at most
  std::int32_t smallest = 8, largest = 64;  // tokens per segment
  bool cluster_segments = false;            // a segment is a range of clusters, not one unit
};

// Null when the rules are valid; else the reason, for the user.
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

  std::int32_t length() const { return length_; }    // tokens seen so far
  std::int32_t grouped() const { return grouped_; }  // tokens [sink, grouped()) are in units
  // Completed ranges, in order; together they are [sink, grouped()).
  std::span<const UnitRange> ranges() const { return ranges_; }

  // Appends prompt tokens [length(), length). Requires  length >= length().
  void add_prompt(std::int32_t length);
  // Ends the prompt. Prompt tokens that follow are another prompt.
  void end_prompt();
  // Appends one decoded token; the prompt before it has ended. What leaves the buffer does not depend on this token's
  // own boundary, so the boundary may be reported later: add_output(false), then begin_segment().
  void add_output(bool boundary);
  // Marks the last token, a decoded one, as a boundary.
  void begin_segment();
  // Makes tokens [0, length) one prompt that continues: keeps the clusters of its complete blocks, which any prompt
  // with these tokens has, and removes all other units. Requires  length <= length().
  void begin_as_prompt(std::int32_t length);
  // Removes the tokens from `length` on. What remains of a unit becomes part of the next prompt.
  void truncate(std::int32_t length);

  std::size_t bytes() const { return ranges_.size() * sizeof(UnitRange) + cuts_.size() * sizeof(std::int32_t); }

 private:
  static constexpr std::int32_t kNone = -1;

  std::int32_t open() const { return cuts_.empty() ? grouped_ : cuts_.back(); }  // start of the last segment
  void close(std::int32_t end, bool clusters);
  void move_out();

  PartitionRules rules_;
  std::int32_t length_ = 0, grouped_ = 0;
  std::int32_t prompt_from_ = kNone;  // start of the prompt that has not ended
  std::deque<std::int32_t> cuts_;     // starts of the segments in the buffer
  std::vector<UnitRange> ranges_;
};

// The specification, as a function of every token's kind. Prompts are the maximal runs of tokens that were not decoded.
struct SeenToken {
  bool decoded = false;
  bool boundary = false;  // only if decoded
};
struct PartitionedTokens {
  std::vector<UnitRange> ranges;
  std::int32_t grouped = 0;
};
// Requires  the last token was decoded.
PartitionedTokens partition_ref(const PartitionRules& rules, std::span<const SeenToken> tokens);

}  // namespace mneme
