// A file that appears whole or not at all.
#include "src/base/atomic_file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <span>
#include <string>

namespace mneme {
namespace {

namespace fs = std::filesystem;

class NewFileTest : public testing::Test {
 protected:
  NewFileTest() {
    char name[] = "/tmp/mneme_atomic_XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~NewFileTest() override { fs::remove_all(folder_); }

  std::string content(const std::string& name) const {
    std::ifstream in(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::int64_t entries() const { return std::distance(fs::directory_iterator(folder_), fs::directory_iterator()); }
  static void append(AtomicFile& file, const std::string& text) { file.append(std::as_bytes(std::span(text))); }

  fs::path folder_;
};

TEST_F(NewFileTest, ReplacesWhatStandsThereAndLeavesNothingElse) {
  std::ofstream(folder_ / "book.session") << "old";
  {
    AtomicFile file(folder_ / "book.session");
    append(file, "new");
    EXPECT_EQ(content("book.session"), "old");
    file.commit();
  }
  EXPECT_EQ(content("book.session"), "new");
  EXPECT_EQ(entries(), 1);
  const auto rights = fs::status(folder_ / "book.session").permissions();
  EXPECT_EQ(rights & fs::perms::mask, fs::perms::owner_read | fs::perms::owner_write);
}

TEST_F(NewFileTest, WithoutACommitNothingStays) {
  { AtomicFile file(folder_ / "x"); }
  EXPECT_EQ(entries(), 0);
}

// kill -9 runs no destructor.
TEST_F(NewFileTest, AKilledProcessLeavesNothing) {
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder_ / "book.session");
    append(file, std::string(3 << 20, 'x'));
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  const int probe = ::open(folder_.c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (probe < 0) GTEST_SKIP() << "the file system has no files without a name";
  ::close(probe);
  EXPECT_EQ(entries(), 0);
}

}  // namespace
}  // namespace mneme
