// A schema's `pattern` as an automaton of at most 64 states over ASCII.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mneme {

// Supports characters, classes, . \d \w \s, groups, |, * + ? {m,n}, ^ at the start and $ at the end. Without anchors
// the match may be anywhere in the text, as JSON Schema defines.
class Pattern {
 public:
  using States = std::uint64_t;  // one bit each

  // Errors  kUnsupported: anything else (look-around, back references, other anchors, non-ASCII characters), or more
  //         than 64 states.
  explicit Pattern(std::string_view text);

  States begin() const { return 1; }
  // States after a character; 0: no text with this prefix matches.
  States step(States from, std::uint8_t character) const;
  bool accepts(States states) const { return (states & accepting_) != 0; }

 private:
  struct State {
    std::bitset<128> enters;  // characters that enter this state
    States next = 0;          // successors
  };
  friend class PatternParser;

  std::vector<State> states_;  // state 0 is the start
  States accepting_ = 0;
};

}  // namespace mneme
