// Loading a model from a checkpoint, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "src/base/error.h"
#include "src/model/shapes.h"
#include "tests/model/sequence_runner.h"
#include "tests/model/test_models.h"

namespace mneme {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class LoadTest : public testing::Test {
 protected:
  ThreadPool threads{2};
  CpuContext context{.pool = &threads};

  std::unique_ptr<Model> load(std::unique_ptr<MemoryCheckpoint> checkpoint, const ModelOptions& options = {}) {
    return Model::load(std::move(checkpoint), options, context);
  }
  // The message of the error of that kind, or a failure.
  std::string error_of(ErrorKind kind, std::unique_ptr<MemoryCheckpoint> checkpoint, const ModelOptions& options = {}) {
    try {
      load(std::move(checkpoint), options);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      return e.what();
    }
    ADD_FAILURE() << "loaded";
    return {};
  }
};

std::unique_ptr<MemoryCheckpoint> zeros(const ModelConfig& config, DType dtype = DType::kBF16) {
  return std::make_unique<MemoryCheckpoint>(config, dtype);
}

TEST_F(LoadTest, EveryMissingTensorIsNamed) {
  for (const Architecture a : all_architectures()) {
    const ModelConfig config = small_config(a);
    EXPECT_NE(load(zeros(config)), nullptr);
    for_each_weight(config, [&](const WeightSpec& w) {
      auto checkpoint = zeros(config);
      checkpoint->remove(w.name);
      EXPECT_THAT(error_of(ErrorKind::kFormat, std::move(checkpoint)), HasSubstr(w.name));
    });
  }
}

TEST_F(LoadTest, MethodsMayTurnQueriesWhereEveryLayerRotatesAlikeAndLast) {
  for (const Architecture a : all_architectures()) {
    const ModelConfig config = small_config(a);
    const bool turns = method_shape_of(config, DType::kBF16).turns_positions;
    const bool fixed = !config.unrotated.empty() || config.qk_norm_behind || config.plain_windows;
    EXPECT_EQ(turns, !fixed) << architecture_name(a);
  }
  ModelConfig scaled = small_config(Architecture::kPhi3);
  EXPECT_TRUE(method_shape_of(scaled, DType::kBF16).turns_positions) << "half a head, not scaled";
  scaled.rope.scaling = RopeScaling::kYarn;
  EXPECT_FALSE(method_shape_of(scaled, DType::kBF16).turns_positions);
}

TEST_F(LoadTest, EveryWrongShapeIsNamedWithBothShapes) {
  const ModelConfig config = small_config(Architecture::kQwen2);
  for_each_weight(config, [&](const WeightSpec& w) {
    auto checkpoint = zeros(config);
    checkpoint->remove(w.name);
    if (w.n_in == 0)
      checkpoint->add(w.name, DType::kF32, {w.n_out + 1});
    else
      checkpoint->add(w.name, DType::kF32, {w.n_in, w.n_out + 1});
    EXPECT_THAT(error_of(ErrorKind::kFormat, std::move(checkpoint)),
                AllOf(HasSubstr(w.name), HasSubstr(std::to_string(w.n_out)), HasSubstr(std::to_string(w.n_out + 1))));
  });
}

TEST_F(LoadTest, WeightsOfNumbersThatAreNotWeightsAreRefused) {
  auto checkpoint = zeros(small_config());
  checkpoint->remove("blk.1.ffn_up.weight");
  checkpoint->add("blk.1.ffn_up.weight", DType::kI32, {96, 64});
  EXPECT_THAT(error_of(ErrorKind::kUnsupported, std::move(checkpoint)),
              AllOf(HasSubstr("blk.1.ffn_up.weight"), HasSubstr("i32")));
}

TEST_F(LoadTest, ShapesThatAttentionCannotDoAreRefused) {
  ModelConfig config = small_config();
  config.head_dim = 12;
  EXPECT_THAT(error_of(ErrorKind::kUnsupported, zeros(config)), HasSubstr("head_dim 12"));
  config = small_config();
  config.n_heads = 34;
  EXPECT_THAT(error_of(ErrorKind::kUnsupported, zeros(config)), HasSubstr("17 query heads"));
}

TEST_F(LoadTest, ContextComesFromTheOptionOrTheModel) {
  EXPECT_EQ(load(zeros(small_config()))->max_context(), 512);
  EXPECT_EQ(load(zeros(small_config()), {.context = 100})->max_context(), 100);
  EXPECT_THAT(error_of(ErrorKind::kOption, zeros(small_config()), {.context = -1}), HasSubstr("-1"));
  EXPECT_THAT(error_of(ErrorKind::kOption, zeros(small_config()), {.context = std::int64_t{1} << 31}),
              HasSubstr("2147483648"));
}

TEST_F(LoadTest, AWindowThatNothingOutgrowsIsNone) {
  ModelConfig config = small_config(Architecture::kMistral);
  config.sliding_window = std::int64_t{1} << 31;  // the most a file may say, and more than an int32
  EXPECT_EQ(load(zeros(config))->config().sliding_window, 0);
  config.sliding_window = 511;
  EXPECT_EQ(load(zeros(config))->config().sliding_window, 511);
  EXPECT_EQ(load(zeros(config), {.context = 511})->config().sliding_window, 0);
}

TEST_F(LoadTest, TiedEmbeddingsCountOnce) {
  ModelConfig config = small_config();
  const std::size_t table = 50 * 64 * 2, row = 64 * 2;
  const auto untied = load(zeros(config));
  config.tied_embeddings = true;
  const auto tied = load(zeros(config));
  EXPECT_EQ(tied->head().view().data(), tied->embedding().data());
  EXPECT_EQ(untied->weight_bytes(), tied->weight_bytes() + table);
  // A step reads the head whole and one row of the embedding, in both.
  EXPECT_EQ(tied->step_weight_bytes(), untied->step_weight_bytes());
  EXPECT_EQ(untied->step_weight_bytes(), untied->weight_bytes() - table + row);
}

TEST_F(LoadTest, NormsInHalfPrecisionBecomeF32) {
  const ModelConfig config = small_config();
  auto checkpoint = zeros(config);
  for (const auto& [name, dtype] :
       {std::pair{"output_norm.weight", DType::kBF16}, {"blk.0.attn_norm.weight", DType::kF16}}) {
    checkpoint->remove(name);
    checkpoint->add(name, dtype, {64});
    const std::byte* data = checkpoint->tensors().back().view.data();
    auto* bits = reinterpret_cast<std::uint16_t*>(const_cast<std::byte*>(data));
    for (int i = 0; i < 64; ++i) {
      const float value = 0.5f + static_cast<float>(i) / 64;  // exact in both
      bits[i] = dtype == DType::kBF16 ? bf16(value).bits : f16(value).bits;
    }
  }
  const auto model = load(std::move(checkpoint));
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(model->output_norm()[i], 0.5f + static_cast<float>(i) / 64);
    EXPECT_EQ(model->layers()[0].attn_norm[i], 0.5f + static_cast<float>(i) / 64);
  }
}

TEST_F(LoadTest, TensorsMayLieAtAnyAddress) {
  const ModelConfig config = small_config(Architecture::kQwen2);
  std::vector<std::vector<float>> logits;
  for (const bool odd : {false, true}) {
    auto checkpoint = zeros(config, DType::kF32);
    checkpoint->fill(4);
    if (odd) checkpoint->misalign();
    const auto model = load(std::move(checkpoint));
    SequenceRunner runner(*model, DType::kBF16, context);
    SequenceCache cache(runner.pool);
    logits.push_back(runner.feed(cache, random_tokens(20, 50, 3), 20));
  }
  EXPECT_EQ(logits[0], logits[1]);
  EXPECT_NE(logits[0].front(), 0.0f);
}

TEST_F(LoadTest, ProgressEndsWhereItSays) {
  std::int64_t last = -1, end = -2;
  Model::load(zeros(small_config()), {}, context, [&](std::string_view, std::int64_t done, std::int64_t total) {
    EXPECT_GE(done, last);
    last = done;
    end = total;
  });
  EXPECT_EQ(last, end);
}

TEST_F(LoadTest, RandomWeightsDependOnTheSeedAlone) {
  const ModelConfig config = small_config();
  ThreadPool one(1);
  const auto a = Model::random(config, DType::kF32, {}, 1, context);
  const auto b = Model::random(config, DType::kF32, {}, 1, {.pool = &one});
  const auto c = Model::random(config, DType::kF32, {}, 2, context);
  const auto bytes = [](const Model& m) {
    const ConstTensorView& w = m.layers()[1].down.view();
    return std::vector<float>(w.row_as<float>(0), w.row_as<float>(0) + w.n_elements());
  };
  EXPECT_EQ(bytes(*a), bytes(*b));
  EXPECT_NE(bytes(*a), bytes(*c));
  double sum = 0, squares = 0;
  for (const float w : bytes(*a)) sum += w, squares += w * double{w};
  const double n =
      static_cast<double>(bytes(*a).size());  // 6,144: the mean's own deviation is 0.00026, sigma's 0.00018
  EXPECT_LE(std::fabs(sum / n), 0.0012);
  EXPECT_LE(std::fabs(std::sqrt(squares / n) - 0.02), 0.0009);
}

// A small model whose rows fill the type's blocks.
ModelConfig config_for(DType dtype) {
  ModelConfig config = small_config(Architecture::kQwen3);
  if (dtype_info(dtype).block <= 32) return config;
  config.hidden = 256;
  config.ffn = 512;
  config.head_dim = 32;
  return config;
}

TEST_F(LoadTest, AStepReadsTheExpertsOfOneRow) {
  const ModelConfig config = small_config(Architecture::kQwen3Moe);
  const auto model = Model::random(config, DType::kBF16, {}, 7, context);
  const std::size_t expert = 3 * config.experts.ffn * config.hidden * 2;
  const std::size_t rest = model->weight_bytes() - model->step_weight_bytes();
  EXPECT_EQ(rest, config.n_layers * (config.experts.n - config.experts.n_used) * expert +
                      (config.vocab - 1) * config.hidden * 2)
      << "experts that a row is not sent to, and rows of the table that it is not";
}

TEST_F(LoadTest, RandomModelsRunInEveryType) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
        DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kMXFP4}) {
    const auto model = Model::random(config_for(dtype), dtype, {}, 7, context);
    SequenceRunner runner(*model, DType::kBF16, context);
    SequenceCache cache(runner.pool);
    const std::vector<float> logits = runner.feed(cache, random_tokens(40, 50, 3), 40);
    double squares = 0;
    for (const float x : logits) squares += x * double{x};
    EXPECT_GT(squares, 0.0) << dtype_name(dtype);
    EXPECT_TRUE(std::isfinite(squares)) << dtype_name(dtype);
  }
  ModelConfig config = small_config();
  config.hidden = 72;
  EXPECT_THROW(Model::random(config, DType::kQ8_0, {}, 7, context), Error);
}

}  // namespace
}  // namespace mneme
