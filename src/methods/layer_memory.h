// State of one layer of one sequence, for methods that select for a whole layer. A copy is a fork.
#pragma once

#include <cstdint>
#include <vector>

#include "src/recipes/compile.h"
#include "src/selection/index/entry_store.h"
#include "src/selection/layer/channel_moments.h"
#include "src/selection/mass/mass_window.h"

namespace mneme {

struct LayerMemory {
  explicit LayerMemory(const Plan& plan)
      : units(plan.layer_selection->entry_bytes(plan.shape)),
        mass(plan.shape.n_heads),
        moments(std::int64_t{plan.shape.n_heads} * plan.shape.head_dim) {}

  EntryStore units;        // index entries: entry i is of unit first_unit(rules) + i
  MassWindow mass;         // of the tokens that are not in a filed unit yet
  ChannelMoments moments;  // of the prefill queries
  std::int32_t seen = 0;   // earlier rows are counted in mass and moments; recomputed, they do not count twice
  // The prompt's question, where one is marked: its queries and the mass they received while they arrive, finally the
  // vector that they form.
  std::vector<float> question_rows, question_mass;  // [tokens so far, n_heads * D], [tokens so far, n_heads]
  std::vector<float> question;                      // [n_heads * D], length 1; empty: not known yet, or no question

  // For saved sessions. Errors  kFormat: unexpected end of data, or not of a sequence of `length` tokens.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, const Plan& plan, std::int32_t length, std::int32_t question_tokens);

  std::size_t bytes() const {
    return mass.bytes() + moments.bytes() +
           (question_rows.capacity() + question_mass.capacity() + question.capacity()) * sizeof(float);
  }
};

// Earlier units are among the sinks and never selected.
inline std::int32_t first_unit(const RegionRules& rules) {
  return (rules.sink + rules.unit_tokens - 1) / rules.unit_tokens;
}

}  // namespace mneme
