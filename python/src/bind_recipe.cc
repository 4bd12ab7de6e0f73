// Recipes by their text: Python's Recipe holds the canonical one.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "python/src/engine.h"
#include "src/engine/kv_method.h"
#include "src/recipes/fields.h"
#include "src/recipes/override.h"

namespace mneme::python {
namespace {

using nb::literals::operator""_a;

// "budget=512,..." of a method to a recipe's canonical text. Errors  kOption.
std::string make_text(const std::string& method, const std::string& overrides) {
  const Recipe recipe = recipe_of({.method = method, .overrides = overrides});
  std::string reasons;
  for (const std::string& reason : check_recipe(recipe)) reasons += (reasons.empty() ? "" : "; ") + reason;
  if (!reasons.empty()) fail(ErrorKind::kOption, "{}: {}", method, reasons);
  return print_recipe(recipe);
}

// (key, value) of every setting that the recipe has, in the syntax of `--kv`.
std::vector<std::pair<std::string, std::string>> values_of(const std::string& text) {
  const Recipe recipe = parse_recipe(text);
  std::vector<std::pair<std::string, std::string>> out;
  for (const RecipeField& key : recipe_fields())
    if (std::string value = override_value(recipe, key.name); !value.empty())
      out.emplace_back(key.name, std::move(value));
  return out;
}

}  // namespace

void bind_recipe(nb::module_& m) {
  m.def("recipe_text", &make_text, "method"_a, "overrides"_a);
  m.def(
      "recipe_parse", [](const std::string& text) { return print_recipe(parse_recipe(text)); }, "text"_a);
  m.def("recipe_values", &values_of, "text"_a);
  m.def("recipe_fields", [] {
    std::vector<std::tuple<std::string, std::string, std::string, std::string, std::string, std::string>> fields;
    for (const RecipeField& f : recipe_fields())
      fields.emplace_back(f.public_name(), f.name, name_of(f.kind), f.values, f.word, f.meaning);
    return fields;
  });
  m.def("methods", [] {
    std::vector<std::pair<std::string, std::string>> out;
    for (const MethodInfo& method : methods()) out.emplace_back(method.name, method.summary);
    return out;
  });
}

}  // namespace mneme::python
