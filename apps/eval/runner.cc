#include "apps/eval/runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "apps/eval/runs/suite_prompt.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/seconds.h"
#include "src/base/size32.h"
#include "src/text/chat/marked_span.h"

namespace mneme::eval {
namespace {}  // namespace

void add_cost(MethodCost& a, const MethodCost& b) {
  a.steps += b.steps;
  a.seconds += b.seconds;
  a.attended += b.attended;
  a.attended_heads += b.attended_heads;
  a.kv_bytes += b.kv_bytes;
  a.index_bytes_read += b.index_bytes_read;
  a.checks += b.checks;
  a.corrections += b.corrections;
  a.selected += b.selected;
  a.replaced += b.replaced;
  a.kept_share += b.kept_share;
  a.prefill_ends += b.prefill_ends;
  a.selections += b.selections;
  a.reused += b.reused;
  add_audits(a.audit, b.audit);
  a.scored.resize(std::max(a.scored.size(), b.scored.size()));
  a.score_perplexity.resize(a.scored.size());
  for (std::size_t l = 0; l < b.scored.size(); ++l) {
    a.scored[l] += b.scored[l];
    a.score_perplexity[l] += b.score_perplexity[l];
  }
}

MethodCost cost_of(const MethodStats& stats, const MethodShape& shape, const Plan& plan) {
  MethodCost c;
  const std::int64_t token_bytes = shape.attention().token_bytes();
  for (std::int32_t l = 0; l < shape.n_layers; ++l) {
    const LayerStats& s = stats.layers[l];
    c.steps = std::max(c.steps, s.steps);
    c.kv_bytes += s.attended_tokens * token_bytes;
    c.index_bytes_read += s.index_bytes_read;
    c.prefill_ends = std::max(c.prefill_ends, s.retention.prefill_ends);
    if (plan.compressed(l) || plan.attend == Attend::kEverything) {
      c.attended += s.attended_tokens;
      c.attended_heads += s.attended_heads;
    }
    add_selections(c, s);
    c.selections += s.selections;
    c.reused += s.reused;
    add_audits(c.audit, s.audit);
    if (!plan.layer_selection) continue;
    c.scored.push_back(s.scored);
    c.score_perplexity.push_back(s.score_perplexity);
  }
  for (const LayerStats& s : stats.layers)
    c.kept_share += s.retention.prompt_tokens == 0
                        ? static_cast<double>(c.prefill_ends)
                        : ratio(s.retention.prefill_ends * s.retention.kept_tokens, s.retention.prompt_tokens);
  c.kept_share /= shape.n_layers;
  return c;
}

Runner::Runner(Engine& engine, const Tokenizer& tokenizer, const EvalOptions& options)
    : engine_(engine),
      tokenizer_(tokenizer),
      chat_(ChatFormat::detect(tokenizer)),
      options_(options),
      forks_(engine, options.question),
      end_tokens_(tokenizer.end_tokens()) {}

void Runner::check_task(std::string_view name, QuestionMark mark) {
  const bool apart = name != kPerplexity && name != kStream && name != "turns";
  if (mark != QuestionMark::kNone && !apart)
    fail(ErrorKind::kOption, "task {}: a question before the context goes with tasks that ask one question a context",
         name);
  if (name != kPerplexity && name != kStream) find_task(name);
}

RequestInput Runner::question_input(std::vector<std::int32_t> tokens, const Question& question,
                                    std::shared_ptr<const Plan> plan) const {
  RequestInput input;
  input.max_tokens = size32(tokenizer_.encode(question.answer, {})) + options_.spare_tokens;
  if (options_.question == QuestionPath::kDecode) input.decode_prompt_tail = size32(tokens);
  input.prompt = std::move(tokens);
  input.end_tokens = end_tokens_;
  input.keep_sequence = true;
  input.method = std::move(plan);
  return input;
}

AnswerRecord Runner::judge(const std::vector<std::int32_t>& tokens, const Question& question) const {
  AnswerRecord record{.expected = question.answer, .answer = tokenizer_.decode(tokens), .depth = question.depth};
  record.right = is_right(record.answer, question);
  return record;
}

void Runner::take_cost(RequestId id, const Plan& plan, CellRecord& cell) const {
  if (const MethodStats* stats = engine_.method_stats(id)) add_cost(cell.cost, cost_of(*stats, plan.shape, plan));
}

void Runner::ask_apart(RequestId base, const Sample& sample, const std::shared_ptr<const Plan>& plan,
                       CellRecord& cell) {
  std::vector<Asked> asked;
  const auto start = std::chrono::steady_clock::now();
  for (const Question& q : sample.questions) {
    auto split = chat_.user_turn_split({.document = sample.context, .question = q.text, .system = {}}, true);
    const auto n = size32(split.document);
    asked.push_back({forks_.ask(base, n, question_input(std::move(split.question), q, plan)), {}});
  }
  forks_.finish(asked);
  cell.cost.seconds += seconds_since(start);
  for (std::size_t i = 0; i < asked.size(); ++i) {
    cell.answers.push_back(judge(asked[i].tokens, sample.questions[i]));
    take_cost(asked[i].id, *plan, cell);
    engine_.cancel(asked[i].id);
  }
}

// The question before the context and after it, the first one marked: another prompt for every question.
void Runner::ask_marked(const Sample& sample, const std::shared_ptr<const Plan>& plan, CellRecord& cell) {
  for (const Question& q : sample.questions) {
    const auto tokens_of = [&](std::string_view first) {
      const std::string document = fmt::format("{}\n\n{}", first, sample.context);
      return chat_.user_turn_split({.document = document, .question = q.text, .system = {}}, true);
    };
    auto split = tokens_of(q.text);
    std::vector<std::int32_t> prompt = split.document;
    prompt.insert(prompt.end(), split.question.begin(), split.question.end());
    const auto span = differing_span(split.document, tokens_of(kOtherText).document);
    RequestInput input = question_input(std::move(split.question), q, plan);
    input.prompt = std::move(prompt);
    input.question_span = span;
    const auto start = std::chrono::steady_clock::now();
    std::vector<Asked> asked = {{engine_.start({}, std::move(input)), {}}};
    forks_.finish(asked);
    cell.cost.seconds += seconds_since(start);
    cell.answers.push_back(judge(asked[0].tokens, q));
    take_cost(asked[0].id, *plan, cell);
    engine_.cancel(asked[0].id);
  }
}

void Runner::ask_in_turns(RequestId base, const Sample& sample, const std::shared_ptr<const Plan>& plan,
                          CellRecord& cell) {
  RequestId id;
  const auto start = std::chrono::steady_clock::now();
  for (const Question& q : sample.questions) {
    if (!id.valid()) {
      auto split = chat_.user_turn_split({.document = sample.context, .question = q.text, .system = {}}, true);
      const auto n = size32(split.document);
      id = forks_.ask(base, n, question_input(std::move(split.question), q, plan));
    } else {
      std::vector<std::int32_t> tokens = chat_.end_of_answer();
      const auto turn = chat_.user_turn({.document = {}, .question = q.text, .system = {}}, false);
      tokens.insert(tokens.end(), turn.begin(), turn.end());
      engine_.start(Origin::next_turn(id), question_input(std::move(tokens), q, plan));
    }
    std::vector<Asked> asked{{id, {}}};
    forks_.finish(asked);
    cell.answers.push_back(judge(asked[0].tokens, q));
  }
  cell.cost.seconds += seconds_since(start);
  take_cost(id, *plan, cell);
  engine_.cancel(id);
}

// Scores prose: `length` tokens by prefill, then each of the following tokens by one decode step.
void Runner::run_perplexity(std::int64_t length, std::int64_t sample, const TextSource& prose,
                            const std::vector<MethodSpec>& methods,
                            const std::function<void(const CellRecord&)>& done) {
  const std::size_t wanted = length + options_.perplexity_tokens;
  Rng rng = Rng::of_item(options_.seed ^ length, sample);
  std::vector<std::int32_t> tokens;
  for (std::size_t chars = wanted * 5; tokens.size() < wanted; chars += chars / 4) {
    if (chars > prose.text().size())
      fail(ErrorKind::kOption, "the prose is too short for {} tokens; give more by --prose", wanted);
    // As a document is framed: models trained on turns know prose there, and hardly without what begins a sequence.
    tokens =
        chat_.user_turn_split({.document = prose.passage(chars, rng), .question = "?", .system = {}}, true).document;
  }
  tokens.resize(wanted);
  const std::vector<std::int32_t> scored(tokens.begin() + length, tokens.end());
  tokens.resize(length);
  RequestId exact;
  for (const MethodSpec& method : methods) {
    const auto plan = compile(method.recipe, engine_.method_shape());
    CellRecord cell{.task = std::string(kPerplexity), .length = length, .sample = sample, .method = method.label};
    if (!plan->binds_sequence() && !exact.valid()) exact = forks_.compute(tokens, 0, nullptr);
    const RequestId base =
        plan->binds_sequence() ? forks_.compute(tokens, 0, plan) : forks_.prepare(exact, tokens, plan);
    RequestInput input;
    input.prompt = scored;
    input.decode_prompt_tail = options_.perplexity_tokens;
    input.score_tail = true;
    input.max_tokens = 0;
    input.keep_sequence = true;
    input.method = plan;
    const auto start = std::chrono::steady_clock::now();
    const RequestId id = engine_.start(Origin::fork(base), std::move(input));
    forks_.finish({});
    cell.cost.seconds = seconds_since(start);
    const RequestStats stats = engine_.stats(id);
    cell.log_likelihood = stats.tail_log_likelihood;
    cell.scored_tokens = stats.tail_scored;
    take_cost(id, *plan, cell);
    engine_.cancel(id);
    if (base != exact) engine_.cancel(base);
    done(cell);
  }
  if (exact.valid()) engine_.cancel(exact);
}

void Runner::run(std::string_view task, std::int64_t length, std::int64_t sample_number, const TextSource& prose,
                 const std::vector<MethodSpec>& methods, const std::function<void(const CellRecord&)>& done) {
  if (task == kPerplexity) return run_perplexity(length, sample_number, prose, methods, done);
  const bool stream = task == kStream;
  const TaskEntry& row = find_task(stream ? "number" : task);
  const Sample sample = make_sample(row, prose, length, options_.seed, sample_number, TokenizerCounter(tokenizer_));
  MNEME_CHECK(!sample.questions.empty(), "task {} made no question", task);
  const std::vector<std::int32_t> document =
      chat_.user_turn_split({.document = sample.context, .question = sample.questions[0].text, .system = {}}, true)
          .document;
  RequestId exact;  // prompts read exactly: one for all methods that do so
  for (const MethodSpec& method : methods) {
    const auto plan = compile(method.recipe, engine_.method_shape());
    CellRecord cell{.task = std::string(task), .length = length, .sample = sample_number, .method = method.label};
    if (options_.mark == QuestionMark::kBefore) {
      ask_marked(sample, plan, cell);
      done(cell);
      continue;
    }
    const bool apart = stream || plan->binds_sequence();
    if (!apart && !exact.valid()) exact = forks_.compute(document, 0, nullptr);
    const RequestId base =
        apart ? forks_.compute(document, stream ? size32(document) : 0, plan) : forks_.prepare(exact, document, plan);
    sample.turns ? ask_in_turns(base, sample, plan, cell) : ask_apart(base, sample, plan, cell);
    if (base != exact) engine_.cancel(base);
    done(cell);
  }
  if (exact.valid()) engine_.cancel(exact);
}

}  // namespace mneme::eval
