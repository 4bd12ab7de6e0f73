#include "tests/model/needle_prompts.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>

namespace mneme {
namespace {

constexpr std::array<std::string_view, 60> kWords = {
    "silver",   "harbour", "winter", "garden",   "copper",  "river",   "morning", "castle",  "yellow",  "bridge",
    "quiet",    "forest",  "marble", "summer",   "window",  "candle",  "broken",  "island",  "golden",  "letter",
    "purple",   "market",  "simple", "mountain", "wooden",  "village", "narrow",  "street",  "gentle",  "valley",
    "northern", "tower",   "secret", "kitchen",  "distant", "shadow",  "velvet",  "anchor",  "ancient", "sailor",
    "bitter",   "orange",  "hidden", "chamber",  "frozen",  "meadow",  "curious", "feather", "little",  "lantern",
    "crimson",  "saddle",  "empty",  "mirror",   "humble",  "farmer",  "bright",  "needle",  "stormy",  "captain"};
constexpr std::array<std::string_view, 60> kSyllables = {
    "ba", "be", "bi", "bo", "bu", "da", "de", "di", "do", "du", "fa", "fe", "fi", "fo", "ga",
    "ge", "go", "ka", "ke", "ki", "ko", "la", "le", "li", "lo", "lu", "ma", "me", "mi", "mo",
    "mu", "na", "ne", "ni", "no", "pa", "pe", "pi", "po", "ra", "re", "ri", "ro", "ru", "sa",
    "se", "si", "so", "ta", "te", "ti", "to", "tu", "va", "ve", "vi", "vo", "za", "ze", "zi"};
constexpr std::array<std::string_view, 10> kSubjects = {"The old miller",
                                                        "A tall woman",
                                                        "My brother",
                                                        "The captain of the guard",
                                                        "Her youngest son",
                                                        "The schoolmaster",
                                                        "A stranger from the hills",
                                                        "The widow",
                                                        "Our neighbour",
                                                        "The boy with the red cap"};
constexpr std::array<std::string_view, 10> kVerbs = {
    "walked slowly past", "could not forget", "looked for a long time at", "spoke of", "had never seen", "came back to",
    "sat down beside",    "dreamed of",       "hurried towards",           "painted"};
constexpr std::array<std::string_view, 10> kObjects = {
    "the house by the water", "the empty road", "the light in the window", "the church",      "the wheat fields",
    "the long letter",        "the ships",      "the stone wall",          "the garden gate", "the sound of the bells"};
constexpr std::array<std::string_view, 8> kEndings = {
    "before the rain began", "as if nothing had happened", "and said no word",    "while the others slept",
    "for the third time",    "until it was dark",          "without knowing why", "when the wind turned"};

constexpr int kCommon = 5;  // a word that occurs so often may be part of a key

template <typename T>
void shuffle(std::vector<T>& items, Rng& rng) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

std::string join(std::span<const std::string> items, std::string_view between) {
  std::string s;
  for (const std::string& item : items) s += (s.empty() ? "" : std::string(between)) + item;
  return s;
}

}  // namespace

// Keys of sixty words only would differ from their distractors less than any that the model was trained on, so the
// prose gives its own too.
NeedleMaker::NeedleMaker(std::string prose, std::uint64_t seed) : prose_(std::move(prose)), rng_(seed) {
  std::map<std::string, int> count;
  for (std::size_t at = 0; at < prose_.size();) {
    const std::size_t end = std::min(prose_.find_first_of(" \r\n.,;:!?-\"'", at), prose_.size());
    const std::string word = prose_.substr(at, end - at);
    const bool plain = std::all_of(word.begin(), word.end(), [](char c) { return c >= 'a' && c <= 'z'; });
    if (plain && word.size() >= 4 && word.size() <= 9) ++count[word];
    at = end + 1;
  }
  for (const std::string_view w : kWords) count[std::string(w)] = kCommon;
  for (const auto& [word, n] : count)
    if (n >= kCommon) words_.push_back(word);
}

std::string NeedleMaker::key() {
  return words_[below(words_.size())] + "-" + words_[below(words_.size())];
}

std::string NeedleMaker::name() {
  std::string s;
  for (std::size_t i = 2 + below(3); i > 0; --i) s += kSyllables[below(kSyllables.size())];
  s[0] = static_cast<char>(s[0] - 'a' + 'A');
  return s;
}

std::string NeedleMaker::digits(std::size_t n) {
  std::string s;
  for (std::size_t i = 0; i < n; ++i) s += static_cast<char>('0' + below(10));
  return s;
}

std::string NeedleMaker::made_up_prose(std::size_t n_chars, std::uint64_t seed) {
  Rng rng(seed);
  const auto pick = [&](const auto& list) { return list[rng.below(list.size())]; };
  std::string text;
  for (int i = 1; text.size() < n_chars; ++i)
    text += fmt::format("{} {} {} {}.{}", pick(kSubjects), pick(kVerbs), pick(kObjects), pick(kEndings),
                        i % 7 == 0 ? "\n\n" : " ");
  return text;
}

// Prose with the facts, in their order, each on a line of its own between two words.
std::string NeedleMaker::hide(const Facts& facts, std::size_t n_chars) {
  std::size_t room = 0;
  for (const std::string& f : facts) room += f.size() + 2;
  room = n_chars > room ? n_chars - room : 0;
  const std::size_t start = below(prose_.size() - room);
  const std::string_view body = std::string_view(prose_).substr(start, room);
  std::vector<std::size_t> places(facts.size());
  for (std::size_t& p : places) p = std::min(body.find(' ', below(room)), room);
  std::sort(places.begin(), places.end());
  std::string text;
  std::size_t last = 0;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    text += body.substr(last, places[i] - last);
    text += "\n" + facts[i] + "\n";
    last = places[i];
  }
  text += body.substr(last);
  return text;
}

NeedlePrompt NeedleMaker::number() {
  const std::string k = key(), v = digits(4 + below(4));
  facts_ = {fmt::format("The secret number of {} is {}.", k, v)};
  for (int i = 0; i < 5; ++i) facts_.push_back(fmt::format("The secret number of {} is {}.", key(), digits(6)));
  shuffle(facts_, rng_);
  return {"number", "", fmt::format("What is the secret number of {}?", k), v};
}

NeedlePrompt NeedleMaker::where() {
  std::string asked, town;
  facts_.clear();
  for (int i = 0; i < 5; ++i) {
    const std::string person = name(), house = name();
    town = name();
    asked = house;
    facts_.push_back(fmt::format("{} lives in the house of {}.", person, house));
    facts_.push_back(fmt::format("The house of {} stands in {}.", house, town));
  }
  shuffle(facts_, rng_);
  return {"where", "", fmt::format("Where does the house of {} stand?", asked), town};
}

NeedlePrompt NeedleMaker::numbers() {
  const std::string k = key();
  std::vector<std::string> values(3);
  for (std::string& v : values) v = digits(5);
  facts_.clear();
  for (int i = 0; i < 5; ++i)
    facts_.push_back(fmt::format("One of the special magic numbers for {} is: {}.", key(), digits(5)));
  for (const std::string& v : values) {  // in their order, between the others
    const std::ptrdiff_t place = below(facts_.size() + 1);
    facts_.insert(facts_.begin() + place, fmt::format("One of the special magic numbers for {} is: {}.", k, v));
  }
  std::vector<std::string> in_order;
  for (const std::string& f : facts_)
    if (f.find(k + " is") != std::string::npos) in_order.push_back(f.substr(f.size() - 6, 5));
  return {"numbers", "", fmt::format("What are all the special magic numbers for {} mentioned in the text?", k),
          join(in_order, ", ")};
}

// Half of the document is a register of six-digit numbers, one fact of many lines.
NeedlePrompt NeedleMaker::register_of(std::size_t n_chars) {
  std::string lines = "Register:", asked, value;
  std::set<std::string> seen;
  const std::size_t wanted = below(n_chars / 2 / 24);
  while (lines.size() < n_chars / 2) {
    const std::string k = key(), v = digits(6);
    if (!seen.insert(k).second) continue;
    if (seen.size() == wanted + 1) asked = k, value = v;
    lines += fmt::format("\n{}: {}", k, v);
  }
  if (asked.empty()) return register_of(n_chars);
  facts_ = {lines};
  return {"register", "", fmt::format("What is registered for {}?", asked), value};
}

NeedlePrompt NeedleMaker::chain() {
  constexpr std::size_t kLinks = 40, kAsked = 12;
  std::vector<std::string> names;
  std::set<std::string> seen;
  while (names.size() < kLinks)
    if (std::string n = name() + std::string(kSyllables[below(kSyllables.size())]); seen.insert(n).second)
      names.push_back(n);
  std::vector<std::string> links;
  for (std::size_t i = 0; i + 1 < kLinks; ++i)
    links.push_back(fmt::format("After {} comes {}.", names[i], names[i + 1]));
  shuffle(links, rng_);
  facts_ = {join(links, "\n")};
  const std::size_t start = below(kLinks - kAsked);
  return {"chain", "", fmt::format("Starting from {}, list the next {} names in order.", names[start], kAsked),
          join(std::span(names).subspan(start + 1, kAsked), " ")};
}

NeedlePrompt NeedleMaker::make(NeedleKind kind, std::size_t n_chars) {
  if (kind == NeedleKind::kRegister) n_chars = n_chars * 5 / 8;  // digits are tokens of their own
  NeedlePrompt p;
  switch (kind) {
    case NeedleKind::kNumber:
      p = number();
      break;
    case NeedleKind::kWhere:
      p = where();
      break;
    case NeedleKind::kNumbers:
      p = numbers();
      break;
    case NeedleKind::kRegister:
      p = register_of(n_chars);
      break;
    case NeedleKind::kChain:
      p = chain();
      break;
  }
  p.document = hide(facts_, n_chars);
  return p;
}

}  // namespace mneme
