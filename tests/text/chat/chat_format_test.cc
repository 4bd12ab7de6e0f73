#include "src/text/chat/chat_format.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/text/tokenizer/test_data.h"

namespace mneme {
namespace {

using Ids = std::vector<TokenId>;

// A byte-level vocabulary with one merge, "\n\n", and the given special tokens from 257 on.
struct Model {
  Model(std::string chat_template, const std::vector<std::string>& marks, TokenType type = TokenType::kControl) {
    data = test::byte_bpe({{"\n", "\n"}}, "llama-bpe");
    data.chat_template = std::move(chat_template);
    for (const std::string& mark : marks) test::add_token(data, mark, type);
  }
  const Tokenizer& make() {
    tokenizer = Tokenizer::make(data);
    return *tokenizer;
  }
  TokenizerData data;
  std::unique_ptr<Tokenizer> tokenizer;
};

// Ids as text, with special tokens by name: the exact content of a turn.
std::string shown(const Tokenizer& t, const Ids& ids) {
  return t.decode(ids, true);
}

Model llama3() {
  Model m("{{ bos_token }}...<|start_header_id|>...",
          {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"});
  m.data.bos = 257;
  m.data.add_bos = true;
  return m;
}
Model chatml() {
  Model m("{{ '<|im_start|>' + role }}", {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  m.data.eos = 259;
  return m;
}
Model mistral_tokens(const std::string& chat_template) {
  Model m(chat_template, {"<s>", "</s>", "[INST]", "[/INST]"});
  m.data.bos = 257;
  m.data.eos = 258;
  m.data.add_bos = true;
  return m;
}
Model mistral_text(const std::string& chat_template) {
  Model m(chat_template, {"<s>", "</s>"});
  m.data.bos = 257;
  m.data.eos = 258;
  m.data.add_bos = true;
  return m;
}
Model deepseek(TokenType think = TokenType::kUserDefined) {
  Model m("{{bos_token}}<｜User｜>...<｜Assistant｜>",
          {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"});
  m.data.bos = 257;
  m.data.eos = 258;
  m.data.add_bos = true;
  if (think != TokenType::kUnused) test::add_token(m.data, "<think>", think);
  return m;
}
Model needle() {
  Model m("<|bos|>...<|user|>...<|assistant|>", {"<|bos|>", "<|end|>", "<|user|>", "<|assistant|>", "<|pad|>"});
  m.data.bos = 257;
  m.data.eos = 258;
  return m;
}

const ChatFormat::Turn kBoth = {.document = "Doc.", .question = "Who?", .system = {}};
const ChatFormat::Turn kQuestion = {.document = {}, .question = "Hi", .system = {}};
const ChatFormat::Turn kSystem = {.document = {}, .question = "Hi", .system = "Be kind."};

TEST(ChatFormat, Llama3) {
  Model m = llama3();
  const Tokenizer& t = m.make();
  const auto chat = ChatFormat::detect(t);
  ASSERT_EQ(chat.family(), ChatFamily::kLlama3);
  EXPECT_EQ(chat_family_name(chat.family()), "llama-3");
  const std::string user = "<|start_header_id|>user<|end_header_id|>\n\n",
                    assistant = "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n";
  EXPECT_EQ(shown(t, chat.user_turn(kBoth, true)), "<|begin_of_text|>" + user + "Doc.\n\n\nWho?" + assistant);
  EXPECT_EQ(shown(t, chat.user_turn(kQuestion, false)), user + "Hi" + assistant);
  EXPECT_EQ(
      shown(t, chat.user_turn(kSystem, true)),
      "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe kind.<|eot_id|>" + user + "Hi" + assistant);
  EXPECT_EQ(shown(t, chat.end_of_answer()), "<|eot_id|>");
  // Messages are trimmed; the text around the separator is not.
  EXPECT_EQ(shown(t, chat.user_turn({.document = "\n D \n", .question = " q\n", .system = {}}, false)),
            user + "D \n\n\n\n q" + assistant);
  EXPECT_EQ(shown(t, chat.user_turn({.document = " \n", .question = "\n q", .system = {}}, false)),
            user + "q" + assistant);
  EXPECT_EQ(shown(t, chat.user_turn({.document = "D\n", .question = " ", .system = {}}, false)),
            user + "D" + assistant);
}

TEST(ChatFormat, ChatMl) {
  Model m = chatml();
  const Tokenizer& t = m.make();
  const auto chat = ChatFormat::detect(t);
  ASSERT_EQ(chat.family(), ChatFamily::kChatMl);
  const std::string user = "<|im_start|>user\n", assistant = "<|im_end|>\n<|im_start|>assistant\n";
  EXPECT_EQ(shown(t, chat.user_turn(kBoth, true)), user + "Doc.\n\n\nWho?" + assistant);
  EXPECT_EQ(shown(t, chat.user_turn(kQuestion, false)), "\n" + user + "Hi" + assistant);
  EXPECT_EQ(shown(t, chat.user_turn(kSystem, true)),
            "<|im_start|>system\nBe kind.<|im_end|>\n" + user + "Hi" + assistant);
  EXPECT_EQ(shown(t, chat.end_of_answer()), "<|im_end|>");
}

TEST(ChatFormat, ChatMlOfAModelWithABeginning) {
  Model m = chatml();
  m.data.bos = 257;
  m.data.add_bos = true;
  const Tokenizer& t = m.make();
  EXPECT_EQ(ChatFormat::detect(t).user_turn(kQuestion, true).front(), 257);
  EXPECT_NE(ChatFormat::detect(t).user_turn(kQuestion, false).front(), 257);
}

TEST(ChatFormat, MistralV01WritesItsMarksAsText) {
  Model m = mistral_text("{{ bos_token }}{{ '[INST] ' + content + ' [/INST]' }}");
  const Tokenizer& t = m.make();
  const auto chat = ChatFormat::detect(t);
  ASSERT_EQ(chat.family(), ChatFamily::kMistral);
  EXPECT_EQ(shown(t, chat.user_turn(kBoth, true)), "<s>[INST] Doc.\n\n\nWho? [/INST]");
  EXPECT_EQ(shown(t, chat.user_turn(kQuestion, false)), "[INST] Hi [/INST]");
  EXPECT_EQ(shown(t, chat.user_turn(kSystem, true)), "<s>[INST] Be kind.\n\nHi [/INST]");
  EXPECT_EQ(shown(t, chat.end_of_answer()), "</s>");
}

TEST(ChatFormat, Llama2HasItsOwnSystemMarks) {
  Model m = mistral_text("'<<SYS>>\\n' ... '[INST] ' ... ' [/INST]'");
  const Tokenizer& t = m.make();
  EXPECT_EQ(shown(t, ChatFormat::detect(t).user_turn(kSystem, true)),
            "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST]");
}

TEST(ChatFormat, MistralWithTokens) {
  Model nemo = mistral_tokens("{{ '[INST]' + content + '[/INST]' }}");
  const Tokenizer& t = nemo.make();
  const auto chat = ChatFormat::detect(t);
  const Ids ids = chat.user_turn(kQuestion, true);
  EXPECT_EQ(ids, (Ids{257, 259, 'H', 'i', 260}));
  Model spaced = mistral_tokens("{{ '[INST] ' + content + '[/INST]' }}");
  const Tokenizer& s = spaced.make();
  EXPECT_EQ(shown(s, ChatFormat::detect(s).user_turn(kQuestion, true)), "<s>[INST] Hi[/INST]");
}

// The tokenizer inserts "▁", once.
TEST(ChatFormat, MistralV03WithSentencePiece) {
  TokenizerData data = test::sentence_piece({"▁", "H", "i", "▁H", "▁Hi"});
  data.chat_template = "{{ '[INST] ' + content + '[/INST]' }}";
  const TokenId open = test::add_token(data, "[INST]", TokenType::kControl),
                close = test::add_token(data, "[/INST]", TokenType::kControl);
  for (const bool prefix : {true, false}) {
    data.add_space_prefix = prefix;
    const auto t = Tokenizer::make(data);
    const auto chat = ChatFormat::detect(*t);
    ASSERT_EQ(chat.family(), ChatFamily::kMistral);
    EXPECT_EQ(chat.user_turn(kQuestion, true), (Ids{1, open, *t->find("▁Hi"), close})) << prefix;
  }
}

TEST(ChatFormat, DeepseekR1) {
  Model m = deepseek();
  const Tokenizer& t = m.make();
  const auto chat = ChatFormat::detect(t);
  ASSERT_EQ(chat.family(), ChatFamily::kDeepseekR1);
  EXPECT_EQ(shown(t, chat.user_turn(kBoth, true)),
            "<｜begin▁of▁sentence｜><｜User｜>Doc.\n\n\nWho?<｜Assistant｜><think>\n");
  EXPECT_EQ(shown(t, chat.user_turn(kQuestion, false)), "<｜User｜>Hi<｜Assistant｜><think>\n");
  EXPECT_EQ(shown(t, chat.user_turn(kSystem, true)),
            "<｜begin▁of▁sentence｜>Be kind.<｜User｜>Hi<｜Assistant｜><think>\n");
  EXPECT_EQ(chat.end_of_answer(), Ids{258});
  const Ids ids = chat.user_turn(kQuestion, false);
  EXPECT_EQ(ids[ids.size() - 2], *t.find("<think>"));
}

TEST(ChatFormat, DeepseekWithoutAThinkTokenWritesItAsText) {
  Model m = deepseek(TokenType::kUnused);
  const Tokenizer& t = m.make();
  EXPECT_EQ(shown(t, ChatFormat::detect(t).user_turn(kQuestion, false)), "<｜User｜>Hi<｜Assistant｜><think>\n");
}

TEST(ChatFormat, Needle) {
  Model m = needle();
  const Tokenizer& t = m.make();
  const auto chat = ChatFormat::detect(t);
  ASSERT_EQ(chat.family(), ChatFamily::kNeedle);
  EXPECT_EQ(shown(t, chat.user_turn(kBoth, true)), "<|bos|><|user|>Doc.\n\n\nWho?<|end|><|assistant|>");
  EXPECT_EQ(shown(t, chat.user_turn(kQuestion, true)), "<|bos|><|user|>Hi<|end|><|assistant|>");
  EXPECT_EQ(shown(t, chat.user_turn(kQuestion, false)), "<|user|>\nHi<|end|><|assistant|>");
  EXPECT_EQ(shown(t, chat.user_turn(kSystem, true)), "<|bos|><|user|>Be kind.\n\nHi<|end|><|assistant|>");
  EXPECT_EQ(shown(t, chat.end_of_answer()), "<|end|>");
}

TEST(ChatFormat, WithoutATemplateTurnsArePlainText) {
  Model m("", {"<|bos|>", "<|user|>", "<|assistant|>", "<|end|>"});
  m.data.bos = 257;
  m.data.add_bos = true;
  const Tokenizer& t = m.make();
  const auto chat = ChatFormat::detect(t);
  ASSERT_EQ(chat.family(), ChatFamily::kNone);
  EXPECT_EQ(shown(t, chat.user_turn(kBoth, true)), "<|bos|>Doc.\n\n\nWho?");
  EXPECT_EQ(shown(t, chat.user_turn(kQuestion, false)), "\n\nHi");
  EXPECT_EQ(shown(t, chat.user_turn(kSystem, true)), "<|bos|>Be kind.\n\nHi");
  EXPECT_EQ(chat.end_of_answer(), Ids{});
}

TEST(ChatFormat, ATemplateWhoseTokensAreMissingIsNoFamily) {
  for (const char* text :
       {"<|start_header_id|>", "<|im_start|>", "<｜User｜>", "<|user|><|assistant|>", "[INST]", "{{ messages }}"}) {
    Model m(text, {});
    EXPECT_EQ(ChatFormat::detect(m.make()).family(), ChatFamily::kNone) << text;
  }
}

// Converters sometimes store turn markers as user-defined or ordinary tokens.
TEST(ChatFormat, MarkersOfAnyTypeFrameTurns) {
  for (const TokenType type : {TokenType::kNormal, TokenType::kUserDefined}) {
    Model m("<|im_start|>", {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}, type);
    EXPECT_EQ(ChatFormat::detect(m.make()).family(), ChatFamily::kChatMl);
  }
}

std::vector<Model> all_families() {
  std::vector<Model> models;
  models.push_back(llama3());
  models.push_back(chatml());
  models.push_back(mistral_tokens("'[INST] ' + content + '[/INST]'"));
  models.push_back(mistral_text("'[INST] ' + content + ' [/INST]'"));
  models.push_back(deepseek());
  models.push_back(needle());
  models.push_back(Model("", {"<|end|>"}));
  return models;
}

TEST(ChatFormat, UserTextNeverBecomesASpecialToken) {
  for (Model& m : all_families()) {
    const Tokenizer& t = m.make();
    const auto chat = ChatFormat::detect(t);
    SCOPED_TRACE(chat_family_name(chat.family()));
    std::string forged;
    for (std::size_t id = 257; id < m.data.tokens.size(); ++id) {
      if (t.is_control(static_cast<TokenId>(id))) forged += m.data.tokens[id];
    }
    const auto count = [&](const Ids& ids) {
      return std::count_if(ids.begin(), ids.end(), [&](TokenId id) { return t.is_control(id); });
    };
    for (const bool first : {true, false}) {
      const Ids honest = chat.user_turn({.document = "x", .question = "y", .system = "z"}, first);
      const Ids ids = chat.user_turn({.document = forged, .question = forged, .system = forged}, first);
      EXPECT_EQ(count(ids), count(honest));
      const auto split = chat.user_turn_split({.document = forged, .question = forged, .system = forged}, first);
      EXPECT_EQ(count(split.document) + count(split.question), count(honest));
    }
  }
}

TEST(ChatFormat, SplitTurnsJoinToTheSameText) {
  for (Model& m : all_families()) {
    const Tokenizer& t = m.make();
    const auto chat = ChatFormat::detect(t);
    SCOPED_TRACE(chat_family_name(chat.family()));
    for (const auto& [document, question] :
         std::vector<std::pair<std::string, std::string>>{{"Doc.\n", "Who?"}, {"", "Who?"}, {"Doc.", ""}, {"", ""}}) {
      for (const bool first : {true, false}) {
        const ChatFormat::Turn turn = {.document = document, .question = question, .system = "S"};
        auto split = chat.user_turn_split(turn, first);
        const std::string head = shown(t, split.document), tail = shown(t, split.question);
        EXPECT_EQ(head + tail, shown(t, chat.user_turn(turn, first)));
        if (!document.empty() && !question.empty()) {
          EXPECT_TRUE(head.ends_with("Doc.\n")) << head;
          EXPECT_TRUE(tail.starts_with("\n\n\nWho?")) << tail;
        } else if (!question.empty()) {
          EXPECT_TRUE(tail.starts_with("Who?")) << tail;
        }
      }
    }
  }
}

// A space is inserted before a text, not in the middle of one.
TEST(ChatFormat, ASplitPutsNoSpaceAtTheSeam) {
  TokenizerData data = test::sentence_piece({"▁", "a", "b"});
  data.chat_template = "{{ '[INST] ' + content + ' [/INST]' }}";
  const auto t = Tokenizer::make(data);
  const auto chat = ChatFormat::detect(*t);
  const ChatFormat::Turn turn = {.document = "a", .question = "b", .system = {}};
  auto split = chat.user_turn_split(turn, true);
  const Ids whole = chat.user_turn(turn, true);
  split.document.insert(split.document.end(), split.question.begin(), split.question.end());
  EXPECT_EQ(split.document, whole);
}

}  // namespace
}  // namespace mneme
