#include "src/recipes/describe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "src/recipes/blocks/paper_forms.h"
#include "src/recipes/compile.h"
#include "src/recipes/device_form.h"
#include "src/recipes/fields.h"
#include "src/recipes/override.h"
#include "src/recipes/recipes.h"

namespace mneme {
namespace {

// A shape that all recipes' defaults accept; valid combinations do not depend on it.
constexpr MethodShape kAnyShape{.n_layers = 32, .n_heads = 32, .n_kv_heads = 8, .head_dim = 128};

// Escapes the column separator in a Markdown table cell.
std::string cell(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '|') out += '\\';
    out += c;
  }
  return out;
}

std::string recipes_table() {
  std::string out = "| method | what it attends | source | differs from the paper |\n|---|---|---|---|\n";
  for (const RecipeRow& row : recipe_table())
    out += fmt::format("| `{}` | {} | {} | {} |\n", row.name, cell(row.summary), cell(row.source), cell(row.differs));
  return out;
}

std::string settings_table() {
  std::string out = "| method |", rule = "|---|";
  for (const RecipeField& key : recipe_fields()) {
    out += fmt::format(" {} |", key.name);
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (const RecipeRow& row : recipe_table()) {
    const Recipe recipe = row.make({});
    out += fmt::format("| `{}` |", row.name);
    for (const RecipeField& key : recipe_fields()) {
      const std::string value = override_value(recipe, key.name);
      out += fmt::format(" {} |", value.empty() ? "-" : value);
    }
    out += "\n";
  }
  return out;
}

std::string forms_table() {
  std::string out = "| name | is | of |\n|---|---|---|\n";
  for (const PaperForm& form : paper_forms())
    out += fmt::format("| `{}` | `{}{}{}` | {} |\n", form.name, form.method, form.overrides.empty() ? "" : ":",
                       form.overrides, cell(form.where));
  return out;
}

std::string keys_table() {
  std::string out = "| key | values | meaning |\n|---|---|---|\n";
  for (const RecipeField& key : recipe_fields())
    out += fmt::format("| `{}` | {} | {} |\n", key.name, cell(key.values), cell(key.meaning));
  return out;
}

std::string combinations_table() {
  const std::string_view units[] = {"token", "page:32", "cluster:16"},
                         indexes[] = {"none", "keys", "box", "cuboid", "one_bit", "centroid"},
                         schedules[] = {"every_step", "speculative", "boundary"};
  std::string out = "| unit, schedule |";
  std::string rule = "|---|";
  for (std::string_view index : indexes) {
    out += fmt::format(" index={} |", index);
    rule += "---|";
  }
  out += "\n" + rule + "\n";
  for (std::string_view unit : units)
    for (std::string_view schedule : schedules) {
      out += fmt::format("| {}, {} |", unit, schedule);
      for (std::string_view index : indexes) {
        Recipe r = make_recipe("oracle", {.sink = 64, .recent = 64});
        apply_overrides(fmt::format("unit={},index={},schedule={}", unit, index, schedule), r);
        const auto reasons = check(r, kAnyShape);
        out += reasons.empty() ? " yes |" : fmt::format(" no: {} |", cell(reasons.front()));
      }
      out += "\n";
    }
  return out;
}

std::string_view form_name(DeviceForm form) {
  switch (form) {
    case DeviceForm::kPlain:
      return "no selection";
    case DeviceForm::kFused:
      return "fused";
    case DeviceForm::kUnfused:
      return "unfused";
    case DeviceForm::kHost:
      return "host";
  }
  return "";
}

std::string form_of(const Recipe& recipe) {
  const auto plan = compile(recipe, kAnyShape);
  const std::string_view form = form_name(device_form(*plan));
  const char* reason = host_reason(*plan);
  return reason == nullptr ? std::string(form) : fmt::format("{}: {}", form, cell(reason));
}

// How a GPU runs each method, with its defaults, and overrides of it that the papers print.
std::string devices_table() {
  std::string out = "| recipe | on a GPU |\n|---|---|\n";
  for (const RecipeRow& row : recipe_table()) out += fmt::format("| `{}` | {} |\n", row.name, form_of(row.make({})));
  const std::string_view forms[] = {
      "quest:unit=page:32",
      "quest:pool=none",
      "quest:index=cuboid",
      "freekv:unit=page:16",
      "freekv:index=cuboid",
      "freekv:index=one_bit",
      "freekv:pool=meanQ",
      "freekv:index=keys",
      "freekv:gate=mass",
      "fier:pool=none",
      "fier:schedule=boundary",
      "quest:select=layer",
      "quest:hold=8",
      "quest:cutoff=top_p:0.85",
      "fier:open_group=score",
      "louiskv:order=unit",
      "louiskv:by_size=yes",
      "louiskv:answer=clusters",
      "louiskv:schedule=every_step",
      "louiskv:unit=page:16,index=box",
      "actqkv:match=mean,top=4",
      "actqkv:cutoff_in=all",
  };
  for (std::string_view form : forms) out += fmt::format("| `{}` | {} |\n", form, form_of(parse_recipe(form)));
  out +=
      "\nFused selections (`unfused`: score to memory, pool and top-k, by kernels that take any recipe):\n\n"
      "| what | kernel |\n|---|---|\n";
  for (const FusedSelection& f : fused_selections()) out += fmt::format("| {} | `{}` |\n", f.what, f.kernel);
  return out;
}

}  // namespace

std::string methods_markdown() {
  return fmt::format(
      "### Methods\n\n{}\n### Forms of papers\n\n{}\n### Their settings\n\n{}\n### What `--kv NAME:KEY=VALUE,...` may "
      "set\n\n{}\n### What combines\n\n{}\n### Where they run\n\nThe CPU runs every "
      "recipe, and so does a GPU: with kernels of its own, or, where the list says `host`, with the CPU's\nattention "
      "between its GEMMs. A prompt with a marked question is attended by the host too.\n\n{}",
      recipes_table(), forms_table(), settings_table(), keys_table(), combinations_table(), devices_table());
}

}  // namespace mneme
