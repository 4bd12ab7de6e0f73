#include "src/cli/kv_options.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "src/cli/options.h"
#include "src/engine/kv_method.h"
#include "src/recipes/override.h"

namespace mneme::cli {
namespace {

constexpr const char* kMethodHelp = "How answers attend: full, or a method that reads a part of the context";
constexpr const char* kGroup = "Keys and values";

void add_all_but_method(CLI::App& c, KvOptions& o) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto add = [](CLI::Option* option) { option->group(kGroup); };
  add(c.add_option("--kv-budget", o.budget, "Tokens that a step attends, sinks and window included (the method's own)")
          ->type_name("TOKENS")
          ->check(whole_number(1, kMost)));
  add(c.add_option("--kv-sink", o.sink, "First tokens, always attended (the method's own)")
          ->type_name("TOKENS")
          ->check(whole_number(0, kMost)));
  add(c.add_option("--kv-recent", o.recent, "Last tokens, always attended (the method's own)")
          ->type_name("TOKENS")
          ->check(whole_number(0, kMost)));
  add(c.add_option("--dense-layers", o.dense_layers, "Layers that attend everything: 0,1 or none (the method's own)")
          ->type_name("L,L,...")
          ->check(not_empty()));
  add(c.add_option("--kv", o.overrides, "Overrides blocks of the method: index=one_bit,unit=token")
          ->type_name("K=V,...")
          ->check(not_empty()));
}

}  // namespace

void add_kv_options(CLI::App& c, KvOptions& o) {
  c.add_option("--kv-method", o.method, kMethodHelp)
      ->type_name("NAME")
      ->capture_default_str()
      ->check(not_empty())
      ->group(kGroup);
  add_all_but_method(c, o);
}

void add_kv_options(CLI::App& c, KvOptions& o, std::vector<std::string>& methods) {
  c.add_option("--kv-method", methods, kMethodHelp)
      ->type_name("NAME[:K=V/K=V],...")
      ->delimiter(',')
      ->check(not_empty())
      ->group(kGroup);
  add_all_but_method(c, o);
}

Recipe recipe_named(const std::string& text, KvOptions options) {
  const std::size_t colon = text.find(':');
  options.method = text.substr(0, colon);
  std::string overrides = colon == std::string::npos ? std::string() : text.substr(colon + 1);
  std::replace(overrides.begin(), overrides.end(), '/', ',');
  Recipe recipe = recipe_of(options);
  apply_overrides(overrides, recipe);
  return recipe;
}

void add_kv_block_options(CLI::App& c, KvOptions& o) {
  add_all_but_method(c, o);
}

}  // namespace mneme::cli
