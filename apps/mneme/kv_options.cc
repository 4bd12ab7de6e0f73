#include "apps/mneme/kv_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "apps/mneme/options.h"
#include "src/base/error.h"
#include "src/engine/kv_method.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme::cli {
namespace {

constexpr const char* kMethodHelp =
    "How answers attend: full, a method that reads a part of the context, or auto: full, and mneme if a GPU computes "
    "and the KV cache is in host memory";
constexpr const char* kGroup = "KV cache";

// The settings of --kv-method and of --kv, whichever is read first.
struct Settings {
  std::string of_method, of_kv;

  std::string both() const { return of_method + (of_method.empty() || of_kv.empty() ? "" : ",") + of_kv; }
};

void add_all_but_method(CLI::App& c, KvOptions& o, const std::shared_ptr<Settings>& settings) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto add = [](CLI::Option* option) { option->group(kGroup); };
  add(c.add_option("--kv-budget", o.budget,
                   "Tokens that a step attends, sink and window included (default: the method's)")
          ->type_name("TOKENS")
          ->transform(tokens(1, kMost)));
  add(c.add_option("--kv-sink", o.sink, "Sink: first tokens, always attended (default: the method's)")
          ->type_name("TOKENS")
          ->transform(tokens(0, kMost)));
  add(c.add_option("--kv-recent", o.recent, "Local window: last tokens, always attended (default: the method's)")
          ->type_name("TOKENS")
          ->transform(tokens(0, kMost)));
  add(c.add_option_function<std::string>(
           "--dense-layers", [&o](const std::string& text) { o.dense_layers = parse_dense_layers(text); },
           "Layers with full attention, as 0,1; or none (default: the method's)")
          ->type_name("L,L,...")
          ->check(not_empty()));
  add(c.add_option_function<std::string>(
           "--kv",
           [&o, settings](const std::string& text) {
             settings->of_kv = text;
             o.overrides = settings->both();
           },
           "Override blocks of the method, as index=one_bit,unit=token")
          ->type_name("K=V,...")
          ->check(not_empty()));
}

}  // namespace

void add_kv_options(CLI::App& c, KvOptions& o, const char* names) {
  const auto settings = std::make_shared<Settings>();
  c.add_option_function<std::string>(
       names,
       [&o, settings](const std::string& text) {
         MethodText method = parse_method(text);
         o.method = std::move(method.name);
         settings->of_method = std::move(method.settings);
         o.overrides = settings->both();
       },
       kMethodHelp)
      ->type_name("NAME[:K=V,...]")
      ->default_str(o.method)
      ->check(not_empty())
      ->group(kGroup);
  add_all_but_method(c, o, settings);
}

CLI::Option* add_method_list(CLI::App& c, const char* name, std::vector<std::string>& methods, const char* help) {
  return c
      .add_option_function<std::vector<std::string>>(
          name, [&methods](const std::vector<std::string>& pieces) { methods = join_settings(pieces); }, help)
      ->type_name("NAME[:K=V,...],...")
      ->delimiter(',')
      ->default_str(fmt::format("{}", fmt::join(methods, ",")))
      ->check(not_empty());
}

void add_kv_options(CLI::App& c, KvOptions& o, std::vector<std::string>& methods) {
  add_method_list(c, "--kv-method", methods, kMethodHelp)->group(kGroup);
  add_all_but_method(c, o, std::make_shared<Settings>());
}

MethodText parse_method(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  MethodText method{.name = std::string(text.substr(0, colon)), .settings = ""};
  if (colon < text.size()) method.settings = text.substr(colon + 1);
  std::replace(method.settings.begin(), method.settings.end(), '/', ',');
  return method;
}

std::vector<std::string> join_settings(const std::vector<std::string>& pieces) {
  std::vector<std::string> methods;
  for (const std::string& piece : pieces) {
    if (piece.substr(0, piece.find(':')).find('=') == std::string::npos) {
      methods.push_back(piece);
      continue;
    }
    if (methods.empty() || methods.back().find(':') == std::string::npos)
      fail(ErrorKind::kOption, "\"{}\" follows no method with settings: expected NAME:{}", piece, piece);
    methods.back() += '/' + piece;
  }
  return methods;
}

Recipe recipe_named(const std::string& text, KvOptions options, std::string* note) {
  MethodText method = parse_method(text);
  options.method = std::move(method.name);
  if (!options.overrides.empty() && !method.settings.empty()) options.overrides += ',';
  options.overrides += method.settings;
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
  add_all_but_method(c, o, std::make_shared<Settings>());
}

}  // namespace mneme::cli
