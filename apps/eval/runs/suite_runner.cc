#include "apps/eval/runs/suite_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "apps/eval/runs/suite_prompt.h"
#include "apps/eval/scorers/words.h"
#include "src/base/check.h"
#include "src/base/error.h"
#include "src/base/size32.h"
#include "src/methods/method_state.h"

namespace mneme::eval {
namespace {

class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

std::int32_t argmax(std::span<const float> logits) {
  return count32(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// What a model would have said in place of a reference that was fed.
struct Foreseen {
  std::string text;           // each line as it is where every token of it was foreseen, else what was said, marked
  std::vector<double> lines;  // shares of foreseen tokens
};

Foreseen foreseen(const Tokenizer& tokenizer, std::span<const TokenId> wanted,
                  const std::map<std::int32_t, std::int32_t>& predicted, std::int32_t first) {
  Foreseen out;
  std::string line, said;
  double right = 0, n = 0;
  const auto close = [&] {
    out.text += right == n ? line : "~" + replaced_all(said, "\n", " ") + "\n";
    out.lines.push_back(right / n);
    line.clear(), said.clear();
    right = n = 0;
  };
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    const auto found = predicted.find(first + count32(i));
    const TokenId token = found == predicted.end() ? -1 : found->second;
    right += token == wanted[i] ? 1 : 0;
    ++n;
    line += tokenizer.token_bytes(wanted[i]);
    if (token >= 0) said += tokenizer.token_bytes(token);
    if (line.ends_with("\n")) close();
  }
  if (!line.empty()) close();
  return out;
}

// Whether each line of the reference stands in the same line of the answer.
std::vector<double> matching_lines(std::string_view answer, std::string_view reference) {
  const auto said = split_at(answer, '\n'), wanted = split_at(stripped(reference), '\n');
  std::vector<double> lines;
  for (std::size_t i = 0; i < wanted.size(); ++i)
    lines.push_back(i < said.size() && stripped(said[i]) == stripped(wanted[i]) ? 1 : 0);
  return lines;
}

}  // namespace

struct SuiteRunner::Question {
  SuiteItem item;
  SuitePrompt prompt;
};

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
    const std::int64_t room =
        engine_.options().context - q.item.max_tokens - frame_tokens(chat_) - prefix - 8;  // 8: truncation's seam
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
  return questions;
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

SuiteAnswer SuiteRunner::free_answer(const Question& q, RequestId base, const std::shared_ptr<const Plan>& plan,
                                     SuiteRecord& record) {
  std::vector<Asked> asked;
  const auto n_document = size32(q.prompt.document);
  const auto prompt_end = n_document + size32(q.prompt.question);
  const auto begin = [&](int sample) {
    RequestInput input = input_of(q, sample, plan);
    asked.push_back({base.valid() ? forks_.ask(base, n_document, std::move(input)) : engine_.submit(std::move(input))});
  };
  for (int k = 0; k < options_.samples; ++k) begin(k);
  std::size_t next = std::max(options_.along_every, 1);
  const auto after = [&] {
    Asked& first = asked.front();
    for (const Asked& a : asked)
      if (!a.ended && has_stopped(q.item, a.tokens)) engine_.stop(a.id);
    if (options_.along_every == 0 || first.tokens.size() < next) return;
    record.along.push_back(point_of(first.id, std::ssize(first.tokens), prompt_end, *plan));
    next = first.tokens.size() + options_.along_every;
  };
  forks_.finish(asked, after);
  SuiteAnswer answer{.id = q.item.id, .groups = q.item.groups, .depth = q.item.depth, .truncated = q.prompt.truncated};
  const ScorerRow& scorer = options_.grader != nullptr ? *options_.grader : find_scorer(q.item.scorer);
  for (const Asked& a : asked) {
    answer.texts.push_back(answer_text(q, a));
    // A plan's prefix is the start of the text that is scored.
    const std::string scored =
        q.item.scorer == "completion" ? q.item.answer_prefix + answer.texts.back() : answer.texts.back();
    answer.scores.push_back(scorer.score(scored, q.item.reference));
    answer.tokens += std::ssize(a.tokens);
    take_cost(a.id, *plan, record);
    engine_.release(a.id);
  }
  if (q.item.scorer == "lines") answer.lines = matching_lines(answer.texts.front(), q.item.reference.answers.front());
  return answer;
}

SuiteAnswer SuiteRunner::forced_answer(const Question& q, RequestId base, const std::shared_ptr<const Plan>& plan,
                                       SuiteRecord& record) {
  const auto wanted = tokenizer_.encode(q.item.reference.answers.front(), {.continues = true});
  const auto n_document = size32(q.prompt.document);
  const auto prompt_end = n_document + size32(q.prompt.question);
  RequestInput input = input_of(q, 0, plan);
  input.max_tokens = 0;
  input.prompt.insert(input.prompt.end(), wanted.begin(), wanted.end());
  input.decode_prompt_tail = size32(input.prompt);
  input.score_tail = true;
  std::map<std::int32_t, std::int32_t> predicted;  // by the position of the predicted token
  input.on_logits = [&](std::int32_t position, std::span<const float> logits) { predicted[position] = argmax(logits); };
  const RequestId id = base.valid() ? forks_.ask(base, n_document, std::move(input)) : engine_.submit(std::move(input));
  std::int32_t next = std::max(options_.along_every, 1);
  const auto after = [&] {
    const std::int32_t done = predicted.empty() ? 0 : predicted.rbegin()->first + 1 - prompt_end;
    if (options_.along_every == 0 || done < next) return;
    record.along.push_back(point_of(id, done, prompt_end, *plan));
    next = done + options_.along_every;
  };
  forks_.finish({}, after);
  SuiteAnswer answer{.id = q.item.id, .groups = q.item.groups, .depth = q.item.depth, .truncated = q.prompt.truncated};
  Foreseen said = foreseen(tokenizer_, wanted, predicted, prompt_end);
  answer.texts.push_back(std::move(said.text));
  answer.lines = std::move(said.lines);
  const ScorerRow& scorer = options_.grader != nullptr ? *options_.grader : find_scorer(q.item.scorer);
  answer.scores.push_back(scorer.score(answer.texts.back(), q.item.reference));
  answer.tokens = std::ssize(wanted);
  take_cost(id, *plan, record);
  const RequestStats stats = engine_.stats(id);
  record.log_likelihood += stats.tail_log_likelihood;
  record.scored_tokens += stats.tail_scored;
  engine_.release(id);
  return answer;
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
  const RequestId id = engine_.submit(std::move(input));
  forks_.finish({});
  const RequestStats stats = engine_.stats(id);
  record.log_likelihood = stats.tail_log_likelihood;
  record.scored_tokens = stats.tail_scored;
  take_cost(id, *plan, record);
  engine_.release(id);
}

void SuiteRunner::answer(const std::vector<Question>& questions, RequestId base,
                         const std::shared_ptr<const Plan>& plan, SuiteRecord& record) {
  for (const Question& q : questions) {
    if (options_.measure == SuiteMeasure::kPerplexity) {
      score_text(q, plan, record);
      continue;
    }
    record.answers.push_back(options_.forced ? forced_answer(q, base, plan, record)
                                             : free_answer(q, base, plan, record));
  }
}

void SuiteRunner::run(const SuiteContext& context, std::int64_t number, const std::vector<MethodSpec>& methods,
                      const std::function<void(const SuiteRecord&)>& done) {
  const std::vector<Question> questions = questions_of(context);
  MNEME_CHECK(!questions.empty(), "context {} of task {} has no question", context.id, context.task);
  const std::vector<std::int32_t>& document = questions.front().prompt.document;
  for (const Question& q : questions)
    MNEME_CHECK(q.prompt.document == document, "context {} of task {} has several documents", context.id, context.task);
  const bool by_decode = document.empty() || options_.measure == SuiteMeasure::kPerplexity;
  RequestId exact;
  double prefill = 0;
  for (const MethodSpec& method : methods) {
    const auto plan = compile(method.recipe, engine_.method_shape());
    SuiteRecord record{.context = number,
                       .task = context.task,
                       .length = context.length,
                       .context_id = context.id,
                       .method = method.label,
                       .prompt_tokens = std::ssize(document) + std::ssize(questions[0].prompt.question)};
    if (!by_decode && !plan->binds_sequence() && !exact.valid()) {
      const Stopwatch watch;
      exact = forks_.compute(document, 0, nullptr);
      prefill = watch.seconds();
    }
    record.prefill_seconds = prefill;
    prefill = 0;
    const Stopwatch watch;
    RequestId base;
    if (!by_decode)
      base = plan->binds_sequence() ? forks_.compute(document, 0, plan) : forks_.prepare(exact, document, plan);
    answer(questions, base, plan, record);
    record.seconds = watch.seconds();
    record.cost.seconds = record.seconds;
    if (base.valid() && base != exact) engine_.release(base);
    done(record);
  }
  if (exact.valid()) engine_.release(exact);
}

}  // namespace mneme::eval
