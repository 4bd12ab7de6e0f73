#include "src/text/answer_grammar/harmony_steps.h"

#include "src/base/error.h"
#include "src/text/answer_grammar/step_builder.h"

namespace mneme {
namespace {

class HarmonyAnswer {
 public:
  explicit HarmonyAnswer(const AnswerRules& rules) : rules_(rules) {
    const auto mark = [&](const char* spelling) { return rules.marks->mark_of(spelling); };
    start_ = mark("<|start|>");
    channel_ = mark("<|channel|>");
    constrain_ = mark("<|constrain|>");
    message_ = mark("<|message|>");
    end_ = mark("<|end|>");
    call_ = mark("<|call|>");
    return_ = mark("<|return|>");
  }

  AnswerProgram run() {
    recipient_ = rules_.calls == Calls::kNone ? -1 : recipient();
    return rules_.calls == Calls::kRequired || rules_.document ? demanded() : free();
  }

 private:
  // Behind "to=".
  StepId recipient() {
    std::vector<StepId> names;
    for (const CallRule& tool : rules_.tools) {
      const auto json = std::make_shared<const JsonMatcher>(std::make_shared<const JsonGrammar>(tool.arguments));
      const StepId end = steps_.end();
      const StepId body = steps_.json(json, tool.arguments.root, steps_.white(steps_.text(call_, end)));
      names.push_back(steps_.text(tool.name, behind_recipient(body)));
    }
    return steps_.text("functions.", steps_.split(std::move(names)));
  }

  StepId behind_recipient(StepId body) {
    const StepId typed = message_of("json", body);
    return steps_.split({typed, steps_.text(channel_ + "commentary", typed)});
  }

  // The rest of a header, which may say the type of what follows.
  StepId message_of(const std::string& type, StepId body) {
    const StepId message = steps_.text(message_, body);
    const StepId constrained = steps_.white(steps_.text(constrain_ + type, message));
    return steps_.split({constrained, steps_.text(' ' + type, message), message});
  }

  AnswerProgram demanded() {
    std::vector<StepId> ways;
    if (rules_.calls != Calls::kNone) {
      ways.push_back(steps_.text(channel_ + "commentary to=", recipient_));
      ways.push_back(steps_.text(" to=", recipient_));
    }
    if (rules_.document && rules_.calls != Calls::kRequired) {
      const auto json = std::make_shared<const JsonMatcher>(std::make_shared<const JsonGrammar>(*rules_.document));
      const StepId body = steps_.json(json, rules_.document->root, steps_.end());
      ways.push_back(steps_.text(channel_ + "final", message_of("json", body)));
    }
    const StepId thought = steps_.add({.kind = AnswerStep::Kind::kProse});
    const StepId behind = steps_.text(start_ + "assistant", steps_.split(ways));
    // A reader ends the message at any of these; nothing may follow but what is demanded.
    const StepId never = steps_.split({});
    std::vector<Prose::Exit> exits(5, Prose::Exit{never, false});
    exits.front().to = behind;
    steps_.at(thought).prose =
        std::make_shared<const Prose>(Prose{.watch = MarkWatch({end_, call_, return_, start_, channel_}),
                                            .exits = std::move(exits),
                                            .thought = true,
                                            .may_end = false});
    ways.push_back(steps_.text(channel_ + "analysis" + message_, thought));
    return steps_.take(steps_.split(std::move(ways)));
  }

  AnswerProgram free() {
    const auto prose = [&] { return steps_.add({.kind = AnswerStep::Kind::kProse}); };
    const StepId first = prose(), header = prose(), body = prose(), thought = prose();
    const auto set = [&](StepId step, std::vector<std::string> marks, std::vector<Prose::Exit> exits, bool thinks) {
      steps_.at(step).prose = std::make_shared<const Prose>(
          Prose{.watch = MarkWatch(marks), .exits = std::move(exits), .thought = thinks, .may_end = true});
    };
    std::vector<std::string> ends{end_, call_, return_, start_, channel_};
    std::vector<Prose::Exit> to_header(ends.size(), Prose::Exit{header, false});
    set(body, ends, to_header, false);
    set(thought, ends, to_header, true);
    std::vector<std::string> marks{"analysis" + message_, message_};
    std::vector<Prose::Exit> exits{{thought, false}, {body, false}};
    ends.push_back(message_);
    to_header.push_back({body, true});
    if (recipient_ >= 0) {
      marks.emplace_back("to=");
      exits.push_back({recipient_, false});
      ends.emplace_back("to=");
      to_header.push_back({recipient_, true});
    }
    set(header, std::move(marks), std::move(exits), false);
    set(first, std::move(ends), std::move(to_header), false);
    return steps_.take(first);
  }

  const AnswerRules& rules_;
  StepBuilder steps_;
  std::string start_, channel_, constrain_, message_, end_, call_, return_;
  StepId recipient_ = -1;
};

}  // namespace

AnswerProgram harmony_program(const AnswerRules& rules) {
  return HarmonyAnswer(rules).run();
}

}  // namespace mneme
