// mneme methods: what answers can attend, and with which settings.
#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <string>

#include "apps/mneme/commands.h"
#include "apps/mneme/options.h"
#include "src/recipes/describe.h"

namespace mneme::cli {

void add_methods(CLI::App& app, int& code) {
  struct Options {
    std::string name;
    bool markdown = false;
  };
  const auto o = std::make_shared<Options>();
  CLI::App* c = app.add_subcommand("methods", "List KV methods, or show the settings of one");
  CLI::Option* name = c->add_option("name", o->name, "A method: its settings, with defaults, and its source");
  name->type_name("NAME")->check(not_empty());
  c->add_flag("--markdown", o->markdown, "Print the tables of docs/reference/methods.md: also what combines, and where")
      ->excludes(name);
  c->footer("Example: mneme methods quest");
  c->callback([o, &code] {
    fmt::print("{}", o->markdown ? methods_markdown() : o->name.empty() ? methods_list() : method_text(o->name));
    code = 0;
  });
}

}  // namespace mneme::cli
