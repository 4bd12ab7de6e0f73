// Sequences longer than memory on the shipped model: answers are those of an engine that has all pages in memory.
#include <gtest/gtest.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "src/engine/engine.h"
#include "src/formats/checkpoint.h"
#include "src/recipes/recipes.h"
#include "src/text/chat/chat_format.h"
#include "src/text/tokenizer/tokenizer.h"
#include "tests/model/needle_prompts.h"
#include "tests/sanitized.h"
#include "tests/temp_folder.h"

namespace mneme {
namespace {

std::string model_path() {
  return std::string(MNEME_SOURCE_DIR) + "/models/needle-27m-q8_0.gguf";
}

struct Case {
  const char* method;  // null: full attention
  KvDtype dtype;
};

class EngineSpill {
 public:
  EngineSpill(const Case& c, const EngineOptions::KvSpill& spill, std::int64_t memory_pages) {
    EngineOptions options;
    options.context = 8192;
    options.kv_cache_dtype = c.dtype;
    options.deterministic = true;
    auto threads = std::make_unique<ThreadPool>(2);
    auto model = Model::load(Checkpoint::open(model_path()), {.context = 8192}, {.pool = threads.get()});
    const KvShape shape = model->kv_shape(c.dtype == KvDtype::kInt8 ? DType::kInt8 : DType::kBF16);
    page_bytes_ = shape.blocks_per_page() * static_cast<std::int64_t>(shape.page_bytes());
    if (spill.bytes > 0) {
      options.kv_spill = spill;
      options.kv_memory_bytes = memory_pages * page_bytes_;
    }
    engine_ = std::make_unique<Engine>(std::move(model), options, std::move(threads));
    if (c.method != nullptr)
      plan_ = compile(make_recipe(c.method, {.budget = 512, .sink = 32, .recent = 128}), engine_->method_shape());
  }
  std::vector<TokenId> answer(const NeedlePrompt& p) {
    const auto tokenizer = Tokenizer::make(Checkpoint::open_tokenizer(model_path()));
    const ChatFormat format = ChatFormat::detect(*tokenizer);
    auto [tokens, question] = format.user_turn_split({.document = p.document, .question = p.question}, true);
    RequestInput input;
    input.decode_prompt_tail = static_cast<std::int32_t>(question.size());
    tokens.insert(tokens.end(), question.begin(), question.end());
    input.prompt = std::move(tokens);
    input.max_tokens = 24;
    input.method = plan_;
    engine_->start({}, std::move(input));
    std::vector<TokenId> out;
    while (!engine_->idle())
      for (const RequestEvent& e : engine_->step()) {
        if (e.token) out.push_back(e.token->token);
        if (const auto stats = engine_->pool().spill_stats()) {
          EXPECT_LE(stats->resident_bytes, most_resident() + most_resident() / 2 + (1 << 20))
              << "what a layer reads on top";
        }
      }
    engine_->check_invariants();
    return out;
  }
  std::int64_t most_resident() const { return engine_->options().kv_memory_bytes; }
  SpillMemory::Stats stats() const { return *engine_->pool().spill_stats(); }
  std::int64_t page_bytes() const { return page_bytes_; }

 private:
  std::int64_t page_bytes_ = 0;
  std::unique_ptr<Engine> engine_;
  std::shared_ptr<const Plan> plan_;
};

TEST(EngineSpill, AnswersAreThoseOfMemory) {
  const Case cases[] = {{nullptr, KvDtype::kBf16},   {"freekv", KvDtype::kInt8},       {"mneme", KvDtype::kBf16},
                        {"quest", KvDtype::kBf16},   {"fier", KvDtype::kBf16},         {"snapkv", KvDtype::kBf16},
                        {"louiskv", KvDtype::kInt8}, {"streaming_llm", KvDtype::kBf16}};
  const TempFolder folder;
  NeedleMaker maker(NeedleMaker::made_up_prose(40000, 3), 7);
  const NeedlePrompt p = maker.make(NeedleKind::kNumbers, kSanitized ? 4000 : 12000);
  const std::int64_t in_memory = kSanitized ? 8 : 25;  // pages, a quarter of what there are
  for (const Case& c : std::span(cases).first(kSanitized ? 2 : std::size(cases))) {
    SCOPED_TRACE(c.method == nullptr ? "full" : c.method);
    EngineSpill memory(c, {}, 0);
    const std::vector<TokenId> expected = memory.answer(p);
    EXPECT_GE(expected.size(), 5u);
    EngineSpill spill(c, {.folder = folder.path(), .bytes = 300 * memory.page_bytes()}, in_memory);
    EXPECT_EQ(spill.answer(p), expected);
    EXPECT_GT(spill.stats().evicted_bytes, in_memory * memory.page_bytes());
    EXPECT_FALSE(spill.stats().failed);
    if (c.method == nullptr) {
      EXPECT_GT(spill.stats().fetched_bytes, 10 * in_memory * memory.page_bytes()) << "every step reads all pages";
    }
  }
}

}  // namespace
}  // namespace mneme
