#include "tests/apps/mneme/program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>

#include "tests/progress.h"
#include "tests/test_threads.h"

extern char** environ;

namespace mneme::cli_test {

namespace fs = std::filesystem;

namespace {

fs::path new_folder() {
  std::string name = (fs::temp_directory_path() / "mneme_test_XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a temporary folder");
  return name;
}

std::vector<std::string> environment_of(const Input& input) {
  std::vector<std::string> out;
  for (char** e = environ; *e != nullptr; ++e)
    if (const std::string entry = *e; !entry.starts_with("MNEME_") || entry.starts_with("MNEME_CPU_ISA="))
      out.push_back(entry);
  for (const auto& [name, value] : input.env) out.push_back(name + "=" + value);
  if (kTestThreads == 1 && !input.env.contains("MNEME_THREADS")) out.push_back("MNEME_THREADS=1");
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (std::string& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TempFolder::TempFolder() : path_(new_folder()) {}
TempFolder::~TempFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}
std::string TempFolder::write(const std::string& name, const std::string& content) const {
  std::ofstream(path_ / name, std::ios::binary) << content;
  return (path_ / name).string();
}

Running::Running(const std::vector<std::string>& command, const Input& input) : folder_(new_folder()) {
  std::ofstream(folder_ / "in", std::ios::binary) << input.text;
  out_path_ = input.out_path.empty() ? (folder_ / "out").string() : input.out_path;
  std::vector<std::string> arguments = command, environment = environment_of(input);
  const std::vector<char*> argv = pointers(arguments), envp = pointers(environment);
  std::string in_path = (folder_ / "in").string();
  if (input.terminal) {
    terminal_ = ::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (terminal_ < 0 || ::grantpt(terminal_) != 0 || ::unlockpt(terminal_) != 0)
      throw std::runtime_error("cannot make a terminal");
    in_path = ::ptsname(terminal_);
  }
  const std::string err_path = (folder_ / "err").string();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("fork");
  if (pid_ == 0) {  // only what is safe between fork and exec
    const int in = ::open(in_path.c_str(), O_RDONLY | O_NOCTTY);
    const int out = ::open(out_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    const int err = ::open(err_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (in < 0 || out < 0 || err < 0) ::_exit(126);
    ::dup2(in, 0);
    ::dup2(out, 1);
    ::dup2(err, 2);
    ::execve(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
}

Running::~Running() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (terminal_ >= 0) ::close(terminal_);
  std::error_code ignored;
  fs::remove_all(folder_, ignored);
}

bool Running::wait_for_output(std::size_t n) {
  bool written = false;
  wait_until([&] {
    siginfo_t info{};
    const bool ended = ::waitid(P_PID, pid_, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
    std::error_code none_yet;
    const auto size = fs::file_size(out_path_, none_yet);
    written = !none_yet && size >= n;
    return written || ended;
  });
  return written;
}

std::string Running::output() const {
  return read_file(out_path_);
}

Outcome Running::wait() {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  Outcome outcome;
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  outcome.out = read_file(folder_ / "out");
  outcome.err = read_file(folder_ / "err");
  return outcome;
}

Outcome run_program(const std::vector<std::string>& command, const Input& input) {
  return Running(command, input).wait();
}

#ifdef MNEME_BINARY
Outcome mneme(std::vector<std::string> arguments, const Input& input) {
  arguments.insert(arguments.begin(), MNEME_BINARY);
  return run_program(arguments, input);
}

Outcome ask(std::vector<std::string> arguments, const Input& input) {
  const std::vector<std::string> start = {"run", "-m", MNEME_MODEL_FILE};
  arguments.insert(arguments.begin(), start.begin(), start.end());
  return mneme(std::move(arguments), input);
}
#endif

}  // namespace mneme::cli_test
