#include "src/formats/json.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <utility>

#include "src/base/error.h"
#include "src/text/unicode/utf8.h"

namespace mneme {
namespace {

// Builds the value by hand: the library's own builder checks neither depth nor duplicate keys.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(std::string_view file) : file_(file) {}

  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    const auto [it, fresh] = stack_.back()->get_ref<Json::object_t&>().emplace(k, nullptr);
    if (!fresh) fail(ErrorKind::kFormat, "{}: the key '{}' occurs twice in one object", file_, utf8_prefix(k, 80));
    slot_ = &it->second;
    return true;
  }
  bool parse_error(std::size_t position, const std::string& token, const nlohmann::detail::exception& e) override {
    // The library's message quotes the text read so far, which may be the whole file or invalid UTF-8.
    const std::string_view last(token.data(), std::min<std::size_t>(token.size(), 20));
    const bool utf8 = std::string_view(e.what()).find("UTF-8") != std::string_view::npos;
    if (utf8) fail(ErrorKind::kFormat, "{}: invalid UTF-8 before byte {}", file_, position);
    if (e.id == 406) fail(ErrorKind::kFormat, "{}: a number before byte {} is too large", file_, position);
    fail(ErrorKind::kFormat, "{}: not valid JSON at byte {}, near '{}'", file_, position,
         find_invalid_utf8(last) == kValidUtf8 ? last : "?");
  }

 private:
  template <typename T>
  Json* place(T&& v) {
    if (stack_.empty()) {
      root_ = Json(std::forward<T>(v));
      return &root_;
    }
    if (stack_.back()->is_array()) {
      auto& array = stack_.back()->get_ref<Json::array_t&>();
      array.emplace_back(std::forward<T>(v));
      return &array.back();
    }
    *slot_ = Json(std::forward<T>(v));
    return slot_;
  }
  template <typename T>
  bool put(T&& v) {
    place(std::forward<T>(v));
    return true;
  }
  bool open(Json&& v) {
    if (std::ssize(stack_) >= kMaxJsonDepth)
      fail(ErrorKind::kFormat, "{}: JSON nested deeper than {} levels", file_, kMaxJsonDepth);
    stack_.push_back(place(std::move(v)));
    return true;
  }
  bool close() {
    stack_.pop_back();
    return true;
  }

  std::string_view file_;
  Json root_;
  std::vector<Json*> stack_;  // open arrays and objects; an outer one does not grow while an inner one is open
  Json* slot_ = nullptr;      // the member of the last key read
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
