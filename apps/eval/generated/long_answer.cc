#include "apps/eval/generated/long_answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "apps/eval/generated/fit.h"
#include "apps/eval/generated/ruler.h"
#include "apps/eval/generated/task.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ascii.h"

namespace mneme::eval {
namespace {

// Every line "KEY: NUMBER", to be written out.
LongQuestion make_register(const TextSource& prose, std::int64_t n, Rng& rng) {
  LongQuestion q{
      .document = "\nRegister:\n", .question = "Write the register in full, line by line.", .answer = {}, .turns = {}};
  for (std::int64_t i = 0; i < n; ++i) q.answer += fmt::format("{}: {}\n", prose.key(rng), TextSource::number(rng, 6));
  q.document += q.answer;
  return q;
}

// A program over x modulo 10: every line of the answer reads one line of the program and the line before.
LongQuestion make_trace(const TextSource&, std::int64_t n, Rng& rng) {
  const std::string tag = TextSource::name(rng);
  int x = draw_between(rng, 0, 9);
  LongQuestion q{.document = fmt::format("\nProgram {} starts with x = {}.\n", tag, x),
                 .question = fmt::format("Run program {} and show x after every step.", tag),
                 .answer = {},
                 .turns = {}};
  static constexpr std::array<std::string_view, 3> kVerbs = {"add", "take", "set"};
  for (std::int64_t i = 1; i <= n; ++i) {
    const auto verb = rng.below(3);
    const int a = draw_between(rng, 1, 9);
    x = verb == 0 ? (x + a) % 10 : verb == 1 ? (x - a + 10) % 10 : a;
    q.document += fmt::format("step {}: {} {}\n", i, kVerbs[verb], a);
    q.answer += fmt::format("{}: {}\n", i, x);
  }
  return q;
}

// Numbered sections of prose, to be repeated in order.
std::vector<std::string> passages(const TextSource& prose, std::int64_t n, Rng& rng) {
  std::vector<std::string> all;
  for (std::int64_t i = 0; i < n; ++i)
    all.push_back(first_words(prose.passage(draw_between(rng, 80, 200), rng), draw_between(rng, 10, 24)));
  return all;
}

// A passage, followed by a list of words to exchange in it.
LongQuestion make_recite(const TextSource& prose, std::int64_t n, Rng& rng) {
  LongQuestion q{
      .document = "\nPassage:\n", .question = "Write the passage with all changes made.", .answer = {}, .turns = {}};
  std::string changes;
  const auto all = passages(prose, n, rng);
  for (std::size_t i = 0; i < all.size(); ++i) {
    q.document += fmt::format("{}. {}\n", i + 1, all[i]);
    std::string changed = all[i];
    if (rng.below(4) == 0) {
      const std::string by = TextSource::name(rng);
      changed = by + changed.substr(std::min(changed.find(' '), changed.size()));
      changes += fmt::format("In line {} the first word becomes {}.\n", i + 1, by);
    }
    q.answer += fmt::format("{}. {}\n", i + 1, changed);
  }
  q.document += "Changes:\n" + changes;
  return q;
}

// One rule for the whole document: a name becomes another.
LongQuestion make_rewrite(const TextSource& prose, std::int64_t n, Rng& rng) {
  const auto names = distinct_strings(2, [&] { return TextSource::name(rng); });
  LongQuestion q{.document = "\nDocument:\n",
                 .question = fmt::format("Write the document with {} in place of {}.", names[1], names[0]),
                 .answer = {},
                 .turns = {}};
  const auto all = passages(prose, n, rng);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool named = rng.below(3) == 0;
    const auto line = [&](const std::string& name) {
      return named ? fmt::format("{}. {} said: {}\n", i + 1, name, all[i]) : fmt::format("{}. {}\n", i + 1, all[i]);
    };
    q.document += line(names[0]);
    q.answer += line(names[1]);
  }
  return q;
}

// Questions of a task of facts, one after the other in one conversation: most of what the model reads while it answers
// are its own turns, and every answer is elsewhere in the document.
LongQuestion conversation(std::string_view facts, const TextSource& prose, std::int64_t n, Rng& rng) {
  static constexpr int kMostTurns = 1000, kEntryChars = 64;
  Sample sample = find_task(facts).make(prose, n * kEntryChars, kMostTurns, rng);
  LongQuestion q{.document = std::move(sample.context),
                 .question = sample.questions[0].text,
                 .answer = sample.questions[0].answer,
                 .turns = {}};
  for (std::size_t i = 1; i < sample.questions.size(); ++i)
    q.turns.push_back({sample.questions[i].text, sample.questions[i].answer});
  return q;
}

LongQuestion make_lookups(const TextSource& prose, std::int64_t n, Rng& rng) {
  return conversation("register", prose, n, rng);
}
LongQuestion make_chain(const TextSource& prose, std::int64_t n, Rng& rng) {
  return conversation("chain", prose, n, rng);
}

constexpr std::array kTasks = {
    LongTask{"register", "a register written out in full", make_register},
    LongTask{"trace", "every state of a program", make_trace},
    LongTask{"recite", "a passage with changes", make_recite},
    LongTask{"rewrite", "a document with one name for another", make_rewrite},
    LongTask{"lookups", "values of a register, one a turn of a conversation", make_lookups},
    LongTask{"chain", "4 to 16 names of a shuffled chain a turn", make_chain},
};

// The first lines of the text that have at most so many tokens.
std::string first_lines(const std::string& text, std::int64_t tokens, const TokenCounter& counter) {
  if (counter.count(text) <= tokens) return text;
  std::vector<std::size_t> ends;
  for (std::size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1)) ends.push_back(at + 1);
  const auto fits = [&](std::size_t end) { return counter.count(std::string_view(text).substr(0, end)) <= tokens; };
  const auto last = std::partition_point(ends.begin(), ends.end(), fits);
  return last == ends.begin() ? std::string() : text.substr(0, *(last - 1));
}

// The first turns whose questions and answers have at most so many tokens.
void keep_first_turns(LongQuestion& q, std::int64_t tokens, const TokenCounter& counter) {
  std::int64_t n = counter.count(q.answer);
  std::size_t kept = 0;
  for (; kept < q.turns.size(); ++kept) {
    n += counter.count(q.turns[kept].question) + counter.count(q.turns[kept].answer);
    if (n > tokens) break;
  }
  q.turns.resize(kept);
}

}  // namespace

std::span<const LongTask> long_tasks() {
  return kTasks;
}

LongQuestion make_long(const LongTask& task, const TextSource& prose, const TokenCounter& counter, std::int64_t tokens,
                       std::int64_t answer_tokens, std::uint64_t seed, std::int64_t number) {
  std::uint64_t stream = seed;
  for (char c : task.name) stream = Rng(stream ^ byte_of(c)).next();
  const Rng start = Rng::of_item(stream ^ tokens, number);
  const auto make = [&](std::int64_t n) {
    Rng rng = start;
    GeneratedQuestion q;
    q.prompt = task.make(prose, n, rng).document;
    return q;
  };
  const std::int64_t entries = largest_fit(task.name, tokens, 4, counter, make).size;
  Rng rng = start;
  LongQuestion q = task.make(prose, entries, rng);
  if (q.turns.empty())
    q.answer = first_lines(q.answer, answer_tokens, counter);
  else
    keep_first_turns(q, answer_tokens, counter);
  return q;
}

}  // namespace mneme::eval
