// What a request allows its answers to be, as steps.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "src/text/answer/answer_parser.h"
#include "src/text/answer_grammar/answer_constraint.h"
#include "src/text/answer_grammar/answer_steps.h"

namespace mneme {

// A tool that may be called.
struct CallRule {
  std::string name;
  JsonGrammar arguments;  // an object
  ArgumentTypes types;    // as the parser reads them
};

enum class Calls : std::uint8_t { kNone, kPossible, kRequired };

struct AnswerRules {
  std::shared_ptr<const AnswerMarks> marks;
  bool in_thought = false;  // the prompt has opened one
  Calls calls = Calls::kNone;
  bool parallel = true;  // more than one call
  std::vector<CallRule> tools;
  std::optional<JsonGrammar> document;  // what the text of the answer is; nothing: any text
};

// Free text until the mark of a call, then a call that is valid under its tool's schema; a thought before either.
// Where calls are required, nothing but a thought precedes the first one.
//
// Requires  the format reads calls, where there are any; tools are not empty then.
// Errors    kUnsupported: a tool's arguments cannot be written in this format; the message has the tool's name.
AnswerProgram answer_program(const AnswerRules& rules);

// The tokens that end a thought of this format: of the rules' answers.
std::vector<TokenId> close_of_thought(const AnswerRules& rules, const Tokenizer& tokenizer);

}  // namespace mneme
