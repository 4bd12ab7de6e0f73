// Answers that are fed in place of the model's own: what it would have said at each of their tokens.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "apps/eval/runs/suite_question.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

std::int32_t argmax(std::span<const float> logits) {
  return count32(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// A token that is fed: whether the model should have said it, and ends a line.
struct Expected {
  TokenId token;
  bool counts, ends_line;
};

// Answers of one text: lines end where their tokens do.
std::vector<Expected> expected_lines(const Tokenizer& tokenizer, std::span<const TokenId> answer) {
  std::vector<Expected> all;
  for (TokenId t : answer) all.push_back({t, true, tokenizer.token_bytes(t).ends_with('\n')});
  if (!all.empty()) all.back().ends_line = true;
  return all;
}

// An answer is a line; a question is no part of one.
void add_line(std::vector<Expected>& all, std::span<const TokenId> question, std::span<const TokenId> answer) {
  for (TokenId t : question) all.push_back({t, false, false});
  for (TokenId t : answer) all.push_back({t, true, false});
  if (!answer.empty()) all.back().ends_line = true;
}

// What a model would have said in place of a line that was fed.
struct Foreseen {
  std::string text;  // the line where every token of it was foreseen, else what was said, marked
  double share = 0;  // of its tokens that were foreseen
};

std::vector<Foreseen> foreseen(const Tokenizer& tokenizer, std::span<const Expected> wanted,
                               const std::map<std::int32_t, std::int32_t>& predicted, std::int32_t first) {
  std::vector<Foreseen> out;
  std::string line, said;
  std::int64_t right = 0, n = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i].counts) continue;
    const auto found = predicted.find(first + count32(i));
    const TokenId token = found == predicted.end() ? -1 : found->second;
    right += token == wanted[i].token ? 1 : 0;
    ++n;
    line += tokenizer.token_bytes(wanted[i].token);
    if (token >= 0) said += tokenizer.token_bytes(token);
    if (!wanted[i].ends_line) continue;
    if (!line.ends_with('\n')) line += '\n';
    out.push_back({right == n ? line : fmt::format("~{}\n", replaced_all(said, "\n", " ")), ratio(right, n)});
    line.clear(), said.clear();
    right = n = 0;
  }
  return out;
}

}  // namespace

void SuiteRunner::forced_answers(const Question& q, RequestId base, const std::shared_ptr<const Plan>& plan,
                                 SuiteRecord& record) {
  std::vector<Expected> wanted;
  if (q.turns.empty()) wanted = expected_lines(tokenizer_, q.answer);
  if (!q.turns.empty()) add_line(wanted, {}, q.answer);
  for (const Question::Turn& t : q.turns) add_line(wanted, t.question, t.answer);
  const auto n_document = size32(q.prompt.document);
  const auto prompt_end = n_document + size32(q.prompt.question);
  RequestInput input = input_of(q, 0, plan);
  input.max_tokens = 0;
  for (const Expected& e : wanted) input.prompt.push_back(e.token);
  input.decode_prompt_tail = size32(input.prompt);
  input.score_tail = true;
  std::map<std::int32_t, std::int32_t> predicted;  // by the position of the predicted token
  input.on_logits = [&](std::int32_t position, std::span<const float> logits) { predicted[position] = argmax(logits); };
  const RequestId id =
      base.valid() ? forks_.ask(base, n_document, std::move(input)) : engine_.start({}, std::move(input));
  std::int32_t next = std::max(options_.along_every, 1);
  const auto after = [&] {
    const std::int32_t done = predicted.empty() ? 0 : predicted.rbegin()->first + 1 - prompt_end;
    if (options_.along_every == 0 || done < next) return;
    record.along.push_back(point_of(id, done, prompt_end, *plan));
    next = done + options_.along_every;
  };
  forks_.finish({}, after);
  const std::vector<Foreseen> lines = foreseen(tokenizer_, wanted, predicted, prompt_end);
  SuiteAnswer answer{.id = q.item.id, .groups = q.item.groups, .depth = q.item.depth, .truncated = q.prompt.truncated};
  if (q.turns.empty()) {
    answer.texts.emplace_back();
    for (const Foreseen& f : lines) answer.texts[0] += f.text, answer.lines.push_back(f.share);
    const ScorerEntry& scorer = options_.grader != nullptr ? *options_.grader : find_scorer(q.item.scorer);
    answer.scores.push_back(scorer.score(answer.texts[0], q.item.reference));
    answer.tokens = std::ssize(wanted);
    record.answers.push_back(std::move(answer));
  } else {
    for (std::size_t k = 0; k < lines.size(); ++k) {
      answer.id = fmt::format("{}.{}", q.item.id, k);
      answer.texts = {lines[k].text};
      answer.lines = {lines[k].share};
      answer.scores = {lines[k].share == 1 ? 1.0 : 0.0};
      answer.tokens = std::ssize(k == 0 ? q.answer : q.turns[k - 1].answer);
      record.answers.push_back(answer);
    }
  }
  take_cost(id, *plan, record);
  const RequestStats stats = engine_.stats(id);
  record.log_likelihood += stats.tail_log_likelihood;
  record.scored_tokens += stats.tail_scored;
  engine_.cancel(id);
}

}  // namespace mneme::eval
