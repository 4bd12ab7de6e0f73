// Resource limits and position of one rendering. Templates are untrusted: work, memory and depth are bounded.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"

namespace mneme::jinja {

struct Limits {
  std::int64_t work = 40'000'000;               // steps; a string operation counts one per 64 bytes
  std::int64_t memory = std::int64_t{1} << 28;  // bytes of all strings and lists created, freed ones included
  int depth = 600;                              // of nested expressions, blocks and macro calls together
  int nesting = 200;                            // of lists in lists
};

struct Namespace;
struct Scope;

class Run {
 public:
  explicit Run(const Limits& limits) : limits_(limits), work_(limits.work), memory_(limits.memory) {}
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;
  ~Run();

  void at_line(int line) { line_ = line; }
  int line() const { return line_; }
  // Errors  kRequest: the limit is reached.
  void spend_work(std::size_t n) {
    if ((work_ -= n) < 0) error("the template takes too many steps");
  }
  void spend_memory(std::size_t bytes) {
    if ((memory_ -= bytes) < 0) error("the template makes too much text");
  }

  // Throws kRequest: "chat template, line 3: ...".
  template <typename... Args>
  [[noreturn]] void error(fmt::format_string<Args...> format, Args&&... args) const {
    fail(ErrorKind::kRequest, "chat template, line {}: {}", line_, fmt::format(format, std::forward<Args>(args)...));
  }

  class RecursionGuard {
   public:
    explicit RecursionGuard(Run& run) : run_(&run) {
      if (++run.depth_ > run.limits_.depth) {
        --run.depth_;
        run.error("the template nests too deeply");
      }
      run.spend_work(1);
    }
    ~RecursionGuard() { --run_->depth_; }
    RecursionGuard(const RecursionGuard&) = delete;
    RecursionGuard& operator=(const RecursionGuard&) = delete;

   private:
    Run* run_;
  };

  const Limits& limits() const { return limits_; }
  // Keeps objects that may form reference cycles; they are cleared together at the end.
  void keep(std::shared_ptr<Namespace> object) { namespaces_.push_back(std::move(object)); }
  void keep(std::shared_ptr<Scope> scope) { scopes_.push_back(std::move(scope)); }

  std::optional<std::time_t> now;    // for strftime_now(); absent: the current time
  std::string* undefined = nullptr;  // Template::Input's

 private:
  Limits limits_;
  std::int64_t work_, memory_;
  int depth_ = 0;
  int line_ = 1;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
  std::vector<std::shared_ptr<Scope>> scopes_;
};

}  // namespace mneme::jinja
