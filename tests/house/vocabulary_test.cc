// Retired words stand nowhere: code, comments, messages, tools and documents use the terms of docs/glossary.md.
// retired_words.txt lists the words, each with what to say instead.
#include <gtest/gtest.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

struct FreeCode {
  void operator()(pcre2_code_8* p) const { pcre2_code_free_8(p); }
};
struct FreeMatch {
  void operator()(pcre2_match_data_8* p) const { pcre2_match_data_free_8(p); }
};

// A regular expression of retired_words.txt.
class Retired {
 public:
  Retired(std::string pattern, std::string instead) : pattern_(std::move(pattern)), instead_(std::move(instead)) {
    int error = 0;
    std::size_t offset = 0;
    code_.reset(
        pcre2_compile_8(reinterpret_cast<PCRE2_SPTR8>(pattern_.data()), pattern_.size(), 0, &error, &offset, nullptr));
    if (!code_) throw std::runtime_error("retired_words.txt: not a regular expression: " + pattern_);
    pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE);
    match_.reset(pcre2_match_data_create_from_pattern_8(code_.get(), nullptr));
  }

  // Where the word stands in `text` at or after `from`; npos where it does not. `end` receives where it ends.
  std::size_t find(std::string_view text, std::size_t from, std::size_t& end) const {
    const int rc = pcre2_match_8(code_.get(), reinterpret_cast<PCRE2_SPTR8>(text.data()), text.size(), from, 0,
                                 match_.get(), nullptr);
    if (rc < 0) return std::string_view::npos;
    const std::size_t* span = pcre2_get_ovector_pointer_8(match_.get());
    end = span[1];
    return span[0];
  }

  const std::string& instead() const { return instead_; }

 private:
  std::string pattern_, instead_;
  std::unique_ptr<pcre2_code_8, FreeCode> code_;
  std::unique_ptr<pcre2_match_data_8, FreeMatch> match_;
};

std::vector<Retired> read_list() {
  std::vector<Retired> list;
  for (const std::string& line : lines("tests/house/retired_words.txt")) {
    if (line.empty() || line[0] == '#') continue;
    const std::size_t tab = line.find('\t');
    if (tab == std::string::npos) throw std::runtime_error("retired_words.txt: no tab: " + line);
    list.emplace_back(line.substr(0, tab), line.substr(tab + 1));
  }
  return list;
}

struct Hit {
  std::size_t line = 0;
  std::string word, instead;
};

std::vector<Hit> hits(const std::string& text, const std::vector<Retired>& list) {
  std::vector<Hit> found;
  for (const Retired& word : list) {
    std::size_t end = 0;
    for (std::size_t at = word.find(text, 0, end); at != std::string::npos; at = word.find(text, end, end)) {
      const auto line = std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
      found.push_back({static_cast<std::size_t>(line) + 1, text.substr(at, end - at), word.instead()});
      if (end == at) break;  // an expression that matches nothing would stay where it is
    }
  }
  return found;
}

// Files that may say retired words: they list them, tell of them, or are text of others.
bool exempt(const std::string& file) {
  static constexpr std::array<std::string_view, 7> kFolders = {
      "demo/", "models/", "bench/results/", "tests/house/", "tests/golden/", "tests/fuzz/corpus/", "tools/mutants/"};
  static constexpr std::array<std::string_view, 5> kFiles = {
      "LICENSE", "CHANGELOG.md", "docs/glossary.md", "tools/make_demo_text.py", "apps/eval/prose/prose_grammar.cc"};
  return std::any_of(kFolders.begin(), kFolders.end(), [&](std::string_view f) { return file.starts_with(f); }) ||
         std::find(kFiles.begin(), kFiles.end(), file) != kFiles.end() || file.find("/generated/") != std::string::npos;
}

TEST(Vocabulary, TheCheckItselfSeesWhatItShould) {
  const std::vector<Retired> list = read_list();
  EXPECT_GT(list.size(), 30u) << "the test has lost its list";
  const auto found = hits("// Runs on\n// every multiprocessor\nint used_at = 0;  // SM\n", list);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].word, "multiprocessor");
  EXPECT_EQ(found[0].line, 2u);
  EXPECT_EQ(found[1].word, "used_at");
  EXPECT_EQ(found[1].line, 3u);
  EXPECT_TRUE(hits("The thread block selects units; a used-up budget; the SM count.\n", list).empty());
  EXPECT_FALSE(exempt("src/engine/engine.h"));
  EXPECT_TRUE(exempt("demo/novel.txt"));
}

TEST(Vocabulary, NoRetiredWord) {
  const std::vector<Retired> list = read_list();
  int checked = 0;
  std::map<std::string, int> by_folder;
  for (const auto& path : files("", {".h", ".cc", ".cu", ".cuh", ".md", ".py", ".txt", ".cmake", ".js", ".html", ".css",
                                     ".sh", ".svg", ".cff", ""})) {
    const std::string file = path.generic_string();
    if (exempt(file)) continue;
    const std::string text = read(path);
    if (text.find('\0') != std::string::npos) continue;
    ++checked;
    for (const Hit& hit : hits(text, list)) {
      ++by_folder[path.parent_path().generic_string()];
      ADD_FAILURE() << file << ":" << hit.line << ": \"" << hit.word << "\"; say " << hit.instead;
    }
  }
  EXPECT_GT(checked, 500) << "the test has lost the sources";
  std::string summary;
  for (const auto& [folder, count] : by_folder) summary += "\n" + std::to_string(count) + "\t" + folder;
  EXPECT_TRUE(by_folder.empty()) << "retired words by folder:" << summary;
}

}  // namespace
}  // namespace mneme::house
