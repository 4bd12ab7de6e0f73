// Sessions of a model whose layers keep a state: the file has the tokens alone, and whoever restores it computes them.
#include <filesystem>

#include "src/engine/session/running_model.h"
#include "src/engine/session/session_store.h"
#include "tests/engine/hybrid_engine.h"
#include "tests/engine/session/session_files.h"

namespace mneme {
namespace {

class SessionHybridTest : public ::testing::Test, protected SessionFiles {
 protected:
  static RunningModel model() {
    return start_model(Checkpoint::open(MNEME_SOURCE_DIR "/tests/golden/data/qwen3-5"), nullptr,
                       {.context = 250,
                        .max_batched_tokens = 48,
                        .threads = kTestThreads,
                        .pin_threads = false,
                        .deterministic = true},
                       {}, {});
  }
};

TEST_F(SessionHybridTest, ARestoredOneAnswersAsTheLiveOne) {
  RunningModel here = model(), there = model();
  const RequestId id = here.engine->start({}, kept_request(random_prompt_of(120, 5), nullptr, 8));
  compute_all(*here.engine);
  save_sequence(here, id, {.identity = {}, .answered = true, .tokens = {}}, path_);
  EXPECT_LT(std::filesystem::file_size(path_), 4096) << "no keys and values, which are of no use without the states";
  const RestoredSequence restored = restore_sequence(there, path_);
  there.engine->check_invariants();
  EXPECT_EQ(restored.content.n_computed, 0);
  EXPECT_EQ(sequence_of(*there.engine, restored.id), sequence_of(*here.engine, id));
  const auto question = random_prompt_of(30, 6);
  there.engine->start(Origin::next_turn(restored.id), kept_request(question, nullptr, 20));
  compute_all(*there.engine);
  here.engine->start(Origin::next_turn(id), kept_request(question, nullptr, 20));
  compute_all(*here.engine);
  EXPECT_EQ(sequence_of(*there.engine, restored.id), sequence_of(*here.engine, id));
  EXPECT_EQ(there.engine->stats(restored.id).shared_tokens, 0);
  EXPECT_EQ(here.engine->stats(id).shared_tokens, 127);
}

}  // namespace
}  // namespace mneme
