// RULER's questions over documents, one and two hops.
#include <fmt/format.h>

#include "apps/eval/generated/fit.h"
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

GeneratedQuestion documents(bool two_hops, const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  const Rng start = rng;
  const auto make = [&](std::int64_t n) {
    Rng r = start;
    const Story story = draw_story(two_hops, r);
    std::vector<std::string> sentences = story.golds;
    for (auto i = std::ssize(sentences); i < n + 2; ++i)
      sentences.push_back(draw_story(false, r).golds.front());  // distractors of the same form
    shuffle(sentences, r);
    std::string context;
    for (std::size_t i = 0; i < sentences.size(); ++i)
      context += fmt::format("{}Document {}:\n{}", i > 0 ? "\n\n" : "", i + 1, document_of(sentences[i], s.prose, r));
    const std::string question = fmt::format("\n\n{}\n\nQuestion: {}", kTask, story.question);
    GeneratedQuestion q;
    q.prompt = fmt::format("{}\n\nThe following are given documents.\n\n{}{}", kTask, context, question);
    q.question_bytes = question.size();
    q.answer_prefix = " Answer:";
    q.answers = {story.answer};
    q.depth = ratio(q.prompt.find(story.golds.front()), q.prompt.size());
    return q;
  };
  return largest_fit(s.task, tokens, s.is_short() ? 1 : 10, s.counter, make).question;
}

}  // namespace

GeneratedQuestion ruler_one_hop(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  return documents(false, s, tokens, rng);
}
GeneratedQuestion ruler_two_hops(const RulerSetting& s, std::int64_t tokens, Rng& rng) {
  return documents(true, s, tokens, rng);
}

}  // namespace mneme::eval
