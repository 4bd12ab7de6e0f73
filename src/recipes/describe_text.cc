// Methods as text for a terminal.
#include <fmt/format.h>

#include <algorithm>

#include "src/recipes/blocks/paper_forms.h"
#include "src/recipes/describe.h"
#include "src/recipes/fields.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

constexpr std::size_t kNameColumns = 16;

// Words of `text` in lines of kDescribeColumns, each after `indent` spaces; the first goes on from `line`.
std::string wrapped(std::string line, std::string_view text, std::size_t indent) {
  std::string out;
  bool begins = true;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (!begins && line.size() + 1 + word.size() > kDescribeColumns) {
      out += line + '\n';
      line.assign(indent, ' ');
      begins = true;
    }
    if (!begins) line += ' ';
    line += word;
    begins = false;
  }
  return out + line + '\n';
}

std::string entry(std::string_view name, std::string_view text) {
  return text.empty() ? "" : wrapped(fmt::format("{:<{}} ", name, kNameColumns - 1), text, kNameColumns);
}

std::string settings_of(const Recipe& recipe) {
  std::string out;
  for (const RecipeField& key : recipe_fields()) {
    const std::string value = override_value(recipe, key.name);
    if (value.empty()) continue;
    out += wrapped(fmt::format("  {:<{}} ", key.name, kNameColumns - 3), fmt::format("{}  ({})", value, key.values),
                   kNameColumns);
    out += wrapped(std::string(kNameColumns, ' '), key.meaning, kNameColumns);
  }
  return out;
}

}  // namespace

std::string methods_list() {
  std::string out;
  for (const RecipeRow& row : recipe_table()) out += fmt::format("{:<{}}{}\n", row.name, kNameColumns, row.summary);
  std::string forms;
  for (const PaperForm& form : paper_forms()) forms += fmt::format("{}{}", forms.empty() ? "" : ", ", form.name);
  return out + "\n" + entry("Papers' forms:", forms) + "\nmneme methods NAME shows the settings of one.\n";
}

std::string method_text(std::string_view name) {
  const Recipe recipe = make_recipe(name, {});
  std::string out;
  if (const PaperForm* form = paper_form(name)) {
    out = entry(name, form->where) +
          entry("is", fmt::format("{}{}{}", form->method, form->overrides.empty() ? "" : ":", form->overrides));
  }
  for (const RecipeRow& row : recipe_table())
    if (row.name == name) out = entry(name, row.summary) + entry("source", row.source) + entry("differs", row.differs);
  const std::string settings = settings_of(recipe);
  if (settings.empty()) return out + "\nIt has no settings.\n";
  return out + fmt::format("\nSettings, with their defaults (--kv {}:KEY=VALUE,...):\n{}", name, settings);
}

}  // namespace mneme
