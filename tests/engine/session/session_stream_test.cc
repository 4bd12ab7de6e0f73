// Streams, and sessions of several threads, with the shipped model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <latch>
#include <thread>

#include "tests/engine/session/session_fixture.h"

namespace mneme {
namespace {

static_assert(std::input_iterator<TextStream::Iterator>);
static_assert(std::sentinel_for<std::default_sentinel_t, TextStream::Iterator>);

using SessionStream = SharedModelTest;

TEST_F(SessionStream, GivesThePiecesOfTheAnswerThatAskGives) {
  const Turn turn{.document = kDocument, .question = kAboutHarbour};
  Session asked(model()), streamed(model());
  const Answer answer = asked.ask(turn);
  TextStream stream = streamed.stream(turn);
  std::string text;
  int pieces = 0;
  for (const std::string& piece : stream) {
    EXPECT_FALSE(piece.empty());
    text += piece;
    ++pieces;
  }
  EXPECT_EQ(text, "48213");
  EXPECT_GT(pieces, 1);
  ASSERT_TRUE(stream.done());
  EXPECT_EQ(stream.answer().text, answer.text);
  EXPECT_EQ(stream.answer().tokens, answer.tokens);
  EXPECT_EQ(stream.answer().stopped, StopReason::kEnd);
  EXPECT_EQ(stream.answer().stats.answer_tokens, 5);
  EXPECT_EQ(stream.answer().stats.prompt_tokens, answer.stats.prompt_tokens);
  EXPECT_EQ(streamed.tokens(), asked.tokens());
  EXPECT_EQ(stream.next(), std::nullopt);
  EXPECT_EQ(streamed.ask({.question = kAboutLantern}).text, "70935");
}

TEST_F(SessionStream, ComputesAPieceWhenItIsAskedFor) {
  Session session(model());
  TextStream stream = session.stream({.question = "Count."}, {.max_tokens = 30, .ignore_end = true});
  const std::size_t before = session.tokens().size();
  ASSERT_TRUE(stream.next());
  EXPECT_LE(session.tokens().size(), before + 3);
  EXPECT_EQ(kind_of([&] { stream.answer(); }), ErrorKind::kRequest);
}

TEST_F(SessionStream, EndsWhenItIsDestroyedAndTheSessionGoesOn) {
  Session session(model());
  session.read({.document = kDocument});
  {
    TextStream stream = session.stream({.question = kAboutHarbour}, {.max_tokens = 200, .ignore_end = true});
    ASSERT_TRUE(stream.next());
  }
  EXPECT_LT(session.tokens().size(), 200u);
  EXPECT_EQ(session.ask({.question = kAboutLantern}).text, "70935");
}

TEST_F(SessionStream, StopEndsItWithWhatWasComputed) {
  Session session(model());
  TextStream stream = session.stream({.question = "Count."}, {.max_tokens = 200, .ignore_end = true});
  std::string text;
  for (const std::string& piece : stream) {
    text += piece;
    stream.stop();
  }
  EXPECT_EQ(stream.answer().stopped, StopReason::kCancelled);
  EXPECT_EQ(stream.answer().text, text);
  EXPECT_LT(stream.answer().stats.answer_tokens, 10);
}

TEST_F(SessionStream, AnotherThreadMayStopIt) {
  Session session(model());
  TextStream stream = session.stream({.question = "Count."}, {.max_tokens = 1500, .ignore_end = true});
  ASSERT_TRUE(stream.next());
  std::thread other([&] { stream.stop(); });
  while (stream.next()) {
  }
  other.join();
  EXPECT_EQ(stream.answer().stopped, StopReason::kCancelled);
  EXPECT_LT(stream.answer().stats.answer_tokens, 1500);
}

TEST_F(SessionStream, TheSessionDoesNothingElseMeanwhile) {
  Session session(model());
  session.ask({.document = kDocument, .question = kAboutHarbour});
  std::optional<TextStream> stream = session.stream({.question = kAboutLantern});
  EXPECT_EQ(kind_of([&] { session.ask({.question = "x"}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.stream({.question = "x"}); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.fork(); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.score("x"); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.logits(); }), ErrorKind::kRequest);
  EXPECT_EQ(kind_of([&] { session.save("never-written"); }), ErrorKind::kRequest);
  while (stream->next()) {
  }
  EXPECT_EQ(session.ask({.question = kAboutHarbour}).text, "48213") << "an ended stream is in nobody's way";
}

TEST_F(SessionStream, MayOutliveItsSession) {
  std::optional<Session> session(std::in_place, model());
  TextStream stream = session->stream({.document = kDocument, .question = kAboutHarbour});
  session.reset();
  std::string text;
  for (const std::string& piece : stream) text += piece;
  EXPECT_EQ(text, "48213");
}

TEST_F(SessionStream, EndsBeforeAStopStringAndKeepsTheTokenThatCompletedIt) {
  Session asked(model()), streamed(model());
  const Turn turn{.document = kDocument, .question = kAboutHarbour};
  const GenerationOptions options{.stop = {"821"}};
  const Answer answer = asked.ask(turn, options);
  TextStream stream = streamed.stream(turn, options);
  std::string text;
  for (const std::string& piece : stream) text += piece;
  EXPECT_EQ(text, "4");
  EXPECT_EQ(stream.answer().stopped, StopReason::kStopString);
  EXPECT_EQ(streamed.tokens(), asked.tokens());
  EXPECT_EQ(stream.answer().tokens, answer.tokens);
}

using ConcurrentSessions = SharedModelTest;

// Each thread's answers are those of one thread alone, whatever the others do.
TEST_F(ConcurrentSessions, AnswerAsIfAlone) {
  constexpr int kThreads = 4, kRounds = 3;
  Session book(model());
  book.read({.document = kDocument});
  std::vector<std::thread> threads;
  std::atomic<int> right = 0;
  std::vector<Session> sessions;
  for (int t = 0; t < kThreads; ++t) sessions.push_back(book.fork());
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        const bool harbour = (t + i) % 2 == 0;
        Session session = sessions[t].fork();
        const Answer answer = session.ask({.question = harbour ? kAboutHarbour : kAboutLantern});
        right += answer.text == (harbour ? "48213" : "70935") ? 1 : 0;
      }
    });
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(right, kThreads * kRounds);
}

TEST_F(ConcurrentSessions, ShareTheirSteps) {
  constexpr int kThreads = 2, kTokens = 200;
  const GenerationOptions options{.max_tokens = kTokens, .ignore_end = true};
  // Submitted one after the other, before either is read; the first thread that reads computes both.
  std::vector<Session> sessions;
  std::vector<TextStream> streams;
  for (int t = 0; t < kThreads; ++t) {
    sessions.emplace_back(model());
    streams.push_back(sessions.back().stream({.question = "Count."}, options));
  }
  while (streams[0].next()) {
  }
  const std::size_t first = sessions[0].tokens().size(), second = sessions[1].tokens().size();
  EXPECT_EQ(second, first) << "what one thread computed for itself it computed for the other too";
  while (streams[1].next()) {
  }
  EXPECT_EQ(streams[1].answer().tokens.size(), static_cast<std::size_t>(kTokens));
}

TEST_F(ConcurrentSessions, ComeAndGoWhileOthersAnswer) {
  std::atomic<bool> ends = false;
  std::thread busy([&] {
    while (!ends) {
      Session session(model());
      session.ask({.question = "Count."}, {.max_tokens = 40, .ignore_end = true});
    }
  });
  for (int i = 0; i < 5; ++i) {
    Session session(model());
    session.read({.document = kDocument});
    Session other = session.fork();
    {
      TextStream dropped = session.stream({.question = kAboutHarbour}, {.max_tokens = 100, .ignore_end = true});
      dropped.next();
    }
    EXPECT_EQ(other.ask({.question = kAboutLantern}).text, "70935");
    EXPECT_EQ(other.score(" and").tokens.size(), model().tokenize(" and").size());
  }
  ends = true;
  busy.join();
}

}  // namespace
}  // namespace mneme
