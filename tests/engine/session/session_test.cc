// The public API with the shipped model, on short texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "mneme/mneme.h"
#include "src/engine/session/running_model.h"
#include "tests/engine/session/session_fixture.h"
#include "tests/error_message.h"
#include "tests/padded_model.h"
#include "tests/temp_folder.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

class SessionTest : public SharedModelTest {
 protected:
  // One for all tests: what one leaves behind, the next would meet.
  static LanguageModel& model() {
    static LanguageModel model(
        kModel, {.context = 2048, .max_batched_tokens = 64, .threads = kTestThreads, .pin_threads = false});
    return model;
  }
};

TEST_F(SessionTest, AFileTellsWhatItIs) {
  const ModelFile file(kModel);
  const ModelInfo info = file.info();
  EXPECT_EQ(info.architecture, "llama");
  EXPECT_EQ(info.chat_family, "needle");
  EXPECT_EQ(info.vocabulary, 8192);
  EXPECT_EQ(info.layers, 8);
  EXPECT_GE(info.context, 16384);
  EXPECT_EQ(file.detokenize(file.tokenize(kDocument)), kDocument);
  EXPECT_EQ(file.tokenize("<|end|>", SpecialTokens::kParsed).size(), 1u);
  EXPECT_GT(file.tokenize("<|end|>").size(), 1u);
  const Turn turn{.document = kDocument, .question = kAboutHarbour};
  // <|bos|><|user|>...<|end|><|assistant|>
  EXPECT_EQ(file.count_tokens(turn),
            4 + static_cast<std::int64_t>(file.tokenize(kDocument + "\n\n\n" + kAboutHarbour).size()));
}

// Counted before the model starts, and tokenised once.
TEST_F(SessionTest, APreparedTurnIsAskedAsItWasCounted) {
  const Turn turn{.document = kDocument, .question = kAboutHarbour};
  const EngineOptions small{.context = 2048, .max_batched_tokens = 64, .threads = kTestThreads, .pin_threads = false};
  for (const QuestionPath path : {QuestionPath::kPrefill, QuestionPath::kDecode}) {
    const std::size_t at = kDocument.find("for some time");
    const AskOptions how{.question = path, .question_span = std::pair(at, at + 13), .top_logprobs = 2};
    ModelFile file(kModel);
    const PreparedTurn prepared = file.prepare(turn, how);
    EXPECT_EQ(prepared.n_tokens(), file.count_tokens(turn, how));
    const LanguageModel started(std::move(file), small);
    Session session(started), other(started);
    const Answer answer = session.ask(prepared, {.max_tokens = 8}), plain = other.ask(turn, {.max_tokens = 8}, how);
    EXPECT_EQ(answer.tokens, plain.tokens);
    EXPECT_EQ(session.tokens(), other.tokens());
    EXPECT_EQ(answer.scores.size(), answer.tokens.size());
    EXPECT_EQ(answer.stats.prompt_tokens, prepared.n_tokens());
    EXPECT_EQ(error_message(ErrorKind::kRequest, [&] { session.ask(prepared); }),
              "a prepared turn is the first of a session: this session had one");
    Session elsewhere(model());
    EXPECT_EQ(error_message(ErrorKind::kRequest, [&] { elsewhere.ask(prepared); }),
              "the turn was prepared by another model's file: its tokens mean other words here");
    elsewhere.ask(turn, {.max_tokens = 1});
  }
}

TEST_F(SessionTest, ABiasOfAnIdWithoutATokenIsNamed) {
  const TempFolder folder;
  const LanguageModel padded(make_padded_model(folder.path()), {.threads = 1, .pin_threads = false});
  Session session(padded);
  const auto ask = [&](std::int32_t id) {
    session.ask({.question = "A"}, {.sampling = {.logit_bias = {{id, 100.0f}}}, .max_tokens = 2},
                {.framing = Framing::kRaw});
  };
  EXPECT_EQ(error_message(ErrorKind::kOption, [&] { ask(61); }),
            "logit_bias: the id 61 has no token and is never sampled; leave it out");
  ask(59);
  const std::vector<float> logits = session.logits();
  for (std::int32_t id = 0; id < kPaddedVocab; ++id) EXPECT_EQ(std::isfinite(logits[id]), id < kPaddedTokens) << id;
}

// Bytes of the document to tokens of the framed turn.
TEST_F(SessionTest, AQuestionSpanIsTheTokensOfItsWords) {
  const TextSide text(*Checkpoint::open(kModel));
  const std::string words = "for some time nobody spoke";
  for (const Framing framing : {Framing::kChat, Framing::kRaw}) {
    const Turn turn{.document = kDocument, .question = kAboutHarbour};
    const std::size_t at = kDocument.find(words);
    const AskOptions how{.framing = framing, .question_span = std::pair(at, at + words.size())};
    const auto prompt = text.prompt_of(turn, how, true).tokens;
    const auto [begin, end] = text.question_span(turn, how, true, prompt);
    const std::string marked = text.tokenizer->decode(std::span(prompt).subspan(begin, end - begin));
    EXPECT_NE(marked.find(words), std::string::npos) << marked;
    EXPECT_LE(marked.size(), words.size() + 4) << marked;
  }
  Session session(model());
  const auto ask = [&](std::size_t begin, std::size_t end) {
    session.ask({.document = "Red.", .question = "Which?"}, {}, {.question_span = std::pair(begin, end)});
  };
  EXPECT_EQ(kind_of([&] { ask(2, 2); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { ask(0, 5); }), ErrorKind::kRequest);
  ask(0, 4);
}

TEST_F(SessionTest, AsksAndStreams) {
  Session session(model());
  std::string streamed;
  std::int64_t last_done = 0;
  AskCallbacks callbacks;
  callbacks.on_text = [&](std::string_view text) {
    streamed += text;
    return true;
  };
  callbacks.on_progress = [&](std::string_view, std::int64_t done, std::int64_t total) {
    EXPECT_GT(done, last_done);
    EXPECT_LE(done, total);
    last_done = done;
  };
  const Answer answer = session.ask({.document = kDocument, .question = kAboutHarbour}, {}, {}, callbacks);
  EXPECT_EQ(answer.text, "48213");
  EXPECT_EQ(streamed, answer.text);
  EXPECT_EQ(answer.stopped, StopReason::kEnd);
  EXPECT_EQ(answer.stats.answer_tokens, 5);
  EXPECT_EQ(answer.stats.decode_steps, 5) << "four tokens and the end";
  EXPECT_EQ(last_done, answer.stats.prompt_tokens);
  EXPECT_EQ(session.tokens().size(), static_cast<std::size_t>(answer.stats.prompt_tokens + 5));
}

TEST_F(SessionTest, ASecondTurnKeepsTheFirst) {
  Session session(model());
  const Answer first = session.ask({.document = kDocument, .question = kAboutHarbour});
  const Answer second = session.ask({.question = kAboutLantern});
  EXPECT_EQ(second.text, "70935");
  EXPECT_LT(second.stats.prompt_tokens, 40) << "only the new turn is computed";
  EXPECT_GT(second.stats.shared_tokens, first.stats.prompt_tokens - 1);

  // The tokens are those of the conversation written out in the model's marks.
  const std::string whole = "<|bos|><|user|>" + kDocument + "\n\n\n" + kAboutHarbour + "<|end|><|assistant|>48213" +
                            "<|end|><|user|>\n" + kAboutLantern + "<|end|><|assistant|>70935";
  EXPECT_EQ(session.tokens(), model().tokenize(whole, SpecialTokens::kParsed));
}

TEST_F(SessionTest, ADocumentReadBeforeGivesTheSameTokensAndAnswer) {
  Session asked(model()), read(model());
  const AskOptions apart{.question = QuestionPath::kDecode};
  const Answer at_once = asked.ask({.document = kDocument, .question = kAboutHarbour}, {}, apart);
  read.read({.document = kDocument});
  const Answer later = read.ask({.question = kAboutHarbour}, {}, apart);
  EXPECT_EQ(at_once.text, "48213");
  EXPECT_EQ(later.text, "48213");
  EXPECT_EQ(read.tokens(), asked.tokens());
  EXPECT_LT(later.stats.prompt_tokens, 40);
}

TEST_F(SessionTest, ForksGoTheirOwnWays) {
  Session book(model());
  book.read({.document = kDocument});
  const auto before = book.tokens();
  Session a = book.fork(), b = book.fork();
  EXPECT_EQ(a.ask({.question = kAboutHarbour}).text, "48213");
  EXPECT_EQ(b.ask({.question = kAboutLantern}).text, "70935");
  EXPECT_EQ(book.tokens(), before);
  EXPECT_EQ(book.ask({.question = kAboutLantern}).text, "70935");
  Session c = a.fork();
  EXPECT_EQ(c.ask({.question = kAboutLantern}).text, "70935") << "a fork of an answered session goes on with a turn";
  EXPECT_EQ(Session(model()).fork().ask({.document = kDocument, .question = kAboutHarbour}).text, "48213")
      << "a fork of nothing is a new session";
}

TEST_F(SessionTest, StopStringsEndTheAnswerAndTheSessionGoesOn) {
  Session session(model());
  const Answer cut = session.ask({.document = kDocument, .question = kAboutHarbour}, {.stop = {"21"}});
  EXPECT_EQ(cut.text, "48");
  EXPECT_EQ(cut.stopped, StopReason::kStopString);
  EXPECT_EQ(session.ask({.question = kAboutLantern}).text, "70935");
}

TEST_F(SessionTest, CallbacksEndTheAnswer) {
  Session session(model());
  AskCallbacks callbacks;
  int pieces = 0;
  callbacks.on_text = [&](std::string_view) { return ++pieces < 2; };
  const Answer cut = session.ask({.document = kDocument, .question = kAboutHarbour}, {}, {}, callbacks);
  EXPECT_EQ(cut.text, "48");
  EXPECT_EQ(cut.stopped, StopReason::kCancelled);
  EXPECT_EQ(session.ask({.question = kAboutLantern}).text, "70935");

  AskCallbacks at_once;
  at_once.should_stop = [] { return true; };
  const Answer none = Session(model()).ask({.document = kDocument, .question = kAboutHarbour}, {}, {}, at_once);
  EXPECT_EQ(none.text, "");
  EXPECT_EQ(none.stopped, StopReason::kCancelled);
  EXPECT_EQ(none.stats.decode_steps, 0);
}

TEST_F(SessionTest, ExceptionsOfCallbacksReachTheCallerAndTheModelGoesOn) {
  Session session(model());
  AskCallbacks callbacks;
  callbacks.on_text = [](std::string_view) -> bool { throw std::runtime_error("enough"); };
  EXPECT_THROW(session.ask({.document = kDocument, .question = kAboutHarbour}, {}, {}, callbacks), std::runtime_error);
  EXPECT_EQ(Session(model()).ask({.document = kDocument, .question = kAboutHarbour}).text, "48213");
  EXPECT_EQ(session.ask({.question = kAboutLantern}).text, "70935");
}

TEST_F(SessionTest, WhatCannotBeAskedChangesNothing) {
  Session session(model());
  std::string too_long;
  for (int i = 0; i < 40; ++i) too_long += kDocument;
  EXPECT_EQ(kind_of([&] { session.ask({}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.ask({.document = too_long}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.ask({.question = "x"}, {.max_tokens = 0}); }), ErrorKind::kOption);
  EXPECT_EQ(kind_of([&] { session.ask({.question = "x"}, {.sampling = {.temperature = -1}}); }), ErrorKind::kOption);
  EXPECT_EQ(kind_of([&] { session.read({}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.read({.document = kDocument, .question = "x"}); }), ErrorKind::kRequest);
  EXPECT_TRUE(session.tokens().empty());
  EXPECT_EQ(session.ask({.document = kDocument, .question = kAboutHarbour}).text, "48213");

  const auto before = session.tokens();
  EXPECT_EQ(kind_of([&] { session.ask({.document = too_long}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.ask({.question = "x", .system = "y"}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.read({.document = kDocument}); }), ErrorKind::kRequest);
  EXPECT_EQ(session.tokens(), before);
  EXPECT_EQ(session.ask({.question = kAboutLantern}).text, "70935");

  Session reader(model());
  reader.read({.document = kDocument});
  EXPECT_EQ(kind_of([&] { reader.ask({.document = "another", .question = "x"}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { reader.ask({}); }), ErrorKind::kRequest);
  EXPECT_EQ(reader.ask({.question = kAboutHarbour}).text, "48213");
}

TEST_F(SessionTest, RawPromptsAreContinued) {
  Session session(model());
  const AskOptions raw{.framing = Framing::kRaw, .special = SpecialTokens::kParsed};
  const std::string prompt = "<|user|>" + kDocument + "\n\n\n" + kAboutHarbour + "<|end|><|assistant|>";
  EXPECT_EQ(session.ask({.question = prompt}, {}, raw).text, "48213");
  const std::string more = "<|end|><|user|>\n" + kAboutLantern + "<|end|><|assistant|>";
  EXPECT_EQ(session.ask({.question = more}, {}, raw).text, "70935");
}

TEST_F(SessionTest, ManySessionsLeaveNoMemoryBehind) {
  Session kept(model());
  kept.read({.document = kDocument});
  for (int i = 0; i < 30; ++i) {  // together far more tokens than the context has
    Session session = kept.fork();
    ASSERT_EQ(session.ask({.question = i % 2 == 0 ? kAboutHarbour : kAboutLantern}).text,
              i % 2 == 0 ? "48213" : "70935");
  }
  const Answer last = kept.ask({.question = kAboutHarbour});
  EXPECT_EQ(last.text, "48213");
  EXPECT_LT(last.stats.prompt_tokens, 40) << "the document's keys and values are still there";
}

TEST_F(SessionTest, AModelMayGoBeforeItsSessions) {
  auto short_lived =
      std::make_unique<LanguageModel>(kModel, EngineOptions{.context = 512, .threads = 1, .pin_threads = false});
  Session session(*short_lived);
  short_lived.reset();
  EXPECT_EQ(session.ask({.document = kDocument, .question = kAboutHarbour}).text, "48213");
}

TEST(LanguageModelErrors, OptionsOutOfRange) {
  const auto kind_of = [](const EngineOptions& options) {
    try {
      LanguageModel model(kModel, options);
    } catch (const Error& e) {
      return e.kind();
    }
    return ErrorKind::kDevice;
  };
  EXPECT_EQ(kind_of({.threads = -1}), ErrorKind::kOption);
  EXPECT_EQ(kind_of({.threads = 100'000}), ErrorKind::kOption);
  EXPECT_EQ(kind_of({.max_sequences = 0}), ErrorKind::kOption);
  EXPECT_EQ(kind_of({.context = 1024, .kv_memory_bytes = 4096}), ErrorKind::kResource);
}

}  // namespace
}  // namespace mneme
