#include "src/tensor/dtype.h"

#include <gtest/gtest.h>

namespace mneme {
namespace {

TEST(DType, NamesAndSizes) {
  EXPECT_EQ(dtype_name(DType::kF32), "f32");
  EXPECT_EQ(dtype_name(DType::kBF16), "bf16");
  EXPECT_EQ(dtype_name(DType::kQ4_0), "q4_0");
  EXPECT_EQ(dtype_name(DType::kQ4_1), "q4_1");
  EXPECT_EQ(row_bytes(DType::kF32, 3), 12u);
  EXPECT_EQ(row_bytes(DType::kF16, 3), 6u);
  EXPECT_EQ(row_bytes(DType::kBF16, 0), 0u);
  EXPECT_EQ(row_bytes(DType::kU8, 5), 5u);
  EXPECT_EQ(row_bytes(DType::kQ8_0, 64), 68u);
  EXPECT_EQ(row_bytes(DType::kQ4_0, 96), 54u);
  EXPECT_EQ(row_bytes(DType::kQ4_1, 96), 60u);
  EXPECT_TRUE(is_quantised(DType::kQ8_0));
  EXPECT_FALSE(is_quantised(DType::kF16));
}

TEST(DTypeDeathTest, ARowMustFillItsBlocks) {
  EXPECT_DEATH(row_bytes(DType::kQ8_0, 33), "33 elements does not fill blocks of 32");
  EXPECT_DEATH(row_bytes(DType::kF32, -1), "-1 elements");
}

}  // namespace
}  // namespace mneme
