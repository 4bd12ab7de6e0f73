#include "apps/mneme/companion/companion.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "apps/mneme/commit.h"
#include "mneme/mneme.h"
#include "src/base/error.h"

namespace mneme::cli {
namespace {

namespace fs = std::filesystem;

// What the program that runs a companion was built from.
constexpr const char* kRevision = "MNEME_PROGRAM_REVISION";

std::string own_revision() {
  return fmt::format("{} ({})", version(), build_commit());
}

std::string program_of(const Companion& companion) {
  return fmt::format("mneme-{}", companion.program);
}

[[noreturn]] void fail_missing(const Companion& companion, const fs::path& program) {
  const std::vector<fs::path> places = companion_places(companion, program);
  const fs::path folder = program.parent_path();
  const std::string cure =
      fs::exists(folder / "CMakeCache.txt")
          ? fmt::format("build it: cmake --build {} --target mneme_{}", folder.string(), companion.program)
          : std::string("install it: cmake --install BUILD_FOLDER");
  fail(ErrorKind::kOption, "{}: it is in a program of its own, {}, which is neither {} nor {}; {}", companion.command,
       program_of(companion), places.front().string(), places.back().string(), cure);
}

}  // namespace

std::vector<fs::path> companion_places(const Companion& companion, const fs::path& program) {
  const fs::path folder = program.parent_path();
  return {folder / program_of(companion), folder.parent_path() / MNEME_LIBEXEC / "mneme" / program_of(companion)};
}

void add_companion(CLI::App& app, const Companion& companion) {
  app.add_subcommand(std::string(companion.command), std::string(companion.summary));
}

void run_companion(const Companion& companion, int argc, char** argv) {
  if (argc < 2 || argv[1] != companion.command) return;
  const fs::path program = fs::read_symlink("/proc/self/exe");
  for (const fs::path& place : companion_places(companion, program)) {
    if (::access(place.c_str(), X_OK) != 0) continue;
    std::string name = place.string();
    std::vector<char*> arguments = {name.data()};
    arguments.insert(arguments.end(), argv + (companion.command == companion.program ? 2 : 1), argv + argc);
    arguments.push_back(nullptr);
    ::setenv(kRevision, own_revision().c_str(), 1);
    ::execv(name.c_str(), arguments.data());
    fail(ErrorKind::kOption, "{}: cannot be run: {}", name, std::strerror(errno));
  }
  fail_missing(companion, program);
}

std::string companion_warning() {
  const char* value = std::getenv(kRevision);
  const std::string caller = value == nullptr ? "" : value;
  ::unsetenv(kRevision);  // not for the processes of other ranks
  if (caller.empty() || caller == own_revision()) return {};
  return fmt::format("this program is {}, mneme is {}: build both again", own_revision(), caller);
}

}  // namespace mneme::cli
