// A method of one's own: Quest's pages, scored by 1-bit keys, selected one step ahead and corrected where attention
// moves.
//
//   custom_recipe MODEL DOCUMENT QUESTION
#include <mneme/mneme.h>

#include <fstream>
#include <iostream>
#include <iterator>

mneme::Recipe custom_recipe() {
  mneme::Recipe recipe = mneme::make_recipe("quest", {.budget = 256, .sink = 32, .recent = 64});
  recipe.decode->units = mneme::PageUnit{32};
  recipe.decode->index = mneme::OneBit{.group = 32};
  recipe.decode->pool = mneme::Pool::kMeanS;
  recipe.decode->schedule = mneme::Speculative{mneme::MassGate{.eps = 0.05f}};
  return recipe;
}

int main(int argc, char** argv) try {
  if (argc != 4) {
    std::cerr << "usage: custom_recipe MODEL DOCUMENT QUESTION\n";
    return 2;
  }
  std::ifstream file(argv[2]);
  const std::string document{std::istreambuf_iterator<char>(file), {}};

  const mneme::Recipe recipe = custom_recipe();
  for (const std::string& reason : mneme::check_recipe(recipe)) std::cerr << "does not combine: " << reason << "\n";
  std::cerr << mneme::print_recipe(recipe) << "\n";  // what --kv would say

  mneme::LanguageModel model(argv[1]);
  mneme::Session session(model, recipe);
  mneme::TextStream answer = session.stream({.document = document, .question = argv[3]});
  for (const std::string& piece : answer) std::cout << piece << std::flush;
  std::cout << "\n";

  const mneme::KvMethodStats& stats = answer.answer().stats.method;
  std::cerr << stats.selections.corrections << " of " << stats.selections.checks << " selections corrected, turnover "
            << stats.units.turnover << "\n";
  return 0;
} catch (const mneme::Error& e) {
  std::cerr << "custom_recipe: " << mneme::error_kind_name(e.kind()) << ": " << e.what() << "\n";
  return 2;
}
