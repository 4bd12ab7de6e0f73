// NVFP4 in GGUF files: values of a block are gguf-py's, factors of matrices and of experts are in every block.
#include <gtest/gtest.h>

#include <algorithm>

#include "src/formats/checkpoint.h"
#include "src/formats/nvfp4.h"
#include "src/ops/gemm/gemm.h"
#include "src/ops/gemm/quant.h"
#include "tests/formats/files.h"
#include "tests/formats/gguf/gguf_builder.h"

namespace mneme::test {
namespace {

constexpr std::uint32_t kType = 40;

// What gguf-py 0.19.0 makes of these bytes. The scales are 1, a subnormal one with a sign, 0x7f and 6.5 times 2^0.
constexpr std::uint8_t kBlock[kGgufNvfp4Bytes] = {
    0x38, 0x83, 0x7f, 0x4d, 0x78, 0x83, 0xa1, 0x49, 0xfa, 0x0d, 0x47, 0x62, 0x92, 0x68, 0x21, 0x0b, 0x00, 0x0c,
    0x26, 0xff, 0x30, 0xa7, 0xc0, 0x3c, 0x48, 0x6f, 0x43, 0xf9, 0x2d, 0xe5, 0xcc, 0xd8, 0x1d, 0x64, 0xa0, 0x7e};
constexpr float kValues[kNvfp4Block] = {0,
                                        1.5,
                                        0.5,
                                        -0.5,
                                        -1,
                                        -3,
                                        6,
                                        1,
                                        6,
                                        0,
                                        -1,
                                        2,
                                        -6,
                                        0,
                                        2,
                                        4,
                                        0.005859375,
                                        0,
                                        0.0029296875,
                                        -0.0087890625,
                                        0,
                                        -0.01171875,
                                        0.0234375,
                                        -0.03515625,
                                        -0.0029296875,
                                        0.0234375,
                                        0.005859375,
                                        0,
                                        0,
                                        0,
                                        0.005859375,
                                        -0.03515625,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        0,
                                        -19.5,
                                        19.5,
                                        -13,
                                        0,
                                        -19.5,
                                        13,
                                        0,
                                        -26,
                                        6.5,
                                        -26,
                                        -13,
                                        -19.5,
                                        3.25,
                                        26,
                                        -6.5,
                                        39};

std::string blocks(std::size_t n) {
  std::string out;
  while (n-- > 0) out.append(reinterpret_cast<const char*>(kBlock), sizeof(kBlock));
  return out;
}

void expect_row(const ConstTensorView& w, std::int64_t row, float factor) {
  std::vector<float> values(w.dim(1));
  dequantise_row(w, row, values.data());
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], factor * kValues[i % kNvfp4Block]) << i;
}

TEST(GgufNvfp4, ValuesAreThoseOfGgufPyTimesTheMatrixsFactor) {
  GgufBuilder b = GgufBuilder::tiny();
  b.tensor("blk.0.ffn_up.weight") = {"blk.0.ffn_up.weight", {64, 96}, kType, blocks(96), {}};
  b.tensor("blk.1.ffn_up.weight") = {"blk.1.ffn_up.weight", {64, 96}, kType, blocks(96), {}};
  b.tensors.push_back({"blk.0.ffn_up.scale", {1}, 0, GgufBuilder::raw(0.25f), {}});
  b.tensors.push_back({"blk.0.ffn_up.input_scale", {1}, 0, GgufBuilder::raw(3.0f), {}});
  TempFolder folder;
  const auto checkpoint = Checkpoint::open(folder.write("a.gguf", b.build()));
  const ConstTensorView up = checkpoint->require("blk.0.ffn_up.weight", {96, 64}).view;
  EXPECT_EQ(up.dtype(), DType::kNVFP4);
  expect_row(up, 0, 0.25f);
  expect_row(up, 95, 0.25f);
  expect_row(checkpoint->require("blk.1.ffn_up.weight", {96, 64}).view, 7, 1.0f);
}

TEST(GgufNvfp4, EveryExpertHasItsFactor) {
  GgufBuilder b = GgufBuilder::mixture();
  const std::string name = "blk.1.ffn_up_exps.weight";
  b.tensor(name) = {name, {64, 32, 4}, kType, blocks(32 * 4), {}};
  std::string factors;
  for (const float f : {1.0f, 0.5f, 4.0f, -2.0f}) factors += GgufBuilder::raw(f);
  b.tensors.push_back({"blk.1.ffn_up_exps.scale", {4}, 0, factors, {}});
  TempFolder folder;
  const auto checkpoint = Checkpoint::open(folder.write("a.gguf", b.build()));
  const ConstTensorView all = checkpoint->require(name, {4, 32, 64}).view;
  const auto* first = reinterpret_cast<const BlockNVFP4*>(all.data());
  const float expected[] = {1.0f, 0.5f, 4.0f, -2.0f};
  for (int e = 0; e < 4; ++e)
    expect_row({reinterpret_cast<const std::byte*>(first + 32 * e), DType::kNVFP4, {32, 64}}, 31, expected[e]);
}

TEST(GgufNvfp4, WrongFactorsAreNamed) {
  const auto open_with = [](std::vector<std::uint64_t> dims, std::uint32_t type, std::string data) {
    GgufBuilder b = GgufBuilder::tiny();
    b.tensor("blk.0.ffn_up.weight") = {"blk.0.ffn_up.weight", {64, 96}, kType, blocks(96), {}};
    b.tensors.push_back({"blk.0.ffn_up.scale", std::move(dims), type, std::move(data), {}});
    TempFolder folder;
    Checkpoint::open(folder.write("a.gguf", b.build()));
  };
  expect_error(ErrorKind::kFormat, {"blk.0.ffn_up.scale", "F32 [1]"},
               [&] { open_with({2}, 0, GgufBuilder::raw(1.0)); });
  expect_error(ErrorKind::kFormat, {"blk.0.ffn_up.scale", "numbers"},
               [&] { open_with({1}, 0, GgufBuilder::raw(0x7f800000u)); });
}

}  // namespace
}  // namespace mneme::test
