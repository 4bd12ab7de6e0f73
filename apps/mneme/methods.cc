// mneme methods: what answers can attend, and with which settings.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/mneme/commands.h"
#include "apps/mneme/options.h"
#include "mneme/recipe.h"
#include "src/recipes/describe.h"
#include "src/recipes/fields.h"

namespace mneme::cli {
namespace {

// Python's stub and the pages of docs/reference are made from it (tools/reference).
std::string fields_json() {
  nlohmann::ordered_json json = {{"methods", nlohmann::ordered_json::array()},
                                 {"fields", nlohmann::ordered_json::array()}};
  for (const MethodInfo& m : methods()) json["methods"].push_back({{"name", m.name}, {"summary", m.summary}});
  for (const RecipeField& f : recipe_fields())
    json["fields"].push_back({{"name", f.public_name()},
                              {"key", f.name},
                              {"kind", name_of(f.kind)},
                              {"values", f.values},
                              {"word", f.word},
                              {"meaning", f.meaning}});
  return json.dump(2) + "\n";
}

}  // namespace

void add_methods(CLI::App& app, int& code) {
  struct Options {
    std::string name;
    bool markdown = false, json = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("methods", "List KV methods, or show the settings of one");
  CLI::Option* name = c->add_option("name", o->name, "A method: its settings, with defaults, and its source");
  name->type_name("NAME")->check(not_empty());
  CLI::Option* markdown = c->add_flag("--markdown", o->markdown,
                                      "Print the tables of docs/reference/methods.md: also what combines, and where");
  markdown->excludes(name);
  c->add_flag("--json", o->json, "Print the methods and the fields of a recipe as JSON")
      ->excludes(name)
      ->excludes(markdown);
  c->footer("Example: mneme methods quest");
  c->callback([o, &code] {
    fmt::print("{}", o->markdown       ? methods_markdown()
                     : o->json         ? fields_json()
                     : o->name.empty() ? methods_list()
                                       : method_text(o->name));
    code = 0;
  });
}

}  // namespace mneme::cli
