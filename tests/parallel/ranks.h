// Runs a function on every rank: in threads of this process, or in processes.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "mneme/error.h"
#include "src/parallel/shared_collective.h"

namespace mneme::parallel_test {

inline constexpr SharedCollective::Options kPatient{.seconds = 120};

// What each rank's function threw; "": nothing.
inline std::vector<std::string> in_threads(int size, const std::function<void(Collective&)>& run,
                                           SharedCollective::Options options = kPatient) {
  const std::shared_ptr<SharedRegion> region = SharedRegion::make(size);
  std::vector<std::string> errors(size);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        SharedCollective ranks(region, r, options);
        run(ranks);
      } catch (const Error& e) {
        errors[r] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

// A process for each rank but 0, which is this one. `run` says whether the rank was right. The children's exit codes; a
// signal's number is negative.
inline std::vector<int> in_processes(int size, const std::function<bool(Collective&)>& run,
                                     SharedCollective::Options options = kPatient) {
  const std::shared_ptr<SharedRegion> region = SharedRegion::make(size);
  const auto rank = [&](int r) {
    try {
      SharedCollective ranks(region, r, options);
      return run(ranks) ? 0 : 1;
    } catch (const Error&) {
      return 2;
    }
  };
  std::vector<pid_t> children;
  for (int r = 1; r < size; ++r) {
    const pid_t child = fork();
    if (child == 0) _exit(rank(r));
    children.push_back(child);
  }
  std::vector<int> codes = {rank(0)};
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

// Exit codes of tests that need a GPU.
inline constexpr int kRight = 0, kWrong = 1, kNoDevice = 77;
inline bool no_device(const std::vector<int>& codes) {
  return codes == std::vector<int>(codes.size(), kNoDevice);
}

// Every rank in a process of its own, so that this one never uses a GPU: CUDA does not survive fork().
inline std::vector<int> in_children(int size, const std::function<int(Collective&)>& run,
                                    SharedCollective::Options options = kPatient) {
  const std::shared_ptr<SharedRegion> region = SharedRegion::make(size);
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      int code = 3;
      try {
        SharedCollective ranks(region, r, options);
        code = run(ranks);
      } catch (const Error& e) {
        std::fprintf(stderr, "rank %d: %s\n", r, e.what());
      }
      _exit(code);
    }
    region->expect_process(r, child);
    children.push_back(child);
  }
  std::vector<int> codes;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    codes.push_back(WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status));
  }
  return codes;
}

}  // namespace mneme::parallel_test
