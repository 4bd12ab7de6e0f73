#include "apps/eval/suites/rows.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/eval/scorers/words.h"
#include "apps/eval/suites/suite.h"
#include "src/base/ascii.h"
#include "src/base/error.h"

namespace mneme::eval {
namespace {

namespace fs = std::filesystem;

// Bytes of a faulty line that its error shows.
constexpr std::size_t kShown = 60;

bool is_scalar(const nlohmann::json& v) {
  return v.is_string() || v.is_number() || v.is_boolean();
}

std::string scalar_text(const nlohmann::json& v) {
  return v.is_string() ? v.get<std::string>() : v.dump();
}

nlohmann::json parsed(std::string_view text, const std::string& where) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& e) {
    std::string start(text.substr(0, kShown));
    for (char& c : start)
      if (byte_of(c) < 0x20 || byte_of(c) >= 0x7f) c = '?';
    fail(ErrorKind::kFormat, "{}: expected a JSON object, found {}{} (fault at byte {})", where, start,
         text.size() > kShown ? "..." : "", e.byte);
  } catch (const nlohmann::json::out_of_range& e) {  // a number beyond double
    fail(ErrorKind::kFormat, "{}: expected numbers that fit a double, found another ({})", where, e.what());
  }
}

}  // namespace

Row::Row(std::string where, nlohmann::json value) : where_(std::move(where)), value_(std::move(value)) {
  if (!value_.is_object()) fail(ErrorKind::kFormat, "{}: expected a JSON object, found {}", where_, value_.type_name());
}

void Row::fail_field(std::string_view field, std::string_view expected, std::string_view found) const {
  fail(ErrorKind::kFormat, "{}: field '{}': expected {}, found {}", where_, field, expected, found);
}

bool Row::has(std::string_view field) const {
  const auto found = value_.find(field);
  return found != value_.end() && !found->is_null();
}

const nlohmann::json& Row::at(std::string_view field, std::string_view expected) const {
  const auto found = value_.find(field);
  if (found == value_.end()) {
    std::vector<std::string> fields;
    for (const auto& [name, v] : value_.items()) fields.push_back(name);
    fail_field(field, expected, fmt::format("no such field among {}", fmt::join(fields, ", ")));
  }
  return *found;
}

std::string Row::text(std::string_view field) const {
  const nlohmann::json& v = at(field, "a string");
  if (!is_scalar(v)) fail_field(field, "a string", v.type_name());
  return scalar_text(v);
}

std::string Row::text_or(std::string_view field, std::string_view otherwise) const {
  return has(field) ? text(field) : std::string(otherwise);
}

std::string Row::text_of_any(const std::vector<std::string_view>& fields) const {
  for (std::string_view field : fields)
    if (has(field)) return text(field);
  return text(fields.front());
}

std::vector<std::string> Row::texts(std::string_view field) const {
  static constexpr std::string_view kExpected = "a string or an array of strings";
  const nlohmann::json& v = at(field, kExpected);
  if (is_scalar(v)) return {scalar_text(v)};
  if (!v.is_array()) fail_field(field, kExpected, v.type_name());
  if (v.empty()) fail_field(field, kExpected, "an empty array");
  std::vector<std::string> all;
  for (const auto& e : v) {
    if (!is_scalar(e)) fail_field(field, kExpected, fmt::format("an array with {}", e.type_name()));
    all.push_back(scalar_text(e));
  }
  return all;
}

std::vector<std::string> Row::texts_or_none(std::string_view field) const {
  return has(field) && !value_.find(field)->empty() ? texts(field) : std::vector<std::string>();
}

std::int64_t Row::integer(std::string_view field) const {
  const nlohmann::json& v = at(field, "an integer");
  if (!v.is_number_integer()) fail_field(field, "an integer", v.is_number() ? v.dump() : v.type_name());
  return v.get<std::int64_t>();
}

RowFile::RowFile(const fs::path& path) : path_(path), file_(path) {
  const auto bytes = file_.bytes();
  std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  const std::string_view start = stripped(text.substr(0, 4096));
  if (start.starts_with("[")) {
    nlohmann::json all = parsed(text, path.string());
    for (auto& item : all) array_.push_back(std::move(item));
  } else {
    std::size_t number = 0;
    for (std::string_view line : split_at(text, '\n')) {
      ++number;
      if (!stripped(line).empty()) lines_.push_back({line, number});
    }
  }
  if (size() == 0) fail(ErrorKind::kFormat, "{}: expected JSON objects, found an empty file", path.string());
}

Row RowFile::row(std::size_t i) const {
  if (!array_.empty()) return Row(fmt::format("{}: item {}", path_.string(), i), array_[i]);
  const std::string where = fmt::format("{}:{}", path_.string(), lines_[i].number);
  return Row(where, parsed(lines_[i].text, where));
}

std::vector<fs::path> files_of(const fs::path& data, std::string_view ending) {
  std::error_code error;
  if (!fs::exists(data, error)) fail(ErrorKind::kFile, "--data {}: no such file or folder", data.string());
  if (!fs::is_directory(data, error)) return {data};
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator at(data, fs::directory_options::skip_permission_denied, error), end;
       !error && at != end; at.increment(error)) {
    if (at.depth() > 1) at.disable_recursion_pending();
    if (at->is_regular_file(error) && at->path().extension() == ending) files.push_back(at->path());
  }
  if (files.empty()) fail(ErrorKind::kFile, "--data {}: expected files *{}, found none", data.string(), ending);
  std::sort(files.begin(), files.end());
  return files;
}

void add_rows(std::vector<SuiteContext>& contexts, const fs::path& path, const std::string& task, int limit,
              const MakeItem& make) {
  const auto file = std::make_shared<const RowFile>(path);
  const std::size_t n = limit > 0 ? std::min<std::size_t>(file->size(), limit) : file->size();
  for (std::size_t i = 0; i < n; ++i)
    contexts.push_back({task, 0, std::to_string(i), [file, i, task, make] {
                          SuiteItem item = make(file->row(i), task);
                          if (item.id.empty()) item.id = std::to_string(i);
                          return std::vector<SuiteItem>{std::move(item)};
                        }});
}

bool is_wanted(const std::vector<std::string>& wanted, std::string_view task) {
  return wanted.empty() || std::find(wanted.begin(), wanted.end(), task) != wanted.end();
}

void check_tasks(const std::vector<std::string>& wanted, const std::vector<std::string_view>& known) {
  for (const std::string& task : wanted)
    if (std::find(known.begin(), known.end(), task) == known.end())
      fail(ErrorKind::kOption, "--tasks {}: no such task in this suite; there are: {}", task, fmt::join(known, ", "));
}

}  // namespace mneme::eval
