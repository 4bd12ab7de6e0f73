// A schema's `pattern` as an automaton of at most 64 states over ASCII.
#pragma once

#include <bitset>
#include <cstdint>
#include <string_view>
#include <vector>

namespace mneme {

// Characters, classes, . \d \w \s, groups, |, * + ? {m,n}, ^ at the beginning and $ at the end; without those the text
// may stand around what matches, as JSON Schema has it.
class Pattern {
 public:
  using States = std::uint64_t;  // one bit each

  // Errors  kUnsupported: anything else (look-around, back references, other anchors, characters beyond ASCII), or more
  //         states.
  explicit Pattern(std::string_view text);

  States begin() const { return 1; }
  // The states behind a character; 0: no text that goes on so matches.
  States step(States from, std::uint8_t character) const;
  bool accepts(States states) const { return (states & accepting_) != 0; }

 private:
  struct State {
    std::bitset<128> enters;  // characters that lead here
    States next = 0;          // where it can go on
  };
  friend class PatternParser;

  std::vector<State> states_;  // state 0 is the beginning
  States accepting_ = 0;
};

}  // namespace mneme
