// What a chat template writes of an answer comes back from it: thought, text and calls.
//
// MNEME_CHAT_TEMPLATES names a folder of models' templates (*.jinja), which are not part of this repository; without it
// only the templates written for this test are read.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>

#include "mneme/error.h"
#include "src/text/answer/answer_parser.h"
#include "src/text/answer/derive_format.h"
#include "src/text/answer/find_format.h"
#include "tests/text/answer/mini_templates.h"

namespace mneme {
namespace {

using Json = nlohmann::ordered_json;

const Tokenizer& tokenizer() {
  static const auto kMade = [] {
    TokenizerData data;
    data.pre = "gpt-2";
    data.tokens = {"<|bos|>", "<|eos|>"};
    data.types = {TokenType::kControl, TokenType::kControl};
    data.bos = 0;
    data.eos = 1;
    return Tokenizer::make(data);
  }();
  return *kMade;
}

const Json& tools() {
  static const Json kTools = Json::parse(R"([
    {"type": "function", "function": {"name": "find_place", "description": "Finds.", "parameters": {"type": "object",
      "properties": {"where": {"type": "string", "description": "w"}, "limit": {"type": "integer", "description": "l"},
      "exact": {"type": "boolean", "description": "e"}}, "required": ["where"]}}},
    {"type": "function", "function": {"name": "get_time", "description": "Now.", "parameters": {"type": "object",
      "properties": {"zone": {"type": "string", "description": "z"}}, "required": []}}}])");
  return kTools;
}

Json call(const char* id, const char* name, Json arguments) {
  return {{"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", std::move(arguments)}}}};
}

struct Answer {
  std::string thought, text;
  std::vector<std::pair<std::string, Json>> calls;
};

const std::vector<Answer>& answers() {
  static const std::vector<Answer> kAll = {
      {"", "Plain text, with {braces} and a <b>tag</b>.", {}},
      {"I think.", "So it is.", {}},
      {"", "", {{"find_place", {{"where", "Köln \"am\" Rhein"}, {"limit", 3}, {"exact", true}}}}},
      {"I look.", "", {{"find_place", {{"where", "a\nb"}}}}},
      {"", "", {{"find_place", {{"where", "x"}}}, {"get_time", {{"zone", "UTC"}}}}},
      {"", "", {{"get_time", Json::object()}}}};
  return kAll;
}

std::optional<std::string> render(const ChatTemplate& used, const Json& answer, bool prompt) {
  ChatInput input;
  input.messages.push_back({{"role", "user"}, {"content", "Where is it?"}});
  if (!answer.is_null()) input.messages.push_back(answer);
  input.tools = tools();
  input.add_generation_prompt = prompt;
  input.arguments["enable_thinking"] = true;
  input.now = 0;
  try {
    return std::string(used.render(input, tokenizer()).view());
  } catch (const Error&) {
    return std::nullopt;
  }
}

Json message_of(const Answer& answer) {
  Json message = {{"role", "assistant"}, {"content", answer.text}};
  if (!answer.thought.empty()) message["reasoning_content"] = message["thinking"] = answer.thought;
  static const char* const kIds[] = {"a1b2c3d4e", "b1b2c3d4e"};
  for (std::size_t i = 0; i < answer.calls.size(); ++i)
    message["tool_calls"].push_back(call(kIds[i], answer.calls[i].first.c_str(), answer.calls[i].second));
  return message;
}

// Tokens that end an answer, where the template ends one with calls by another than one without.
constexpr std::string_view kEnds[] = {
    "<|END_OF_TURN_TOKEN|>", "<|end_of_msg|>",   "<|eom_id|>",      "<|calls|>",
    "<SPECIAL_12>",          "<|tool_response>", "<|observation|>", "<｜hy_eos:opensource｜>",
    "<｜end▁of▁sentence｜>"};

// The text that the model would have written, and whether the prompt has opened a thought; nothing where the template
// refuses the conversation.
struct Written {
  std::string text;
  bool in_thought = false;
};
std::optional<Written> written(const ChatTemplate& used, const AnswerFormat& format, const Answer& answer) {
  const auto prompt = render(used, nullptr, true), bare = render(used, nullptr, false);
  const auto all = render(used, message_of(answer), false);
  const auto plain = render(used, {{"role", "assistant"}, {"content", "zqbqz"}}, false);
  if (!prompt || !bare || !all || !plain) return std::nullopt;
  Written out;
  std::string_view text = *all;
  std::size_t same = std::mismatch(text.begin(), text.end(), prompt->begin(), prompt->end()).first - text.begin();
  // Not within a mark: <think> and </think> begin alike.
  const std::size_t opened = text.substr(0, same).rfind('<');
  if (opened != std::string_view::npos && text.substr(opened, same - opened).find('>') == std::string_view::npos)
    same = opened;
  text.remove_prefix(same);
  const std::string_view footer = std::string_view(*plain).substr(plain->find("zqbqz") + 5);
  if (text.ends_with(footer)) text.remove_suffix(footer.size());
  for (const std::string_view end : kEnds)
    if (const std::size_t at = text.find(end); at != std::string_view::npos) text = text.substr(0, at);
  out.text = text;
  const std::string_view read = std::string_view(*all).substr(0, same);
  const std::string_view open = trimmed(format.thought_open);
  out.in_thought = !open.empty() && trimmed(read).ends_with(open);
  return out;
}

Answer read(const AnswerFormat& format, const Written& w) {
  const AnswerMarks marks(format);
  static const AnswerTools kTools = answer_tools_of(tools());
  const auto parser = AnswerParser::make(marks, {.in_thought = w.in_thought, .tools = &kTools});
  std::vector<AnswerEvent> events;
  parser->push(w.text, events);
  parser->finish(events);
  Answer out;
  std::string arguments;
  for (const AnswerEvent& e : events) {
    if (e.part == AnswerPart::kThought) out.thought += e.text;
    if (e.part == AnswerPart::kText) out.text += e.text;
    if (e.part == AnswerPart::kCallBegin) out.calls.emplace_back(e.text, Json());
    if (e.part == AnswerPart::kArguments) arguments += e.text;
    if (e.part == AnswerPart::kCallEnd)
      out.calls.back().second = Json::parse(std::exchange(arguments, ""), nullptr, false);
  }
  return out;
}

// What the template shows of the answer: a call that it leaves out cannot come back.
bool shows(const Answer& answer, const std::string& text) {
  if (!answer.thought.empty() && text.find(answer.thought) == std::string::npos) return false;
  return std::all_of(answer.calls.begin(), answer.calls.end(),
                     [&](const auto& c) { return text.find(c.first) != std::string::npos; });
}

bool equal(const Answer& a, const Answer& b) {
  const auto sorted = [](const std::vector<std::pair<std::string, Json>>& calls) {
    std::vector<std::pair<std::string, nlohmann::json>> out;
    for (const auto& [name, arguments] : calls) out.emplace_back(name, nlohmann::json(arguments));
    return out;
  };
  return trimmed(a.thought) == trimmed(b.thought) && trimmed(a.text) == trimmed(b.text) &&
         sorted(a.calls) == sorted(b.calls);
}

// Of the six conversations: those that come back, and those that the template shows in full.
struct Score {
  int right = 0, shown = 0;
  std::string wrong;
};
Score score(const ChatTemplate& used, const AnswerFormat& format) {
  Score s;
  for (const Answer& answer : answers()) {
    const auto text = written(used, format, answer);
    if (!text || !shows(answer, text->text)) continue;
    ++s.shown;
    const Answer back = read(format, *text);
    if (equal(back, answer)) {
      ++s.right;
    } else {
      s.wrong += "\n    " + text->text + "\n    thought: " + back.thought + " | text: " + back.text;
      for (const auto& [name, arguments] : back.calls) s.wrong += " | " + name + " " + arguments.dump();
    }
  }
  return s;
}

TEST(AnswerRoundTrip, ComesBackFromTemplatesOfEachForm) {
  for (const auto& [name, source] : answer_test::mini_templates()) {
    SCOPED_TRACE(name);
    const ChatTemplate used(source);
    const auto derived = derived_format(used, tokenizer());
    ASSERT_TRUE(derived.has_value());
    const Score s = score(used, *derived);
    EXPECT_EQ(s.right, s.shown) << json_of(*derived).dump() << s.wrong;
    EXPECT_GE(s.shown, 5) << "the template shows too little";
  }
}

TEST(AnswerRoundTrip, DerivesNothingWhereNothingIsShown) {
  for (const char* source : {"{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}",
                             "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ "
                             "raise_exception('no') }}{% endfor %}{% endfor %}",
                             "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}{% "
                             "endfor %}{% endfor %}"})
    EXPECT_FALSE(derived_format(ChatTemplate(source), tokenizer()).has_value()) << source;
}

TEST(AnswerFormat, IsFoundInTheOrderThatDocsName) {
  TokenizerData data;
  data.pre = "gpt-2";
  data.tokens = {"a"};
  data.response_template = R"({"version": 1, "start_anchor": "x", "fields": {
    "reasoning_content": {"open": "<t>", "close": ["</t>"]}, "content": {},
    "tool_calls": {"open": "<c>", "close": "</c>", "content": "json", "repeats": true, "transform": "{content}"}}})";
  const auto with_response_template = Tokenizer::make(data);
  const ChatTemplate known("{{ messages }}<tool_call></think>"), unknown("{{ messages }}");
  const auto found = [](std::string_view option, const ChatTemplate* used, const Tokenizer& t) {
    const FoundFormat f = find_answer_format(option, used, t);
    return f.how + " " + f.format.name;
  };
  EXPECT_EQ(found("qwen-xml", &known, *with_response_template), "option qwen-xml");
  EXPECT_EQ(found("none", &known, *with_response_template), "option plain");
  EXPECT_EQ(found("", &known, *with_response_template), "response_template response_template");
  EXPECT_EQ(found("", &known, tokenizer()), "known hermes");
  EXPECT_EQ(found("", &unknown, tokenizer()), "none plain");
  EXPECT_EQ(found("", nullptr, tokenizer()), "none plain");
  const AnswerFormat read = find_answer_format("", nullptr, *with_response_template).format;
  EXPECT_EQ(read.thought_close, "</t>");
  EXPECT_EQ(read.call.section_open, "<c>");
  data.response_template = R"({"fields": {"content": {}, "tool_calls": {"open_pattern": "<c.*>", "content": "json"}}})";
  EXPECT_EQ(found("", &known, *Tokenizer::make(data)), "known hermes") << "a regular expression";
}

TEST(AnswerFormat, ComesBackFromItsJson) {
  for (const std::string& name : known_answer_formats()) {
    const AnswerFormat& format = *known_answer_format(name);
    EXPECT_EQ(json_of(answer_format_of(json_of(format))), json_of(format)) << name;
  }
  const auto refused = [](const char* text) {
    try {
      answer_format_of(Json::parse(text));
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_NE(refused(R"({"thought_opens": "x"})").find("thought_opens"), std::string::npos);
  EXPECT_NE(refused(R"({"calls": "xml"})").find("calls"), std::string::npos);
  EXPECT_NE(refused(R"({"calls": "json", "call_open": "x"})").find("name_end"), std::string::npos);
  EXPECT_NE(refused(R"({"thought_open": "x"})").find("thought_close"), std::string::npos);
  EXPECT_NE(refused("[]").find("object"), std::string::npos);
}

// Conversations that do not come back, by template: all others do. Of llama.cpp b11434's 71 templates.
const std::map<std::string, int>& known_losses() {
  static const std::map<std::string, int> kLosses = {
      // The thought has no opening mark in the history: without it the mark that closes it is text.
      {"Apriel-1.6-15b-Thinker-fixed", 2},
      // Calls in a fence behind the word "Action:", an answer's turn that the history begins otherwise.
      {"CohereForAI-c4ai-command-r-plus-tool_use", 4},
      // The prompt opens a thought that the history does not show.
      {"NVIDIA-Nemotron-Nano-v2", 1},
      // A recipient in a text of its own before each message.
      {"meetkai-functionary-medium-v3.2", 1},
      {"muse-glimmer", 6},
      // Values of several lines are in CDATA, which is read as part of them.
      {"openbmb-MiniCPM5-1B", 1}};
  return kLosses;
}

TEST(AnswerRoundTrip, ComesBackFromTheTemplatesOfModels) {
  const char* const folder = std::getenv("MNEME_CHAT_TEMPLATES");
  if (folder == nullptr) GTEST_SKIP() << "MNEME_CHAT_TEMPLATES names no folder";
  std::map<std::string, std::string> sources;
  ASSERT_TRUE(std::filesystem::is_directory(folder)) << folder;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    if (file.path().extension() != ".jinja") continue;
    std::stringstream text;
    text << std::ifstream(file.path()).rdbuf();
    sources[file.path().stem().string()] = text.str();
  }
  ASSERT_FALSE(sources.empty()) << "no *.jinja in " << folder;
  for (const auto& [name, source] : sources) {
    std::optional<ChatTemplate> used;
    try {
      used.emplace(source);
    } catch (const Error& e) {
      std::cout << name << ": " << e.what() << "\n";
      continue;
    }
    const FoundFormat found = find_answer_format("", &*used, tokenizer());
    const Score s = score(*used, found.format);
    const auto derived = derived_format(*used, tokenizer());
    const Score d = derived ? score(*used, *derived) : Score{};
    const auto losses = known_losses().find(name);
    EXPECT_EQ(s.shown - s.right, losses == known_losses().end() ? 0 : losses->second) << name << s.wrong;
    std::cout << name << ": " << found.format.name << " (" << found.how << ") " << s.right << "/" << s.shown
              << ", derived " << d.right << "/" << d.shown << "\n";
    if (std::getenv("MNEME_SHOW_WRONG") != nullptr) std::cout << s.wrong << "\n";
    if (std::getenv("MNEME_SHOW_DERIVED") != nullptr && derived && d.right < d.shown)
      std::cout << "  derived " << json_of(*derived).dump() << d.wrong << "\n";
  }
}

}  // namespace
}  // namespace mneme
