// Looks after a step of ranks that wait for each other on their GPUs: kernels that wait for a rank that is gone, or that
// does not come, never end by themselves.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "src/parallel/collective.h"

namespace mneme {

class StepWatch {
 public:
  struct Calls {
    std::function<std::string()> failure;             // why the step cannot end; "": it can. Ten times a second
    std::function<void(const std::string& why)> end;  // ends the kernels that wait, once
  };
  // A step fails when another rank did, when it takes longer than `seconds`, or as Calls::failure says.
  StepWatch(Collective& ranks, double seconds, Calls calls);
  ~StepWatch();
  StepWatch(const StepWatch&) = delete;
  StepWatch& operator=(const StepWatch&) = delete;

  // Errors  RanksStopped: a step failed; the one that ends is worth nothing.
  void begin();
  void end();

 private:
  void run();
  std::string failure_after(double seconds) const;
  void expect_all_well();

  Collective& ranks_;
  double seconds_;
  Calls calls_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ends_ = false, running_ = false;
  std::chrono::steady_clock::time_point began_;
  std::string why_;  // nothing may be launched any more
  std::thread thread_;
};

}  // namespace mneme
