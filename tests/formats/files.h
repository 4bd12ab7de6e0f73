// Temporary folders and error checks for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <span>
#include <sstream>
#include <string>

#include "mneme/error.h"
#include "src/base/function_ref.h"

namespace mneme::test {

class TempFolder {
 public:
  TempFolder() {
    static std::atomic<int> count{0};
    path_ = std::filesystem::temp_directory_path() /
            ("mneme-test-" + std::to_string(::getpid()) + "-" + std::to_string(count++));
    std::filesystem::create_directories(path_);
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path operator/(const std::string& name) const { return path_ / name; }
  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ostringstream out;
  out << std::ifstream(path, std::ios::binary).rdbuf();
  return out.str();
}

inline std::span<const std::byte> as_bytes(const std::string& s) {
  return std::as_bytes(std::span(s));
}

// Runs fn, which must throw an Error of this kind whose message contains all words.
inline void expect_error(ErrorKind kind, std::initializer_list<std::string> words, FunctionRef<void()> fn) {
  try {
    fn();
  } catch (const Error& e) {
    EXPECT_STREQ(error_kind_name(e.kind()), error_kind_name(kind)) << e.what();
    for (const std::string& word : words)
      EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << "expected '" << word << "' in: " << e.what();
    return;
  } catch (const std::exception& e) {
    FAIL() << "expected a mneme::Error, found " << e.what();
  }
  FAIL() << "expected an error of kind " << error_kind_name(kind) << ", nothing was thrown";
}

}  // namespace mneme::test
