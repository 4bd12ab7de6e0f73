// Serialisation of methods that define how prompts are read, for saved sessions.
#include <algorithm>

#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/methods/method_state.h"

namespace mneme {

void LayerMemory::write(ByteWriter& out) const {
  out.put(seen);
  out.put(units.size());
  out.put(mass.begin());
  units.write(out);
  mass.write(out);
  moments.write(out);
  const bool known = !question.empty();
  out.put(std::uint8_t{known});
  out.put<std::uint32_t>(size32(question_mass));
  for (const auto* values : {&question_rows, &question_mass, &question}) out.put_all(*values);
}

void LayerMemory::read(ByteReader& in, const Plan& plan, std::int32_t length, std::int32_t question_tokens) {
  seen = in.read<std::int32_t>("tokens seen");
  // The last token may be about to be recomputed.
  if (seen < length || seen - length > 1) fail(ErrorKind::kFormat, "a method has seen {} of {} tokens", seen, length);
  const auto n_units = in.read<std::int32_t>("number of units");
  const std::int32_t p = plan.rules.unit_tokens, first = first_unit(plan.rules);
  const std::int32_t most = seen == 0 ? 0 : std::max(0, window_begin(plan.rules, seen) / p - first);
  if (n_units < 0 || n_units > most)
    fail(ErrorKind::kFormat, "{} units of {} tokens, expected 0 to {}", n_units, seen, most);
  // Where every key represents its unit, mass may be unknown.
  const auto mass_begin = in.read<std::int32_t>("beginning of attention received");
  const std::int32_t expected = n_units == 0 ? 0 : (first + n_units) * p;
  if (mass_begin < expected || mass_begin > seen || (mass_begin > expected && !plan.layer_selection->every_key(p)))
    fail(ErrorKind::kFormat, "attention received from token {} on, expected {} of {}", mass_begin, expected, seen);
  units.read(in, n_units);
  mass.read(in, mass_begin, seen);
  moments.read(in, seen);
  const auto known = in.read<std::uint8_t>("question known");
  const auto n_mass = in.read<std::uint32_t>("masses of a question");
  const std::uint32_t heads = plan.shape.n_heads;
  const auto width = std::size_t{heads} * plan.shape.head_dim;
  if (known > 1 || n_mass % heads != 0 || n_mass / heads > static_cast<std::uint32_t>(question_tokens))
    fail(ErrorKind::kFormat, "a question of {} tokens, of which {} masses of {} heads came in", question_tokens, n_mass,
         heads);
  question_mass.resize(n_mass);
  question_rows.resize(n_mass / heads * width);
  question.resize(known == 1 ? width : 0);
  in.fill(std::span(question_rows), "queries of a question");
  in.fill(std::span(question_mass), "masses of a question");
  in.fill(std::span(question), "vector of a question");
}

void MethodState::write(ByteWriter& out) const {
  out.put(question_span_.first);
  out.put(question_span_.second);
  for (const Layer& layer : layers_)
    if (layer.memory) layer.memory->write(out);
  if (cut_) cut_->write(out);
}

void MethodState::read(ByteReader& in, std::int32_t length) {
  question_span_.first = in.read<std::int32_t>("beginning of the question");
  question_span_.second = in.read<std::int32_t>("end of the question");
  if (question_span_.first < 0 || question_span_.second < question_span_.first)
    fail(ErrorKind::kFormat, "a question at [{}, {})", question_span_.first, question_span_.second);
  for (Layer& layer : layers_)
    if (layer.memory) layer.memory->read(in, *plan_, length, question_span_.second - question_span_.first);
  if (cut_) cut_->read(in);
}

}  // namespace mneme
