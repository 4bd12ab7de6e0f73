#include "src/recipes/describe.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "src/recipes/recipes.h"

namespace mneme {
namespace {

// docs/reference/methods.md says what the registry says.
TEST(Describe, TheDocumentedTablesAreTheRegistrys) {
  std::ifstream file(MNEME_SOURCE_DIR "/docs/reference/methods.md");
  ASSERT_TRUE(file.is_open());
  std::stringstream text;
  text << file.rdbuf();
  const std::string page = text.str(), open = "<!-- reference: methods -->\n\n", close = "\n<!-- /reference -->";
  const std::size_t begin = page.find(open), end = page.find(close);
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  EXPECT_EQ(page.substr(begin + open.size(), end - begin - open.size()), methods_markdown()) << "run tools/reference";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// They were 241 lines of up to 597 columns.
TEST(Describe, TheListHasALineAMethodThatFitsATerminal) {
  const std::vector<std::string> lines = lines_of(methods_list());
  ASSERT_GT(lines.size(), recipe_table().size());
  for (std::size_t i = 0; i < recipe_table().size(); ++i)
    EXPECT_TRUE(lines[i].starts_with(std::string(recipe_table()[i].name) + " ")) << lines[i];
  for (const std::string& line : lines) EXPECT_LE(line.size(), kDescribeColumns) << line;
  EXPECT_NE(methods_list().find("freekv.longbench"), std::string::npos);
}

TEST(Describe, AMethodHasItsSettingsDefaultsAndSource) {
  const std::string quest = method_text("quest");
  for (const char* part : {"section 3", "budget        2048", "page:16", "maxQK", "dense         0+1"})
    EXPECT_NE(quest.find(part), std::string::npos) << part << " in " << quest;
  EXPECT_EQ(quest.find("tau"), std::string::npos) << "quest has no gate";
  EXPECT_NE(method_text("full").find("no settings"), std::string::npos);
  EXPECT_NE(method_text("fier.paper").find("fier:pool=none"), std::string::npos);
  for (const RecipeRow& row : recipe_table())
    for (const std::string& line : lines_of(method_text(row.name)))
      EXPECT_LE(line.size(), kDescribeColumns) << row.name << ": " << line;
}

}  // namespace
}  // namespace mneme
