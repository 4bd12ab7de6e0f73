#include "src/formats/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "src/base/error.h"
#include "src/formats/json_tree.h"
#include "src/text/unicode/utf8.h"

namespace mneme {
namespace {

class Builder final : public JsonTree<Json> {
 public:
  using JsonTree::JsonTree;

  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& e) override {
    // The library's message quotes the text read so far, which may be the whole file or invalid UTF-8.
    const std::string_view last(token.data(), std::min<std::size_t>(token.size(), 20));
    const bool utf8 = std::string_view(e.what()).find("UTF-8") != std::string_view::npos;
    if (utf8) fail(ErrorKind::kFormat, "{}: invalid UTF-8 before byte {}", name(), position);
    if (e.id == 406) fail(ErrorKind::kFormat, "{}: a number before byte {} is too large", name(), position);
    fail(ErrorKind::kFormat, "{}: not valid JSON at byte {}, near '{}'", name(), position,
         find_invalid_utf8(last) == kValidUtf8 ? last : "?");
  }
};

}  // namespace

Json parse_json(std::string_view text, std::string_view file, std::size_t max_bytes) {
  if (text.size() > max_bytes)
    fail(ErrorKind::kFormat, "{}: {} bytes of JSON; expected at most {}", file, text.size(), max_bytes);
  Builder builder(file);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

void JsonRef::wrong(std::string_view expected) const {
  const char* separator = path_.empty() ? "" : ": ";
  if (value_->is_number() || value_->is_boolean())
    fail(ErrorKind::kFormat, "{}{}{}: expected {}, found {}", file_, separator, path_, expected, value_->dump());
  fail(ErrorKind::kFormat, "{}{}{}: expected {}, found {}", file_, separator, path_, expected, value_->type_name());
}

std::optional<JsonRef> JsonRef::find(std::string_view key) const {
  if (!value_->is_object()) wrong("an object");
  const auto it = value_->find(key);
  if (it == value_->end() || it->is_null()) return std::nullopt;
  JsonRef member(*it, file_);
  member.path_ = path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
  return member;
}

JsonRef JsonRef::at(std::string_view key) const {
  const auto member = find(key);
  if (!member) fail(ErrorKind::kFormat, "{}: '{}{}{}' is missing", file_, path_, path_.empty() ? "" : ".", key);
  return *member;
}

std::vector<JsonRef> JsonRef::elements() const {
  if (!value_->is_array() && !value_->is_object()) wrong("an array");
  std::vector<JsonRef> out;
  for (auto it = value_->begin(); it != value_->end(); ++it) {
    JsonRef element(*it, file_);
    element.path_ =
        value_->is_object() ? fmt::format("{}.{}", path_, it.key()) : fmt::format("{}[{}]", path_, out.size());
    out.push_back(std::move(element));
  }
  return out;
}

std::int64_t JsonRef::integer() const {
  if (value_->is_number_unsigned()) {
    const auto v = value_->get<std::uint64_t>();
    if (!std::in_range<std::int64_t>(v)) wrong("an integer below 2^63");
    return v;
  }
  if (value_->is_number_integer()) return value_->get<std::int64_t>();
  if (value_->is_number_float()) {  // some tools write sizes as 32768.0
    const auto v = value_->get<double>();
    if (std::floor(v) == v && std::fabs(v) < 9007199254740992.0) return static_cast<std::int64_t>(v);
  }
  wrong("an integer");
}

double JsonRef::number() const {
  if (!value_->is_number()) wrong("a number");
  const auto v = value_->get<double>();
  if (!std::isfinite(v)) wrong("a finite number");
  return v;
}

bool JsonRef::boolean() const {
  if (!value_->is_boolean()) wrong("true or false");
  return value_->get<bool>();
}

const std::string& JsonRef::string() const {
  if (!value_->is_string()) wrong("a string");
  return value_->get_ref<const std::string&>();
}

std::int64_t JsonRef::integer(std::string_view key, std::int64_t otherwise) const {
  const auto v = find(key);
  return v ? v->integer() : otherwise;
}
double JsonRef::number(std::string_view key, double otherwise) const {
  const auto v = find(key);
  return v ? v->number() : otherwise;
}
bool JsonRef::boolean(std::string_view key, bool otherwise) const {
  const auto v = find(key);
  return v ? v->boolean() : otherwise;
}
std::string JsonRef::string(std::string_view key, std::string_view otherwise) const {
  const auto v = find(key);
  return v ? v->string() : std::string(otherwise);
}

}  // namespace mneme
