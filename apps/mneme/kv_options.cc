#include "apps/mneme/kv_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <mutex>
#include <set>
#include <vector>

#include "apps/mneme/options.h"
#include "src/base/error.h"
#include "src/engine/kv_method.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme::cli {
namespace {

constexpr const char* kMethodHelp =
    "How answers attend: full, a method that reads a part of the context, or auto: full, and mneme where the cache "
    "lies "
    "in the host's memory beside a device";
constexpr const char* kGroup = "Keys and values";

void add_all_but_method(CLI::App& c, KvOptions& o) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto add = [](CLI::Option* option) { option->group(kGroup); };
  add(c.add_option("--kv-budget", o.budget,
                   "Tokens that a step attends, sink and window included (default: the method's)")
          ->type_name("TOKENS")
          ->check(whole_number(1, kMost)));
  add(c.add_option("--kv-sink", o.sink, "Sink: first tokens, always attended (default: the method's)")
          ->type_name("TOKENS")
          ->check(whole_number(0, kMost)));
  add(c.add_option("--kv-recent", o.recent, "Local window: last tokens, always attended (default: the method's)")
          ->type_name("TOKENS")
          ->check(whole_number(0, kMost)));
  add(c.add_option_function<std::string>(
           "--dense-layers", [&o](const std::string& text) { o.dense_layers = parse_dense_layers(text); },
           "Layers with full attention, as 0,1; or none (default: the method's)")
          ->type_name("L,L,...")
          ->check(not_empty()));
  add(c.add_option("--kv", o.overrides, "Override blocks of the method, as index=one_bit,unit=token")
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

Recipe recipe_named(const std::string& text, KvOptions options, std::string* note) {
  const std::size_t colon = text.find(':');
  options.method = text.substr(0, colon);
  std::string overrides = colon == std::string::npos ? std::string() : text.substr(colon + 1);
  std::replace(overrides.begin(), overrides.end(), '/', ',');
  if (!options.overrides.empty() && !overrides.empty()) options.overrides += ',';
  options.overrides += overrides;
  return recipe_of(options, note);
}

void say_note(const std::string& note) {
  static std::mutex mutex;
  static std::set<std::string> said;
  if (note.empty()) return;
  const std::lock_guard lock(mutex);
  if (said.insert(note).second) fmt::print(stderr, "mneme: note: {}\n", note);
}

std::string weak_default(const Recipe& recipe) {
  if (recipe.name != "louiskv" || override_value(recipe, "schedule") != "boundary") return "";
  const std::string tau = override_value(recipe, "tau");
  if (tau != override_value(make_recipe("louiskv", {}), "tau")) return "";
  return fmt::format(
      "louiskv keeps a selection until queries turn (tau={}), and then often misses single facts; --kv tau=2 selects "
      "at "
      "every step",
      tau);
}

void expect_method(const KvOptions& o) {
  if (o.method != "full") return;
  const char* given = o.budget         ? "--kv-budget"
                      : o.sink         ? "--kv-sink"
                      : o.recent       ? "--kv-recent"
                      : o.dense_layers ? "--dense-layers"
                                       : nullptr;
  if (given != nullptr)
    fail(ErrorKind::kOption, "{}: full attention has no such setting: name a method (--kv-method; see mneme methods)",
         given);
}

void add_kv_block_options(CLI::App& c, KvOptions& o) {
  add_all_but_method(c, o);
}

}  // namespace mneme::cli
