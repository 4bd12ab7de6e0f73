// The host tier under pages on a device, with the shipped model: answers that were preempted go on, and documents that
// were evicted come back, without computing; and what came back still answers questions.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "src/base/size32.h"
#include "src/cuda/device.h"
#include "src/engine/kv_method.h"
#include "src/engine/loop/sequence_keeper.h"
#include "src/engine/schedule/answer_forecast.h"
#include "tests/test_threads.h"

namespace mneme {
namespace {

struct Setting {
  const char *device, *kv_store, *method, *overrides;
};
const Setting kSettings[] = {{"cpu", "auto", "full", ""},
                             {"cpu", "auto", "quest", "unit=page:32"},
                             {"cuda", "device", "full", ""},
                             {"cuda", "device", "quest", "unit=page:32"},
                             {"cuda", "device", "freekv", "unit=page:32"},
                             {"cuda", "device", "mneme", ""},
                             {"cuda", "host", "full", ""},
                             {"cuda", "host", "freekv", "unit=page:32"},
                             {"cuda", "host", "mneme", ""}};

// Some 1,450 tokens; the second fact is 3 lines before the end.
std::string document(int which) {
  std::string text = "This is report " + std::to_string(which) + ".\n";
  for (int i = 0; i < 60; ++i) {
    text += "It was a dark evening, and the rain fell upon the roofs of the town while the old man lit his pipe.\n";
    if (i == 20) text += "The secret number of silver-harbour is 48213.\n";
    if (i == 56) text += "The secret number of copper-lantern is 70935.\n";
  }
  return text;
}

class Answers {
 public:
  Answers(const Setting& s, std::int64_t pages, std::int64_t host_bytes)
      : model_(start(s, pages)), keeper_(model_, {.prefix_cache = true, .host_bytes = host_bytes}) {
    KvMethodOptions kv{.method = s.method};
    if (kv.method == "full") return;
    kv.budget = 352, kv.sink = 32, kv.recent = 64, kv.overrides = s.overrides;
    plan_ = compile(recipe_of(kv), model_.engine->method_shape());
  }
  Engine& engine() { return *model_.engine; }
  SequenceKeeper& keeper() { return keeper_; }

  std::vector<std::int32_t> prompt(int which) const {
    return model_.text
        ->prompt_of({.document = document(which), .question = "What is the secret number of silver-harbour?"}, {}, true)
        .tokens;
  }
  RequestId submit(std::vector<std::int32_t> prompt, std::int32_t max_tokens) {
    return engine().start({}, input(std::move(prompt), max_tokens));
  }
  void go_on(RequestId id, std::int32_t max_tokens) {
    std::vector<std::int32_t> turn = model_.text->chat.end_of_answer();
    const auto asked =
        model_.text->prompt_of({.question = "What is the secret number of copper-lantern?"}, {}, false).tokens;
    turn.insert(turn.end(), asked.begin(), asked.end());
    engine().start(Origin::next_turn(id), input(std::move(turn), max_tokens));
  }
  void finish() {
    while (!engine().idle()) {
      for (const RequestEvent& event : engine().step())
        if (event.token) tokens_[event.id].push_back(event.token->token);
      engine().check_invariants();
    }
  }
  // What it has answered since the last call.
  std::string take_text(RequestId id) { return model_.text->tokenizer->decode(std::exchange(tokens_[id], {})); }
  // Its pages go to whoever wants them, and are found by the tokens of its prompt.
  void keep(RequestId id, std::int32_t prompt_tokens) {
    keeper_.ended({.id = id, .prompt_tokens = prompt_tokens, .salt = "", .full_attention = plan_ == nullptr});
  }

 private:
  static RunningModel start(const Setting& s, std::int64_t pages) {
    auto checkpoint = Checkpoint::open(MNEME_SOURCE_DIR "/models/needle-27m-q8_0.gguf");
    auto text = std::make_unique<TextSide>(*checkpoint);
    constexpr std::int64_t kPageBytes = 4096 * kPageTokens;
    return start_model(std::move(checkpoint), std::move(text),
                       {.device = parse_device(s.device),
                        .kv_store = parse_kv_residency(s.kv_store),
                        .context = 2048,
                        .kv_memory_bytes = pages * kPageBytes,
                        .max_sequences = 8,
                        .max_batched_tokens = 512,
                        .kv_admission = KvAdmission::kForecast,
                        .threads = kTestThreads,
                        .pin_threads = false},
                       {});
  }
  RequestInput input(std::vector<std::int32_t> prompt, std::int32_t max_tokens) const {
    RequestInput in;
    in.prompt = std::move(prompt);
    in.max_tokens = max_tokens;
    in.keep_sequence = true;
    in.method = plan_;
    return in;
  }

  RunningModel model_;
  SequenceKeeper keeper_;
  std::shared_ptr<const Plan> plan_;
  std::map<RequestId, std::vector<std::int32_t>> tokens_;
};

class CudaHostTierOn : public testing::TestWithParam<Setting> {
 protected:
  void SetUp() override {
    if (std::string(GetParam().device) != "cpu" && device_count() == 0)
      GTEST_SKIP() << "no GPU: " << no_device_reason();
  }
};
INSTANTIATE_TEST_SUITE_P(, CudaHostTierOn, testing::ValuesIn(kSettings), [](const auto& on) {
  return std::string(on.param.device) + "_" + on.param.kv_store + "_" + on.param.method;
});

// Four documents fit, and 300 tokens of an answer for each do not: the latest loses most of its document.
TEST_P(CudaHostTierOn, PreemptedAnswersGoOnWithWhatTheyHad) {
  const Setting& s = GetParam();
  const std::int64_t document_pages = pages_of(size32(Answers(s, 64, 0).prompt(0)));
  Answers a(s, 4 * document_pages + 14, 64 << 20);
  std::vector<RequestId> taught;
  for (std::int64_t i = 0; i < AnswerForecast::kEnough; ++i) taught.push_back(a.submit({5, 6, 7}, 4));
  a.finish();
  for (const RequestId id : taught) a.engine().cancel(id);
  std::vector<RequestId> ids;
  for (int i = 0; i < 4; ++i) ids.push_back(a.submit(a.prompt(i), 300));
  a.finish();
  const Engine::Counts counts = a.engine().counts();
  EXPECT_GT(counts.preemptions, 0);
  EXPECT_GT(counts.preempted_tokens, 300);
  EXPECT_EQ(counts.returned_tokens, counts.preempted_tokens);
  for (const RequestId id : ids) {
    EXPECT_EQ(a.take_text(id).substr(0, 5), "48213");
    if (a.engine().stats(id).preemptions == 0) continue;
    a.go_on(id, 6);
    a.finish();
    EXPECT_EQ(a.take_text(id).substr(0, 5), "70935") << "after " << a.engine().tokens(id).size() << " tokens";
  }
}

// Room for a document and a half.
TEST_P(CudaHostTierOn, DocumentsComeBack) {
  const Setting& s = GetParam();
  const std::int64_t document_pages = pages_of(size32(Answers(s, 64, 0).prompt(0)));
  Answers a(s, document_pages * 3 / 2, 64 << 20);
  std::vector<std::vector<std::int32_t>> prompts;
  for (int i = 0; i < 3; ++i) {
    prompts.push_back(a.prompt(i));
    const RequestId id = a.submit(prompts[i], 6);
    a.keeper().make_room();
    a.finish();
    EXPECT_EQ(a.take_text(id).substr(0, 5), "48213");
    a.keep(id, size32(prompts[i]));
  }
  for (int i = 0; i < 3; ++i) {
    const auto most = size32(prompts[i]) - 1;
    a.keeper().bring_back(prompts[i], "", {}, most);
    const auto source = a.keeper().source_for(prompts[i], "", std::nullopt);
    ASSERT_TRUE(source);
    EXPECT_GE(source->n_tokens, most / kPageTokens * kPageTokens);
    const RequestId id = a.submit(prompts[i], 6);
    const std::int32_t shared = a.engine().take_prefix(id, source->id, std::min(most, source->n_tokens));
    EXPECT_GT(shared, most - kPageTokens);
    a.keeper().make_room();
    a.finish();
    EXPECT_EQ(a.engine().stats(id).shared_tokens, shared);
    EXPECT_EQ(a.take_text(id).substr(0, 5), "48213");
    a.engine().cancel(id);
  }
  EXPECT_GE(a.keeper().host()->store().stats().loaded, 2 * (document_pages - 1));
}

}  // namespace
}  // namespace mneme
