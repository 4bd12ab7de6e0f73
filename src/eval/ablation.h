// The papers' ablations, as named sets of methods for `mneme eval ablate`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::eval {

struct AblationSet {
  std::string_view name;
  std::string_view summary;  // what varies, and which table of which paper that is
  // As --methods takes them; {tau} stands for the calibrated threshold.
  std::vector<std::string_view> methods;

  bool needs_tau() const;
};

std::span<const AblationSet> ablation_table();
// Errors  kOption: no such set (the known ones are named).
const AblationSet& find_ablation(std::string_view name);
// The set's methods, with tau.
std::vector<std::string> ablation_methods(const AblationSet& set, float tau);

}  // namespace mneme::eval
