#include "src/formats/gguf/gguf_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>

#include "src/formats/gguf/gguf_file.h"
#include "tests/formats/files.h"

namespace mneme::test {
namespace {

std::size_t files_in(const TempFolder& folder) {
  return std::distance(std::filesystem::directory_iterator(folder.path()), {});
}

TEST(GgufWriter, WhatIsWrittenIsReadBack) {
  TempFolder folder;
  const std::vector<std::string> strings = {"a", "", "▁x"};
  const std::vector<std::int32_t> ints = {-1, 2};
  const std::vector<float> floats = {0.5f};
  const std::string matrix(3 * 34, 'm'), vector(5 * 4, 'v');
  {
    GgufWriter w(folder / "x.gguf");
    w.put("string", "text");
    w.put("u32", std::uint32_t{7});
    w.put("f32", 2.5f);
    w.put("bool", true);
    w.put("strings", std::span<const std::string>(strings));
    w.put("ints", std::span<const std::int32_t>(ints));
    w.put("floats", std::span<const float>(floats));
    w.add_tensor("v", {5}, DType::kF32);
    w.add_tensor("m", {3, 32}, DType::kQ8_0);
    w.begin_data();
    w.write(as_bytes(vector));
    for (int i = 0; i < 3; ++i) w.write(as_bytes(matrix).subspan(static_cast<std::size_t>(i) * 34, 34));
    w.finish();
  }
  EXPECT_EQ(files_in(folder), 1u);
  const std::string bytes = read_file(folder / "x.gguf");
  const GgufFile f = GgufFile::parse(as_bytes(bytes), "x.gguf", GgufFile::Tensors::kRead);
  EXPECT_EQ(f.version(), 3u);
  EXPECT_EQ(f.string("string"), "text");
  EXPECT_EQ(f.integer("u32"), 7);
  EXPECT_EQ(f.number("f32"), 2.5);
  EXPECT_EQ(f.boolean("bool"), true);
  EXPECT_EQ(f.strings("strings"), (std::vector<std::string_view>{"a", "", "▁x"}));
  EXPECT_EQ(f.integers("ints"), (std::vector<std::int64_t>{-1, 2}));
  EXPECT_EQ(f.floats("floats"), floats);
  const auto text = [](const GgufTensor* t) {
    return std::string(reinterpret_cast<const char*>(t->data.data()), t->data.size());
  };
  EXPECT_EQ(text(f.find_tensor("v")), vector);
  EXPECT_EQ(text(f.find_tensor("m")), matrix);
  EXPECT_EQ(f.find_tensor("m")->dims[0], 3);
  EXPECT_EQ(f.find_tensor("m")->dims[1], 32);
}

TEST(GgufWriter, NothingStaysWithoutFinish) {
  TempFolder folder;
  folder.write("x.gguf", "what was there before");
  {
    GgufWriter w(folder / "x.gguf");
    w.add_tensor("v", {5}, DType::kF32);
    w.begin_data();
  }
  EXPECT_EQ(files_in(folder), 1u);
  EXPECT_EQ(read_file(folder / "x.gguf"), "what was there before");
}

TEST(GgufWriter, PlacesThatCannotBeWritten) {
  TempFolder folder;
  expect_error(ErrorKind::kFile, {"no/such/x.gguf", "cannot be written"},
               [&] { GgufWriter(folder / "no/such/x.gguf"); });
  expect_error(ErrorKind::kFile, {folder.path().string(), "folder"}, [&] { GgufWriter(folder.path()); });
}

TEST(GgufWriter, AFullDiskIsAnErrorAndLeavesNothing) {
  TempFolder folder;
  // A file size limit simulates a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  expect_error(ErrorKind::kFile, {"x.gguf", "writing failed"}, [&] {
    GgufWriter w(folder / "x.gguf");
    const std::string data(4 << 20, 'x');
    w.add_tensor("v", {1 << 20}, DType::kF32);
    w.begin_data();
    w.write(as_bytes(data));
    w.finish();
  });
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(files_in(folder), 0u);
}

}  // namespace
}  // namespace mneme::test
