// Recall by the host, which benchmarks compare with: what the device recalls.
#include "apps/bench/device/host_recall_cuda.h"

#include "tests/model/cuda/cuda_on_device.h"

namespace mneme {
namespace {

class CudaHostRecallTest : public CudaModelTest {};

// Recall by the host gives the results of recall by the device, also in alternation.
TEST_F(CudaHostRecallTest, IsRecallByTheDevice) {
  const auto model = Model::random(cuda_config(Architecture::kLlama, 8, 2, 128), DType::kBF16, {}, 5, cpu);
  const std::vector<std::int32_t> tokens = random_tokens(1400, model->config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  const auto plan = plan_for(*model, "quest", 256, "unit=page:32");
  const auto answers = [&](RecallBy by, bool changes) {
    OnDevice host(*model, KvStore::kHost);
    SequenceCache a(*host.pool);
    MethodState method(plan);
    for (int i = 0; i < 3; ++i) host.step(a, all.subspan(static_cast<std::size_t>(a.length()), 400), &method);
    std::vector<std::vector<float>> out;
    for (int i = 0; i < 70; ++i) {
      const RecallBy now = changes && i / 20 % 2 == 1 ? RecallBy::kGather : by;
      host.forward.inject_outcomes(-1, -1, recall_form(now));
      out.push_back(host.step(a, all.subspan(static_cast<std::size_t>(a.length()), 1), &method));
    }
    std::int64_t selected = 0;
    for (const LayerStats& l : method.stats().layers) selected += l.selected_units;
    return std::pair(out, selected);
  };
  const auto want = answers(RecallBy::kGather, false);
  EXPECT_GT(want.second, 0);
  for (const RecallBy by : {RecallBy::kGather, RecallBy::kCopies, RecallBy::kBatch, RecallBy::kMerged,
                            RecallBy::kStaged, RecallBy::kStagedTwice})
    for (const bool changes : {false, true}) {
      const auto got = answers(by, changes);
      EXPECT_EQ(got.second, want.second);
      for (std::size_t i = 0; i < want.first.size(); ++i)
        ASSERT_TRUE(got.first[i] == want.first[i])
            << "step " << i << ", by " << static_cast<int>(by) << ", " << changes;
    }
}

}  // namespace
}  // namespace mneme
