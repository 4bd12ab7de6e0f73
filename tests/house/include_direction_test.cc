// A room includes only from itself and from rooms above it, so that the order of the folders is the order of the data;
// and the public headers need nothing but the standard library.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

// The folders of MNEME_ROOMS in cmake/rooms.cmake, in their order.
const std::vector<std::string>& rooms() {
  static const std::vector<std::string> found = [] {
    std::vector<std::string> folders;
    bool inside = false;
    for (const std::string& line : lines("cmake/rooms.cmake")) {
      if (line.starts_with(")")) inside = false;
      const std::size_t begin = line.find_first_not_of(' ');
      if (inside && begin != std::string::npos && line[begin] != '#')
        folders.push_back(line.substr(begin, line.find(' ', begin) - begin));
      if (line.starts_with("set(MNEME_ROOMS")) inside = true;
    }
    return folders;
  }();
  return found;
}

std::optional<std::size_t> rank_of(const std::string& room) {
  const auto it = std::find(rooms().begin(), rooms().end(), room);
  if (it == rooms().end()) return std::nullopt;
  return static_cast<std::size_t>(it - rooms().begin());
}

struct Include {
  bool quoted = false;
  std::string path;
};

// What an #include line names, in any spelling that the preprocessor takes.
std::optional<Include> include_of(const std::string& line) {
  const auto skip_blanks = [&](std::size_t i) { return line.find_first_not_of(" \t", i); };
  std::size_t i = skip_blanks(0);
  if (i == std::string::npos || line[i] != '#') return std::nullopt;
  i = skip_blanks(i + 1);
  if (i == std::string::npos || line.compare(i, 7, "include") != 0) return std::nullopt;
  i = skip_blanks(i + 7);
  if (i == std::string::npos || (line[i] != '"' && line[i] != '<')) return std::nullopt;
  const std::size_t end = line.find(line[i] == '"' ? '"' : '>', i + 1);
  if (end == std::string::npos) return std::nullopt;
  return Include{line[i] == '"', line.substr(i + 1, end - i - 1)};
}

// The room that a file lies in: the longest listed folder that holds it, or "".
std::string room_of(const std::string& path) {
  std::string folder = path;
  for (std::size_t slash; (slash = folder.rfind('/')) != std::string::npos;) {
    folder.resize(slash);
    if (rank_of(folder)) return folder;
  }
  return "";
}

// Why this include may not stand in a file of `room`; empty when it may.
std::string objection(const std::string& room, const Include& include) {
  if (!include.quoted) return "";
  if (include.path.starts_with("mneme/")) return "";
  if (include.path.starts_with("hwy/")) return "";
  const std::string other = room_of(include.path);
  if (other.empty()) return "\"" + include.path + "\" names no room of cmake/rooms.cmake and no public header";
  if (*rank_of(other) > *rank_of(room)) return room + " stands above " + other;
  return "";
}

TEST(IncludeDirection, TheCheckItselfSeesWhatItShould) {
  EXPECT_EQ(include_of("#include \"src/base/check.h\"")->path, "src/base/check.h");
  EXPECT_EQ(include_of("  #  include <vector>  // why")->path, "vector");
  EXPECT_FALSE(include_of("// #include \"src/base/check.h\"").has_value());
  EXPECT_EQ(objection("src/model", {true, "src/kv/page_pool.h"}), "");
  EXPECT_EQ(objection("src/model", {true, "src/model/model.h"}), "");
  EXPECT_NE(objection("src/kv", {true, "src/model/model.h"}), "");
  EXPECT_NE(objection("src/base", {true, "src/tensor/view.h"}), "");
  EXPECT_NE(objection("src/model", {true, "src/nowhere/x.h"}), "");
  EXPECT_NE(objection("src/model", {true, "model.h"}), "");
}

TEST(IncludeDirection, RoomsIncludeOnlyFromAbove) {
  int checked = 0;
  for (const char* top : {"src", "apps"})
    for (const auto& file : files(top, {".h", ".cc", ".cu", ".cuh"})) {
      if (file.string().starts_with("apps/bench/micro/")) continue;  // programs of their own, which link references too
      const std::string room = room_of(file.string());
      ASSERT_FALSE(room.empty()) << file << " lies in no room of cmake/rooms.cmake";
      int number = 0;
      for (const std::string& line : lines(file)) {
        ++number;
        const auto include = include_of(line);
        if (!include) continue;
        ++checked;
        const std::string why = objection(room, *include);
        EXPECT_EQ(why, "") << file.string() << ":" << number << ": " << line;
      }
    }
  EXPECT_GT(checked, 500) << "the test has lost the sources";
}

TEST(IncludeDirection, EveryRoomExists) {
  EXPECT_GT(rooms().size(), 30u);
  for (const std::string& room : rooms()) EXPECT_FALSE(files(room, {".h", ".cc"}).empty()) << room;
}

// A room with folders of its own says what is in them, and so does each of these.
TEST(IncludeDirection, EveryFolderHasAReadmeAndFewSources) {
  constexpr int kSources = 28;  // "about 25"
  std::map<std::string, int> folders;
  for (const char* top : {"src", "apps"})
    for (const auto& file : files(top, {".h", ".cc", ".cu", ".cuh", ".js"})) ++folders[file.parent_path().string()];
  EXPECT_GT(folders.size(), 60u) << "the test has lost the sources";
  for (const auto& [folder, n_sources] : folders) {
    const std::vector<std::string> text = lines(folder + "/README.md");
    EXPECT_GE(text.size(), 5u) << folder << "/README.md: say what lives here, what never, and where to start reading";
    EXPECT_LE(text.size(), 25u) << folder << "/README.md is ten lines or little more";
    EXPECT_LE(n_sources, kSources) << folder << ": too many files to find one in; make rooms";
  }
}

TEST(IncludeDirection, PublicHeadersStandAlone) {
  int checked = 0;
  for (const auto& file : files("include", {".h"})) {
    int number = 0;
    for (const std::string& line : lines(file)) {
      ++number;
      if (line.starts_with("#if") || line.starts_with("#  if"))
        ADD_FAILURE() << file.string() << ":" << number << ": public headers do not depend on how they are built";
      // CUDA's types and functions; the name of a device in quotes is an option's value.
      for (std::size_t at = line.find("cuda"); at != std::string::npos; at = line.find("cuda", at + 1))
        EXPECT_TRUE(at > 0 && line[at - 1] == '"') << file.string() << ":" << number << ": " << line;
      const auto include = include_of(line);
      if (!include) continue;
      ++checked;
      const bool standard = !include->quoted && include->path.find('/') == std::string::npos &&
                            include->path.find(".h") == std::string::npos;
      const bool ours = include->quoted && include->path.starts_with("mneme/");
      EXPECT_TRUE(standard || ours) << file.string() << ":" << number << ": " << line;
    }
  }
  EXPECT_GT(checked, 5) << "the test has lost the headers";
}

TEST(IncludeDirection, EveryHeaderIsGuarded) {
  for (const char* folder : {"src", "apps", "reference", "include", "tests"})
    for (const auto& file : files(folder, {".h"})) {
      // Highway's re-included headers have their own guard, which toggles.
      const std::string text = read(file);
      EXPECT_TRUE(text.find("#pragma once") != std::string::npos || text.find("HWY_TARGET_TOGGLE") != std::string::npos)
          << file.string();
    }
}

}  // namespace
}  // namespace mneme::house
