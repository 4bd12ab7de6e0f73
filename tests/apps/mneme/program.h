// Runs a program the way a shell does, and tells what came of it.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace mneme::cli_test {

struct Outcome {
  int code = -1;  // exit code; 128 + the signal that ended it
  std::string out, err;
};

struct Input {
  std::string text;                        // standard input
  std::map<std::string, std::string> env;  // beside what there is; MNEME_... of the outside are taken away
  std::string out_path;                    // where standard output goes instead of Outcome::out
  bool terminal = false;                   // standard input is a terminal, on which nobody types
};

Outcome run_program(const std::vector<std::string>& command, const Input& input = {});

// `mneme` with these arguments.
Outcome mneme(std::vector<std::string> arguments, const Input& input = {});
// mneme run with the shipped model, without a progress bar.
Outcome ask(std::vector<std::string> arguments, const Input& input = {});

// A program that runs, and what it has written so far.
class Running {
 public:
  explicit Running(const std::vector<std::string>& command, const Input& input = {});
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  pid_t pid() const { return pid_; }
  // Waits until standard output has at least `n` bytes; false if the program ended before, or makes no progress.
  bool wait_for_output(std::size_t n);
  std::string output() const;  // so far
  Outcome wait();

 private:
  std::filesystem::path folder_;
  pid_t pid_ = -1;
  int terminal_ = -1;  // our end of it
  std::string out_path_;
};

// A folder that goes away with the object.
class TempFolder {
 public:
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::filesystem::path path() const { return path_; }
  // Writes a file into it and returns its path.
  std::string write(const std::string& name, const std::string& content) const;

 private:
  std::filesystem::path path_;
};

std::string read_file(const std::filesystem::path& path);

}  // namespace mneme::cli_test
