#include "apps/mneme/kv_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <functional>
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

// Help: the options of 0.1 that --kv NAME:KEY=VALUE,... replaces.
constexpr const char* kOldGroup = "KV cache, until 0.2 (now --kv NAME:KEY=VALUE,...)";

// The texts of --kv, of --kv-method and of --kv without a name, whichever is read first.
struct Settings {
  std::string of_kv, of_method, of_old;  // KEY=VALUE,...
  bool by_kv = false, by_method = false;

  // --kv names a method as --kv-method does. Errors  kOption: both do.
  void name_by(bool kv) {
    (kv ? by_kv : by_method) = true;
    if (by_kv && by_method) fail(ErrorKind::kOption, "--kv NAME and --kv-method: expected one of the two");
  }
  std::string all() const {
    std::string list;
    for (const std::string& text : {of_kv, of_method, of_old})
      if (!text.empty()) list += (list.empty() ? "" : ",") + text;
    return list;
  }
};

// KEY=VALUE,... without a method's name before it.
bool has_no_name(std::string_view text) {
  return text.substr(0, text.find(':')).find('=') != std::string_view::npos;
}

// A list of methods; a comma inside of settings cuts one into several pieces.
CLI::Option* add_list(CLI::App& c, const char* name, const char* help,
                      const std::function<void(const std::vector<std::string>&)>& read) {
  return c.add_option_function<std::vector<std::string>>(name, read, help)
      ->type_name("NAME[:K=V,...],...")
      ->delimiter(',')
      ->check(not_empty());
}

void add_region_options(CLI::App& c, KvOptions& o, const char* group) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  const auto add = [&](CLI::Option* option) { option->group(group); };
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
}

}  // namespace

void add_kv_options(CLI::App& c, KvOptions& o, const char* names) {
  const auto settings = std::make_shared<Settings>();
  const auto read = [&o, settings](const std::string& text, bool kv) {
    if (kv && has_no_name(text)) {
      settings->of_old = text;
    } else {
      settings->name_by(kv);
      MethodText method = parse_method(text);
      o.method = std::move(method.name);
      (kv ? settings->of_kv : settings->of_method) = std::move(method.settings);
    }
    o.overrides = settings->all();
  };
  c.add_option_function<std::string>(
       "--kv", [read](const std::string& text) { read(text, true); }, kMethodHelp)
      ->type_name("NAME[:K=V,...]")
      ->default_str(o.method)
      ->check(not_empty())
      ->group(kGroup);
  c.add_option_function<std::string>(
       names, [read](const std::string& text) { read(text, false); }, "--kv NAME[:K=V,...]")
      ->type_name("NAME[:K=V,...]")
      ->check(not_empty())
      ->group(kOldGroup);
  add_region_options(c, o, kOldGroup);
}

CLI::Option* add_method_list(CLI::App& c, const char* name, std::vector<std::string>& methods, const char* help) {
  return add_list(c, name, help,
                  [&methods](const std::vector<std::string>& pieces) { methods = join_settings(pieces); })
      ->default_str(fmt::format("{}", fmt::join(methods, ",")));
}

void add_kv_options(CLI::App& c, KvOptions& o, std::vector<std::string>& methods) {
  const auto settings = std::make_shared<Settings>();
  add_list(c, "--kv", kMethodHelp,
           [&o, &methods, settings](const std::vector<std::string>& pieces) {
             if (has_no_name(pieces.front())) {
               o.overrides = fmt::format("{}", fmt::join(pieces, ","));
             } else {
               settings->name_by(true);
               methods = join_settings(pieces);
             }
           })
      ->default_str(fmt::format("{}", fmt::join(methods, ",")))
      ->group(kGroup);
  add_list(c, "--kv-method", "--kv NAME[:K=V,...],...", [&methods, settings](const std::vector<std::string>& pieces) {
    settings->name_by(false);
    methods = join_settings(pieces);
  })->group(kOldGroup);
  add_region_options(c, o, kOldGroup);
}

MethodText parse_method(std::string_view text) {
  const std::size_t colon = std::min(text.find(':'), text.size());
  MethodText method{.name = std::string(text.substr(0, colon)), .settings = ""};
  if (colon < text.size()) method.settings = text.substr(colon + 1);
  // A '/' before KEY= is a comma; any other belongs to a value, as in full_heads=heads/model.tsv.
  for (std::size_t slash = method.settings.find('/'); slash != std::string::npos;
       slash = method.settings.find('/', slash + 1)) {
    const std::string_view rest = std::string_view(method.settings).substr(slash + 1);
    const std::size_t equal = rest.find('=');
    if (equal != std::string_view::npos && rest.substr(0, equal).find_first_of("/,") == std::string_view::npos)
      method.settings[slash] = ',';
  }
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
      "louiskv keeps a selection until queries turn (tau={}), and then often misses single facts; --kv louiskv:tau=2 "
      "selects at every step",
      tau);
}

void expect_method(const KvOptions& o) {
  if (o.method != "full") return;
  const char* given = o.budget               ? "--kv-budget"
                      : o.sink               ? "--kv-sink"
                      : o.recent             ? "--kv-recent"
                      : o.dense_layers       ? "--dense-layers"
                      : !o.overrides.empty() ? "--kv"
                                             : nullptr;
  if (given != nullptr)
    fail(ErrorKind::kOption, "{}: full attention has no such setting: name a method (--kv; see mneme methods)", given);
}

void add_kv_block_options(CLI::App& c, KvOptions& o) {
  add_region_options(c, o, kGroup);
  c.add_option("--kv", o.overrides, "Fields of every method, as index=one_bit,unit=token")
      ->type_name("K=V,...")
      ->check(not_empty())
      ->group(kGroup);
}

}  // namespace mneme::cli
