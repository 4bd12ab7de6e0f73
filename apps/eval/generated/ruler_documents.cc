// RULER's questions over documents, one and two hops.
#include <fmt/format.h>

#include <algorithm>

#include "apps/eval/generated/ruler.h"
#include "apps/eval/scorers/words.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

constexpr std::string_view kTask =
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.";

struct Story {
  std::vector<std::string> golds;  // sentences, one a document
  std::string question, answer;
};

Story draw_story(bool two_hops, Rng& rng) {
  const auto names = distinct_strings(3, [&] { return TextSource::name(rng); });
  const std::string stands = fmt::format("The house of {} stands in {}.", names[1], names[2]);
  if (!two_hops) return {{stands}, fmt::format("Where does the house of {} stand?", names[1]), names[2]};
  return {{fmt::format("{} lives in the house of {}.", names[0], names[1]), stands},
          fmt::format("In which town does {} live?", names[0]),
          names[2]};
}

// A passage of about 100 words, with a sentence about a house between its sentences.
std::string document_of(std::string_view sentence, const TextSource& prose, Rng& rng) {
  std::string text = first_words(prose.passage(700, rng), 100);
  const std::size_t stop = text.find(". ", rng.below(text.size() / 2));
  const std::string insert = std::string(sentence) + " ";
  return stop == std::string::npos ? insert + text : text.insert(stop + 2, insert);
}

// Documents in this order, numbered, and the question.
GeneratedQuestion asked_over(const std::vector<std::string>& documents, std::string_view text) {
  std::string context;
  for (std::size_t i = 0; i < documents.size(); ++i)
    context += fmt::format("{}Document {}:\n{}", i > 0 ? "\n\n" : "", i + 1, documents[i]);
  const std::string question = fmt::format("\n\n{}\n\nQuestion: {}", kTask, text);
  GeneratedQuestion q;
  q.prompt = fmt::format("{}\n\nThe following are given documents.\n\n{}{}", kTask, context, question);
  q.question_bytes = question.size();
  q.answer_prefix = " Answer:";
  return q;
}

GeneratedQuestion made_up(bool two_hops, const RulerSetting& s, std::int64_t n, Rng& rng) {
  const Story story = draw_story(two_hops, rng);
  std::vector<std::string> sentences = story.golds;
  while (std::ssize(sentences) < n) sentences.push_back(draw_story(false, rng).golds.front());  // of the same form
  shuffle(sentences, rng);
  std::vector<std::string> documents;
  for (const std::string& sentence : sentences) documents.push_back(document_of(sentence, s.prose, rng));
  GeneratedQuestion q = asked_over(documents, story.question);
  q.answers = {story.answer};
  q.depth = ratio(q.prompt.find(story.golds.front()), q.prompt.size());
  return q;
}

// The gold documents, then those of the same article (some of them where not all have room), then others.
std::vector<std::size_t> chosen_documents(const RulerDocuments& from, const RulerDocuments::Question& asked,
                                          std::size_t n, Rng& rng) {
  std::vector<std::size_t> chosen = asked.gold;
  if (n <= chosen.size()) return chosen;
  if (n - chosen.size() <= asked.near.size()) {
    for (std::size_t i : sample_below(asked.near.size(), n - chosen.size(), rng)) chosen.push_back(asked.near[i]);
    return chosen;
  }
  chosen.insert(chosen.end(), asked.near.begin(), asked.near.end());
  std::vector<bool> is_chosen(from.documents.size());
  for (std::size_t d : chosen) is_chosen[d] = true;
  std::vector<std::size_t> others;
  for (std::size_t d = 0; d < from.documents.size(); ++d)
    if (!is_chosen[d]) others.push_back(d);
  for (std::size_t i : sample_below(others.size(), std::min(others.size(), n - chosen.size()), rng))
    chosen.push_back(others[i]);
  return chosen;
}

GeneratedQuestion published(const RulerDocuments& from, std::int64_t number, std::int64_t n, Rng& rng) {
  const RulerDocuments::Question& asked = from.questions[number % std::ssize(from.questions)];
  std::vector<std::size_t> chosen = chosen_documents(from, asked, n, rng);
  // Longer contexts than there are documents: all of them, again and again.
  for (std::size_t d = 0; std::ssize(chosen) < n; d = (d + 1) % from.documents.size()) chosen.push_back(d);
  shuffle(chosen, rng);
  std::vector<std::string> documents;
  for (std::size_t d : chosen) documents.push_back(from.documents[d]);
  GeneratedQuestion q = asked_over(documents, asked.text);
  q.answers = asked.answers;
  q.depth = ratio(q.prompt.find(from.documents[asked.gold.front()]), q.prompt.size());
  return q;
}

GeneratedQuestion documents(bool two_hops, const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  static constexpr std::int64_t kStep = 10;
  const RulerDocuments* from = s.sources == nullptr ? nullptr : two_hops ? &s.sources->two_hops : &s.sources->one_hop;
  const auto make = [&](std::int64_t n, Rng& r) {
    return from == nullptr || from->questions.empty() ? made_up(two_hops, s, n, r) : published(*from, s.number, n, r);
  };
  return ruler_fit(s, tokens, kStep, rng, make);
}

}  // namespace

GeneratedQuestion ruler_one_hop(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  return documents(false, s, tokens, rng);
}
GeneratedQuestion ruler_two_hops(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  return documents(true, s, tokens, rng);
}

}  // namespace mneme::eval
