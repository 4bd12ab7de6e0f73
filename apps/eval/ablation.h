// The papers' ablations, as named sets of methods for `mneme eval ablate`.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mneme::eval {

struct AblationSet {
  std::string_view name;
  std::string_view summary;  // what varies, and in which table of which paper
  // In the syntax of --methods; {tau} is replaced by the calibrated threshold of `gate`, {reuse} by the max_reuse of
  // the same selection rate at fixed intervals.
  std::vector<std::string_view> methods;
  std::string_view gate = "freekv";

  bool needs_tau() const;
};

std::span<const AblationSet> ablation_table();
// Errors  kOption: no such set (the known ones are named).
const AblationSet& find_ablation(std::string_view name);
// A gate's threshold, and the share of decisions that it flags.
struct GateSetting {
  float tau = 0;
  double rate = 1;
};
// The set's methods, with the figures of its gate.
std::vector<std::string> ablation_methods(const AblationSet& set, const GateSetting& gate);

}  // namespace mneme::eval
