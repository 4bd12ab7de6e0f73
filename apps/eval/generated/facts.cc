#include "apps/eval/generated/facts.h"

#include <algorithm>

#include "src/base/ratio.h"

namespace mneme::eval {

Sample hide(const TextSource& prose, std::size_t chars, const std::vector<std::vector<Needle>>& groups,
            std::vector<Question> questions, Rng& rng) {
  std::size_t needle_chars = 0;
  for (const auto& group : groups)
    for (const Needle& n : group) needle_chars += n.text.size() + 2;
  const std::string_view body = prose.passage(chars > needle_chars ? chars - needle_chars : 1, rng);
  struct Placed {
    std::size_t at;
    const Needle* needle;
  };
  std::vector<Placed> placed;
  for (const auto& group : groups) {
    std::vector<std::size_t> places;
    for (std::size_t i = 0; i < group.size(); ++i) places.push_back(rng.below(body.size() + 1));
    std::sort(places.begin(), places.end());
    for (std::size_t i = 0; i < group.size(); ++i) placed.push_back({places[i], &group[i]});
  }
  std::stable_sort(placed.begin(), placed.end(), [](const Placed& a, const Placed& b) { return a.at < b.at; });
  Sample sample{.context = "", .questions = std::move(questions)};
  std::size_t last = 0;
  std::vector<std::pair<int, std::size_t>> depths;
  for (const Placed& p : placed) {
    std::size_t at = std::max(p.at, last);
    while (at < body.size() && body[at] != ' ' && body[at] != '\n') ++at;
    sample.context += body.substr(last, at - last);
    last = at;
    if (p.needle->question >= 0) depths.emplace_back(p.needle->question, sample.context.size());
    sample.context += "\n" + p.needle->text + "\n";
  }
  sample.context += body.substr(last);
  for (const auto& [question, at] : depths) {
    Question& q = sample.questions[question];
    if (q.depth < 0) q.depth = ratio(at, sample.context.size());
  }
  return sample;
}

}  // namespace mneme::eval
