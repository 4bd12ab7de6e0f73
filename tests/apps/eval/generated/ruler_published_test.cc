// Samples beside what the published generator makes of the same sources: counts, sizes and frames, as
// tools/make_ruler_counts.py took them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "apps/eval/generated/ruler.h"
#include "apps/eval/scorers/words.h"
#include "apps/eval/suites/ruler_sources.h"
#include "tests/apps/eval/generated/published_words.h"
#include "tests/apps/eval/suites/data_folder.h"

namespace mneme::eval {
namespace {

using nlohmann::json;

// A token is a word.
class Words final : public TokenCounter {
 public:
  std::int64_t count(std::string_view text) const override { return std::ssize(split_words(text)); }
};

// The sources of tools/make_ruler_counts.py.
std::string words(std::int64_t first, std::int64_t last) {
  std::string out;
  for (std::int64_t i = first; i < last; ++i) out += word(i) + "\n";
  return out;
}

std::string essays() {
  std::string text;
  for (int i = 0; i < 6000; ++i)
    text += fmt::format("{}The {} and {} saw {}.", i > 0 ? " " : "", word(3 * i), word(3 * i + 1), word(3 * i + 2));
  return json{{"text", text}}.dump();
}

json paragraph(int a, int p) {
  std::string text = fmt::format("Article {}.{}:", a, p);
  for (int k = 0; k < 20; ++k) text += " " + word(5 * a + p + k);
  const json answered = {{"question", fmt::format("What is {} {}?", a, p)},
                         {"is_impossible", false},
                         {"answers", json::array({{{"text", fmt::format("it {} {}", a, p)}}})}};
  const json impossible = {{"question", "Nothing?"}, {"is_impossible", true}, {"answers", json::array()}};
  return {{"context", text + " end."}, {"qas", json::array({answered, impossible})}};
}

std::string squad() {
  json data = json::array();
  for (int a = 0; a < 60; ++a) {
    json paragraphs = json::array();
    for (int p = 0; p < 5; ++p) paragraphs.push_back(paragraph(a, p));
    data.push_back({{"paragraphs", paragraphs}});
  }
  return json{{"data", data}}.dump();
}

std::string hotpotqa() {
  json all = json::array();
  for (int q = 0; q < 40; ++q) {
    json context = json::array();
    for (int p = 0; p < 10; ++p)
      context.push_back(json::array(
          {fmt::format("Title {}.{}", q, p), json::array({fmt::format("First {}.", word(q + p)),
                                                          fmt::format(" Second {} with more words.", word(q * p))})}));
    all.push_back(
        {{"question", fmt::format("Which is {}?", q)}, {"answer", fmt::format("that {}", q)}, {"context", context}});
  }
  return all.dump();
}

std::shared_ptr<const RulerSources> sources() {
  static const std::shared_ptr<const RulerSources> made = [] {
    const DataFolder folder;
    folder.write("PaulGrahamEssays.json", essays());
    folder.write("nounlist.txt", words(0, 400));
    folder.write("adjectivelist.txt", words(400, 440));
    folder.write("verblist.txt", words(1000, 9000));
    folder.write("squad.json", squad());
    folder.write("hotpotqa.json", hotpotqa());
    return read_ruler_sources(folder.path());
  }();
  return made;
}

std::int64_t occurrences(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  return std::distance(std::sregex_iterator(text.begin(), text.end(), expression), std::sregex_iterator());
}

std::vector<std::string> matches(const std::string& text, const std::string& pattern) {
  const std::regex expression(pattern);
  std::vector<std::string> all;
  for (std::sregex_iterator at(text.begin(), text.end(), expression), end; at != end; ++at) all.push_back((*at)[1]);
  return all;
}

std::string masked(const std::string& text) {
  return std::regex_replace(
      std::regex_replace(text, std::regex(" for \\S+(, \\S+)*(, and \\S+)? mentioned"), " for KEYS mentioned"),
      std::regex("[0-9]+"), "#");
}

std::string from_last(const std::string& text, std::string_view part) {
  return text.substr(text.rfind(part));
}

std::vector<std::int64_t> falling_counts(const std::vector<std::string>& all) {
  std::map<std::string, std::int64_t> by_word;
  for (const std::string& w : all) ++by_word[w];
  std::vector<std::int64_t> counts;
  for (const auto& [w, n] : by_word) counts.push_back(n);
  std::sort(counts.rbegin(), counts.rend());
  return counts;
}

void describe_needles(const std::string& task, const GeneratedQuestion& q, json& out) {
  out["needles"] = occurrences(q.prompt, "One of the special magic \\w+ for \\S+ is: \\S+\\.");
  out["noise"] = occurrences(q.prompt, "The grass is green\\.");
  out["frame"] =
      masked(q.prompt.substr(0, q.prompt.find('\n')) + "|" + from_last(q.prompt, "\n") + "|" + q.answer_prefix);
  if (task == "niah_single_1" || task == "niah_multikey_2" || task == "niah_multikey_3")
    out["lines"] = std::count(q.prompt.begin(), q.prompt.end(), '\n');
  else
    out["sentences"] = occurrences(q.prompt, " saw [a-z]+\\.");
}

void describe_variables(const GeneratedQuestion& q, json& out) {
  const std::size_t cut = q.prompt.find("\n\nMemorize");
  const std::string first = q.prompt.substr(0, cut), second = q.prompt.substr(cut);
  out["noise_of_example"] = occurrences(first, "The grass is green\\.");
  out["noise"] = occurrences(second, "The grass is green\\.");
  out["lines"] = occurrences(second, "VAR ") - 4;
  const std::string example = std::regex_replace(from_last(first, "Question:"), std::regex("\\b[A-Z]{3}\\b"), "V");
  out["frame"] = masked(example + "|" + from_last(second, "\n") + "|" + q.answer_prefix);
}

void describe_common_words(const GeneratedQuestion& q, json& out) {
  const std::size_t cut = q.prompt.find("\nBelow");
  const std::string first = q.prompt.substr(0, cut), second = q.prompt.substr(cut);
  for (const auto& [name, part] : {std::pair<std::string, std::string>{"example_", first}, {"", second}}) {
    const auto all = matches(part.substr(0, part.rfind("\nQuestion:")), "[0-9]+\\. (\\S+)");
    const auto counts = falling_counts(all);
    out[name + "entries"] = all.size(), out[name + "least"] = counts.back(), out[name + "most"] = counts.front();
  }
  const std::string example = std::regex_replace(from_last(first, "Question:"), std::regex("[0-9]+\\. \\S+"), "W");
  out["frame"] = masked(example + "|" + from_last(second, "\n") + "|" + q.answer_prefix);
}

void describe_frequent_words(const GeneratedQuestion& q, json& out) {
  const std::size_t begin = q.prompt.find("coded words. "), end = q.prompt.rfind("\nQuestion:");
  std::vector<std::string> all;
  const std::string text = q.prompt.substr(begin + 13, end - begin - 13);
  for (std::string_view w : split_words(text)) all.emplace_back(w);
  auto counts = falling_counts(all);
  out["entries"] = all.size(), out["different"] = counts.size();
  counts.resize(6);
  out["first"] = counts;
  out["frame"] = masked(q.prompt.substr(0, begin) + "|" + from_last(q.prompt, "\n") + "|" + q.answer_prefix);
}

void describe_documents(const GeneratedQuestion& q, json& out) {
  const std::size_t begin = q.prompt.find("Document 1:"), end = q.prompt.find("\n\nAnswer the question");
  std::set<std::string> different;
  std::int64_t n = 0;
  for (std::size_t at = begin; at < end;) {
    const std::size_t next = std::min(q.prompt.find("\n\n", at), end);
    const std::string document = q.prompt.substr(at, next - at);
    different.insert(document.substr(document.find('\n')));
    EXPECT_TRUE(document.starts_with(fmt::format("Document {}:\n", ++n)));
    at = next + 2;
  }
  out["documents"] = n, out["different"] = different.size();
  const std::string behind = q.prompt.substr(end);
  out["frame"] =
      masked(q.prompt.substr(0, begin) + "|" + behind.substr(0, behind.rfind("Question:")) + "|" + q.answer_prefix);
}

json described(const std::string& task, const GeneratedQuestion& q) {
  const Words counter;
  json out = {{"words", counter.count(q.prompt + q.answer_prefix)}, {"answers", q.answers.size()}};
  if (task.starts_with("niah")) describe_needles(task, q, out);
  if (task == "vt") describe_variables(q, out);
  if (task == "cwe") describe_common_words(q, out);
  if (task == "fwe") describe_frequent_words(q, out);
  if (task.starts_with("qa")) describe_documents(q, out);
  return out;
}

// By word the sizes follow from the rules alone: those that the published generator found are found here.
TEST(RulerBesideThePublishedGenerator, CountsSizesAndFramesAreEqual) {
  static const TextSource prose = TextSource::generated();
  const json published = json::parse(std::ifstream(MNEME_RULER_DATA "/ruler_published.json"));
  const Words counter;
  int compared = 0;
  for (const json& row : published.at("rows")) {
    const auto name = row.at("task").get<std::string>();
    const auto length = row.at("length").get<std::int64_t>();
    const auto task =
        std::find_if(ruler_tasks().begin(), ruler_tasks().end(), [&](const auto& t) { return t.name == name; });
    ASSERT_NE(task, ruler_tasks().end()) << name;
    const RulerSetting setting{
        .prose = prose, .counter = counter, .length = length, .task = name, .sources = sources().get()};
    for (std::size_t i = 0; i < row.at("samples").size(); ++i) {
      const json ours = described(name, make_ruler(*task, setting, published.at("frame_tokens"), 42, i));
      EXPECT_EQ(ours.dump(1), row.at("samples")[i].dump(1)) << name << " of " << length << ", sample " << i;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 13 * 3 * 3);
}

TEST(RulerSources, AreReadFromAFolderAndErrorsNameTheField) {
  EXPECT_EQ(sources()->one_hop.questions.size(), 300u);
  EXPECT_EQ(sources()->one_hop.documents.size(), 300u);
  EXPECT_EQ(sources()->one_hop.questions[0].near.size(), 4u) << "the article's other paragraphs";
  EXPECT_EQ(sources()->two_hops.questions.size(), 40u);
  EXPECT_EQ(sources()->two_hops.questions[7].gold.size(), 10u);
  const DataFolder none;
  EXPECT_EQ(read_ruler_sources(none.path()), nullptr);
  const std::vector<std::pair<std::string, std::string>> broken = {
      {R"({"data": 1})", "field 'data': expected an array"},
      {R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q", "answers": []}]}]}]})", "at least one"},
      {"{", "expected a JSON document"}};
  for (const auto& [text, what] : broken) {
    const DataFolder folder;
    folder.write("squad.json", text);
    try {
      read_ruler_sources(folder.path());
      ADD_FAILURE() << text;
    } catch (const std::exception& e) {
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    }
  }
  const DataFolder folder;
  folder.write("hotpotqa.json", R"([{"question": "q", "answer": "a", "context": ["no pair"]}])");
  EXPECT_THROW(read_ruler_sources(folder.path()), std::exception);
}

}  // namespace
}  // namespace mneme::eval
