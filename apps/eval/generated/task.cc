#include "apps/eval/generated/task.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/eval/generated/facts.h"
#include "src/base/ascii.h"
#include "src/base/error.h"
#include "src/base/ratio.h"
#include "src/base/size32.h"

namespace mneme::eval {
namespace {

std::string_view pick(Rng& rng, std::initializer_list<std::string_view> list) {
  return list.begin()[rng.below(list.size())];
}

std::string lives_in(const std::string& person, const std::string& house) {
  return fmt::format("{} lives in the house of {}.", person, house);
}

std::string stands_in(const std::string& house, const std::string& town) {
  return fmt::format("The house of {} stands in {}.", house, town);
}

Sample make_number(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string k = facts.key(), v = TextSource::number(rng);
    facts.tell({{fmt::format(fmt::runtime(pick(rng, {"The secret number of {} is {}.",
                                                     "One of the special magic numbers for {} is: {}.",
                                                     "Note that {} has the number {}."})),
                             k, v),
                 i}});
    facts.ask(fmt::format(fmt::runtime(pick(rng, {"What is the secret number of {}?",
                                                  "What is the special magic number for {} mentioned in the text?",
                                                  "Which number belongs to {}?"})),
                          k),
              v);
  }
  return facts.hidden(chars);
}

Sample make_password(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string k = facts.key(), v = facts.key();
    facts.tell(
        {{fmt::format(fmt::runtime(pick(rng, {"The password for {} is {}.", "To open {}, say {}."})), k, v), i}});
    facts.ask(
        fmt::format(fmt::runtime(pick(rng, {"What is the password for {}?", "What must one say to open {}?"})), k), v);
  }
  return facts.hidden(chars);
}

Sample make_where(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string person = facts.name(), house = facts.name(), town = facts.name();
    const bool whose = rng.below(2) != 0;
    facts.tell({{lives_in(person, house), whose ? i : -1}, {stands_in(house, town), whose ? -1 : i}});
    if (whose)
      facts.ask(fmt::format("Whose house does {} live in?", person), house);
    else
      facts.ask(fmt::format("Where does the house of {} stand?", house), town);
  }
  return facts.hidden(chars);
}

Sample make_two_hops(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string person = facts.name(), house = facts.name(), town = facts.name();
    facts.tell({{lives_in(person, house), i}, {stands_in(house, town), -1}});
    facts.ask(fmt::format("In which town does {} live?", person), town);
  }
  return facts.hidden(chars);
}

Sample make_several(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string k = facts.key();
    std::vector<std::string> values;
    std::vector<Needle> sentences;
    for (int j = draw_between(rng, 2, 4); j > 0; --j) {
      values.push_back(TextSource::number(rng));
      sentences.push_back({fmt::format("One of the special magic numbers for {} is: {}.", k, values.back()), -1});
    }
    facts.tell(std::move(sentences));
    facts.ask(fmt::format("What are all the special magic numbers for {} mentioned in the text?", k),
              fmt::format("{}", fmt::join(values, ", ")));
  }
  return facts.hidden(chars);
}

Sample make_variables(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  static constexpr std::string_view kLetters = "ABCDEFGHJKLMNPQRSTUVWXYZ";
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    std::vector<std::string> names;
    for (int j = draw_between(rng, 2, 5); j > 0; --j)
      names.push_back(facts.other([&] {
        std::string s;
        for (int c = 0; c < 3; ++c) s += kLetters[rng.below(kLetters.size())];
        return s;
      }));
    const std::string value = facts.other([&] { return TextSource::number(rng, 5); });
    std::vector<Needle> sentences = {{fmt::format("VAR {} = {}.", names[0], value), -1}};
    for (std::size_t j = 1; j < names.size(); ++j)
      sentences.push_back({fmt::format("VAR {} = VAR {}.", names[j], names[j - 1]), -1});
    facts.tell(std::move(sentences));
    facts.ask(fmt::format("Which variables are assigned the value {}?", value),
              fmt::format("{}", fmt::join(names, " ")));
  }
  return facts.hidden(chars);
}

Sample make_passkey(const TextSource& prose, std::size_t chars, int, Rng& rng) {
  const std::string v = TextSource::number(rng, 5);
  return hide(prose, chars, {{{fmt::format("The pass key is {}. Remember it. {} is the pass key.", v, v), 0}}},
              {{"What is the pass key?", v}}, rng);
}

Sample make_register(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Sample sample{.context = "\nRegister:\n", .questions = {}};
  std::vector<std::pair<std::string, std::string>> items;
  std::vector<std::size_t> places;
  Unique unique;
  const bool numbers = rng.below(2) != 0;
  while (sample.context.size() < chars) {
    const std::string k = numbers ? unique([&] { return prose.key(rng); })
                                  : unique([&] { return TextSource::name(rng) + " " + TextSource::name(rng); });
    const std::string v = numbers ? TextSource::number(rng, 6) : prose.key(rng);
    places.push_back(sample.context.size());
    items.emplace_back(k, v);
    sample.context += k + ": " + v + "\n";
  }
  Unique asked;
  n = std::min<int>(n, size32(items));
  while (size32(sample.questions) < n) {
    std::size_t i = 0;
    asked([&] { return items[i = rng.below(items.size())].first; });
    sample.questions.push_back({fmt::format("What is registered for {}?", items[i].first), items[i].second,
                                ratio(places[i], sample.context.size())});
  }
  return sample;
}

// A shuffled chain: every name of the answer is in another place.
Sample make_chain(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  static constexpr int kLinks = 120;
  Unique unique;
  std::vector<std::string> names;
  for (int i = 0; i <= kLinks; ++i) names.push_back(unique([&] { return TextSource::name(rng); }));
  std::vector<std::string> links;
  for (int i = 0; i < kLinks; ++i) links.push_back(fmt::format("After {} comes {}.\n", names[i], names[i + 1]));
  for (std::size_t i = links.size(); i > 1; --i) std::swap(links[i - 1], links[rng.below(i)]);
  std::string block = "\n";
  for (const std::string& link : links) block += link;
  Sample sample = hide(prose, chars, {{{block, -1}}}, {}, rng);
  for (int i = 0; i < n; ++i) {
    const int length = draw_between(rng, 4, 16), start = draw_between(rng, 0, kLinks - length);
    const auto first = names.begin() + start + 1;
    sample.questions.push_back({fmt::format("Starting from {}, list the next {} names in order.", names[start], length),
                                fmt::format("{}", fmt::join(first, first + length, " "))});
  }
  return sample;
}

Sample make_list(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string tag = facts.name();
    Unique unique;
    std::vector<std::string> words;
    for (int j = draw_between(rng, 5, 24); j > 0; --j) words.push_back(unique([&] { return prose.word(rng); }));
    facts.tell({{fmt::format("List {}: {}.", tag, fmt::join(words, ", ")), i}});
    const std::size_t at = rng.below(words.size() - 1);
    if (rng.below(2) != 0)
      facts.ask(fmt::format("Write list {}.", tag), fmt::format("{}", fmt::join(words, ", ")));
    else
      facts.ask(fmt::format("Which word follows {} in list {}?", words[at], tag), words[at + 1]);
  }
  return facts.hidden(chars);
}

// A program over x modulo 10: every line of the answer reads one line of the program and the state before.
Sample make_program(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string tag = facts.name();
    int x = draw_between(rng, 0, 9);
    std::string program = fmt::format("Program {} starts with x = {}.", tag, x), trace;
    const int steps = draw_between(rng, 3, 12);
    for (int s = 1; s <= steps; ++s) {
      const int operand = draw_between(rng, 1, 9);
      switch (rng.below(3)) {
        case 0:
          x = (x + operand) % 10;
          program += fmt::format("\nstep {}: add {}", s, operand);
          break;
        case 1:
          x = (x - operand + 10) % 10;
          program += fmt::format("\nstep {}: take {}", s, operand);
          break;
        default:
          x = operand;
          program += fmt::format("\nstep {}: set {}", s, operand);
      }
      trace += fmt::format("{}{}: {}", s > 1 ? "\n" : "", s, x);
    }
    facts.tell({{program, i}});
    facts.ask(fmt::format("Run program {} and show x after every step.", tag), trace);
  }
  return facts.hidden(chars);
}

Sample make_sections(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Sample sample;
  std::vector<std::pair<int, std::string>> sections;
  std::vector<std::size_t> places;
  Unique unique;
  while (sample.context.size() < chars) {
    const std::string number = unique([&] { return std::to_string(draw_between(rng, 1, 999)); });
    if (sections.size() >= 900) break;
    std::string text(prose.passage(draw_between(rng, 80, 240), rng));
    std::replace(text.begin(), text.end(), '\n', ' ');
    while (!text.empty() && text.back() == ' ') text.pop_back();
    places.push_back(sample.context.size());
    sections.emplace_back(std::stoi(number), text);
    sample.context += fmt::format("\nSection {}.\n{}", number, text);
  }
  for (int i = 0; i < n; ++i) {
    const std::size_t s = rng.below(sections.size());
    sample.questions.push_back({fmt::format("Repeat section {}.", sections[s].first), sections[s].second,
                                ratio(places[s], sample.context.size())});
  }
  return sample;
}

// Questions of three kinds, asked one after the other over one context that remembers the turns.
Sample make_turns(const TextSource& prose, std::size_t chars, int n, Rng& rng) {
  Facts facts(prose, rng);
  for (int i = 0; i < n; ++i) {
    const std::string k = facts.key();
    switch (i % 3) {
      case 0: {
        const std::string v = TextSource::number(rng);
        facts.tell({{fmt::format("The secret number of {} is {}.", k, v), i}});
        facts.ask(fmt::format("What is the secret number of {}?", k), v);
        break;
      }
      case 1: {
        const std::string v = facts.key();
        facts.tell({{fmt::format("The password for {} is {}.", k, v), i}});
        facts.ask(fmt::format("What is the password for {}?", k), v);
        break;
      }
      default: {
        const std::string house = facts.name(), town = facts.name();
        facts.tell({{stands_in(house, town), i}});
        facts.ask(fmt::format("Where does the house of {} stand?", house), town);
      }
    }
  }
  Sample sample = facts.hidden(chars);
  sample.turns = true;
  return sample;
}

constexpr std::array kTable = {
    TaskEntry{"number", "the number of a key", 10, make_number},
    TaskEntry{"password", "the two words that belong to a key", 10, make_password},
    TaskEntry{"where", "where a house stands, or whose it is", 10, make_where},
    TaskEntry{"several", "all numbers of a key, in order", 6, make_several},
    TaskEntry{"two_hops", "the town of a person, by way of the house", 10, make_two_hops},
    TaskEntry{"variables", "all variables that got a value, from one another", 8, make_variables},
    TaskEntry{"register", "the value of one of hundreds of look-alike lines", 10, make_register},
    TaskEntry{"chain", "the next 4 to 16 names of a shuffled chain: every step looks elsewhere", 8, make_chain},
    TaskEntry{"list", "a list written out, or the word after a word", 8, make_list},
    TaskEntry{"program", "every state of a small program", 6, make_program},
    TaskEntry{"sections", "a section repeated word for word", 6, make_sections},
    TaskEntry{"passkey", "one pass key", 1, make_passkey},
    TaskEntry{"turns", "six questions one after the other over one context", 6, make_turns},
};

}  // namespace

std::span<const TaskEntry> task_table() {
  return kTable;
}

const TaskEntry& find_task(std::string_view name) {
  std::vector<std::string_view> names;
  for (const TaskEntry& row : kTable) {
    if (row.name == name) return row;
    names.push_back(row.name);
  }
  fail(ErrorKind::kOption, "no task is called '{}'; there are: {}", name, fmt::join(names, ", "));
}

Sample make_sample(const TaskEntry& task, const TextSource& prose, std::int64_t tokens, std::uint64_t seed,
                   std::int64_t number, const TokenCounter& counter) {
  // The same draws at every trial length, so that only the amount of prose changes: about four characters a token, then
  // corrected.
  double chars = real(tokens) * 4.0;
  Sample best;
  std::int64_t best_tokens = -1;
  for (int trial = 0; trial < 8; ++trial) {
    std::uint64_t stream = seed;
    for (char c : task.name) stream = Rng(stream ^ byte_of(c)).next();
    Rng rng = Rng::of_item(stream ^ tokens, number);
    Sample sample = task.make(prose, static_cast<std::size_t>(chars), task.questions_per_context, rng);
    const std::int64_t n = counter.count(sample.context);
    if (n <= tokens && n > best_tokens) {
      best_tokens = n;
      best = std::move(sample);
    }
    if (best_tokens >= tokens - tokens * 3 / 100) return best;
    chars *= 0.985 * real(tokens) / real(std::max<std::int64_t>(n, 1));
  }
  if (best_tokens < 0)
    fail(ErrorKind::kOption, "the facts of task '{}' alone take more than {} tokens; ask for a longer context",
         task.name, tokens);
  return best;
}

bool is_right(std::string_view answer, const Question& question) {
  const auto trimmed = [](std::string_view s) {
    while (!s.empty() && (s.front() == ' ' || s.front() == '\n')) s.remove_prefix(1);
    while (!s.empty() && (s.back() == ' ' || s.back() == '\n')) s.remove_suffix(1);
    return s;
  };
  return trimmed(answer) == trimmed(question.answer);
}

}  // namespace mneme::eval
