#include "apps/eval/ablation.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "src/base/error.h"

namespace mneme::eval {
namespace {

constexpr std::string_view kTau = "{tau}", kReuse = "{reuse}";

void fill_in(std::string& method, std::string_view what, const std::string& value) {
  const std::size_t at = method.find(what);
  if (at != std::string::npos) method.replace(at, what.size(), value);
}

// Ablations by the paper that they are of, in the order of the table.
std::vector<AblationSet> freekv_sets() {
  return {
      {"pooling",
       "how the query heads of a KV head decide together; FreeKV's ablation of pooling",
       {"freekv:tau={tau}/pool=maxQ", "freekv:tau={tau}/pool=meanQ", "freekv:tau={tau}/pool=maxQK",
        "freekv:tau={tau}/pool=meanQK", "freekv:tau={tau}/pool=maxS", "freekv:tau={tau}/pool=meanS"}},
      {"gate",
       "which of the group's cosines the gate looks at; FreeKV's ablation of the gate",
       {"freekv:tau={tau}/gate_pool=mean", "freekv:tau={tau}/gate_pool=max", "freekv:tau={tau}/gate_pool=any"}},
      {"tau",
       "the gate's threshold, from pure speculation to none; FreeKV's ablation of tau",
       {"freekv:tau=-1", "freekv:tau=0", "freekv:tau={tau}", "freekv:tau=0.8", "freekv:tau=0.9", "freekv:tau=1"}},
  };
}

std::vector<AblationSet> fier_sets() {
  return {
      {"pages",
       "tokens of a page, scored by boxes and by the mean of 1-bit scores; FIER's table 3",
       {"quest:unit=page:8", "quest:unit=page:16", "quest:unit=page:32", "quest:unit=page:8/index=one_bit",
        "quest:unit=page:16/index=one_bit", "quest:unit=page:32/index=one_bit"}},
      {"groups",
       "tokens that share the levels of 1-bit keys; FIER's table 3",
       {"fier:group=32", "fier:group=128", "fier:group=256", "fier:group=32/levels=meanabs",
        "fier:group=128/levels=meanabs", "fier:group=256/levels=meanabs"}},
  };
}

std::vector<AblationSet> actqkv_sets() {
  return {
      {"window_probe",
       "how a window's queries weigh in what is scored; ActQKV's ablation of the probe",
       {"actqkv:window_probe=activation", "actqkv:window_probe=mean", "actqkv:window_probe=reversed"}},
      {"cutoff",
       "how layers share the units of an answer's step; ActQKV's ablation of the cut-off",
       {"actqkv:cutoff=entropy", "actqkv:cutoff=constant", "actqkv:cutoff=reversed"}},
      {"match",
       "what a layer's probe is compared with: means of the keys that stand for a unit, or the best of them",
       {"actqkv:match=mean/top=4", "actqkv:match=mean/top=32", "actqkv:match=best/top=4", "actqkv:match=best/top=8",
        "actqkv:match=best/top=16", "actqkv:match=best/top=32"}},
  };
}

std::vector<AblationSet> refreekv_sets() {
  return {
      {"norm",
       "how much of the norm may be missing; ReFreeKV's sweep of T",
       {"refreekv:sink=4/norm_first=4/recent=1/dense=0+1/loss=0.001",
        "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/loss=0.01",
        "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/loss=0.1"}},
      {"norm_rows",
       "how many of the prompt's last rows the norm is of; ReFreeKV's ablation of k",
       {"refreekv:sink=4/norm_first=4/recent=1/dense=0+1/rows=1",
        "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/rows=8",
        "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/rows=64",
        "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/rows=256"}},
      {"norm_rank",
       "what stays first, the newest tokens or those attended most, and whether the norm counts the first tokens; "
       "ReFreeKV's ablation of its ranking",
       {"refreekv:sink=4/norm_first=4/recent=1/dense=0+1", "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/rank=mass",
        "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/rank=mass/loss=0.0001",
        "refreekv:sink=4/norm_first=4/recent=1/dense=0+1/first_in_norm=yes"}},
      {"norm_budget",
       "the same budgets for a method that selects and drops nothing",
       {"refreekv:sink=4/norm_first=4/recent=1/dense=0+1", "quest:budget=norm", "oracle:budget=norm"}},
  };
}

std::vector<AblationSet> louiskv_sets() {
  return {
      {"boundaries",
       "selections at the boundaries of the queries, at fixed intervals as often, and at every step; LouisKV's "
       "ablation "
       "of its trigger",
       {"louiskv:tau=2", "louiskv:tau={tau}", "louiskv:tau={tau}/reference=last_retrieval",
        "louiskv:tau=-1/max_reuse={reuse}"},
       "louiskv"},
      {"units",
       "clusters with segments against pages, by centroids and by boxes, kept between boundaries; LouisKV's ablation "
       "of "
       "its units",
       {"louiskv:tau={tau}", "louiskv:tau={tau}/metric=cosine", "louiskv:tau={tau}/unit=cluster:8",
        "louiskv:tau={tau}/unit=page:16", "louiskv:tau={tau}/unit=page:32", "louiskv:tau={tau}/index=box",
        "louiskv:tau={tau}/unit=page:16/index=box", "louiskv:tau={tau}/by_size=yes"},
       "louiskv"},
  };
}

}  // namespace

bool AblationSet::needs_tau() const {
  return std::any_of(methods.begin(), methods.end(),
                     [](std::string_view m) { return m.find('{') != std::string_view::npos; });
}

std::span<const AblationSet> ablation_table() {
  static const std::vector<AblationSet> table = [] {
    std::vector<AblationSet> all;
    for (const auto& sets : {freekv_sets(), fier_sets(), actqkv_sets(), refreekv_sets(), louiskv_sets()})
      all.insert(all.end(), sets.begin(), sets.end());
    return all;
  }();
  return table;
}

const AblationSet& find_ablation(std::string_view name) {
  std::vector<std::string_view> names;
  for (const AblationSet& set : ablation_table()) {
    if (set.name == name) return set;
    names.push_back(set.name);
  }
  fail(ErrorKind::kOption, "no ablation is called '{}'; there are: {}", name, fmt::join(names, ", "));
}

std::vector<std::string> ablation_methods(const AblationSet& set, const GateSetting& gate) {
  // One selection of every `1 / rate` steps; the others reuse it.
  const auto interval = std::lround(1.0 / std::clamp(gate.rate, 0.001, 0.5));
  std::vector<std::string> methods;
  for (std::string_view form : set.methods) {
    std::string method(form);
    fill_in(method, kTau, fmt::format("{}", gate.tau));
    fill_in(method, kReuse, fmt::format("{}", interval - 1));
    methods.push_back(std::move(method));
  }
  return methods;
}

}  // namespace mneme::eval
