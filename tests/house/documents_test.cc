// Documents keep their sizes: prose of 120 columns, pages of the guide of two screens.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

namespace fs = std::filesystem;

constexpr int kColumns = 120, kGuideLines = 120;

// Characters, not bytes: UTF-8 continuation bytes do not count.
int columns(const std::string& line) {
  return static_cast<int>(
      std::count_if(line.begin(), line.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// Rows of tables cannot be wrapped.
bool is_table_row(const std::string& line) {
  const std::size_t first = line.find_first_not_of(' ');
  return first != std::string::npos && line[first] == '|';
}

TEST(Documents, TheCheckItselfSeesWhatItShould) {
  EXPECT_EQ(columns("¶ab"), 3);
  EXPECT_TRUE(is_table_row("  | a |"));
  EXPECT_FALSE(is_table_row("a | b"));
}

TEST(Documents, ProseHas120Columns) {
  int checked = 0;
  for (const fs::path& file : files("docs", {".md"})) {
    int number = 0;
    for (const std::string& line : lines(file)) {
      ++number, ++checked;
      if (is_table_row(line)) continue;
      EXPECT_LE(columns(line), kColumns) << file.string() << ":" << number << ": wrap it";
    }
  }
  EXPECT_GT(checked, 1000) << "the test has lost the documents";
}

TEST(Documents, GuidePagesFitTwoScreens) {
  const std::vector<fs::path> pages = files("docs/guide", {".md"});
  EXPECT_GE(pages.size(), 9u);
  for (const fs::path& page : pages)
    EXPECT_LE(lines(page).size(), static_cast<std::size_t>(kGuideLines))
        << page.string() << ": say why in docs/design, list in docs/reference";
}

}  // namespace
}  // namespace mneme::house
