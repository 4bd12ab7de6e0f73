// gpt-oss's messages as steps: a recipient makes a message a call.
#pragma once

#include "src/text/answer_grammar/answer_rules.h"

namespace mneme {

// As answer_program(). One call ends the answer.
AnswerProgram harmony_program(const AnswerRules& rules);

}  // namespace mneme
