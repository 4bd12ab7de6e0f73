#include "src/base/mapped_file.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include "src/base/error.h"

namespace mneme {
namespace {

namespace fs = std::filesystem;

class MappedFileTest : public ::testing::Test {
 protected:
  MappedFileTest() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("mneme_mapped_file_") + info->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~MappedFileTest() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
    return folder_ / name;
  }
  static std::string text(const MappedFile& f) {
    return {reinterpret_cast<const char*>(f.bytes().data()), f.bytes().size()};
  }
  // The message of the error, or "" when there is none.
  static std::string error_of(const fs::path& path) {
    try {
      MappedFile f(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::kFile);
      return e.what();
    }
    return "";
  }

  fs::path folder_;
};

TEST_F(MappedFileTest, HoldsTheBytes) {
  const std::string content("a\0b\xff", 4);
  EXPECT_EQ(text(MappedFile(write("small", content))), content);
  const std::string large(100'003, 'x');  // not a multiple of a memory page
  EXPECT_EQ(text(MappedFile(write("large", large))), large);
}

TEST_F(MappedFileTest, AnEmptyFileHasNoBytes) {
  EXPECT_TRUE(MappedFile(write("empty", "")).bytes().empty());
  EXPECT_TRUE(MappedFile().bytes().empty());
}

TEST_F(MappedFileTest, MovesLeaveOneOwner) {
  MappedFile a(write("a", "aaa")), b(write("b", "bb"));
  MappedFile c(std::move(a));
  EXPECT_EQ(text(c), "aaa");
  EXPECT_TRUE(a.bytes().empty());  // NOLINT: the moved-from state is what is tested
  c = std::move(b);
  EXPECT_EQ(text(c), "bb");
}

TEST_F(MappedFileTest, StaysReadableAfterTheNameIsGone) {
  const fs::path path = write("gone", "still here");
  MappedFile f(path);
  fs::remove(path);
  EXPECT_EQ(text(f), "still here");
}

TEST_F(MappedFileTest, ErrorsNameThePathAndTheReason) {
  EXPECT_NE(error_of(folder_ / "missing").find("missing: cannot be opened: No such file"), std::string::npos);
  EXPECT_NE(error_of(folder_).find("expected a file, found a folder"), std::string::npos);
  EXPECT_NE(error_of("/dev/null").find("not a plain file"), std::string::npos);
  const fs::path below = write("plain", "x") / "below";
  EXPECT_NE(error_of(below).find("cannot be opened"), std::string::npos);
}

}  // namespace
}  // namespace mneme
