#include "src/recipes/override.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "src/base/error.h"
#include "src/base/most_like.h"
#include "src/recipes/fields.h"

namespace mneme {
namespace {

// Takes the first item off a list that is not empty.
std::string_view next_item(std::string_view& list) {
  const std::size_t comma = list.find(',');
  const std::string_view item = list.substr(0, comma);
  list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  return item;
}

}  // namespace

void apply_overrides(std::string_view list, Recipe& recipe) {
  while (!list.empty()) {
    const std::string_view item = next_item(list);
    const std::size_t equal = item.find('=');
    if (equal == std::string_view::npos) fail(ErrorKind::kOption, "--kv {}: expected KEY=VALUE", item);
    const std::string_view key = item.substr(0, equal), value = item.substr(equal + 1);
    const FieldAccess* field = find_field(key);
    if (field == nullptr) {
      std::vector<std::string_view> known;
      for (const RecipeField& f : recipe_fields()) known.push_back(f.name);
      if (const std::string_view like = most_like(key, known); !like.empty())
        fail(ErrorKind::kOption, "--kv {}: no such key: did you mean '{}'?", key, like);
      fail(ErrorKind::kOption, "--kv {}: no such key; there are: {}", key, fmt::join(known, ", "));
    }
    field->set(recipe, key, value);
  }
}

bool overrides_set(std::string_view list, std::string_view key) {
  while (!list.empty()) {
    const std::string_view item = next_item(list);
    if (item.substr(0, item.find('=')) == key) return true;
  }
  return false;
}

std::string override_value(const Recipe& recipe, std::string_view key) {
  const FieldAccess* field = find_field(key);
  return field == nullptr ? std::string() : field->get(recipe);
}

std::string override_list(const Recipe& recipe) {
  std::string list;
  for (const FieldAccess& f : field_table())
    if (const std::string value = f.get(recipe); !value.empty())
      list += fmt::format("{}{}={}", list.empty() ? "" : ",", f.field.name, value);
  return list;
}

}  // namespace mneme
