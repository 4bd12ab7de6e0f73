#include "src/text/answer/answer_parser.h"

#include <gtest/gtest.h>

#include <ctime>
#include <stdexcept>

#include "tests/text/answer/goldens.h"

namespace mneme {
namespace {

using answer_test::Golden;
using answer_test::goldens;

const AnswerTools& tools() {
  static const AnswerTools kAll = answer_tools_of(nlohmann::ordered_json::parse(answer_test::kTools));
  return kAll;
}

const AnswerFormat& format_of(const std::string& name) {
  const AnswerFormat* const format = known_answer_format(name);
  if (format == nullptr) throw std::runtime_error("no format " + name);
  return *format;
}

// What the events say: pieces of the same part are one.
struct Read {
  std::string thought, text;
  std::vector<std::pair<std::string, std::string>> calls;
  std::vector<std::string> ids;
  std::vector<AnswerEvent> events;
  std::size_t open = 0, bytes = 0;
  bool operator==(const Read& other) const {
    return thought == other.thought && text == other.text && calls == other.calls && ids == other.ids &&
           same_order(other);
  }
  bool same_order(const Read& other) const {
    return events.size() == other.events.size() &&
           std::equal(events.begin(), events.end(), other.events.begin(), [](const auto& a, const auto& b) {
             return a.part == b.part && a.text == b.text && a.call == b.call && a.id == b.id;
           });
  }
};

void take(const AnswerEvent& event, Read& out) {
  ASSERT_GE(event.end, out.bytes) << "events go on in the answer";
  out.bytes = event.end;
  switch (event.part) {
    case AnswerPart::kThought:
      out.thought += event.text;
      break;
    case AnswerPart::kText:
      out.text += event.text;
      break;
    case AnswerPart::kCallBegin:
      ASSERT_EQ(out.open, 0u);
      ASSERT_EQ(event.call, std::ssize(out.calls));
      out.calls.emplace_back(event.text, "");
      out.ids.push_back(event.id);
      ++out.open;
      break;
    case AnswerPart::kArguments:
      ASSERT_EQ(out.open, 1u);
      ASSERT_EQ(event.call + 1, std::ssize(out.calls));
      out.calls.back().second += event.text;
      break;
    case AnswerPart::kCallEnd:
      ASSERT_EQ(out.open, 1u);
      --out.open;
      break;
  }
  if (event.part != AnswerPart::kCallBegin && event.part != AnswerPart::kCallEnd && !out.events.empty() &&
      out.events.back().part == event.part) {
    out.events.back().text += event.text;
  } else {
    out.events.push_back(event);
  }
}

Read read(const AnswerMarks& marks, const std::vector<std::string_view>& pieces, AnswerParser::Setting setting) {
  const auto parser = AnswerParser::make(marks, setting);
  Read out;
  std::vector<AnswerEvent> events;
  for (const std::string_view piece : pieces) parser->push(piece, events);
  parser->finish(events);
  for (const AnswerEvent& event : events) take(event, out);
  EXPECT_EQ(out.open, 0u) << "a call without its end";
  return out;
}

Read read(const Golden& golden, const std::vector<std::string_view>& pieces) {
  return read(AnswerMarks(format_of(golden.format)), pieces, {.in_thought = golden.in_thought, .tools = &tools()});
}

std::vector<std::string_view> bytes_of(std::string_view text) {
  std::vector<std::string_view> pieces;
  for (std::size_t i = 0; i < text.size(); ++i) pieces.push_back(text.substr(i, 1));
  return pieces;
}

TEST(AnswerParser, ReadsTheAnswersOfEveryFamily) {
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.format + ": " + golden.answer);
    const Read got = read(golden, {golden.answer});
    EXPECT_EQ(got.thought, golden.thought);
    EXPECT_EQ(got.text, golden.text);
    EXPECT_EQ(got.calls, golden.calls);
  }
}

TEST(AnswerParser, HasAGoldenOfEveryFormat) {
  for (const std::string& name : known_answer_formats()) {
    const bool there =
        std::any_of(goldens().begin(), goldens().end(), [&](const Golden& g) { return g.format == name; });
    EXPECT_TRUE(there || name == "think-mistral") << name;
    EXPECT_EQ(problem_of(format_of(name)), "") << name;
  }
}

TEST(AnswerParser, GivesTheSameEventsHoweverTheAnswerIsCut) {
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.format + ": " + golden.answer);
    const std::string_view answer = golden.answer;
    const Read whole = read(golden, {answer});
    EXPECT_TRUE(read(golden, bytes_of(answer)) == whole) << "byte by byte";
    for (std::size_t at = 1; at < answer.size(); ++at)
      ASSERT_TRUE(read(golden, {answer.substr(0, at), answer.substr(at)}) == whole) << "cut at " << at;
  }
}

// Without tools the marks of calls are text; only white space and the marks of thoughts are left out.
TEST(AnswerParser, LeavesCallsInTheTextWhereNoToolWasGiven) {
  for (const Golden& golden : goldens()) {
    if (golden.calls.empty() || golden.format == "harmony" || golden.format == "kimi-k3") continue;
    SCOPED_TRACE(golden.format + ": " + golden.answer);
    const Read got = read(AnswerMarks(format_of(golden.format)), {golden.answer}, {.in_thought = golden.in_thought});
    EXPECT_TRUE(got.calls.empty());
    for (const auto& [name, arguments] : golden.calls)
      EXPECT_NE((got.thought + got.text).find(name), std::string::npos);
  }
}

// Whatever is no call comes back byte for byte.
TEST(AnswerParser, LosesNoText) {
  for (const std::string& name : known_answer_formats()) {
    if (name == "harmony") continue;
    const AnswerFormat& f = format_of(name);
    const std::string text = "x" + f.call.section_open + " y " + f.call.open + " two words { [ \" \n" + f.call.close +
                             f.call.section_close + " .";
    const Read got = read(AnswerMarks(f), {text}, {.tools = &tools()});
    EXPECT_TRUE(got.calls.empty()) << name;
    EXPECT_EQ(got.text, text) << name;
  }
}

TEST(AnswerParser, ReadsIdsThatTheModelGives) {
  const auto ids = [](const char* format, std::string_view answer) {
    return read(AnswerMarks(format_of(format)), {answer}, {.tools = &tools()}).ids;
  };
  using Ids = std::vector<std::string>;
  EXPECT_EQ(ids("kimi-k2", "<|tool_call_begin|>functions.now:4<|tool_call_argument_begin|>{}<|tool_call_end|>"),
            Ids{"functions.now:4"});
  EXPECT_EQ(ids("mistral-v11", "[TOOL_CALLS]now[CALL_ID]a1b2c3d4e[ARGS]{}"), Ids{"a1b2c3d4e"});
  EXPECT_EQ(ids("solar", "<|tool_call:begin|>i7<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>"), Ids{"i7"});
  EXPECT_EQ(
      ids("cohere", R"(<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "now", "parameters": {}}]<|END_ACTION|>)"),
      Ids{"0"});
}

// A special token is a mark; the same characters as text are none.
TEST(AnswerParser, TellsSpecialTokensFromTextThatSpellsThem) {
  TokenizerData data;
  data.pre = "gpt-2";
  for (const char* token : {"a", "<|tool_call>", "<tool_call|>", "<|\"|>", "<|other|>"})
    data.tokens.emplace_back(token);
  data.types.assign(data.tokens.size(), TokenType::kControl);
  data.types[0] = TokenType::kNormal;
  const auto tokenizer = Tokenizer::make(data);
  const AnswerMarks marks(format_of("gemma4"), *tokenizer);
  EXPECT_EQ(marks.bytes_of(4), "") << "no mark has it";
  const std::string open(marks.bytes_of(1)), close(marks.bytes_of(2)), quote(marks.bytes_of(3));
  const std::string written =
      "<|tool_call>call:now{}<tool_call|> " + open + "call:find{where:" + quote + "a<|\"|>b" + quote + "}" + close;
  const Read got = read(marks, {written}, {.tools = &tools()});
  EXPECT_EQ(got.text, "<|tool_call>call:now{}<tool_call|>");
  const std::vector<std::pair<std::string, std::string>> calls = {{"find", R"({"where": "a<|\"|>b"})"}};
  EXPECT_EQ(got.calls, calls);
  const Read broken = read(marks, {open + "no"}, {.tools = &tools()});
  EXPECT_EQ(broken.text, "<|tool_call>no");
}

TEST(AnswerParser, SeesThoughtsThatThePromptOpens) {
  TokenizerData data;
  data.pre = "gpt-2";
  for (const char* token : {"<think>", "</think>", "\xC4\x8A", "a"}) data.tokens.emplace_back(token);
  data.types = {TokenType::kControl, TokenType::kControl, TokenType::kNormal, TokenType::kNormal};
  const auto tokenizer = Tokenizer::make(data);
  const AnswerMarks marks(format_of("hermes"), *tokenizer);
  EXPECT_TRUE(marks.opens_thought(std::vector<TokenId>{3, 0}, *tokenizer));
  EXPECT_TRUE(marks.opens_thought(std::vector<TokenId>{3, 0, 2}, *tokenizer)) << "and a newline";
  EXPECT_FALSE(marks.opens_thought(std::vector<TokenId>{0, 2, 1}, *tokenizer)) << "closed at once";
  EXPECT_FALSE(marks.opens_thought(std::vector<TokenId>{}, *tokenizer));
}

std::string repeated(std::string_view text, std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += text;
  return out;
}

// Steps of a reader are counted by the processor's time, with a wide margin: eight times the bytes, far less than 64 times as long.
TEST(AnswerParser, TakesTimeLinearInTheBytes) {
  const auto seconds = [](const std::string& format, const std::string& answer) {
    const std::clock_t begin = std::clock();
    const std::string_view all = answer;
    std::vector<std::string_view> pieces;
    for (std::size_t at = 0; at < all.size(); at += 61) pieces.push_back(all.substr(at, 61));
    read(AnswerMarks(format_of(format)), pieces, {.tools = &tools()});
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  };
  const std::vector<std::pair<std::string, std::string>> hard = {
      {"hermes", "<tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"<tool_call>\""},
      {"hermes", "<think> </think> \n"},
      {"qwen-xml", "<tool_call>\n<function=f>\n<parameter=a>\n"},
      {"qwen-xml", "<tool_call><function=f><parameter=a></parameter>  "},
      {"gemma4", "<|tool_call>call:f{a:{"},
      {"lfm2", "<|tool_call_start|>[f(a=[{'a':"},
      {"harmony", "<|channel|>a<|message|><|start|>"},
      {"mistral-v11", "[TOOL_CALLS]a[CALL_ID]"}};
  for (const auto& [format, opener] : hard) {
    // The shortest opener 100,000 times, the longer ones fewer times.
    const std::size_t n = opener == "<tool_call>" ? 100000 : 24000;
    const double few = seconds(format, repeated(opener, n / 8)), many = seconds(format, repeated(opener, n));
    EXPECT_LE(many, 40 * few + 0.2) << format << ": " << opener;
  }
}

}  // namespace
}  // namespace mneme
