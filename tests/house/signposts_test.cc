// Files and functions that comments and documents name exist. signposts_allowed.txt lists names that are of elsewhere:
// templates, files of users, other projects' headers.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

namespace fs = std::filesystem;

bool word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}
bool of_path(char c) {
  return word(c) || c == '/' || c == '.' || c == '-' || c == '*' || c == '{' || c == '}' || c == ',';
}

struct Line {
  std::size_t number = 0;
  std::string text;
};

// C++ split into what compiles, without literals, and the text of comments by line.
struct Split {
  std::string code;
  std::vector<Line> comments;
};

Split split(const std::string& text) {
  Split out;
  std::size_t line = 1;
  for (std::size_t i = 0; i < text.size();) {
    std::size_t end = i + 1;
    if (text.compare(i, 2, "//") == 0) {
      end = std::min(text.find('\n', i), text.size());
      out.comments.push_back({line, text.substr(i, end - i)});
    } else if (text.compare(i, 3, "R\"(") == 0) {
      end = std::min(text.find(")\"", i), text.size() - 2) + 2;
      out.code += ' ';
    } else if (text[i] == '"') {
      while (end < text.size() && text[end] != '"' && text[end] != '\n') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
      out.code += ' ';
    } else {
      out.code += text[i];
    }
    line += std::count(text.begin() + static_cast<std::ptrdiff_t>(i), text.begin() + static_cast<std::ptrdiff_t>(end),
                       '\n');
    i = end;
  }
  return out;
}

void add_identifiers(const std::string& code, std::set<std::string>& to) {
  for (std::size_t i = 0; i < code.size();) {
    std::size_t end = i;
    while (end < code.size() && word(code[end])) ++end;
    if (end > i && std::isdigit(static_cast<unsigned char>(code[i])) == 0) to.insert(code.substr(i, end - i));
    i = std::max(end, i + 1);
  }
}

// Spans in backticks that hold no blank, but for those of a fence.
std::vector<std::string> spans(const std::string& line) {
  std::vector<std::string> out;
  for (std::size_t i = line.find('`'); i != std::string::npos; i = line.find('`', i)) {
    const std::size_t end = line.find('`', i + 1);
    if (end == std::string::npos) break;
    if (end > i + 1) out.push_back(line.substr(i + 1, end - i - 1));
    i = end + 1;
  }
  return out;
}

constexpr std::array<std::string_view, 16> kExtensions = {".h",     ".cc",   ".cu",  ".cuh",  ".md", ".py",
                                                          ".cmake", ".js",   ".css", ".html", ".sh", ".patch",
                                                          ".svg",   ".json", ".tsv", ".txt"};
constexpr std::array<std::string_view, 6> kCodeExtensions = {".h", ".cc", ".cu", ".cuh", ".md", ".py"};

template <std::size_t N>
bool has_extension(std::string_view s, const std::array<std::string_view, N>& extensions) {
  return std::any_of(extensions.begin(), extensions.end(),
                     [&](std::string_view e) { return s.size() > e.size() && s.ends_with(e); });
}

// Names of files in the prose of a comment, without backticks: only extensions that nothing but a file has.
std::vector<std::string> bare_files(const std::string& line) {
  std::vector<std::string> out;
  for (std::size_t i = 0; i < line.size();) {
    std::size_t end = i;
    while (end < line.size() && of_path(line[end])) ++end;
    std::string_view token(line.data() + i, end - i);
    while (!token.empty() && (token.back() == '.' || token.back() == ',' || token.back() == '/'))
      token.remove_suffix(1);
    const bool leads = i > 0 && (line[i - 1] == '<' || line[i - 1] == ':' || line[i - 1] == '"');
    if (!leads && has_extension(token, kCodeExtensions) && word(token.front()) && token.find(',') == token.npos)
      out.emplace_back(token);
    i = std::max(end, i + 1);
  }
  return out;
}

// Functions named as `name()` in prose, and names with :: in backticks.
std::vector<std::string> named_functions(const std::string& line) {
  std::vector<std::string> out;
  for (std::size_t at = line.find("()"); at != std::string::npos; at = line.find("()", at + 2)) {
    std::size_t begin = at;
    while (begin > 0 && (word(line[begin - 1]) || line[begin - 1] == ':')) --begin;
    const bool member = begin > 0 && line[begin - 1] == '.';
    if (begin < at && !member && std::isdigit(static_cast<unsigned char>(line[begin])) == 0)
      out.push_back(line.substr(begin, at - begin));
  }
  for (std::string span : spans(line)) {
    if (span.ends_with("()")) span.resize(span.size() - 2);
    if (span.find("::") != std::string::npos &&
        std::all_of(span.begin(), span.end(), [](char c) { return word(c) || c == ':'; }))
      out.push_back(std::move(span));
  }
  return out;
}

std::vector<std::string> parts_of(const std::string& name) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < name.size();) {
    std::size_t end = std::min(name.find(':', i), name.size());
    if (end > i) parts.push_back(name.substr(i, end - i));
    i = end + 1;
  }
  return parts;
}

bool matches(std::string_view pattern, std::string_view text) {
  if (pattern.empty()) return text.empty();
  if (pattern[0] == '*') {
    for (std::size_t i = 0; i <= text.size(); ++i)
      if (matches(pattern.substr(1), text.substr(i))) return true;
    return false;
  }
  return !text.empty() && pattern[0] == text[0] && matches(pattern.substr(1), text.substr(1));
}

// "a/{b,c}.h" as "a/b.h" and "a/c.h".
std::vector<std::string> expand_braces(const std::string& s) {
  const std::size_t open = s.find('{'), close = s.find('}', open);
  if (open == std::string::npos || close == std::string::npos) return {s};
  std::vector<std::string> out;
  for (std::size_t i = open + 1; i <= close;) {
    const std::size_t end = std::min(s.find(',', i), close);
    for (std::string& rest : expand_braces(s.substr(0, open) + s.substr(i, end - i) + s.substr(close + 1)))
      out.push_back(std::move(rest));
    i = end + 1;
  }
  return out;
}

// Everything that a name may refer to.
class Tree {
 public:
  // Paths of files, relative to the root.
  explicit Tree(const std::vector<std::string>& files) {
    for (const std::string& file : files) {
      add(file);
      for (fs::path p = fs::path(file).parent_path(); !p.empty(); p = p.parent_path()) add(p.generic_string());
      if (file.find('/') != std::string::npos) tops_.insert(file.substr(0, file.find('/')));
    }
  }

  // A span that stands for a file or folder of the tree, by its extension or by the folder that it begins with.
  bool is_path(const std::string& span) const {
    if (!std::all_of(span.begin(), span.end(), of_path) || span[0] == '/' || span[0] == '.') return false;
    if (has_extension(expand_braces(span).front(), kExtensions)) return true;
    const std::size_t slash = span.find('/');
    return slash != std::string::npos && tops_.contains(span.substr(0, slash));
  }

  // At its path, at the end of any path, or relative to the folder of `from`.
  bool exists(std::string name, const std::string& from) const {
    while (!name.empty() && name.back() == '/') name.pop_back();
    if (name.starts_with("build/")) return true;
    for (const std::string& one : expand_braces(name)) {
      const std::string beside = (fs::path(from).parent_path() / one).lexically_normal().generic_string();
      if (one.find('*') != std::string::npos) {
        if (std::none_of(ends_.begin(), ends_.end(), [&](const std::string& end) { return matches(one, end); }))
          return false;
      } else if (!ends_.contains(one) && !paths_.contains(beside)) {
        return false;
      }
    }
    return true;
  }

 private:
  void add(const std::string& path) {
    if (!paths_.insert(path).second) return;
    ends_.insert(path);
    for (std::size_t i = path.find('/'); i != std::string::npos; i = path.find('/', i + 1))
      ends_.insert(path.substr(i + 1));
  }

  std::set<std::string> paths_, ends_, tops_;
};

std::vector<std::string> all_files() {
  std::vector<std::string> out;
  for (fs::recursive_directory_iterator it(root()), end; it != end; ++it) {
    const std::string name = it->path().filename().string();
    if (it->is_directory() && (name.starts_with("build") || name == ".git" || name == "__pycache__"))
      it.disable_recursion_pending();
    else if (it->is_regular_file())
      out.push_back(fs::relative(it->path(), root()).generic_string());
  }
  return out;
}

std::set<std::string> allowed() {
  std::set<std::string> names;
  for (const std::string& line : lines("tests/house/signposts_allowed.txt"))
    if (!line.empty() && line[0] != '#') names.insert(line.substr(0, line.find('\t')));
  return names;
}

// Names of `line` that are of no file.
std::vector<std::string> false_files(const std::string& line, bool comment, const Tree& tree, const std::string& from) {
  std::vector<std::string> named = comment ? bare_files(line) : std::vector<std::string>{};
  for (std::string& span : spans(line))
    if (!span.empty() && tree.is_path(span) && std::find(named.begin(), named.end(), span) == named.end())
      named.push_back(std::move(span));
  std::erase_if(named, [&](const std::string& name) { return tree.exists(name, from); });
  return named;
}

// Names of `line` that are of no function, type or member.
std::vector<std::string> false_functions(const std::string& line, const std::set<std::string>& identifiers) {
  std::vector<std::string> named = named_functions(line);
  std::erase_if(named, [&](const std::string& name) {
    const auto parts = parts_of(name);
    return std::all_of(parts.begin(), parts.end(), [&](const std::string& p) { return identifiers.contains(p); });
  });
  return named;
}

const std::vector<std::string> kCode = {".h", ".cc", ".cu", ".cuh"};

TEST(Signposts, TheCheckItselfSeesWhatItShould) {
  const Tree tree({"src/kv/page_pool.h", "src/kv/page_pool.cc", "docs/guide/run.md", "tools/report"});
  using Names = std::vector<std::string>;
  EXPECT_EQ(false_files("// as page_pool.h and pool.h have it", true, tree, "src/kv/x.cc"), Names{"pool.h"});
  EXPECT_EQ(false_files("// see src/cache/page_pool.h.", true, tree, "src/kv/x.cc"), Names{"src/cache/page_pool.h"});
  EXPECT_EQ(false_files("`src/kv`, `src/cache/`, `run.md`, `kv/page_pool.{h,cc}`", false, tree, "README.md"),
            Names{"src/cache/"});
  EXPECT_EQ(false_files("`docs/guide/*.md` `docs/design/*.md`", false, tree, "README.md"), Names{"docs/design/*.md"});
  EXPECT_EQ(false_files("`kv/page_pool.{h,cu}`", false, tree, "README.md"), Names{"kv/page_pool.{h,cu}"});
  EXPECT_EQ(
      false_files("`tools/report` `tools/made-up` `Qwen/Qwen3-8B` `tokens/s` `--kv-budget`", false, tree, "README.md"),
      Names{"tools/made-up"});

  std::set<std::string> identifiers;
  const Split s = split("int run_rows();  // run_prompt_rows() is gone\nconst char* s = \"// no comment()\";\n");
  add_identifiers(s.code, identifiers);
  ASSERT_EQ(s.comments.size(), 1u);
  EXPECT_EQ(s.comments[0].number, 1u);
  EXPECT_EQ(false_functions(s.comments[0].text, identifiers), Names{"run_prompt_rows"});
  EXPECT_EQ(false_functions("// run_rows() calls `Forward::run_rows`", identifiers), Names{"Forward::run_rows"});
}

TEST(Signposts, FilesThatAreNamedExist) {
  const Tree tree(all_files());
  const std::set<std::string> elsewhere = allowed();
  int checked = 0;
  const auto check = [&](const std::string& file, const Line& line, bool comment) {
    ++checked;
    for (const std::string& name : false_files(line.text, comment, tree, file))
      if (!elsewhere.contains(name)) ADD_FAILURE() << file << ":" << line.number << ": no file is " << name;
  };
  for (const fs::path& path : files("", {".md"})) {
    const std::string file = path.generic_string();
    if (file == "CHANGELOG.md" || file.starts_with("demo/")) continue;  // tells of files that are gone
    bool fenced = false;
    std::size_t number = 0;
    for (const std::string& text : lines(path)) {
      ++number;
      if (text.starts_with("```")) fenced = !fenced;
      if (!fenced) check(file, {number, text}, false);
    }
  }
  for (const fs::path& path : files("", kCode))
    if (!path.generic_string().starts_with("tests/house/"))
      for (const Line& line : split(read(path)).comments) check(path.generic_string(), line, true);
  EXPECT_GT(checked, 5000) << "the test has lost the sources";
}

TEST(Signposts, FunctionsThatAreNamedExist) {
  std::set<std::string> identifiers;
  std::vector<std::pair<std::string, Line>> comments;
  for (const fs::path& path : files("", kCode)) {
    Split s = split(read(path));
    add_identifiers(s.code, identifiers);
    if (path.generic_string().starts_with("tests/house/")) continue;
    for (Line& line : s.comments) comments.emplace_back(path.generic_string(), std::move(line));
  }
  EXPECT_GT(comments.size(), 5000u) << "the test has lost the sources";
  const std::set<std::string> elsewhere = allowed();
  for (const auto& [file, line] : comments)
    for (const std::string& name : false_functions(line.text, identifiers))
      if (!elsewhere.contains(name + "()"))
        ADD_FAILURE() << file << ":" << line.number << ": no function, type or member is " << name;
}

}  // namespace
}  // namespace mneme::house
