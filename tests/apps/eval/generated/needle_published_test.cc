// Needles and pass keys beside what the published generators make: lengths, positions and checksums, as
// tools/make_needle_counts.py took them. A token is a character.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "apps/eval/generated/needle.h"
#include "tests/apps/eval/generated/published_words.h"

namespace mneme::eval {
namespace {

using nlohmann::json;

class Characters final : public TokenCounter {
 public:
  std::int64_t count(std::string_view text) const override { return std::ssize(text); }
};

json published() {
  return json::parse(std::ifstream(MNEME_RULER_DATA "/needle_published.json"));
}

// FNV-1a in 64 bits of the text with runs of digits as '#'.
std::string checksum(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char c : std::regex_replace(text, std::regex("[0-9]+"), "#"))
    value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", value);
}

std::string essay() {
  std::string text;
  for (std::int64_t i = 0; i < 2000; ++i) {
    text += i == 0 ? "The " : " The ";
    for (std::int64_t k = 0; k < 1 + i * 7 % 11; ++k) text += (k == 0 ? "" : " and the ") + word(i + k);
    text += " ended.";
  }
  return text;
}

TEST(PasskeyBesideThePublishedGenerator, EveryCharacterIsEqual) {
  const json rows = published();
  const auto depths = rows.at("depths").get<std::vector<double>>();
  const auto& samples = rows.at("passkeys");
  const Characters counter;
  ASSERT_EQ(samples.size(), 40 * depths.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto tokens = samples[i][0].get<std::int64_t>();
    const double depth = depths[i % depths.size()];
    const GeneratedQuestion q = make_passkey(counter, tokens, depth, 1, static_cast<std::int64_t>(i));
    const auto key = std::ssize(q.answers[0]);  // theirs has five digits, twice
    const std::string what = fmt::format("{} characters at {}", tokens, depth);
    EXPECT_EQ(std::ssize(q.prompt), tokens - 2 * (5 - key)) << what;
    EXPECT_EQ(std::count(q.prompt.begin(), q.prompt.end(), '\n'), samples[i][1].get<std::int64_t>()) << what;
    EXPECT_EQ(checksum(q.prompt), samples[i][2].get<std::string>()) << what;
  }
}

TEST(NeedleBesideThePublishedGenerator, StandsAtTheSameCharacter) {
  const json rows = published();
  const auto depths = rows.at("depths").get<std::vector<double>>();
  const auto& needles = rows.at("needles");
  const auto step = rows.at("needle_step").get<std::int64_t>();
  const TextSource prose(essay());
  const Characters counter;
  int compared = 0;
  for (std::int64_t row = 0; row < std::ssize(needles); ++row)
    for (std::size_t d = 0; d < depths.size(); ++d) {
      const std::string head = "(some of which might be irrelevant).\n", tail = "\n\nQuestion: ";
      // The frame and the city differ by sample: what the prompt has beyond the essay is known after a first look.
      const std::int64_t wanted = step * (row + 1);
      const auto made = [&](std::int64_t tokens) { return make_needle(prose, counter, tokens, depths[d], 1, row); };
      const GeneratedQuestion look = made(2000);
      const auto essay_of = [&](const std::string& prompt) {
        const std::size_t begin = prompt.find(head) + head.size();
        return prompt.substr(begin, prompt.rfind(tail) - begin);
      };
      const std::string needle = std::regex_replace(
          look.prompt, std::regex("[^]*(\nThe special magic [A-Za-z]+ number is: [0-9]+\n)[^]*"), "$1");
      const std::int64_t frame = std::ssize(look.prompt) - std::ssize(essay_of(look.prompt)) + std::ssize(needle);
      const std::string context = essay_of(made(frame + wanted).prompt);
      ASSERT_EQ(std::ssize(context), wanted + std::ssize(needle));
      EXPECT_EQ(context.find(needle), needles[row][d].get<std::size_t>()) << wanted << " characters at " << depths[d];
      ++compared;
    }
  EXPECT_EQ(compared, 300);
}

}  // namespace
}  // namespace mneme::eval
