// What a method that decides for a whole layer remembers of one layer of one sequence. A copy is a fork.
#pragma once

#include <cstdint>
#include <vector>

#include "src/blocks/channel_moments.h"
#include "src/blocks/entry_store.h"
#include "src/blocks/mass_window.h"
#include "src/recipes/compile.h"

namespace mneme {

struct LayerMemory {
  explicit LayerMemory(const Plan& plan)
      : units(plan.layer_choice->entry_bytes(plan.shape)),
        mass(plan.shape.n_heads),
        moments(std::int64_t{plan.shape.n_heads} * plan.shape.head_dim) {}

  EntryStore units;        // what stands for units: entry i is of unit first_unit(rules) + i
  MassWindow mass;         // of the tokens that are in no such unit yet
  ChannelMoments moments;  // of the queries of prefill
  std::int32_t seen = 0;   // rows before this position are in mass and moments; computed again they do not count twice
  // The prompt's question, where one is marked: its queries while they come in, with what attention they received, and
  // in the end the vector that they become.
  std::vector<float> question_rows, question_mass;  // [tokens so far, n_heads * D], [tokens so far, n_heads]
  std::vector<float> question;                      // [n_heads * D], length 1; empty: not known yet, or there is none

  // For saved sessions. Errors  kFormat: the bytes end, or are of no sequence of `length` tokens.
  void write(ByteWriter& out) const;
  void read(ByteReader& in, const Plan& plan, std::int32_t length, std::int32_t question_tokens);

  std::size_t bytes() const {
    return mass.bytes() + moments.bytes() +
           (question_rows.capacity() + question_mass.capacity() + question.capacity()) * sizeof(float);
  }
};

// Units before this one lie among the sinks, and are never selected.
inline std::int32_t first_unit(const RegionRules& rules) {
  return (rules.sink + rules.unit_tokens - 1) / rules.unit_tokens;
}

}  // namespace mneme
