#include "src/text/grammar/json_exact.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/text/grammar/json_decimal.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kMaxDepth = 64;

class ExactBuilder final : public nlohmann::json_sax<Json> {
 public:
  explicit ExactBuilder(std::string_view what) : what_(what) {}
  Json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t& text) override {
    if (Decimal::of(text) == Decimal::of(v)) return put(v);
    return put(Json::binary({text.begin(), text.end()}));
  }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    if (open_.back()->contains(k))
      fail(ErrorKind::kFormat, "{}: the key '{}' occurs twice in one object", what_, k.substr(0, 80));
    slot_ = &(*open_.back())[k];
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorKind::kFormat, "{}: expected JSON, found something else before byte {}", what_, position);
  }

 private:
  Json* place(Json v) {
    if (open_.empty()) {
      root_ = std::move(v);
      return &root_;
    }
    if (open_.back()->is_array()) {
      open_.back()->push_back(std::move(v));
      return &open_.back()->back();
    }
    *slot_ = std::move(v);
    return slot_;
  }
  bool put(Json v) {
    place(std::move(v));
    return true;
  }
  bool open(Json v) {
    if (open_.size() == kMaxDepth) fail(ErrorKind::kFormat, "{}: JSON nested deeper than {} levels", what_, kMaxDepth);
    open_.push_back(place(std::move(v)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view what_;
  Json root_;
  std::vector<Json*> open_;  // an outer one does not grow while an inner one is open
  Json* slot_ = nullptr;     // the member of the last key
};

}  // namespace

nlohmann::ordered_json read_exact_json(std::string_view text, std::string_view what) {
  ExactBuilder builder(what);
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

bool has_long_number(const nlohmann::ordered_json& v) {
  return v.is_binary() || (v.is_structured() && std::any_of(v.begin(), v.end(), has_long_number));
}

std::string number_text(const nlohmann::ordered_json& v) {
  if (v.is_binary()) return {v.get_binary().begin(), v.get_binary().end()};
  return v.is_number_float() ? fmt::format("{}", v.get<double>()) : v.dump();
}

}  // namespace mneme
