// Sessions saved on one device and restored on the other, with the shipped model; those of methods that drop tokens
// also on the same one, where what they drop afterwards is the same too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "mneme/mneme.h"
#include "tests/cuda/cuda_testing.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

const std::string kModel = MNEME_SOURCE_DIR "/models/needle-27m-q8_0.gguf";

// Some 1,550 tokens, four times the budget below, with two facts in its middle.
std::string document() {
  std::string text;
  for (int i = 0; i < 60; ++i) {
    text += "It was a dark evening, and the rain fell upon the roofs of the town while the old man lit his pipe.\n";
    if (i == 20) text += "The secret number of silver-harbour is 48213.\n";
    if (i == 40) text += "The secret number of copper-lantern is 70935.\n";
  }
  return text;
}
const std::string kAboutHarbour = "What is the secret number of silver-harbour?";
const std::string kAboutLantern = "What is the secret number of copper-lantern?";

struct Setting {
  const char *method, *overrides, *kv_store;
};

EngineOptions options(const char* device, const char* kv_store) {
  return {.device = parse_device(device),
          .kv_store = parse_kv_residency(std::string_view(device) == "cpu" ? "auto" : kv_store),
          .context = 4096,
          .max_sequences = 4,
          .max_batched_tokens = 512,
          .threads = kTestThreads,
          .pin_threads = false};
}

LanguageModel start(const Setting& s, const char* device) {
  EngineOptions o = options(device, s.kv_store);
  o.kv.method = s.method;
  if (o.kv.method != "full") o.kv.budget = 352, o.kv.sink = 32, o.kv.recent = 64, o.kv.overrides = s.overrides;
  return LanguageModel(kModel, o);
}

class CudaSessionTest : public CudaTest {
 protected:
  CudaSessionTest() {
    std::string name = (std::filesystem::temp_directory_path() / "mneme_devices_XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  ~CudaSessionTest() override { std::filesystem::remove_all(folder_); }

  // Reads and answers on one device; goes on there, and from the file on the other one.
  void expect_same(const LanguageModel& here, const LanguageModel& there) const {
    const std::filesystem::path path = folder_ / "a.session";
    Session live(here);
    EXPECT_EQ(live.ask({.document = document(), .question = kAboutHarbour}).text, "48213");
    live.save(path);
    const std::int64_t before = static_cast<std::int64_t>(live.tokens().size());
    Session restored = Session::restore(there, path);
    ASSERT_EQ(restored.tokens(), live.tokens());
    for (const std::string& question : {kAboutLantern, kAboutHarbour}) {
      const Answer a = live.ask({.question = question}), b = restored.ask({.question = question});
      EXPECT_EQ(b.text, question == kAboutLantern ? "70935" : "48213");
      EXPECT_EQ(b.tokens, a.tokens);
      EXPECT_EQ(b.stats.prompt_tokens, a.stats.prompt_tokens) << "something was computed again";
      EXPECT_LT(b.stats.prompt_tokens, before / 10);
    }
    EXPECT_EQ(restored.tokens(), live.tokens());
    // And back: what the other device added goes on here.
    restored.save(path);
    Session back = Session::restore(here, path);
    EXPECT_EQ(back.ask({.question = kAboutLantern}).tokens, live.ask({.question = kAboutLantern}).tokens);
  }

  std::filesystem::path folder_;
};

TEST_F(CudaSessionTest, GoesOnWhereItWasSavedOnTheOtherDevice) {
  for (const Setting& s : {Setting{"full", "", "device"},
                           {"full", "", "host"},
                           {"quest", "unit=page:32", "host"},
                           {"freekv", "unit=page:32", "host"},
                           {"quest", "unit=page:32,budget=norm", "host"},
                           {"fier", "budget=norm", "device"},
                           {"actqkv", "", "device"},
                           {"actqkv", "", "host"}}) {
    SCOPED_TRACE(std::string(s.method) + ", pages on the " + s.kv_store);
    const LanguageModel cpu = start(s, "cpu"), cuda = start(s, "cuda");
    expect_same(cpu, cuda);
    expect_same(cuda, cpu);
  }
}

LanguageModel start_dropping(const Setting& s, int budget, const char* device) {
  EngineOptions o = options(device, s.kv_store);
  o.kv.method = s.method, o.kv.budget = budget, o.kv.overrides = s.overrides;
  return LanguageModel(kModel, o);
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// What the model said before it first ended its turn.
std::vector<std::int32_t> said(const Answer& answer) {
  constexpr std::int32_t kEnd = 1;
  return {answer.tokens.begin(), std::find(answer.tokens.begin(), answer.tokens.end(), kEnd)};
}

// Answers that are to be the live session's, of another one.
struct Overlap {
  Session session;
  std::int64_t dropped = -1;  // after the last answer
};
// How answers agree up to the first token that is another one: what comes after that says nothing.
struct Agreement {
  std::size_t same = 0, all = 0;
  void add(const Answer& got, const Answer& want) {
    const auto end = std::mismatch(got.tokens.begin(), got.tokens.end(), want.tokens.begin(), want.tokens.end()).first;
    same += static_cast<std::size_t>(end - got.tokens.begin()), all += want.tokens.size();
  }
};

// The live session, one from its file where nothing else has been, and forks of both, through turns whose prompts and
// answers drop more. The file has all of it: who stays, the attention they received, keys and values, bit for bit. Then
// the pages of the live one have holes and those from the file none, so that attention adds in another order; what
// follows the end of an answer has likeliest tokens that rounding turns over.
TEST_F(CudaSessionTest, WhatWasDroppedStaysDropped) {
  const std::filesystem::path path = folder_ / "a.session", again = folder_ / "b.session";
  const GenerationOptions long_answer{.max_tokens = 24, .ignore_end = true};
  for (const char* store : {"device", "host"})
    for (const auto& [method, budget, overrides] :
         {std::tuple{"refreekv", 64, "loss=0.1"}, {"snapkv", 256, ""}, {"h2o", 256, ""}, {"tova", 256, ""}}) {
      SCOPED_TRACE(std::string(method) + ", pages on the " + store);
      const Setting setting{method, overrides, store};
      const LanguageModel here = start_dropping(setting, budget, "cuda"),
                          fresh = start_dropping(setting, budget, "cuda");
      Session live(here);
      std::int64_t dropped =
          live.ask({.document = document(), .question = kAboutHarbour}, long_answer).stats.method.dropped_tokens;
      EXPECT_GT(dropped, 0);
      live.save(path);
      std::vector<Overlap> others;
      others.push_back({Session::restore(fresh, path)});
      EXPECT_EQ(others[0].session.tokens(), live.tokens());
      others[0].session.save(again);
      EXPECT_TRUE(bytes_of(again) == bytes_of(path));
      others.push_back({live.fork()});
      others.push_back({others[0].session.fork()});
      Agreement agreement;
      for (const std::string& question : {kAboutLantern, kAboutHarbour})
        for (const QuestionPath how : {QuestionPath::kPrefill, QuestionPath::kDecode}) {
          const Answer want = live.ask({.question = question}, long_answer, {.question = how});
          const std::int64_t more = want.stats.method.dropped_tokens - dropped;
          dropped = want.stats.method.dropped_tokens;
          for (Overlap& other : others) {
            const Answer got = other.session.ask({.question = question}, long_answer, {.question = how});
            EXPECT_EQ(said(got), said(want)) << question;
            agreement.add(got, want);
            // How many stay is the budget's, but for refreekv, where it is the attention's.
            const std::int64_t now = got.stats.method.dropped_tokens;
            if (other.dropped >= 0 && setting.method != std::string_view("refreekv")) {
              EXPECT_EQ(now - other.dropped, more);
            }
            other.dropped = now;
          }
        }
      EXPECT_GE(agreement.same, agreement.all * 4 / 5) << "of " << agreement.all << " tokens";
      RecordProperty(std::string(method) + "_" + store,
                     std::to_string(agreement.same) + " of " + std::to_string(agreement.all) + " tokens");
      if (std::string_view(store) == "host") continue;
      // On the other device, with what is left; and once more from what that one added.
      const LanguageModel cpu = start_dropping(setting, budget, "cpu");
      Session there = Session::restore(cpu, path);
      EXPECT_FALSE(there.ask({.question = kAboutLantern}, long_answer).tokens.empty());
      there.save(path);
      Session back = Session::restore(here, path);
      EXPECT_EQ(back.tokens(), there.tokens());
      EXPECT_FALSE(back.ask({.question = kAboutHarbour}, long_answer).tokens.empty());
    }
}

// A document that waits for its question is dropped from once, on whichever side of the file.
TEST_F(CudaSessionTest, ADocumentThatWaitsIsSavedAsItIs) {
  const std::filesystem::path path = folder_ / "a.session";
  const GenerationOptions long_answer{.max_tokens = 24, .ignore_end = true};
  for (const char* store : {"device", "host"})
    for (const auto& [method, budget] : {std::pair{"snapkv", 256}, {"h2o", 256}, {"tova", 256}}) {
      SCOPED_TRACE(std::string(method) + ", pages on the " + store);
      const LanguageModel model = start_dropping({method, "", store}, budget, "cuda");
      Session live(model);
      live.read({.document = document()});
      live.save(path);
      Session restored = Session::restore(model, path);
      EXPECT_EQ(live.ask({.question = kAboutHarbour}, long_answer).tokens,
                restored.ask({.question = kAboutHarbour}, long_answer).tokens);
    }
}

}  // namespace
}  // namespace mneme
