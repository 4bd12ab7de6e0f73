// Several contexts of a suite at once.
#include <chrono>

#include "apps/eval/runs/suite_question.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/seconds.h"
#include "src/base/size32.h"

namespace mneme::eval {

struct SuiteRunner::Flight {
  Numbered context;
  std::vector<Question> questions;
  RequestId exact;
  SuiteRecord record;

  const std::vector<std::int32_t>& document() const { return questions.front().prompt.document; }
};

// Contexts from `begin` on whose questions the engine runs at once; at least one.
std::size_t SuiteRunner::wave_end(std::span<const Flight> flights, std::size_t begin) const {
  std::int64_t sequences = 0;
  std::size_t end = begin;
  for (; end < flights.size(); ++end) {
    sequences += std::ssize(flights[end].questions) * options_.samples;
    if (end > begin && sequences > engine_.options().max_sequences) break;
  }
  return end;
}

void SuiteRunner::answer_wave(std::span<Flight> flights, const std::shared_ptr<const Plan>& plan) {
  const auto start = std::chrono::steady_clock::now();
  std::vector<RequestId> bases;
  for (const Flight& f : flights) bases.push_back(base_of(f.document(), f.exact, plan));
  std::vector<Asked> asked;
  std::vector<std::size_t> first;
  for (std::size_t i = 0; i < flights.size(); ++i) {
    first.push_back(asked.size());
    submit(flights[i].questions, bases[i], plan, asked);
  }
  const auto of = [&](std::size_t i) {
    return std::span(asked).subspan(first[i], flights[i].questions.size() * options_.samples);
  };
  forks_.finish(asked, [&] {
    for (std::size_t i = 0; i < flights.size(); ++i) stop_where_stopped(flights[i].questions, of(i));
  });
  for (std::size_t i = 0; i < flights.size(); ++i) {
    collect(flights[i].questions, of(i), *plan, flights[i].record);
    if (bases[i].valid() && bases[i] != flights[i].exact) engine_.cancel(bases[i]);
  }
  const double share = ratio(seconds_since(start), flights.size());
  for (Flight& f : flights) f.record.seconds = f.record.cost.seconds = share;
}

void SuiteRunner::run_together(std::span<const Numbered> contexts, const std::vector<MethodSpec>& methods,
                               const std::function<void(const SuiteRecord&)>& done) {
  std::vector<Flight> flights;
  for (const Numbered& c : contexts) {
    flights.push_back({.context = c, .questions = questions_of(*c.context)});
    if (!flights.back().questions.front().turns.empty())
      fail(ErrorKind::kOption, "--contexts-at-once: task {} has conversations, which run one by one", c.context->task);
  }
  for (const MethodSpec& method : methods) {
    const auto plan = compile(method.recipe, engine_.method_shape());
    for (Flight& f : flights) {
      f.record = empty_record(f.context, f.questions, method);
      if (f.document().empty() || plan->binds_sequence() || f.exact.valid()) continue;
      const auto start = std::chrono::steady_clock::now();
      f.exact = forks_.compute(f.document(), 0, nullptr);
      f.record.prefill_seconds = seconds_since(start);
    }
    for (std::size_t begin = 0; begin < flights.size();) {
      const std::size_t end = wave_end(flights, begin);
      answer_wave(std::span(flights).subspan(begin, end - begin), plan);
      for (; begin < end; ++begin) done(flights[begin].record);
    }
  }
  for (const Flight& f : flights)
    if (f.exact.valid()) engine_.cancel(f.exact);
}

}  // namespace mneme::eval
