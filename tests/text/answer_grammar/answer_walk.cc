#include "tests/text/answer_grammar/answer_walk.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "src/base/ascii.h"
#include "src/formats/checkpoint.h"
#include "src/text/answer/mark.h"
#include "src/text/grammar/json_schema.h"

namespace mneme::answer_test {
namespace {

bool has(const std::vector<std::uint64_t>& mask, TokenId id) {
  return (mask[static_cast<std::size_t>(id) / 64] >> (id % 64) & 1) != 0;
}

// "<|tool_call>", "<｜DSML｜", "[ARGS]": what tokenizers have as one token.
void add_special(std::string_view mark, std::vector<std::string>& out) {
  for (std::size_t at = 0; at < mark.size(); ++at) {
    const std::string_view rest = mark.substr(at);
    const bool angle = rest[0] == '<',
               square = rest[0] == '[' && rest.size() > 2 && (is_upper(rest[1]) || rest[1] == '/');
    const std::size_t end = rest.find(angle ? '>' : ']');
    if ((!angle && !square) || end == std::string_view::npos) continue;
    std::string token(rest.substr(0, end + 1));
    const bool bars = token.find('|') != std::string::npos || token.find("｜") != std::string::npos;
    if (token.find_first_of(" =\n") != std::string::npos || token.find("DSML") != std::string::npos) continue;
    if (square || bars) out.push_back(std::move(token));
  }
}

std::vector<std::string> special_tokens() {
  std::vector<std::string> all{"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|return|>"};
  for (const std::string& name : known_answer_formats()) {
    const nlohmann::ordered_json format = json_of(*known_answer_format(name));
    for (const auto& [key, value] : format.items())
      if (value.is_string()) add_special(value.get<std::string>(), all);
  }
  return all;
}

std::unique_ptr<Tokenizer> make_tokenizer(bool special) {
  TokenizerData data = Checkpoint::open_tokenizer(std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf");
  // Which formats have within an answer.
  std::replace(data.tokens.begin(), data.tokens.end(), std::string("<|end|>"), std::string("<|stop|>"));
  if (special) {
    data.types.resize(data.tokens.size(), TokenType::kNormal);
    if (!data.scores.empty()) data.scores.resize(data.tokens.size());
    for (const std::string& token : special_tokens()) {
      if (std::find(data.tokens.begin(), data.tokens.end(), token) != data.tokens.end()) continue;
      data.tokens.push_back(token);
      data.types.push_back(TokenType::kControl);
      if (!data.scores.empty()) data.scores.push_back(0);
    }
  }
  return Tokenizer::make(data);
}

}  // namespace

const Tokenizer& shipped_tokenizer(bool special) {
  static const auto kPlain = make_tokenizer(false), kSpecial = make_tokenizer(true);
  return special ? *kSpecial : *kPlain;
}

std::shared_ptr<const TokenTrie> shipped_trie(bool special) {
  static const auto kPlain = std::make_shared<const TokenTrie>(shipped_tokenizer(false));
  static const auto kSpecial = std::make_shared<const TokenTrie>(shipped_tokenizer(true));
  return special ? kSpecial : kPlain;
}

std::shared_ptr<const AnswerMarks> marks_of(const std::string& format, bool special) {
  return std::make_shared<const AnswerMarks>(*known_answer_format(format), shipped_tokenizer(special));
}

std::vector<CallRule> rules_of(const nlohmann::ordered_json& tools) {
  const AnswerTools types = answer_tools_of(tools);
  std::vector<CallRule> rules;
  for (const auto& tool : tools) {
    const auto& function = tool["function"];
    const std::string name = function["name"];
    rules.push_back({.name = name,
                     .arguments = compile_json_schema(function["parameters"], MemberOrder::kDeclared),
                     .types = types.at(name)});
  }
  return rules;
}

Walker::Walker(const AnswerRules& rules, const AnswerTools& tools, bool special, std::optional<ThoughtBudget> budget)
    : rules_(rules),
      tools_(tools),
      tokenizer_(shipped_tokenizer(special)),
      trie_(shipped_trie(special)),
      matcher_(std::make_shared<const AnswerProgram>(answer_program(rules))),
      begin_(answer_constraint(trie_, rules.marks, answer_program(rules), std::move(budget))) {
  const AnswerFormat& format = rules.marks->shown();
  const bool harmony = format.calls == CallForm::kHarmony;
  openers_ = {format.call.section_open, format.call.open};
  if (harmony)
    openers_ = {"<|channel|>commentary to=functions.find", " to=functions.now",
                "<|channel|>analysis<|message|>x<|end|>"};
  for (const CallRule& tool : rules.tools) {
    if (!format.bare_calls) break;
    openers_.push_back("[" + tool.name + "(");
    openers_.push_back("{\"name\": \"" + tool.name + "\"");
  }
  const std::string& value = format.argument.value_end;
  ends_of_texts_ = {"\n" + value, value, format.quote, "\"", "'"};
  closers_ = {harmony ? "<|end|>" : format.thought_close,
              format.call.section_close,
              format.call.close,
              value,
              "]",
              "}",
              ")",
              "\"",
              "null",
              "0",
              "a",
              ":",
              "=",
              ","};
  for (auto* texts : {&openers_, &closers_, &ends_of_texts_}) std::erase(*texts, "");
}

Walker::Mask Walker::mask_of(const TokenConstraint& constraint) const {
  Mask mask((static_cast<std::size_t>(tokenizer_.vocab_size()) + 63) / 64);
  constraint.allowed(mask);
  return mask;
}

std::string Walker::bytes_of(TokenId id) const {
  if (tokenizer_.is_control(id)) return std::string(rules_.marks->bytes_of(id));
  // No character has the bytes around special tokens: a token that is one of them is replaced by one that is not.
  std::string bytes = tokenizer_.token_bytes(id);
  for (char& c : bytes)
    if (c == kTokenBegin || c == kTokenEnd) c = '\xC0';
  return bytes;
}

Walker::Mask Walker::naive_mask(const AnswerMatcher::State& state) const {
  Mask mask((static_cast<std::size_t>(tokenizer_.vocab_size()) + 63) / 64);
  const auto set = [&](TokenId id) { mask[static_cast<std::size_t>(id) / 64] |= std::uint64_t{1} << (id % 64); };
  const bool prose = matcher_.next(state).prose;
  bool some = false;
  for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id) {
    const std::string bytes = bytes_of(id);
    const bool other = bytes.empty() || (tokenizer_.is_end(id) && !tokenizer_.is_control(id));
    AnswerMatcher::State at = state;
    // Special tokens without a mark are of no part but prose.
    bool fits = other ? prose && tokenizer_.is_token(id) && !tokenizer_.is_end(id) : matcher_.step_all(at, bytes);
    if (prose && tokenizer_.is_end(id) && !matcher_.may_end(state))
      fits = fits && matcher_.prose(at) != matcher_.prose(state);
    if (fits) set(id);
    some = some || fits;
  }
  if (!some || matcher_.may_end(state))
    for (const TokenId id : trie_->ends()) set(id);
  return mask;
}

std::vector<TokenId> Walker::fitting(const TokenConstraint& from, const std::vector<std::string>& texts,
                                     std::mt19937& random, bool shuffled) const {
  std::vector<std::string> order = texts;
  if (shuffled) std::shuffle(order.begin(), order.end(), random);
  for (const std::string& text : order) {
    const std::vector<TokenId> ids =
        tokenizer_.encode(text, {.parse_special = true, .add_bos = false, .continues = true});
    const TokenConstraint* at = &from;
    std::shared_ptr<const TokenConstraint> held;
    bool fits = true;
    for (const TokenId id : ids) {
      fits = fits && has(mask_of(*at), id);
      if (!fits) break;
      held = at->after(id);
      at = held.get();
    }
    if (fits) return ids;
  }
  return {};
}

std::vector<TokenId> Walker::select(const TokenConstraint& from, const Mask& mask, const AnswerMatcher::Next& next,
                                    bool late, bool calls, std::mt19937& random) const {
  if (calls && !late && random() % 4 == 0)
    if (auto ids = fitting(from, openers_, random, true); !ids.empty()) return ids;
  if (late) {
    for (const TokenId id : trie_->ends())
      if (has(mask, id)) return {id};
    const bool in_text = next.characters && !next.prose;
    if (random() % 16 != 0)
      if (auto ids = fitting(from, in_text ? ends_of_texts_ : closers_, random, in_text); !ids.empty()) return ids;
  }
  std::vector<TokenId> all;
  for (TokenId id = 0; id < tokenizer_.vocab_size(); ++id)
    if (has(mask, id)) all.push_back(id);
  return {all[random() % all.size()]};
}

Walk Walker::walk(std::mt19937& random, std::size_t patience, std::size_t most, bool calls) {
  Walk out;
  const auto parser = AnswerParser::make(*rules_.marks, {.in_thought = rules_.in_thought, .tools = &tools_});
  StreamDecoder decoder(tokenizer_);
  AnswerMatcher::State state = matcher_.begin();
  auto constraint = begin_;
  std::vector<TokenId> ids;
  while (!out.ended && out.tokens < most) {
    const Mask mask = mask_of(*constraint);
    const bool some = std::any_of(mask.begin(), mask.end(), [](std::uint64_t w) { return w != 0; });
    EXPECT_TRUE(some) << "no token may follow " << out.text;
    if (!some) break;
    if (random() % 256 == 0) {
      EXPECT_EQ(mask, naive_mask(state)) << "behind " << out.text;
    }
    ids = select(*constraint, mask, matcher_.next(state), out.tokens >= patience, calls, random);
    for (const TokenId id : ids) {
      ++out.tokens;
      constraint = constraint->after(id);
      const std::string bytes = bytes_of(id);
      matcher_.step_all(state, bytes);
      out.text += tokenizer_.token_bytes(id, true);
      out.ended = tokenizer_.is_end(id);
      if (out.ended) break;  // which is no part of the answer
      const bool mark = tokenizer_.is_control(id) && !bytes.empty();
      if (mark) parser->push(decoder.end_character(), out.events);
      parser->push(mark ? bytes : decoder.push(id), out.events);
    }
  }
  parser->push(decoder.finish(), out.events);
  parser->finish(out.events);
  for (const AnswerEvent& e : out.events) {
    if (e.part == AnswerPart::kThought) out.thought += e.text;
    if (e.part == AnswerPart::kText) out.content += e.text;
    if (e.part == AnswerPart::kCallBegin) out.calls.emplace_back(e.text, "");
    if (e.part == AnswerPart::kArguments) out.calls.back().second += e.text;
  }
  return out;
}

}  // namespace mneme::answer_test
