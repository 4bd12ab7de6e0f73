#include "src/text/jinja/value/input.h"

#include <limits>
#include <utility>

#include "src/text/unicode/utf8.h"

namespace mneme::jinja {
namespace {

constexpr int kDeepest = 100;

Value text_of(const std::string& text, Origin origin) {
  if (find_invalid_utf8(text) != kValidUtf8) fail(ErrorKind::kRequest, "messages: a text is not UTF-8");
  return Text(text, origin);
}

Value convert(const nlohmann::ordered_json& json, Origin origin, int depth, int& nesting) {
  if (depth > kDeepest) fail(ErrorKind::kRequest, "messages: more than {} levels of JSON", kDeepest);
  nesting = 0;
  const auto inside = [&](const nlohmann::ordered_json& x) {
    int below = 0;
    Value v = convert(x, origin, depth + 1, below);
    nesting = std::max(nesting, below + 1);
    return v;
  };
  switch (json.type()) {
    case nlohmann::ordered_json::value_t::boolean:
      return json.get<bool>();
    case nlohmann::ordered_json::value_t::number_integer:
      return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_unsigned:
      if (!std::in_range<std::int64_t>(json.get<std::uint64_t>()))
        fail(ErrorKind::kRequest, "messages: the number {} does not fit 64 bits", json.get<std::uint64_t>());
      return json.get<std::int64_t>();
    case nlohmann::ordered_json::value_t::number_float:
      return json.get<double>();
    case nlohmann::ordered_json::value_t::string:
      return text_of(json.get_ref<const std::string&>(), origin);
    case nlohmann::ordered_json::value_t::array: {
      auto list = std::make_shared<List>();
      for (const auto& x : json) list->items.push_back(inside(x));
      list->nesting = nesting;
      return std::shared_ptr<const List>(std::move(list));
    }
    case nlohmann::ordered_json::value_t::object: {
      auto dict = std::make_shared<Dict>();
      for (const auto& [key, value] : json.items()) dict->items.emplace_back(text_of(key, origin), inside(value));
      dict->nesting = nesting;
      return std::shared_ptr<const Dict>(std::move(dict));
    }
    default:
      return None{};
  }
}

}  // namespace

Value from_json(const nlohmann::ordered_json& json, Origin origin) {
  int nesting = 0;
  return convert(json, origin, 0, nesting);
}

}  // namespace mneme::jinja
