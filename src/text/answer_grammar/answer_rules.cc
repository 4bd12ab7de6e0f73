#include "src/text/answer_grammar/answer_rules.h"

#include <algorithm>

#include "src/text/answer/mark.h"
#include "src/text/answer_grammar/call_steps.h"
#include "src/text/answer_grammar/harmony_steps.h"
#include "src/text/answer_grammar/step_builder.h"

namespace mneme {
namespace {

bool is_token(std::string_view mark) {
  return mark.starts_with(kTokenBegin);
}

// Answers between whose parts marks stand: every format but Harmony's.
class MarkedAnswer {
 public:
  explicit MarkedAnswer(const AnswerRules& rules) : rules_(rules), format_(rules.marks->format()) {
    behind_call_ = steps_.split({0, 0});  // filled in below
    if (rules.calls != Calls::kNone) calls_.emplace(steps_, rules, behind_call_);
  }

  AnswerProgram run() {
    finish_ = steps_.white(steps_.end());
    const StepId text = free() ? prose() : demanded();
    const StepId thought = thought_of(text);
    if (free()) steps_.at(text).prose = text_prose(false, thought);
    steps_.at(behind_call_).ways = behind_call(thought);
    const bool always_thinks = format_.thought_open.empty() && !format_.thought_close.empty();
    if (rules_.in_thought || always_thinks) return steps_.take(thought);
    if (free()) {
      const StepId begin = prose();
      steps_.at(begin).prose = text_prose(true, thought);
      return steps_.take(begin);
    }
    std::vector<StepId> ways{text};
    if (thought >= 0) ways.push_back(steps_.white(steps_.mark(format_.thought_open, thought)));
    return steps_.take(steps_.split(std::move(ways)));
  }

 private:
  bool free() const { return rules_.calls != Calls::kRequired && !rules_.document; }

  StepId prose() { return steps_.add({.kind = AnswerStep::Kind::kProse}); }

  // A document, a call, or either.
  StepId demanded() {
    std::vector<StepId> ways;
    if (rules_.calls != Calls::kNone) ways.push_back(steps_.white(calls_->begin()));
    if (rules_.document && rules_.calls != Calls::kRequired) {
      const auto json = std::make_shared<const JsonMatcher>(std::make_shared<const JsonGrammar>(*rules_.document));
      ways.push_back(steps_.white(steps_.json(json, rules_.document->root, steps_.end())));
    }
    return steps_.split(std::move(ways));
  }

  std::vector<StepId> behind_call(StepId thought) {
    if (rules_.calls == Calls::kNone || !rules_.parallel) return {finish_};
    if (!free()) return {finish_, steps_.white(calls_->begin())};
    const StepId text = prose();
    steps_.at(text).prose = text_prose(false, thought);
    return {text};
  }

  struct Marks {
    std::vector<std::string> marks;
    std::vector<Prose::Exit> exits;
    void add(const std::string& mark, StepId to, bool at_start = false) {
      if (mark.empty() || to < 0) return;
      marks.push_back(mark);
      exits.push_back({to, at_start});
    }
    std::shared_ptr<const Prose> prose(bool thought, bool may_end) {
      return std::make_shared<const Prose>(
          Prose{.watch = MarkWatch(marks), .exits = std::move(exits), .thought = thought, .may_end = may_end});
    }
  };

  void add_calls(Marks& marks) {
    if (rules_.calls == Calls::kNone) return;
    if (!format_.call.section_open.empty()) marks.add(format_.call.section_open, calls_->section());
    if (!format_.call.open.empty()) marks.add(format_.call.open, calls_->call());
  }

  std::shared_ptr<const Prose> text_prose(bool first, StepId thought) {
    Marks marks;
    marks.add(format_.thought_open, thought, !is_token(format_.thought_open));
    add_calls(marks);
    if (first && calls_)
      for (const CallSteps::Bare& bare : calls_->bare()) marks.add(bare.mark, bare.to, true);
    return marks.prose(false, true);
  }

  // -1: the format has no thoughts.
  StepId thought_of(StepId behind) {
    if (format_.thought_close.empty()) return -1;
    const StepId thought = prose();
    Marks marks;
    marks.add(format_.thought_close, behind);
    if (format_.call_ends_thought) add_calls(marks);
    steps_.at(thought).prose = marks.prose(true, free());
    return thought;
  }

  const AnswerRules& rules_;
  const AnswerFormat& format_;
  StepBuilder steps_;
  std::optional<CallSteps> calls_;
  StepId finish_ = -1, behind_call_ = -1;
};

}  // namespace

AnswerProgram answer_program(const AnswerRules& rules) {
  if (rules.marks->format().calls == CallForm::kHarmony) return harmony_program(rules);
  return MarkedAnswer(rules).run();
}

std::vector<TokenId> close_of_thought(const AnswerRules& rules, const Tokenizer& tokenizer) {
  const AnswerFormat& format = rules.marks->format();
  std::string close;
  if (format.calls == CallForm::kHarmony) {
    const bool free = rules.calls != Calls::kRequired && !rules.document;
    close = free ? "<|end|><|start|>assistant<|channel|>final<|message|>" : "<|end|>";
  } else {
    // As models are trained: special tokens stand alone.
    close = is_token(format.thought_close) ? spelled(format.thought_close) : '\n' + format.thought_close + "\n\n";
  }
  return tokenizer.encode(close, {.parse_special = true, .add_bos = false, .continues = true});
}

}  // namespace mneme
