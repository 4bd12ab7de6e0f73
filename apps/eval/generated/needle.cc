#include "apps/eval/generated/needle.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "apps/eval/generated/fit.h"
#include "apps/eval/generated/ruler.h"
#include "src/base/ascii.h"
#include "src/base/ratio.h"

namespace mneme::eval {
namespace {

constexpr std::array<std::string_view, 16> kCities = {"Chicago", "Yangon",   "Antwerp",  "Lisbon", "Nairobi", "Oslo",
                                                      "Quito",   "Bangkok",  "Dakar",    "Turin",  "Osaka",   "Lima",
                                                      "Tunis",   "Helsinki", "Valencia", "Perth"};

// Behind the last sentence that ends before `at`.
std::size_t sentence_end(std::string_view text, std::size_t at) {
  while (at > 0 && !(text[at - 1] == '.' && (at == text.size() || text[at] == ' ' || text[at] == '\n'))) --at;
  return at;
}

// The first n bytes of the text, repeated where it is too short, not cut inside a character.
std::string first_bytes(std::string_view text, std::size_t n) {
  std::string out;
  while (out.size() < n) out += text.substr(0, n - out.size());
  while (!out.empty() && !is_ascii(out.back())) out.pop_back();
  return out;
}

}  // namespace

GeneratedQuestion make_needle(const TextSource& prose, const TokenCounter& counter, std::int64_t tokens, double depth,
                              std::uint64_t seed, std::int64_t number, int others) {
  Rng rng = Rng::of_item(seed, number);
  const std::size_t asked = rng.below(kCities.size());
  const std::string_view city = kCities[asked];
  const auto digits = [](Rng& r) { return std::to_string(1000000 + r.below(9000000)); };
  const std::string value = digits(rng);
  const std::string question = fmt::format("What is the special magic {} number?", city);
  const std::string behind = fmt::format(
      "\n\nQuestion: {} Don't give information outside the document or repeat your findings. Keep your response short "
      "and direct. Answer: ",
      question);
  const auto make = [&](std::int64_t bytes) {
    std::string context = first_bytes(prose.text(), bytes);
    const auto hide = [&](std::string_view of, std::string_view digits_of, double where) {
      const auto at = sentence_end(context, part_of(context.size(), where));
      context.insert(where >= 1 ? context.size() : at,
                     fmt::format("\nThe special magic {} number is: {}\n", of, digits_of));
    };
    Rng r = rng;
    for (int i = 1; i <= others; ++i) {
      const std::string other = digits(r);
      hide(kCities[(asked + i) % kCities.size()], other, r.uniform());
    }
    hide(city, value, depth);
    GeneratedQuestion q;
    q.prompt =
        "Write a high-quality answer for the given question using only the provided search results (some of which "
        "might "
        "be irrelevant).\n" +
        context + behind;
    q.question_bytes = behind.size();
    q.answers = {value};
    q.depth = depth;
    return q;
  };
  return largest_fit("niah", tokens, 64, counter, make).question;
}

GeneratedQuestion make_passkey(const TokenCounter& counter, std::int64_t tokens, double depth, std::uint64_t seed,
                               std::int64_t number) {
  Rng rng = Rng::of_item(seed, number);
  const auto key = 1 + rng.below(50000);
  const std::string garbage = std::string(kRulerNoise) + " ";
  const std::string question = "\nWhat is the pass key? The pass key is";
  const auto make = [&](std::int64_t n) {
    const std::int64_t before = part_of(n, depth);
    GeneratedQuestion q;
    q.prompt = fmt::format(
        "There is an important info hidden inside a lot of irrelevant text. Find it and memorize them. I will quiz you "
        "about the important information there.\n{}\nThe pass key is {}. Remember it. {} is the pass key.\n{}{}",
        first_bytes(garbage, before), key, key, first_bytes(garbage, n - before), question);
    q.question_bytes = question.size();
    q.answers = {std::to_string(key)};
    q.depth = depth;
    return q;
  };
  return largest_fit("passkey", tokens, 128, counter, make).question;
}

}  // namespace mneme::eval
