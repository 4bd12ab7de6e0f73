// Answers of every family as its model writes them, and what is in them.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mneme::answer_test {

struct Golden {
  std::string format, answer;
  std::string thought, text;
  std::vector<std::pair<std::string, std::string>> calls;  // name, arguments
  bool in_thought = false;                                 // the prompt has opened it
};

const std::vector<Golden>& goldens();

// The tools of these answers, as a request has them.
extern const char* const kTools;

}  // namespace mneme::answer_test
