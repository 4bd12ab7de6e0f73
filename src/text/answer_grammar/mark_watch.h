// Looks for the first of several marks in a text, byte by byte.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "src/text/grammar/json_matcher.h"

namespace mneme {

// White space within a mark matches any, or none. States are numbers, 0 the first; they are made at the construction.
class MarkWatch {
 public:
  // Where two marks end at the same byte, the first one counts.  Requires  no mark is empty or begins with white space.
  explicit MarkWatch(const std::vector<std::string>& marks);

  struct Step {
    std::int32_t state = 0;
    std::int32_t mark = -1;  // that ends with this byte
  };
  Step step(std::int32_t state, std::uint8_t byte) const;
  // Bytes that are not white space of the longest beginning of a mark that the text ends with.
  std::int32_t held(std::int32_t state) const { return states_[state].held; }
  // Of a mark, likewise.
  std::int32_t length(std::int32_t mark) const { return lengths_[mark]; }
  // Bytes on which state 0 is left, and those that `state` waits for.
  const JsonMatcher::ByteSet& begins() const { return states_[0].waits; }
  const JsonMatcher::ByteSet& waits(std::int32_t state) const { return states_[state].waits; }

 private:
  struct Place {
    std::int32_t mark = 0;
    std::uint32_t at = 0;  // bytes of it
    auto operator<=>(const Place&) const = default;
  };
  struct State {
    std::map<std::uint8_t, Step> steps;  // what is not there leads to state 0
    JsonMatcher::ByteSet waits;
    std::int32_t held = 0;
  };
  using Places = std::vector<Place>;
  std::int32_t state_of(const Places& places, std::vector<Places>& open);
  Places after(const Places& places, std::uint8_t byte, std::int32_t& ended) const;
  std::uint32_t skip_white(const Place& place) const;

  std::vector<std::string> marks_;
  std::vector<std::int32_t> lengths_;
  std::vector<State> states_;
  std::map<Places, std::int32_t> known_;
};

}  // namespace mneme
