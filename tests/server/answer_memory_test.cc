// Conversations come back with the tokens that the model wrote, and the tools of an agent are compiled once.
#include "src/server/answer/answer_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "src/server/answer/kept_constraints.h"
#include "src/text/constraint/token_constraint.h"
#include "tests/server/agent_fixture.h"

namespace mneme::server_test {
namespace {

using nlohmann::json;
using server::AnswerMemory;
using server::KeptConstraints;
using ::testing::ElementsAreArray;

// The answer's turn begins as in the prompt, unlike in kAgentTemplate.
constexpr const char* kTurnTemplate =
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|user|>{{ m.role }}:"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{\"name\": \"{{ c.function.name }}\", \"arguments\": "
    "{{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|user|>assistant:{% endif %}";

const json kAdd = json::parse(R"([{"type": "function", "function": {"name": "add", "parameters": {"type": "object",
  "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}}}])");

class OwnTokens : public AgentServer {
 protected:
  static server::ServerOptions options(bool deterministic) {
    server::ServerOptions o = agent_options();
    o.chat_template = kTurnTemplate;
    o.engine.deterministic = deterministic;
    return o;
  }
  explicit OwnTokens(bool deterministic = false) : AgentServer(options(deterministic)) {}

  json chat(const json& messages, const std::string& answer, bool stream = false) {
    script(answer);
    const json body = {
        {"messages", messages}, {"tools", kAdd}, {"temperature", 0}, {"stream", stream}, {"return_token_ids", true}};
    const Response r = post_to("/v1/chat/completions", body);
    EXPECT_EQ(r.status, 200) << r.body;
    return stream ? json() : r.json();
  }
  // The turns so far, the model's as a client sends it back, and a result.
  static json next_turn(json messages, json message) {
    messages.push_back(message);
    messages.push_back(
        {{"role", "tool"}, {"tool_call_id", message["tool_calls"][0]["id"]}, {"content", "The result is three."}});
    return messages;
  }
  static std::vector<TokenId> ids(const json& list) { return list.get<std::vector<TokenId>>(); }
  static std::vector<TokenId> read_by_model(const json& answer) {
    std::vector<TokenId> all = ids(answer["choices"][0]["prompt_token_ids"]);
    const std::vector<TokenId> more = ids(answer["choices"][0]["token_ids"]);
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  static std::vector<TokenId> prompt_of(const json& answer, std::size_t most) {
    std::vector<TokenId> prompt = ids(answer["choices"][0]["prompt_token_ids"]);
    prompt.resize(std::min(most, prompt.size()));
    return prompt;
  }
};

const json kBegin = json::array({{{"role", "user"}, {"content", "One and two?"}}});
// No template writes a call so.
constexpr const char* kOddly =
    "<think>\n  I add. </think>\n\nAdding.\n<tool_call>\n{\"name\": \"add\", \"arguments\": { \"b\":\"ü\" ,\"a\" : 1 "
    "}}\n"
    "</tool_call>";

TEST_F(OwnTokens, AreInTheNextPrompt) {
  const json first = chat(kBegin, kOddly);
  const json second = chat(next_turn(kBegin, first["choices"][0]["message"]), kOddly);
  const std::vector<TokenId> read = read_by_model(first);
  EXPECT_THAT(prompt_of(second, read.size()), ElementsAreArray(read));
  // And with both answers, of which one follows the other.
  const json turns = next_turn(kBegin, first["choices"][0]["message"]);
  const json third = chat(next_turn(turns, second["choices"][0]["message"]), "Done.");
  const std::vector<TokenId> all = read_by_model(second);
  EXPECT_THAT(prompt_of(third, all.size()), ElementsAreArray(all));
  constexpr std::int64_t kPages = 2 * kPageTokens;  // the last one of the prompt, and of what it shares
  EXPECT_GE(third["usage"]["prompt_tokens_details"]["cached_tokens"].get<std::int64_t>() + kPages, std::ssize(all));
}

TEST_F(OwnTokens, AreThoseOfAStreamToo) {
  const json whole = chat(kBegin, kOddly);
  chat(kBegin, kOddly, true);
  const json second = chat(next_turn(kBegin, whole["choices"][0]["message"]), "Done.");
  const std::vector<TokenId> read = read_by_model(whole);
  EXPECT_THAT(prompt_of(second, read.size()), ElementsAreArray(read));
}

TEST_F(OwnTokens, AreNotThoseOfAnotherAnswer) {
  const json first = chat(kBegin, kOddly);
  const auto own = [&](const json& message) {
    const json second = chat(next_turn(kBegin, message), "Done.");
    const std::vector<TokenId> read = read_by_model(first);
    return prompt_of(second, read.size()) == read;
  };
  const json& message = first["choices"][0]["message"];
  EXPECT_TRUE(own(message));
  json other = message;
  other["content"] = "Adding";
  EXPECT_FALSE(own(other)) << "another text";
  other = message;
  other["tool_calls"][0]["function"]["arguments"] = R"({"a": 2, "b": "ü"})";
  EXPECT_FALSE(own(other)) << "other arguments";
  other = message;
  other.erase("reasoning_content");
  EXPECT_FALSE(own(other)) << "no thought";
}

class OwnTokensDeterministic : public OwnTokens {
 protected:
  OwnTokensDeterministic() : OwnTokens(true) {}
};

TEST_F(OwnTokensDeterministic, AreNotUsed) {
  const json first = chat(kBegin, kOddly);
  const json second = chat(next_turn(kBegin, first["choices"][0]["message"]), "Done.");
  const std::vector<TokenId> read = read_by_model(first);
  EXPECT_NE(prompt_of(second, read.size()), read) << "a prompt depends on its request alone";
}

class Memory : public testing::Test {
 protected:
  std::vector<TokenId> ids(const std::string& text) const {
    return tokenizer_->encode(text, {.parse_special = true, .add_bos = false, .continues = true});
  }
  // Of a prompt that ends with the answer's turn.
  std::vector<TokenId> replayed(const std::vector<TokenId>& prompt, const std::string& salt = {}) {
    return memory_.with_own_tokens(salt, prompt, nullptr, *tokenizer_);
  }
  static std::vector<TokenId> joined(std::initializer_list<std::vector<TokenId>> parts) {
    std::vector<TokenId> all;
    for (const auto& part : parts) all.insert(all.end(), part.begin(), part.end());
    return all;
  }

  std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::make(Checkpoint::open(MNEME_MODEL_FILE)->tokenizer());
  AnswerMemory memory_{40};
  const std::vector<TokenId> prompt_ = ids("<|user|>Hello there<|assistant|>");
  const std::vector<TokenId> end_ = ids("<|end|>");
};

TEST_F(Memory, GivesTokensBackForTheSameText) {
  std::vector<TokenId> spelled;
  for (const char c : std::string("letters")) spelled = joined({spelled, ids({c})});
  ASSERT_NE(spelled, ids("letters"));
  memory_.remember(AnswerMemory::place_of("", prompt_), spelled);
  EXPECT_EQ(replayed(joined({prompt_, ids("letters"), end_})), joined({prompt_, spelled, end_}));
  EXPECT_EQ(replayed(joined({prompt_, ids("others"), end_})), joined({prompt_, ids("others"), end_}));
  const auto unended = joined({prompt_, ids("letters")});
  EXPECT_EQ(replayed(unended), unended) << "an answer that goes on";
  const auto salted = joined({prompt_, ids("letters"), end_});
  EXPECT_EQ(replayed(salted, "another"), salted);
}

TEST_F(Memory, DropsWhatWasUsedLeastRecently) {
  const auto answer = [&](const std::string& text) {
    std::vector<TokenId> spelled;
    for (const char c : text) spelled = joined({spelled, ids({c})});
    return spelled;
  };
  const auto is_kept = [&](const std::string& text) {
    return replayed(joined({prompt_, ids(text), end_})) != joined({prompt_, ids(text), end_});
  };
  const auto place = AnswerMemory::place_of("", prompt_);
  memory_.remember(place, answer("sixteen letters."));
  memory_.remember(place, answer("another sixteen."));
  EXPECT_TRUE(is_kept("sixteen letters."));
  memory_.remember(place, answer("a third sixteen."));
  EXPECT_TRUE(is_kept("sixteen letters."));
  EXPECT_FALSE(is_kept("another sixteen."));
  EXPECT_TRUE(is_kept("a third sixteen."));
}

class OnlyToken final : public TokenConstraint {
 public:
  explicit OnlyToken(TokenId id) : id_(id) {}
  void allowed(std::span<std::uint64_t> mask) const override { mask[id_ / 64] |= std::uint64_t{1} << (id_ % 64); }
  std::shared_ptr<const TokenConstraint> after(std::int32_t) const override {
    return std::make_shared<const OnlyToken>(*this);
  }

 private:
  TokenId id_;
};

TEST(KeptConstraintsTest, KeepTheOnesUsedLast) {
  KeptConstraints kept;
  const auto only_tokens = [](TokenId id) { return std::make_shared<const OnlyToken>(id); };
  const auto first = only_tokens(1);
  kept.keep("first", first);
  for (int i = 0; i < 31; ++i) kept.keep(std::to_string(i), only_tokens(2));
  EXPECT_EQ(kept.find("first"), first);
  kept.keep("one more", only_tokens(3));
  EXPECT_EQ(kept.find("first"), first);
  EXPECT_EQ(kept.find("0"), nullptr) << "used least recently";
  EXPECT_NE(kept.find("1"), nullptr);
}

}  // namespace
}  // namespace mneme::server_test
