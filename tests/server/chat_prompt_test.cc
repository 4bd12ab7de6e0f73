// Conversations as clients send them: whatever OpenAI's type allows becomes a prompt.
#include "src/server/api/chat_prompt.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "mneme/error.h"
#include "src/formats/checkpoint.h"
#include "src/server/api/api_error.h"

namespace mneme::server {
namespace {

// The shipped model's tokenizer with another template, and further ones by name.
class Model {
 public:
  explicit Model(const std::string& chat_template) : text_(*checkpoint_) { text_.set_chat_template(chat_template); }
  Model() : text_(*checkpoint_) {}
  Model(std::string chat_template, std::vector<std::pair<std::string, std::string>> named) : text_(*checkpoint_) {
    TokenizerData data = checkpoint_->tokenizer();
    data.chat_template = std::move(chat_template);
    data.named_templates = std::move(named);
    text_.tokenizer = Tokenizer::make(std::move(data));
    text_.chat = ChatFormat::detect(*text_.tokenizer);
  }

  TextSide& text() { return text_; }
  // The prompt as text; "400: ..." where it is refused.
  std::string prompt(const std::string& body) const {
    try {
      const Json json = parse_json(body, "body", 1 << 20);
      const Conversation conversation = parse_conversation(JsonRef(json, "body"), body);
      return text_.tokenizer->decode(chat_prompt(text_, conversation), true);
    } catch (const ApiError& e) {
      return std::string("400: ") + e.what();
    } catch (const Error& e) {
      return std::string("400: ") + e.what();
    }
  }
  // The same of messages alone.
  std::string shown(const std::string& messages) const { return prompt("{\"messages\": " + messages + "}"); }

 private:
  std::unique_ptr<Checkpoint> checkpoint_ = Checkpoint::open(MNEME_MODEL_FILE);
  TextSide text_;
};

constexpr const char* kTurns = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}";
constexpr const char* kCalls =
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{% endfor %}";
constexpr const char* kTools = R"("tools": [{"type": "function", "function": {"name": "now"}}])";

std::string call_with(const std::string& arguments) {
  return R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": null, "tool_calls":
      [{"id": "c", "type": "function", "function": {"name": "now", "arguments": )" +
         arguments + "}}]}]";
}

TEST(ChatPrompt, ArgumentsOfEarlierCallsAreWhatTheModelWrote) {
  const Model model(kCalls);
  const auto called = [](const std::string& arguments) { return "[user]q[assistant]now(" + arguments + ")"; };
  EXPECT_EQ(model.shown(call_with(R"("{\"at\": 5, \"a\": 1}")")), called(R"({"at": 5, "a": 1})"));
  EXPECT_EQ(model.shown(call_with(R"({"at": 5})")), called(R"({"at": 5})"));
  for (const char* none : {R"("")", R"("  \n")", "null"}) EXPECT_EQ(model.shown(call_with(none)), called("{}")) << none;
  EXPECT_EQ(model.shown(call_with(R"("{\"value\": ")")), called(R"("{\"value\": ")"));
  for (const char* text : {"not json", "[1]", "7", "null"})
    EXPECT_EQ(model.shown(call_with('"' + std::string(text) + '"')), called('"' + std::string(text) + '"')) << text;
  EXPECT_NE(model.shown(call_with("7")).find("messages[1].tool_calls[0].function.arguments"), std::string::npos);
  EXPECT_EQ(model.shown(R"([{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls":
                [{"type": "custom", "id": "c", "custom": {"name": "now", "input": "in Ys"}}]}])"),
            called("\"in Ys\""));
}

TEST(ChatPrompt, AMessageWithoutContentHasNone) {
  const Model asks(
      "{% for m in messages %}[{{ m.role }}]{% if 'content' in m %}{{ m.content }}{% else %}-{% endif %}{% endfor %}");
  for (const char* silent : {R"({"role": "assistant", "content": null})", R"({"role": "assistant"})",
                             R"({"role": "assistant", "content": null, "tool_calls": null, "audio": null})",
                             R"({"role": "assistant", "content": null, "tool_calls": [], "function_call": null})"})
    EXPECT_EQ(asks.shown(std::string(R"([{"role": "user", "content": "q"}, )") + silent + "]"), "[user]q[assistant]-")
        << silent;
  EXPECT_NE(asks.shown(R"([{"role": "user", "content": null}])").find("messages[0].content"), std::string::npos);
  // A template that adds the content to other text without asking sees an empty one.
  const Model adds("{% for m in messages %}{{ '[' + m.role + ']' + m.content }}{% endfor %}");
  EXPECT_EQ(adds.shown(R"([{"role": "user", "content": "q"}, {"role": "assistant", "content": null}])"),
            "[user]q[assistant]");
}

TEST(ChatPrompt, AcceptsEveryFieldOfOpenAisMessages) {
  const Model model(kCalls);
  EXPECT_EQ(model.shown(R"([{"role": "developer", "content": [{"type": "text", "text": "d"}], "name": "n"},
      {"role": "user", "content": "q", "name": "Ann"},
      {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "no"}],
       "refusal": null, "annotations": [], "audio": null, "name": null, "tool_calls": null, "function_call": null},
      {"role": "assistant", "content": null, "refusal": "I may not"},
      {"role": "assistant", "content": null, "function_call": {"name": "now", "arguments": ""}},
      {"role": "function", "name": "now", "content": null}, {"role": "tool", "tool_call_id": "c", "content": "t"}])"),
            "[system]d[user]q[assistant]a\nno[assistant]I may not[assistant]now({})[tool][tool]t");
  EXPECT_NE(model.shown(R"([{"role": "assistant", "audio": {"id": "a"}}])").find("messages[0].audio: expected null"),
            std::string::npos);
  // Whatever else a message has reaches the template.
  const Model extra("{% for m in messages %}{{ m.content }}{{ m.tool_plan }}{{ (m.tags or {}) | tojson }}{% endfor %}");
  EXPECT_EQ(extra.shown(R"([{"role": "user", "content": "q", "tool_plan": "p", "tags": {"b": 1, "a": 2}}])"),
            "qp{\"b\": 1, \"a\": 2}");
}

TEST(ChatPrompt, ReasoningHasTheNamesThatTemplatesRead) {
  const Model model(
      "{% for m in messages %}{{ m.content }}{{ m.thinking }},{{ m.reasoning_content }},{{ m.reasoning }}{% endfor %}");
  const auto shown = [&](const std::string& field) {
    return model.shown(R"([{"role": "assistant", "content": "a:", )" + field + "}]");
  };
  EXPECT_EQ(shown(R"("reasoning": "R")"), "a:R,R,R");
  EXPECT_EQ(shown(R"("thinking": "R")"), "a:R,R,");
  EXPECT_EQ(shown(R"("reasoning_content": "R")"), "a:R,R,");
  EXPECT_EQ(shown(R"("reasoning_content": null, "thinking": "R", "reasoning": "S")"), "a:R,R,S");
}

TEST(ChatPrompt, AToolUseTemplateRendersRequestsWithTools) {
  const std::string body = R"({"messages": [{"role": "user", "content": "q"}])";
  const Model model(
      kTurns, {{"rag", std::string("RAG") + kTurns}, {"tool_use", "T{{ tools | length }}" + std::string(kTurns)}});
  EXPECT_EQ(model.prompt(body + "}"), "[user]q");
  EXPECT_EQ(model.prompt(body + ", " + kTools + "}"), "T1[user]q");
  EXPECT_EQ(model.prompt(body + R"(, "tools": []})"), "[user]q");
  EXPECT_EQ(model.prompt(body + R"(, "tool_choice": "none", )" + kTools + "}"), "[user]q");
  EXPECT_EQ(model.prompt(body + R"(, "chat_template": "rag"})"), "RAG[user]q");
  EXPECT_EQ(model.prompt(body + R"(, "chat_template": "default"})"), "[user]q");
  const std::string wrong = model.prompt(body + R"(, "chat_template": "tools"})");
  EXPECT_NE(wrong.find("(default, rag, tool_use), found \"tools\""), std::string::npos) << wrong;
}

TEST(ChatPrompt, TemplatesOfWhichNoneIsTheDefaultAreNamed) {
  const std::string body = R"({"messages": [{"role": "user", "content": "q"}])";
  Model model("", {{"rag", std::string("RAG") + kTurns}, {"tool_use", "T{{ tools | length }}" + std::string(kTurns)}});
  const std::string wrong = model.prompt(body + "}");
  EXPECT_NE(wrong.find("(rag, tool_use), and none is named default: name one with --chat-template"), std::string::npos)
      << wrong;
  EXPECT_THROW(model.text().chat.user_turn({.document = {}, .question = "q", .system = {}}, true), Error);
  EXPECT_EQ(model.prompt(body + ", " + kTools + "}"), "T1[user]q");
  model.text().set_chat_template("rag");
  EXPECT_EQ(model.prompt(body + "}"), "RAG[user]q");
  EXPECT_THROW(model.text().set_chat_template("default"), Error);
}

TEST(ChatPrompt, AnAnswerThatWasBegunGoesOn) {
  const std::string begun =
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "It is "}])";
  const std::string go_on = R"(, "continue_final_message": true)";
  const Model model(
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}");
  EXPECT_EQ(model.prompt(begun + "}"), "<user>q<end><assistant>It is <end><assistant>");
  EXPECT_EQ(model.prompt(begun + go_on + "}"), "<user>q<end><assistant>It is ");
  EXPECT_EQ(model.prompt(begun + go_on + R"(, "add_generation_prompt": false})"), "<user>q<end><assistant>It is ");
  EXPECT_NE(model.prompt(begun + go_on + R"(, "add_generation_prompt": true})").find("add_generation_prompt"),
            std::string::npos);
  const Model trims("{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>{% endfor %}");
  EXPECT_EQ(trims.prompt(begun + go_on + "}"), "<user>q<end><assistant>It is");
  // Framed by hand.
  const Model needle;
  EXPECT_EQ(needle.prompt(begun + go_on + "}"), "<|bos|><|user|>q<|end|><|assistant|>It is ");
  for (const char* wrong : {R"([{"role": "assistant", "content": null}])", R"([{"role": "assistant", "content": ""}])"})
    EXPECT_NE(model.prompt(std::string(R"({"messages": )") + wrong + go_on + "}").find("continue_final_message"),
              std::string::npos)
        << wrong;
  EXPECT_NE(needle.prompt(R"({"messages": [{"role": "user", "content": "q"}], "continue_final_message": true})")
                .find("the assistant"),
            std::string::npos);
}

TEST(ChatPrompt, NoMessagesAreSaidToBeNone) {
  EXPECT_NE(Model().shown("[]").find("messages is empty"), std::string::npos);
  EXPECT_NE(Model(kTurns).shown("[]").find("messages is empty"), std::string::npos);
}

TEST(ChatPrompt, ATemplateThatShowsNoContentIsTold) {
  try {
    Model("{% for m in messages %}{{ m.role }}{{ m.contnt }}{% endfor %}");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("messages[i].content never appears in its output; m.contnt is undefined"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace mneme::server
