#include "src/text/grammar/json_exact.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/base/error.h"
#include "src/formats/json_tree.h"
#include "src/text/grammar/json_decimal.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

class ExactBuilder final : public JsonTree<Json> {
 public:
  using JsonTree::JsonTree;

  bool number_float(number_float_t v, const string_t& text) override {
    if (Decimal::of(text) == Decimal::of(v)) return put(v);
    return put(Json::binary({text.begin(), text.end()}));
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    fail(ErrorKind::kFormat, "{}: expected JSON, found something else before byte {}", name(), position);
  }
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
