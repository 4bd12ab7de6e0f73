// Files of questions: JSON lines, or one JSON array. Untrusted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/mapped_file.h"

namespace mneme::eval {

// One object of a file. Every error is kFormat and names file, line (or item), field, what was expected and found.
class Row {
 public:
  // Errors  kFormat: not an object.
  Row(std::string where, nlohmann::json value);

  bool has(std::string_view field) const;
  // A string; numbers and booleans as they are written.
  std::string text(std::string_view field) const;
  std::string text_or(std::string_view field, std::string_view otherwise) const;
  // The first of these fields that is there.
  std::string text_of_any(const std::vector<std::string_view>& fields) const;
  // A string as one element, or an array of strings and numbers. Not empty.
  std::vector<std::string> texts(std::string_view field) const;
  // The same; empty where the field is absent or null.
  std::vector<std::string> texts_or_none(std::string_view field) const;
  std::int64_t integer(std::string_view field) const;
  const nlohmann::json& value() const { return value_; }
  const std::string& where() const { return where_; }
  [[noreturn]] void fail_field(std::string_view field, std::string_view expected, std::string_view found) const;

 private:
  const nlohmann::json& at(std::string_view field, std::string_view expected) const;
  std::string where_;
  nlohmann::json value_;
};

// A mapped file. Lines are parsed on access.
class RowFile {
 public:
  // Errors  kFile; kFormat: a JSON document that is no array, an empty file.
  explicit RowFile(const std::filesystem::path& path);
  std::size_t size() const { return array_.empty() ? lines_.size() : array_.size(); }
  // Errors  kFormat: not a JSON object.
  Row row(std::size_t i) const;
  const std::filesystem::path& path() const { return path_; }

 private:
  struct Line {
    std::string_view text;
    std::size_t number;
  };
  std::filesystem::path path_;
  MappedFile file_;
  std::vector<Line> lines_;
  std::vector<nlohmann::json> array_;
};

// Files of `data` (a file, or a folder searched two levels deep) with this ending, sorted by path. `data` itself, whatever
// its ending.
//
// Errors  kFile: missing, or a folder without such a file.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& data, std::string_view ending);

// A context for each row of the file up to `limit` (0: all): the question that `make` gives for it.
struct SuiteContext;
struct SuiteItem;
using MakeItem = std::function<SuiteItem(const Row& row, std::string_view task)>;
void add_rows(std::vector<SuiteContext>& contexts, const std::filesystem::path& path, const std::string& task,
              int limit, const MakeItem& make);

// Whether `task` is wanted, none wanted meaning all.
bool is_wanted(const std::vector<std::string>& wanted, std::string_view task);
// Errors  kOption: a wanted task is not among `known`.
void check_tasks(const std::vector<std::string>& wanted, const std::vector<std::string_view>& known);

}  // namespace mneme::eval
