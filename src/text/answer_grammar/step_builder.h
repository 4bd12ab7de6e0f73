// Steps of an answer, made back to front: each knows what follows it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "src/text/answer_grammar/answer_steps.h"

namespace mneme {

class StepBuilder {
 public:
  StepId add(AnswerStep step) {
    program_.steps.push_back(std::move(step));
    return static_cast<StepId>(program_.steps.size() - 1);
  }
  AnswerStep& at(StepId id) { return program_.steps[id]; }

  StepId text(std::string_view bytes, StepId next);  // none: next itself
  // A mark; white space within it is optional.
  StepId mark(std::string_view bytes, StepId next);
  StepId white(StepId next) { return add({.kind = AnswerStep::Kind::kWhite, .next = next}); }
  // Letters and digits, and `more`.
  StepId word(std::uint32_t least, std::uint32_t most, std::string more, StepId next);
  StepId split(std::vector<StepId> ways) {
    return ways.size() == 1 ? ways[0] : add({.kind = AnswerStep::Kind::kSplit, .ways = std::move(ways)});
  }
  StepId json(std::shared_ptr<const JsonMatcher> matcher, NodeId node, StepId next) {
    return add({.kind = AnswerStep::Kind::kJson, .next = next, .json = std::move(matcher), .node = node});
  }
  StepId end() { return add({.kind = AnswerStep::Kind::kEnd}); }

  AnswerProgram take(StepId begin) {
    program_.begin = begin;
    return std::move(program_);
  }

 private:
  AnswerProgram program_;
};

}  // namespace mneme
