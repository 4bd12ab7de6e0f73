// Calls of tools in an answer's format, as steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "src/text/answer_grammar/answer_rules.h"
#include "src/text/answer_grammar/step_builder.h"

namespace mneme {

// Requires  both outlive the object; the format reads calls, and is not Harmony's.
class CallSteps {
 public:
  // `next` follows a call, or a section of them where there may be several. Errors  as answer_program().
  CallSteps(StepBuilder& steps, const AnswerRules& rules, StepId next);

  // From the first mark on.
  StepId begin();
  // What follows section_open, and call.open.
  StepId section();
  StepId call();

  // How a call without marks begins, by tool, and what follows.
  struct Bare {
    std::string mark;
    StepId to = 0;
  };
  std::vector<Bare> bare();

 private:
  struct Tool {
    const CallRule* rule = nullptr;
    std::shared_ptr<const JsonMatcher> arguments;
  };
  const AnswerFormat& format() const { return rules_.marks->format(); }
  StepId close_section();
  StepId make_section();
  StepId make_call(StepId next);
  StepId objects(StepId next, bool lists);
  StepId behind_object(StepId again, StepId next);
  StepId object(StepId next);
  StepId object_behind_name(const Tool& tool, StepId next);
  StepId functions(StepId next);
  StepId behind_function(StepId again, StepId next);
  StepId behind_name(const Tool& tool, StepId next);

  StepBuilder& steps_;
  const AnswerRules& rules_;
  StepId next_;
  std::vector<Tool> tools_;
  StepId begin_ = -1, section_ = -1, call_ = -1;  // once they are made
};

}  // namespace mneme
