#include "src/recipes/describe.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

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

}  // namespace
}  // namespace mneme
