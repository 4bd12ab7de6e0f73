// Asks every question under every method, over one prefill of each context.
//
// A context is prefilled once, exactly, and forked for every question and method. A method with a windowed prefill
// prefills it itself, once for all questions. By default the question is fed through the decode path, one token per
// step: within an exact prefill it would hardly test what the method selects.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/eval/generated/task.h"
#include "apps/eval/runs/forks.h"
#include "src/engine/engine.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"

namespace mneme::eval {

struct MethodSpec {
  std::string label;  // "freekv b512"; unique in a run
  Recipe recipe;
};

// Position of the question: after the context, or before it too, marked as the prompt's question. The latter prefills
// the context once per question.
enum class QuestionMark : std::uint8_t { kNone, kBefore };

struct EvalOptions {
  std::uint64_t seed = 1;
  QuestionPath question = QuestionPath::kDecode;
  QuestionMark mark = QuestionMark::kNone;
  std::int32_t spare_tokens = 12;        // tokens by which an answer may exceed the key before it is cut off
  std::int32_t perplexity_tokens = 256;  // scored after each context of the perplexity task
};

// Counters of a method, summed over one (task, length, sample, method).
struct MethodCost {
  std::int64_t steps = 0;                         // decode steps, the question's included
  double seconds = 0;                             // wall time of those steps, all questions of the sample in one batch
  std::int64_t attended = 0, attended_heads = 0;  // tokens over (step, layer, head); compressed layers
  std::int64_t kv_bytes = 0, index_bytes_read = 0;  // read by attention and by selection, all layers
  std::int64_t checks = 0, corrections = 0;
  std::int64_t selected = 0, replaced = 0;
  // Share of stored tokens that were kept at the end of a prefill, mean over layers (1 for dense layers), summed over
  // prefills.
  double kept_share = 0;
  std::int64_t prefill_ends = 0;
  std::int64_t selections = 0, reused = 0;  // by (step, layer, selection head): made with the step's query, or before
  AuditSums audit;
  // Selections for a whole layer, by layer: their number, and the sum of the perplexity of softmax(scores) as a share
  // of that of equal scores.
  std::vector<std::int64_t> scored;
  std::vector<double> score_perplexity;
};
void add_cost(MethodCost& a, const MethodCost& b);
// Adds what a layer checked, corrected, selected and replaced to the fields of these names.
template <typename Counters>
void add_selections(Counters& c, const LayerStats& s) {
  for (std::size_t h = 0; h < s.gate_checks.size(); ++h) {
    c.checks += s.gate_checks[h];
    c.corrections += s.corrections[h];
  }
  c.selected += s.selected_units;
  c.replaced += s.replaced_units;
}
MethodCost cost_of(const MethodStats& stats, const MethodShape& shape, const Plan& plan);

struct AnswerRecord {
  std::string expected, answer;
  double depth = -1;
  bool right = false;
};

// One (task, length, sample, method).
struct CellRecord {
  std::string task;
  std::int64_t length = 0, sample = 0;
  std::string method;
  std::vector<AnswerRecord> answers;
  double log_likelihood = 0;  // perplexity: sum over the scored tokens
  std::int64_t scored_tokens = 0;
  MethodCost cost;
};

class Runner {
 public:
  Runner(Engine& engine, const Tokenizer& tokenizer, const EvalOptions& options);

  // Tasks outside of task_table(): text scored token by token, and a task whose whole context is fed through decode.
  static constexpr std::string_view kPerplexity = "perplexity", kStream = "stream";
  // Errors  kOption: no such task.
  static void check_task(std::string_view name, QuestionMark mark = QuestionMark::kNone);

  // All methods on one sample; calls `done` after each.
  void run(std::string_view task, std::int64_t length, std::int64_t sample, const TextSource& prose,
           const std::vector<MethodSpec>& methods, const std::function<void(const CellRecord&)>& done);

 private:
  RequestInput question_input(std::vector<std::int32_t> tokens, const Question& question,
                              std::shared_ptr<const Plan> plan) const;
  AnswerRecord judge(const std::vector<std::int32_t>& tokens, const Question& question) const;
  void ask_apart(RequestId base, const Sample& sample, const std::shared_ptr<const Plan>& plan, CellRecord& cell);
  void ask_marked(const Sample& sample, const std::shared_ptr<const Plan>& plan, CellRecord& cell);
  void ask_in_turns(RequestId base, const Sample& sample, const std::shared_ptr<const Plan>& plan, CellRecord& cell);
  void run_perplexity(std::int64_t length, std::int64_t sample, const TextSource& prose,
                      const std::vector<MethodSpec>& methods, const std::function<void(const CellRecord&)>& done);
  void take_cost(RequestId id, const Plan& plan, CellRecord& cell) const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  ChatFormat chat_;
  EvalOptions options_;
  Forks forks_;
  std::vector<std::int32_t> end_tokens_;
};

}  // namespace mneme::eval
