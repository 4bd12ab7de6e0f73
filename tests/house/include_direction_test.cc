// A room includes only from itself and from rooms above it, so that the order of the folders is the order of the data;
// and the public headers need nothing but the standard library.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "tests/house/source_tree.h"

namespace mneme::house {
namespace {

const std::vector<std::string> kRooms = {
    "base",      "tensor", "device",  "kernels", "checkpoint", "tokenizer", "cache",  "blocks", "recipes", "recall",
    "attention", "model",  "sampler", "grammar", "engine",     "eval",      "server", "perf",   "cli"};

std::optional<std::size_t> rank_of(const std::string& room) {
  const auto it = std::find(kRooms.begin(), kRooms.end(), room);
  if (it == kRooms.end()) return std::nullopt;
  return static_cast<std::size_t>(it - kRooms.begin());
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

// The room of "src/ROOM/...", else empty.
std::string room_of(const std::string& path) {
  if (!path.starts_with("src/")) return "";
  const std::size_t slash = path.find('/', 4);
  return slash == std::string::npos ? "" : path.substr(4, slash - 4);
}

// Why this include may not stand in a file of `room`; empty when it may.
std::string objection(const std::string& room, const Include& include) {
  if (!include.quoted) return "";
  if (include.path.starts_with("mneme/")) return "";
  if (include.path.starts_with("hwy/")) return "";
  const std::string other = room_of(include.path);
  if (other.empty()) return "\"" + include.path + "\" is neither \"src/ROOM/...\" nor \"mneme/...\"";
  if (!rank_of(other)) return "there is no room " + other;
  if (*rank_of(other) > *rank_of(room)) return room + " stands above " + other;
  return "";
}

TEST(IncludeDirection, TheCheckItselfSeesWhatItShould) {
  EXPECT_EQ(include_of("#include \"src/base/check.h\"")->path, "src/base/check.h");
  EXPECT_EQ(include_of("  #  include <vector>  // why")->path, "vector");
  EXPECT_FALSE(include_of("// #include \"src/base/check.h\"").has_value());
  EXPECT_EQ(objection("model", {true, "src/cache/page_pool.h"}), "");
  EXPECT_EQ(objection("model", {true, "src/model/model.h"}), "");
  EXPECT_NE(objection("cache", {true, "src/model/model.h"}), "");
  EXPECT_NE(objection("base", {true, "src/tensor/view.h"}), "");
  EXPECT_NE(objection("model", {true, "src/nowhere/x.h"}), "");
  EXPECT_NE(objection("model", {true, "model.h"}), "");
}

TEST(IncludeDirection, RoomsIncludeOnlyFromAbove) {
  int checked = 0;
  for (const auto& file : files("src", {".h", ".cc", ".cu", ".cuh"})) {
    const std::string room = room_of(file.string());
    ASSERT_TRUE(rank_of(room)) << file << " lies in no known room";
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
  EXPECT_GT(checked, 50) << "the test has lost the sources";
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
  for (const char* folder : {"src", "include", "tests"})
    for (const auto& file : files(folder, {".h"})) {
      // Highway's re-included headers have their own guard, which toggles.
      const std::string text = read(file);
      EXPECT_TRUE(text.find("#pragma once") != std::string::npos || text.find("HWY_TARGET_TOGGLE") != std::string::npos)
          << file.string();
    }
}

}  // namespace
}  // namespace mneme::house
