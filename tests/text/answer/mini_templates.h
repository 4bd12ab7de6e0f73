// Chat templates written for tests, one for each way in which models write calls.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mneme::answer_test {

// A name, and the template.
const std::vector<std::pair<std::string, std::string>>& mini_templates();

}  // namespace mneme::answer_test
