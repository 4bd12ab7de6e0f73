// The sources are as tools/format leaves them. Versions of clang-format differ, so only the one that the project uses
// is asked.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

const std::string kClangFormat = MNEME_CLANG_FORMAT;

TEST(Format, SourcesAreFormatted) {
  if (kClangFormat.empty()) GTEST_SKIP() << "clang-format-14 is not installed";
  std::string command = "cd '" + root().string() + "' && '" + kClangFormat + "' --dry-run -Werror";
  for (const char* folder : {"include", "src", "apps", "reference", "tests", "examples"})
    for (const auto& file : files(folder, {".h", ".cc", ".cu", ".cuh"})) command += " '" + file.string() + "'";
  std::FILE* pipe = ::popen((command + " 2>&1").c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    if (output.size() < 4000) output.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << "run tools/format\n" << output;
}

TEST(Format, TextFilesHaveNoTabsTrailingBlanksOrWindowsLineEnds) {
  for (const char* folder : {"include", "src", "apps", "reference", "tests", "examples", "docs", "tools", "cmake"})
    for (const auto& file : files(folder, {".h", ".cc", ".cu", ".cuh", ".md", ".py", ".cmake"})) {
      int number = 0;
      for (const std::string& line : lines(file)) {
        ++number;
        EXPECT_FALSE(!line.empty() && (line.back() == ' ' || line.back() == '\t' || line.back() == '\r') &&
                     file.extension() != ".md")
            << file.string() << ":" << number << ": ends in a blank";
        EXPECT_EQ(line.find('\t'), std::string::npos) << file.string() << ":" << number << ": has a tab";
      }
    }
}

}  // namespace
}  // namespace mneme::house
