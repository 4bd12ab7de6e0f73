// A few steps of every way of attending, small enough for compute-sanitizer (tools/sanitize_cuda): a prompt, steps that
// are launched one by one, captured and replayed; and the same bits when every stream is delayed.
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/recipes/device_form.h"
#include "tests/model/cuda/cuda_forms.h"
#include "tests/model/cuda/cuda_on_device.h"
#include "tests/model/cuda/step_delays.h"

namespace mneme {
namespace {

struct ShortCase {
  const char* called;
  Form form;  // no name: full attention
  KvStore store = KvStore::kHost;
  std::int64_t head_dim = 64;
  DType kv_dtype = DType::kBF16;
};

constexpr auto kDevice = KvStore::kDevice, kHost = KvStore::kHost;
const ShortCase kCases[] = {
    {"full", {"", ""}, kDevice},
    {"full_from_the_host", {"", ""}, kHost},
    {"full_in_int8", {"", ""}, kDevice, 64, DType::kInt8},
    {"window", {"window", ""}, kHost},
    {"streaming_by_windows", {"streaming_llm", "prefill=window:64"}, kHost},
    {"streaming_one_angle", {"streaming_llm", "positions=one_angle"}, kHost},
    {"pages_at_every_step", {"quest", "unit=page:32"}, kHost},
    {"pages_in_int8", {"quest", "unit=page:32"}, kHost, 64, DType::kInt8},
    {"small_pages", {"quest", "unit=page:16"}, kHost},
    {"pages_ahead", {"freekv", "unit=page:32,tau=0.5"}, kHost},
    {"pages_ahead_by_mass", {"freekv", "unit=page:32,gate=mass,eps=0.03"}, kHost},
    {"tokens_on_the_device", {"fier", ""}, kDevice},
    {"tokens_from_the_host", {"fier", ""}, kHost},
    {"tokens_ahead", {"freekv", "unit=token,index=one_bit,tau=0.3"}, kDevice},
    {"tokens_ahead_by_mass", {"freekv", "unit=token,index=one_bit,gate=mass,eps=0.1"}, kDevice},
    {"tokens_by_sketches", {"fier", "index=sketch:12"}, kDevice},
    {"sketches_of_pages", {"mneme", ""}, kHost, 128},
    {"clusters", {"louiskv", "tau=0.2"}, kHost},
    {"clusters_on_the_device", {"louiskv", "tau=-1,max_reuse=3,segment=8-20"}, kDevice},
    {"whole_layers", {"actqkv", ""}, kHost},
    {"raw_keys", {"oracle", ""}, kDevice},
    {"random", {"random", ""}, kHost},
    {"unfused_pages", {"quest", "unit=page:32,index=cuboid"}, kHost},
    {"unfused_tokens_without_pool", {"fier", "pool=none"}, kHost},
    {"unfused_ahead", {"freekv", "unit=page:32,index=cuboid,tau=0.5"}, kHost},
    {"once_dropped", {"snapkv", ""}, kDevice},
    {"dropped_at_every_step", {"h2o", ""}, kDevice},
    {"dropped_by_the_newest", {"tova", ""}, kHost},
};

class CudaShortStepsTest : public CudaModelTest, public ::testing::WithParamInterface<ShortCase> {};

std::vector<float> logits_of(const Model& model, const ShortCase& c, std::int32_t delay_us) {
  const std::vector<std::int32_t> tokens = random_tokens(450, model.config().vocab, 6);
  const std::span<const std::int32_t> all(tokens);
  StepDelays delays(delay_us);
  OnDevice device(model,
                  {.max_rows = 256,
                   .max_sequences = 1,
                   .max_context = model.max_context(),
                   .store = c.store,
                   .kv_dtype = c.kv_dtype},
                  c.kv_dtype, 40);
  device.forward.observe(&delays);
  std::optional<MethodState> method;
  if (*c.form.name != '\0') method.emplace(compile(c.form.recipe(), method_shape(model.config(), c.kv_dtype)));
  MethodState* const state = method ? &*method : nullptr;
  SequenceCache cache(*device.pool);
  if (state != nullptr) cache.set_key_basis(state->plan().key_basis);
  std::vector<float> out;
  const auto step = [&](std::size_t n, SequencePhase phase, std::int32_t left) {
    const auto piece = all.subspan(static_cast<std::size_t>(cache.length()), n);
    const std::vector<float> logits = step_of(device.forward, cache, piece, phase, state, left);
    out.insert(out.end(), logits.begin(), logits.end());
    if (state != nullptr) state->commit(cache);
  };
  // 411 tokens: the budget of 320 is exceeded, and a page ends within the steps.
  step(200, SequencePhase::kPrefill, 211), step(211, SequencePhase::kPrefill, 0);
  for (int i = 0; i < 8; ++i) step(1, SequencePhase::kDecode, 0);
  return out;
}

// Needs no GPU.
TEST(ShortStepsTest, AreOfTheDevice) {
  for (const ShortCase& c : kCases) {
    if (*c.form.name == '\0') continue;
    const auto config = cuda_config(Architecture::kLlama, 4, 2, c.head_dim);
    const auto plan = compile(c.form.recipe(), method_shape(config, c.kv_dtype));
    EXPECT_EQ(host_reason(*plan), nullptr) << c.called;
    if (std::string_view(c.called).starts_with("unfused")) {
      EXPECT_EQ(device_form(*plan), DeviceForm::kUnfused) << c.called;
    }
  }
}

TEST_P(CudaShortStepsTest, HaveTheSameBitsHoweverSlow) {
  const ShortCase& c = GetParam();
  const auto model = Model::random(cuda_config(Architecture::kLlama, 4, 2, c.head_dim), DType::kBF16, {}, 5, cpu);
  const std::vector<float> want = logits_of(*model, c, 0);
  for (const float v : want) ASSERT_TRUE(std::isfinite(v));
  ASSERT_TRUE(logits_of(*model, c, 40) == want);
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaShortStepsTest, ::testing::ValuesIn(kCases),
                         [](const auto& p) { return std::string(p.param.called); });

}  // namespace
}  // namespace mneme
