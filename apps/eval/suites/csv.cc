#include "apps/eval/suites/csv.h"

#include <fmt/format.h>

#include <string_view>

#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/mapped_file.h"
#include "src/text/unicode/utf8.h"

namespace mneme::eval {
namespace {

// Cuts a text into records.
class CsvReader {
 public:
  CsvReader(std::string_view text, std::string name) : text_(text), name_(std::move(name)) {}

  bool done() const { return at_ >= text_.size(); }
  std::size_t line() const { return line_; }

  // The next record; empty for an empty line.
  std::vector<std::string> record() {
    std::vector<std::string> fields(1);
    const std::size_t first = line_;
    bool quoted = false;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (quoted) {
        if (c != '"')
          fields.back() += c;
        else if (at_ + 1 < text_.size() && text_[at_ + 1] == '"')
          fields.back() += text_[++at_];
        else
          quoted = false;
      } else if (c == '"') {
        quoted = true;
      } else if (c == ',') {
        fields.emplace_back();
      } else if (c == '\n') {
        ++at_;
        break;
      } else if (c != '\r') {
        fields.back() += c;
      }
    }
    if (quoted) fail(ErrorKind::kFormat, "{}:{}: expected a closing quote, found the end of the file", name_, first);
    if (fields.size() == 1 && fields[0].empty()) fields.clear();
    return fields;
  }

 private:
  std::string_view text_;
  std::string name_;
  std::size_t at_ = 0, line_ = 1;
};

}  // namespace

std::vector<Row> read_csv(const std::filesystem::path& path) {
  const MappedFile file(path);
  std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  if (const std::size_t bad = find_invalid_utf8(text); bad != kValidUtf8)
    fail(ErrorKind::kFormat, "{}: expected UTF-8, found byte {:#04x} at offset {}", path.string(), byte_of(text[bad]),
         bad);
  if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
  CsvReader reader(text, path.string());
  const std::vector<std::string> names = reader.record();
  std::vector<Row> rows;
  while (!reader.done()) {
    const std::size_t line = reader.line();
    const std::vector<std::string> fields = reader.record();
    if (fields.empty()) continue;
    const std::string where = fmt::format("{}:{}", path.string(), line);
    if (fields.size() != names.size())
      fail(ErrorKind::kFormat, "{}: expected {} fields, found {}", where, names.size(), fields.size());
    nlohmann::json value = nlohmann::json::object();
    for (std::size_t i = 0; i < names.size(); ++i) value[names[i]] = fields[i];
    rows.emplace_back(where, std::move(value));
  }
  if (rows.empty())
    fail(ErrorKind::kFormat, "{}: expected records below the names of fields, found none", path.string());
  return rows;
}

}  // namespace mneme::eval
