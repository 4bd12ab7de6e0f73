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
  // As --methods takes them; {tau} stands for the calibrated threshold of `gate`, {reuse} for the max_reuse that
  // selects as often at fixed intervals.
  std::vector<std::string_view> methods;
  std::string_view gate = "freekv";

  bool needs_tau() const;
};

std::span<const AblationSet> ablation_table();
// Errors  kOption: no such set (the known ones are named).
const AblationSet& find_ablation(std::string_view name);
// A gate's threshold, and the share of its decisions that it flags with it.
struct GateSetting {
  float tau = 0;
  double rate = 1;
};
// The set's methods, with the figures of its gate.
std::vector<std::string> ablation_methods(const AblationSet& set, const GateSetting& gate);

}  // namespace mneme::eval
