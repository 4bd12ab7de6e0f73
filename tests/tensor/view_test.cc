#include "src/tensor/view.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <type_traits>
#include <vector>

namespace mneme {
namespace {

static_assert(std::is_convertible_v<TensorView, ConstTensorView>);
static_assert(!std::is_convertible_v<ConstTensorView, TensorView>, "reading does not give the right to write");

class ViewTest : public ::testing::Test {
 protected:
  ViewTest() : numbers_(2 * 3 * 4) { std::iota(numbers_.begin(), numbers_.end(), 0.0f); }
  std::vector<float> numbers_;
};

TEST_F(ViewTest, ShapeAndRows) {
  const TensorView v = view_of(numbers_.data(), {2, 3, 4});
  EXPECT_EQ(v.rank(), 3);
  EXPECT_EQ(v.dim(0), 2);
  EXPECT_EQ(v.dim(2), 4);
  EXPECT_EQ(v.n_elements(), 24);
  EXPECT_EQ(v.row_elements(), 12);
  EXPECT_EQ(v.stride_bytes(), 48u);
  EXPECT_EQ(v.row_as<float>(1)[0], 12.0f);
  EXPECT_EQ(v.to_string(), "f32 [2, 3, 4]");
  v.row_as<float>(1)[0] = -1.0f;
  EXPECT_EQ(numbers_[12], -1.0f);
}

TEST_F(ViewTest, OneDimensionIsOneRow) {
  const ConstTensorView v = view_of(static_cast<const float*>(numbers_.data()), {24});
  EXPECT_EQ(v.row_elements(), 1);
  EXPECT_EQ(v.n_elements(), 24);
  EXPECT_EQ(v.stride_bytes(), 96u);
  EXPECT_EQ(v.row_as<float>(0)[23], 23.0f);
}

TEST_F(ViewTest, RowsAreAWindow) {
  const TensorView v = view_of(numbers_.data(), {6, 4});
  const TensorView w = v.rows(2, 5);
  EXPECT_EQ(w.dim(0), 3);
  EXPECT_EQ(w.row_as<float>(0)[0], 8.0f);
  EXPECT_EQ(v.rows(6, 6).n_elements(), 0);
  EXPECT_EQ(v.rows(0, 6).to_string(), v.to_string());
}

TEST_F(ViewTest, AStrideSkips) {
  const TensorView every_other = view_of(numbers_.data(), {3, 4}).with_stride(32);
  EXPECT_EQ(every_other.row_as<float>(0)[0], 0.0f);
  EXPECT_EQ(every_other.row_as<float>(1)[0], 8.0f);
  EXPECT_EQ(every_other.row_as<float>(2)[3], 19.0f);
  EXPECT_EQ(every_other.rows(1, 3).row_as<float>(1)[0], 16.0f);
}

TEST_F(ViewTest, QuantisedRowsCountBlocks) {
  std::vector<std::byte> bytes(4 * 68);
  const TensorView v(bytes.data(), DType::kQ8_0, {4, 64});
  EXPECT_EQ(v.stride_bytes(), 68u);
  EXPECT_EQ(v.row(3), bytes.data() + 204);
  EXPECT_EQ(v.to_string(), "q8_0 [4, 64]");
}

TEST_F(ViewTest, EmptyViews) {
  EXPECT_EQ(TensorView().n_elements(), 0);
  EXPECT_EQ(view_of(numbers_.data(), {0, 4}).n_elements(), 0);
  EXPECT_EQ(view_of(numbers_.data(), {0}).n_elements(), 0);
}

TEST_F(ViewTest, ExpectShapeAcceptsWhatFits) {
  const TensorView v = view_of(numbers_.data(), {2, 3, 4});
  expect_shape("v", v, DType::kF32, {2, 3, 4});
  expect_shape("v", v, DType::kF32, {kAnySize, 3, kAnySize});
}

using ViewDeathTest = ViewTest;

TEST_F(ViewDeathTest, ExpectShapeNamesBothShapes) {
  const TensorView v = view_of(numbers_.data(), {2, 3, 4});
  EXPECT_DEATH(expect_shape("queries", v, DType::kF32, {2, 3, 5}),
               "queries: expected f32 .2, 3, 5., found f32 .2, 3, 4.");
  EXPECT_DEATH(expect_shape("queries", v, DType::kF32, {2, 12}), "expected f32 .2, 12.");
  EXPECT_DEATH(expect_shape("queries", v, DType::kBF16, {2, 3, 4}), "expected bf16");
}

TEST_F(ViewDeathTest, MistakesAbort) {
  const TensorView v = view_of(numbers_.data(), {6, 4});
  EXPECT_DEATH(v.row_as<std::int32_t>(0), "f32 .6, 4. read as i32");
  EXPECT_DEATH(v.rows(2, 7), "rows 2 to 7 of f32 .6, 4.");
  EXPECT_DEATH(v.rows(3, 2), "rows 3 to 2");
  EXPECT_DEATH(v.dim(2), "dimension 2 of a view with 2");
  EXPECT_DEATH(view_of(numbers_.data(), {-1, 4}), "dimension 0 of a view is -1");
  EXPECT_DEATH(view_of(numbers_.data(), {1, 1, 1, 1, 1}), "1 to 4 dimensions, not 5");
}

}  // namespace
}  // namespace mneme
