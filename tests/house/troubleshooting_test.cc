// Every message that docs/guide/troubleshooting.md quotes is one that the program can print.
#include <gtest/gtest.h>

#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

namespace fs = std::filesystem;

// The string literals of C++ text, one a line. Adjacent literals are one; `\"` is a quote.
std::string literals(const std::string& code) {
  std::string out;
  std::size_t i = 0, end_of_last = std::string::npos;
  while ((i = code.find('"', i)) != std::string::npos) {
    const bool joins = end_of_last != std::string::npos && code.find_first_not_of(" \t\n", end_of_last) == i;
    if (!joins) out += '\n';
    for (++i; i < code.size() && code[i] != '"' && code[i] != '\n'; ++i) {
      if (code[i] == '\\' && i + 1 < code.size()) ++i;
      out += code[i];
    }
    end_of_last = ++i;
  }
  return out;
}

// The parts of the messages in the first column of a table's row that are the same in every message: what stands in
// backticks, cut at "...". Parts of fewer than 6 characters say nothing.
std::vector<std::string> fixed_parts(const std::string& row) {
  std::vector<std::string> parts;
  const std::string column = row.substr(0, row.find(" | ", 2));
  for (std::size_t open = column.find('`'); open != std::string::npos;) {
    const std::size_t close = column.find('`', open + 1);
    if (close == std::string::npos) break;
    std::string message = column.substr(open + 1, close - open - 1) + "...";
    for (std::size_t dots; (dots = message.find("...")) != std::string::npos; message.erase(0, dots + 3)) {
      const std::string part = message.substr(0, dots);
      const std::size_t first = part.find_first_not_of(": "), last = part.find_last_not_of(' ');
      if (first != std::string::npos && last - first + 1 >= 6) parts.push_back(part.substr(first, last - first + 1));
    }
    open = column.find('`', close + 1);
  }
  return parts;
}

TEST(Troubleshooting, TheCheckItselfSeesWhatItShould) {
  EXPECT_EQ(literals("f(\"one \"\n  \"two\", \"a \\\"b\\\"\")"), "\none two\na \"b\"");
  EXPECT_EQ(fixed_parts("| `...: weights of ... bytes`, `too many` | why | `not this` |"),
            (std::vector<std::string>{"weights of", "too many"}));
}

TEST(Troubleshooting, QuotedMessagesAreThoseOfTheProgram) {
  std::string printed;
  for (const char* folder : {"src", "apps"})
    for (const fs::path& file : files(folder, {".h", ".cc", ".cu"})) printed += literals(read(file));
  std::istringstream page(read("docs/guide/troubleshooting.md"));
  int checked = 0;
  for (std::string line; std::getline(page, line);) {
    if (!line.starts_with("| ") || line.starts_with("|---")) continue;
    for (const std::string& part : fixed_parts(line)) {
      ++checked;
      EXPECT_NE(printed.find(part), std::string::npos) << "no message has the words: " << part;
    }
  }
  EXPECT_GT(checked, 60) << "the test has lost the page";
}

}  // namespace
}  // namespace mneme::house
