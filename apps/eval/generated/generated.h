// A question with its prompt, as a generator makes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace mneme::eval {

struct GeneratedQuestion {
  std::string prompt;              // of the user's turn
  std::size_t question_bytes = 0;  // the end of it that is the question
  std::string answer_prefix;       // the answer begins with it; it is part of the input
  std::vector<std::string> answers;
  double depth = -1;  // of the first fact, 0 to 1; -1: none
};

}  // namespace mneme::eval
