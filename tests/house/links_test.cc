// Every relative link in a Markdown file leads to a file or folder that is there.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

namespace fs = std::filesystem;

// Targets of [text](target), code left out: a fence or a span in backticks shows text, it does not link.
std::vector<std::string> link_targets(const std::string& markdown) {
  std::string text;
  bool fenced = false, in_span = false;
  for (std::size_t i = 0; i < markdown.size(); ++i) {
    const bool line_start = i == 0 || markdown[i - 1] == '\n';
    if (line_start && markdown.compare(i, 3, "```") == 0) {
      fenced = !fenced;
      in_span = false;
      i += 2;
      continue;
    }
    if (fenced) continue;
    if (markdown[i] == '`') in_span = !in_span;
    if (markdown[i] == '\n' && i + 1 < markdown.size() && markdown[i + 1] == '\n') in_span = false;
    if (!in_span) text += markdown[i];
  }
  std::vector<std::string> targets;
  for (std::size_t i = text.find("]("); i != std::string::npos; i = text.find("](", i + 2)) {
    const std::size_t end = text.find_first_of(") \n", i + 2);
    if (end != std::string::npos) targets.push_back(text.substr(i + 2, end - i - 2));
  }
  return targets;
}

TEST(Links, TheCheckItselfSeesWhatItShould) {
  const auto targets =
      link_targets("a [b](c.md) `[x](code.md)`\n```\n[y](fence.md)\n```\n[d](e/f.md#part) [g](https://h.org)");
  EXPECT_EQ(targets, (std::vector<std::string>{"c.md", "e/f.md#part", "https://h.org"}));
}

TEST(Links, RelativeLinksResolve) {
  int checked = 0;
  for (const fs::path& file : files("", {".md"}))
    for (std::string target : link_targets(read(file))) {
      if (target.find("://") != std::string::npos || target.starts_with("mailto:") || target.starts_with("#")) continue;
      target = target.substr(0, target.find('#'));
      ++checked;
      EXPECT_TRUE(fs::exists(root() / file.parent_path() / target)) << file.string() << " links to " << target;
    }
  EXPECT_GT(checked, 5) << "the test has lost the documents";
}

}  // namespace
}  // namespace mneme::house
