#include "apps/eval/runs/suite_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "apps/eval/runs/suite_question.h"
#include "apps/eval/scorers/words.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/seconds.h"
#include "src/base/size32.h"
#include "src/methods/method_state.h"

namespace mneme::eval {
namespace {

class Stopwatch {
 public:
  double seconds() const { return seconds_since(start_); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Whether each line of the reference equals the same line of the answer.
std::vector<double> matching_lines(std::string_view answer, std::string_view reference) {
  const auto said = split_at(answer, '\n'), wanted = split_at(stripped(reference), '\n');
  std::vector<double> lines;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    lines.push_back(i < said.size() && stripped(said[i]) == stripped(wanted[i]) ? 1 : 0);
  return lines;
}

}  // namespace

SuiteRunner::SuiteRunner(Engine& engine, const Tokenizer& tokenizer, SuiteRunOptions options)
    : engine_(engine),
      tokenizer_(tokenizer),
      chat_(ChatFormat::detect(tokenizer)),
      options_(std::move(options)),
      forks_(engine, options_.question),
      end_tokens_(tokenizer.end_tokens()) {}

std::vector<SuiteRunner::Question> SuiteRunner::questions_of(const SuiteContext& context) const {
  std::vector<Question> questions;
  for (SuiteItem& item : context.make()) {
    Question q{std::move(item), {}};
    const std::int64_t prefix = TokenizerCounter(tokenizer_).count(q.item.answer_prefix);
    if (options_.forced || !q.item.turns.empty())
      q.answer = tokenizer_.encode(q.item.reference.answers.front(), {.continues = true});
    for (const SuiteTurn& turn : q.item.turns) {
      Question::Turn t{chat_.end_of_answer(), tokenizer_.encode(turn.answer, {.continues = true})};
      const auto asked = chat_.user_turn({.document = {}, .question = turn.question, .system = {}}, false);
      t.question.insert(t.question.end(), asked.begin(), asked.end());
      q.turns.push_back(std::move(t));
    }
    const std::int64_t room = engine_.options().context - q.item.max_tokens - q.turn_tokens() - frame_tokens(chat_) -
                              prefix - 8;  // 8: truncation's seam
    if (room < 16)
      fail(ErrorKind::kOption,
           "{} {}: an answer of {} tokens leaves no room for a prompt in a context of {}; give a longer "
           "--max-model-len, "
           "or fewer --max-tokens",
           context.task, q.item.id, q.item.max_tokens, engine_.options().context);
    if (options_.measure == SuiteMeasure::kPerplexity) {
      auto tokens = tokenizer_.encode(q.item.prompt, {.add_bos = true});
      tokens.resize(std::min<std::size_t>(tokens.size(), q.item.max_tokens + 1));
      q.prompt.question = std::move(tokens);
    } else {
      const std::int64_t longest = options_.longest_prompt > 0 ? std::min(options_.longest_prompt, room) : room;
      q.prompt = suite_prompt(q.item, tokenizer_, chat_, longest);
    }
    questions.push_back(std::move(q));
  }
  MNEME_CHECK(!questions.empty(), "context {} of task {} has no question", context.id, context.task);
  for (const Question& q : questions)
    MNEME_CHECK(q.prompt.document == questions[0].prompt.document, "context {} of task {} has several documents",
                context.id, context.task);
  return questions;
}

SuiteRecord SuiteRunner::empty_record(const Numbered& c, const std::vector<Question>& questions,
                                      const MethodSpec& method) {
  const SuitePrompt& prompt = questions.front().prompt;
  return {.context = c.number,
          .task = c.context->task,
          .length = c.context->length,
          .context_id = c.context->id,
          .method = method.label,
          .prompt_tokens = std::ssize(prompt.document) + std::ssize(prompt.question)};
}

RequestInput SuiteRunner::input_of(const Question& q, int sample, const std::shared_ptr<const Plan>& plan) const {
  RequestInput input;
  input.prompt = q.prompt.question;
  if (options_.question == QuestionPath::kDecode) input.decode_prompt_tail = size32(q.prompt.question);
  input.max_tokens = q.item.max_tokens;
  input.end_tokens = end_tokens_;
  input.sampling = options_.sampling;
  input.sampling.seed = options_.seed + sample;
  input.keep_sequence = true;
  input.method = plan;
  return input;
}

// Whether the answer's last tokens hold the text that ends it.
bool SuiteRunner::has_stopped(const SuiteItem& item, std::span<const std::int32_t> tokens) const {
  static constexpr std::size_t kLast = 16;  // more than any stop has tokens
  if (item.stop.empty() || tokens.empty()) return false;
  std::string text = tokenizer_.decode(tokens.last(std::min(tokens.size(), kLast)));
  if (item.first_line_only && tokens.size() <= kLast) text.erase(0, text.find_first_not_of('\n'));
  return text.find(item.stop) != std::string::npos;
}

std::string SuiteRunner::answer_text(const Question& q, const Asked& asked) const {
  std::string text = tokenizer_.decode(asked.tokens);
  if (q.item.first_line_only) text.erase(0, text.find_first_not_of('\n'));
  if (!q.item.stop.empty()) text = text.substr(0, text.find(q.item.stop));
  return q.item.first_line_only ? text.substr(0, text.find('\n')) : text;
}

void SuiteRunner::take_cost(RequestId id, const Plan& plan, SuiteRecord& record) const {
  const MethodStats* stats = engine_.method_stats(id);
  if (stats == nullptr) return;
  add_cost(record.cost, cost_of(*stats, plan.shape, plan));
  add_layers(record, *stats);
}

AlongPoint SuiteRunner::point_of(RequestId id, std::int64_t tokens, std::int32_t prompt_end, const Plan& plan) const {
  AlongPoint p{.tokens = tokens};
  p.kv_bytes = engine_.kv_bytes(id);
  p.method_bytes = engine_.method_bytes(id);
  if (const MethodStats* stats = engine_.method_stats(id)) {
    const MethodCost c = cost_of(*stats, plan.shape, plan);
    p.checks = c.checks, p.corrections = c.corrections;
    p.selections = c.selections, p.reused = c.reused;
    p.selected = c.selected, p.replaced = c.replaced;
    p.attended = c.attended, p.attended_heads = c.attended_heads;
  }
  const MethodState* state = engine_.method(id);
  for (std::int32_t l = 0; state != nullptr && l < plan.shape.n_layers; ++l) {
    const auto& layer = state->layer(l);
    for (std::size_t h = 0; h < layer.tables.size(); ++h) {
      const UnitTable& units = layer.tables[h];
      const auto is_segment = [&](std::int32_t u) { return u < units.size() && units.token(u, 0) >= prompt_end; };
      for (std::int32_t u = units.size(); u > 0 && is_segment(u - 1); --u) ++p.segments;
      if (h >= layer.attended.size()) continue;
      p.units_attended += std::ssize(layer.attended[h]);
      p.segments_attended += std::count_if(layer.attended[h].begin(), layer.attended[h].end(), is_segment);
    }
  }
  return p;
}

SuiteAnswer SuiteRunner::scored(const Question& q, std::span<const Asked> asked, const Reference& reference) const {
  SuiteAnswer answer{.id = q.item.id, .groups = q.item.groups, .depth = q.item.depth, .truncated = q.prompt.truncated};
  const ScorerEntry& scorer = options_.grader != nullptr ? *options_.grader : find_scorer(q.item.scorer);
  for (const Asked& a : asked) {
    answer.texts.push_back(answer_text(q, a));
    // A plan's prefix is the start of the text that is scored.
    const std::string text =
        q.item.scorer == "completion" ? q.item.answer_prefix + answer.texts.back() : answer.texts.back();
    answer.scores.push_back(scorer.score(text, reference));
    answer.tokens += std::ssize(a.tokens);
  }
  return answer;
}

void SuiteRunner::submit(std::span<const Question> questions, RequestId base, const std::shared_ptr<const Plan>& plan,
                         std::vector<Asked>& asked) {
  for (const Question& q : questions)
    for (int k = 0; k < options_.samples; ++k) {
      RequestInput input = input_of(q, k, plan);
      asked.push_back({base.valid() ? forks_.ask(base, size32(q.prompt.document), std::move(input))
                                    : engine_.start({}, std::move(input))});
    }
}

void SuiteRunner::stop_where_stopped(std::span<const Question> questions, std::span<const Asked> asked) {
  for (std::size_t i = 0; i < asked.size(); ++i)
    if (!asked[i].ended && has_stopped(questions[i / options_.samples].item, asked[i].tokens))
      engine_.stop(asked[i].id);
}

void SuiteRunner::collect(std::span<const Question> questions, std::span<const Asked> asked, const Plan& plan,
                          SuiteRecord& record) {
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& q = questions[i];
    const auto samples = asked.subspan(i * options_.samples, options_.samples);
    SuiteAnswer answer = scored(q, samples, q.item.reference);
    if (q.item.scorer == "lines") answer.lines = matching_lines(answer.texts.front(), q.item.reference.answers.front());
    record.answers.push_back(std::move(answer));
    for (const Asked& a : samples) {
      take_cost(a.id, plan, record);
      engine_.cancel(a.id);
    }
  }
}

void SuiteRunner::free_answers(std::span<const Question> questions, RequestId base,
                               const std::shared_ptr<const Plan>& plan, SuiteRecord& record) {
  std::vector<Asked> asked;  // by question, then by sample
  submit(questions, base, plan, asked);
  const auto prompt_end = size32(questions[0].prompt.document) + size32(questions[0].prompt.question);
  std::size_t next = std::max(options_.along_every, 1);
  const auto after = [&] {
    Asked& first = asked.front();
    stop_where_stopped(questions, asked);
    if (options_.along_every == 0 || first.tokens.size() < next) return;
    record.along.push_back(point_of(first.id, std::ssize(first.tokens), prompt_end, *plan));
    next = first.tokens.size() + options_.along_every;
  };
  forks_.finish(asked, after);
  collect(questions, asked, *plan, record);
}

// The conversation is a sequence with the reference answers; each answer is a fork of it, which ends with its turn.
void SuiteRunner::turn_answers(const Question& q, RequestId base, const std::shared_ptr<const Plan>& plan,
                               SuiteRecord& record) {
  RequestId talk = base;
  std::int32_t length = size32(q.prompt.document);
  std::vector<std::int32_t> question = q.prompt.question;
  for (std::size_t k = 0; k <= q.turns.size(); ++k) {
    RequestInput input = input_of(q, 0, plan);
    input.prompt = question;
    if (options_.question == QuestionPath::kDecode) input.decode_prompt_tail = size32(question);
    RequestInput fed = input;
    std::vector<Asked> asked;
    asked.push_back({talk.valid() ? forks_.ask(talk, length, std::move(input)) : engine_.start({}, std::move(input))});
    const auto stop = [&] {
      if (!asked[0].ended && has_stopped(q.item, asked[0].tokens)) engine_.stop(asked[0].id);
    };
    forks_.finish(asked, stop);
    const Reference reference = k == 0 ? q.item.reference : Reference{{q.item.turns[k - 1].answer}, {}};
    record.answers.push_back(scored(q, asked, reference));
    record.answers.back().id = fmt::format("{}.{}", q.item.id, k);
    record.answers.back().groups.push_back(fmt::format("turn {}", k + 1));
    if (k == q.turns.size()) take_cost(asked[0].id, *plan, record);  // its counters are the whole conversation's
    engine_.cancel(asked[0].id);
    if (k == q.turns.size()) break;
    const std::vector<std::int32_t>& answer = k == 0 ? q.answer : q.turns[k - 1].answer;
    fed.prompt.insert(fed.prompt.end(), answer.begin(), answer.end());
    fed.decode_prompt_tail = size32(options_.question == QuestionPath::kDecode ? fed.prompt : answer);
    fed.max_tokens = 0;
    length += size32(fed.prompt);
    if (k > 0)
      engine_.start(Origin::next_turn(talk), std::move(fed));
    else
      talk = talk.valid() ? forks_.ask(talk, size32(q.prompt.document), std::move(fed))
                          : engine_.start({}, std::move(fed));
    forks_.finish({});
    question = q.turns[k].question;
  }
  if (talk.valid() && talk != base) engine_.cancel(talk);
}

// Every token but the first by decode, from an empty cache.
void SuiteRunner::score_text(const Question& q, const std::shared_ptr<const Plan>& plan, SuiteRecord& record) {
  RequestInput input;
  input.prompt = q.prompt.question;
  input.decode_prompt_tail = size32(input.prompt);
  input.score_tail = true;
  input.max_tokens = 0;
  input.keep_sequence = true;
  input.method = plan;
  const RequestId id = engine_.start({}, std::move(input));
  forks_.finish({});
  const RequestStats stats = engine_.stats(id);
  record.log_likelihood = stats.tail_log_likelihood;
  record.scored_tokens = stats.tail_scored;
  take_cost(id, *plan, record);
  engine_.cancel(id);
}

// Tokens that the engine has room for beside the context, by sequence.
constexpr std::int64_t kTokensBeside = 1024;

// Questions from `begin` on that are asked at once: as many sequences as the engine runs, and as their answers have room
// beside the document. Points along an answer are of one alone.
std::size_t SuiteRunner::batch_end(const std::vector<Question>& questions, std::size_t begin) const {
  std::size_t end = begin;
  std::int64_t sequences = 0, tokens = 0;
  for (; end < questions.size() && questions[end].turns.empty(); ++end) {
    const Question& q = questions[end];
    sequences += options_.samples;
    tokens += options_.samples * (std::ssize(q.prompt.question) + q.item.max_tokens);
    const std::int32_t most = engine_.options().max_sequences;
    const bool fits = sequences <= most && tokens <= most * kTokensBeside;
    if (end > begin && (!fits || options_.along_every > 0)) break;
  }
  return end;
}

void SuiteRunner::answer(const std::vector<Question>& questions, RequestId base,
                         const std::shared_ptr<const Plan>& plan, SuiteRecord& record) {
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const Question& q = questions[i];
    if (options_.measure == SuiteMeasure::kPerplexity) {
      score_text(q, plan, record);
    } else if (options_.forced) {
      forced_answers(q, base, plan, record);
    } else if (!q.turns.empty()) {
      turn_answers(q, base, plan, record);
    } else {
      const std::size_t end = batch_end(questions, i);
      free_answers(std::span(questions).subspan(i, end - i), base, plan, record);
      i = end - 1;
    }
  }
}

RequestId SuiteRunner::base_of(const std::vector<std::int32_t>& document, RequestId exact,
                               const std::shared_ptr<const Plan>& plan) {
  if (document.empty()) return {};
  return plan->binds_sequence() ? forks_.compute(document, 0, plan) : forks_.prepare(exact, document, plan);
}

void SuiteRunner::run(const SuiteContext& context, std::int64_t number, const std::vector<MethodSpec>& methods,
                      const std::function<void(const SuiteRecord&)>& done) {
  const std::vector<Question> questions = questions_of(context);
  const std::vector<std::int32_t>& document = questions.front().prompt.document;
  const bool by_decode = document.empty() || options_.measure == SuiteMeasure::kPerplexity;
  RequestId exact;
  double prefill = 0;
  for (const MethodSpec& method : methods) {
    const auto plan = compile(method.recipe, engine_.method_shape());
    SuiteRecord record = empty_record({&context, number}, questions, method);
    if (!by_decode && !plan->binds_sequence() && !exact.valid()) {
      const Stopwatch watch;
      exact = forks_.compute(document, 0, nullptr);
      prefill = watch.seconds();
    }
    record.prefill_seconds = prefill;
    prefill = 0;
    const Stopwatch watch;
    const RequestId base = by_decode ? RequestId() : base_of(document, exact, plan);
    answer(questions, base, plan, record);
    record.seconds = watch.seconds();
    record.cost.seconds = record.seconds;
    if (base.valid() && base != exact) engine_.cancel(base);
    done(record);
  }
  if (exact.valid()) engine_.cancel(exact);
}

}  // namespace mneme::eval
