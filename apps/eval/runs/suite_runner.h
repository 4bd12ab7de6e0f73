// One context of a suite under every method.
//
// A document is prefilled once, exactly, and forked for every question, sample and method; a method with a windowed
// prefill reads it itself. The question goes through decode, a token a step, or through prefill.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "apps/eval/runner.h"
#include "apps/eval/runs/forks.h"
#include "apps/eval/runs/suite_record.h"
#include "apps/eval/suites/suite.h"
#include "src/text/chat/chat_format.h"

namespace mneme::eval {

struct SuiteRunOptions {
  QuestionPath question = QuestionPath::kDecode;
  SuiteMeasure measure = SuiteMeasure::kScore;
  const ScorerEntry* grader = nullptr;  // null: the question's own
  int samples = 1;                      // answers to each question; with a temperature, seeds seed, seed + 1, ...
  SamplingOptions sampling;
  std::uint64_t seed = 1;
  std::int64_t longest_prompt = 0;  // tokens; 0: what the model's context leaves
  // The reference is fed in place of the model's own answer, and each of its lines counts where the model would have
  // said every token of it.
  bool forced = false;
  std::int32_t along_every = 0;  // answer tokens between two points of SuiteRecord::along; 0: none
};

class SuiteRunner {
 public:
  SuiteRunner(Engine& engine, const Tokenizer& tokenizer, SuiteRunOptions options);

  struct Numbered {
    const SuiteContext* context;
    std::int64_t number;
  };

  // All methods on one context; calls `done` after each.
  //
  // Errors  kOption: a question and its answer do not fit the context. What the context's reader throws.
  void run(const SuiteContext& context, std::int64_t number, const std::vector<MethodSpec>& methods,
           const std::function<void(const SuiteRecord&)>& done);

  // All methods on several contexts at once, whose questions then decode in the same steps; calls `done` after each
  // (context, method). Times of a method are shared alike. Answers are those of run() where the engine is deterministic,
  // else up to rounding.
  //
  // Requires  neither forced answers nor points along them, no perplexity; the engine has memory for so many contexts.
  // Errors  as run(); kOption: a question with turns.
  void run_together(std::span<const Numbered> contexts, const std::vector<MethodSpec>& methods,
                    const std::function<void(const SuiteRecord&)>& done);

 private:
  struct Question;
  struct Flight;  // a context among several
  std::vector<Question> questions_of(const SuiteContext& context) const;
  static SuiteRecord empty_record(const Numbered& context, const std::vector<Question>& questions,
                                  const MethodSpec& method);
  std::size_t wave_end(std::span<const Flight> flights, std::size_t begin) const;
  void answer_wave(std::span<Flight> flights, const std::shared_ptr<const Plan>& plan);
  std::size_t batch_end(const std::vector<Question>& questions, std::size_t begin) const;
  void answer(const std::vector<Question>& questions, RequestId base, const std::shared_ptr<const Plan>& plan,
              SuiteRecord& record);
  RequestInput input_of(const Question& q, int sample, const std::shared_ptr<const Plan>& plan) const;
  // Pushes a request a question and sample.
  void submit(std::span<const Question> questions, RequestId base, const std::shared_ptr<const Plan>& plan,
              std::vector<Asked>& asked);
  void stop_where_stopped(std::span<const Question> questions, std::span<const Asked> asked);
  // Answers, costs, release.
  void collect(std::span<const Question> questions, std::span<const Asked> asked, const Plan& plan,
               SuiteRecord& record);
  // The sequence that a context's questions fork from; none where its document is empty.
  RequestId base_of(const std::vector<std::int32_t>& document, RequestId exact,
                    const std::shared_ptr<const Plan>& plan);
  // Each pushes an answer a question, or a turn, to the record.
  void free_answers(std::span<const Question> questions, RequestId base, const std::shared_ptr<const Plan>& plan,
                    SuiteRecord& record);
  void turn_answers(const Question& q, RequestId base, const std::shared_ptr<const Plan>& plan, SuiteRecord& record);
  void forced_answers(const Question& q, RequestId base, const std::shared_ptr<const Plan>& plan, SuiteRecord& record);
  SuiteAnswer scored(const Question& q, std::span<const Asked> asked, const Reference& reference) const;
  void score_text(const Question& q, const std::shared_ptr<const Plan>& plan, SuiteRecord& record);
  void take_cost(RequestId id, const Plan& plan, SuiteRecord& record) const;
  AlongPoint point_of(RequestId id, std::int64_t tokens, std::int32_t prompt_end, const Plan& plan) const;
  bool has_stopped(const SuiteItem& item, std::span<const std::int32_t> tokens) const;
  std::string answer_text(const Question& q, const Asked& asked) const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  ChatFormat chat_;
  SuiteRunOptions options_;
  Forks forks_;
  std::vector<std::int32_t> end_tokens_;
};

}  // namespace mneme::eval
