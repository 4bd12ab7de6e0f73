// Matches an answer byte by byte. What may follow is followed in parallel.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "src/text/answer_grammar/answer_steps.h"

namespace mneme {

class AnswerMatcher {
 public:
  // Where a step is. `bits`: kMembers and what its members consist of: properties that were there; kProse: bytes that
  // are not white space, up to kLater.
  struct Place {
    StepId step = 0;
    std::uint32_t at = 0;
    std::uint64_t bits = 0;
    bool operator==(const Place&) const = default;
  };
  struct JsonPlace {
    StepId step = 0;
    std::uint64_t bits = 0;
    JsonMatcher::Thread thread;
  };
  struct State {
    std::vector<Place> places;
    std::vector<JsonPlace> json;
    bool empty() const { return places.empty() && json.empty(); }
    void clear() { places.clear(), json.clear(); }
  };
  static constexpr std::uint64_t kLater = 255;

  explicit AnswerMatcher(std::shared_ptr<const AnswerProgram> program) : program_(std::move(program)) {}

  State begin() const;
  // Special tokens are their spelling between kTokenBegin and kTokenEnd. False: no answer goes on this way.
  bool step(const State& from, std::uint8_t byte, State& to) const;
  bool step_all(State& state, std::string_view bytes) const;
  // The answer may end here.
  bool may_end(const State& state) const;
  // The prose that the answer is in; null: none, or it may be something else.
  const Prose* prose(const State& state) const;

  // What may come next, for masks of tokens.
  struct Next {
    bool prose = false;                     // any text
    std::optional<std::size_t> characters;  // so many that JSON need not escape
    // But for tokens that begin with a byte of `first`, or have one of `anywhere`.
    JsonMatcher::ByteSet first, anywhere;
  };
  Next next(const State& state) const;
  const AnswerStep& at(StepId id) const { return program_->steps[id]; }

 private:
  void enter(StepId id, std::uint64_t bits, State& to) const;
  void enter_members(StepId id, std::uint64_t bits, State& to) const;
  static void push(const Place& place, State& to);
  void step_place(const Place& from, std::uint8_t byte, State& to) const;
  void step_white(const Place& from, std::uint8_t byte, State& to) const;
  void step_word(const Place& from, std::uint8_t byte, State& to) const;
  void step_prose(const Place& from, std::uint8_t byte, State& to) const;

  std::shared_ptr<const AnswerProgram> program_;
};

}  // namespace mneme
