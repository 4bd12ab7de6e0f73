// Arguments that have a mark each, as steps.
#pragma once

#include "src/text/answer/answer_format.h"
#include "src/text/answer/argument_reader.h"
#include "src/text/answer_grammar/step_builder.h"

namespace mneme {

// Members of the object that `arguments` is. `types` is what the parser takes their texts for.
//
// Errors  kUnsupported: a required member that cannot be written in this format.
StepId member_steps(StepBuilder& steps, const ArgumentMarks& marks, const ArgumentTypes& types,
                    const JsonMatcher& arguments, StepId next);

}  // namespace mneme
