#include "src/engine/answer/answer_stream.h"

#include <gtest/gtest.h>

#include "src/engine/session/running_model.h"
#include "src/formats/checkpoint.h"

namespace mneme {
namespace {

struct Told {
  std::string text;
  std::vector<TokenId> ids;
};

Told stream(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, std::vector<std::string> stop) {
  AnswerStream answer(tokenizer, std::move(stop));
  Told told;
  const auto take = [&](const AnswerPiece& piece) {
    told.text += piece.text;
    for (const TokenScore& t : piece.tokens) told.ids.push_back(t.token);
  };
  for (const TokenId id : ids) {
    if (answer.stopped()) break;
    take(answer.push({.token = id, .logprob = 0, .top = {}}));
  }
  take(answer.finish());
  return told;
}

TEST(AnswerStream, TellsEveryTokenWithItsText) {
  const auto checkpoint = Checkpoint::open(MNEME_MODEL_FILE);
  const TextSide text(*checkpoint);
  const Tokenizer& t = *text.tokenizer;
  const std::string words = "The harbour, on Tuesday: 4711. \xe2\x82\xac and \xf0\x9f\x90\x98!";
  const auto ids = t.encode(words, {});
  EXPECT_EQ(stream(t, ids, {}).text, words);
  EXPECT_EQ(stream(t, ids, {}).ids, ids);
  EXPECT_EQ(stream(t, ids, {"nowhere"}).ids, ids);
  EXPECT_EQ(stream(t, {}, {"x"}).text, "");

  // Of a stop string nothing is told, neither text nor tokens whose text begins in it.
  const Told stopped = stream(t, ids, {"Tuesday"});
  EXPECT_EQ(stopped.text, "The harbour, on ");
  EXPECT_TRUE(t.decode(stopped.ids).starts_with("The harbour, on"));
  EXPECT_LT(stopped.ids.size(), ids.size());
  EXPECT_EQ(t.decode(stopped.ids).find("esday"), std::string::npos);
}

// Also of one that begins with a token: that one's text begins where the answer ends.
TEST(AnswerStream, TellsNoTokenWhoseTextBeginsInAStopString) {
  const auto checkpoint = Checkpoint::open(MNEME_MODEL_FILE);
  const TextSide text(*checkpoint);
  const Tokenizer& t = *text.tokenizer;
  const auto ids = t.encode("The harbour, on Tuesday: 4711.", {});
  bool at_a_boundary = false;
  for (const char* stop : {"Tuesday", " Tuesday", "uesday", ":", " 4711", "4711"}) {
    const Told stopped = stream(t, ids, {stop});
    std::vector<TokenId> begun, before;
    for (const TokenId id : ids) {
      const std::size_t begin = t.decode(before).size();
      if (begin < stopped.text.size()) begun.push_back(id);
      at_a_boundary = at_a_boundary || begin == stopped.text.size();
      before.push_back(id);
    }
    EXPECT_EQ(stopped.ids, begun) << stop;
  }
  EXPECT_TRUE(at_a_boundary);
}

}  // namespace
}  // namespace mneme
