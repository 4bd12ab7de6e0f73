// The one table of a recipe's fields. The command line, requests of the server, the text of a recipe, Python's class with
// its stub, `mneme methods` and docs/reference/methods.md are made from it: a field is added in fields.cc alone.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "src/recipes/recipe.h"

namespace mneme {

// What the values of a field are in JSON and in Python. kInteger and kNumber: or the field's `word`.
enum class FieldKind : std::uint8_t {
  kInteger,
  kNumber,
  kFlag,    // "no" and "yes"; false and true
  kName,    // one of the words of `values`
  kText,    // a word, or a word and numbers: "page:32"
  kLayers,  // "none" or "0+3"; a list of integers
};
// "integer", "number", "flag", "name", "text", "layers".
std::string_view name_of(FieldKind kind);

struct RecipeField {
  std::string name;     // as texts spell it: "tau"
  std::string values;   // accepted values: "page:N | token"
  std::string meaning;  // begins with a noun, in lower case
  FieldKind kind = FieldKind::kText;
  std::string_view word = "";  // kInteger, kNumber: the one word beside numbers; "" for none
  std::string_view also = "";  // a second name, which Python and requests use; "" for none

  std::string_view public_name() const { return also.empty() ? std::string_view(name) : also; }
};

// How a recipe holds a field.
struct FieldAccess {
  RecipeField field;
  // Errors  kOption: an invalid value, or a block that the recipe does not have.
  std::function<void(Recipe&, std::string_view key, std::string_view value)> set;
  std::function<std::string(const Recipe&)> get;  // "" where the recipe has no such block
};

// Later fields may need the blocks that earlier ones make: set in this order, any printed recipe can be read.
std::span<const FieldAccess> field_table();
std::span<const RecipeField> recipe_fields();
// Null: no field has this name or second name.
const FieldAccess* find_field(std::string_view name);

}  // namespace mneme
