// Recipes by name, as text, and checked without a model: the functions of mneme/recipe.h.
#include <fmt/format.h>

#include <limits>

#include "src/base/error.h"
#include "src/recipes/compile.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

// Settings that override_list() leaves out because the recipe does not look at them, as overrides that come first.
std::string unread_settings(const Recipe& r) {
  std::string list;
  const auto add = [&](std::string_view key, const auto& value) { list += fmt::format("{}={},", key, value); };
  if (!r.norm && !r.prefill_end) {
    const auto* last = std::get_if<LastRows>(&r.rows);
    add("budget", "norm");
    add("rows", last == nullptr ? "all" : std::to_string(last->n));
  }
  add("budget", r.budget);
  if (r.norm) add("budget", "norm");
  if (r.attend == Attend::kEverything) {
    Recipe same = r;
    same.attend = Attend::kRegions;
    for (const std::string_view key : {"sink", "recent", "dense", "prefill", "positions"})
      add(key, override_value(same, key));
  }
  if (r.prefill_window) {
    Recipe same = r;
    same.attend = Attend::kRegions;
    same.decode = DecodeStage{};
    add("prefill", override_value(same, "prefill"));
    for (const std::string_view key : {"window_probe", "question_weight", "question_in"})
      add(key, override_value(same, key));
  }
  if (r.decode) {
    const auto* share = std::get_if<EntropyShare>(&r.decode->cutoff);
    add("cutoff", share == nullptr ? "constant" : share->reversed ? "reversed" : "entropy");
    add("order", r.decode->order == Order::kUnit ? "unit" : "token");
  }
  return list;
}

std::optional<Recipe> recipe_from(std::string_view name, std::string_view overrides) {
  try {
    Recipe recipe = make_recipe(name, {});
    apply_overrides(overrides, recipe);
    return recipe;
  } catch (const Error&) {
    return std::nullopt;
  }
}

}  // namespace

std::vector<MethodInfo> methods() {
  std::vector<MethodInfo> all;
  for (const RecipeRow& row : recipe_table())
    all.push_back({.name = row.name, .summary = row.summary, .source = row.source, .differs = row.differs});
  return all;
}

Recipe parse_recipe(std::string_view text) {
  const std::size_t colon = text.find(':');
  Recipe recipe = make_recipe(text.substr(0, colon), {});
  if (colon != std::string_view::npos) apply_overrides(text.substr(colon + 1), recipe);
  return recipe;
}

std::string print_recipe(const Recipe& recipe) {
  const std::string read = override_list(recipe);
  for (const std::string& list : {read, unread_settings(recipe) + read})
    if (recipe_from(recipe.name, list) == recipe) return list.empty() ? recipe.name : recipe.name + ':' + list;
  fail(ErrorKind::kOption, "no overrides of a method called '{}' make this recipe; the nearest are: {}", recipe.name,
       read);
}

std::vector<std::string> check_recipe(const Recipe& recipe) {
  return check(recipe, {.n_layers = std::numeric_limits<std::int32_t>::max()});
}

}  // namespace mneme
