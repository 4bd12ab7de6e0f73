// Waits of tests, limited by progress in place of a clock: on a loaded machine everything takes ten times as long, and
// what still computes does not hang.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <thread>
#include <utility>

namespace mneme {

// Seconds of CPU time that process `root` and everything it started have used, those that ended included; -1 without /proc.
inline double cpu_seconds_of_tree(pid_t root) {
  struct Process {
    pid_t parent = 0;
    double ticks = 0;
  };
  std::map<pid_t, Process> all;
  std::error_code failed;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", failed)) {
    const pid_t pid = std::atoi(entry.path().filename().c_str());
    if (pid <= 0) continue;
    std::ifstream file(entry.path() / "stat");
    std::string text;
    std::getline(file, text, '\0');  // an iterator over the file throws where the process ends while it is read
    const std::size_t name_end = text.rfind(')');
    if (name_end == text.npos) continue;  // it has ended meanwhile
    Process p;
    char* at = const_cast<char*>(text.c_str()) + name_end + 3;  // behind ") S": the fields from the 4th on, see proc(5)
    for (int field = 4; field <= 17; ++field) {
      const double value = std::strtod(at, &at);
      if (field == 4) p.parent = static_cast<pid_t>(value);
      if (field >= 14) p.ticks += value;  // utime, stime, and those of children that were waited for
    }
    all[pid] = p;
  }
  if (!all.contains(root)) return -1;
  double ticks = 0;
  for (const auto& [pid, process] : all) {
    pid_t up = pid;
    for (std::size_t depth = 0; up != root && depth < all.size(); ++depth) {
      const auto found = all.find(up);
      if (found == all.end()) break;
      up = found->second.parent;
    }
    if (up == root) ticks += process.ticks;
  }
  return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

// Tells a wait when to give up: after `quiet_seconds` in which this process and those it started used less than kLeastShare
// of one CPU. One of twenty busy processes on two CPUs gets ten times that.
class Progress {
 public:
  static constexpr double kLeastShare = 0.01;

  explicit Progress(double quiet_seconds = 60) : quiet_seconds_(quiet_seconds) {}

  // Whether nothing has happened for that long. Reads /proc at most once a second.
  bool stalled() {
    const auto now = std::chrono::steady_clock::now();
    const auto seconds = [&](Clock since) { return std::chrono::duration<double>(now - since).count(); };
    if (seconds(looked_) < 1) return false;
    looked_ = now;
    const double cpu = cpu_seconds_of_tree(::getpid());
    if (cpu < 0 || cpu - cpu_ >= kLeastShare * quiet_seconds_) {
      cpu_ = cpu;
      since_ = now;
    }
    return seconds(since_) >= quiet_seconds_;
  }

 private:
  using Clock = std::chrono::steady_clock::time_point;
  double quiet_seconds_;
  Clock since_ = std::chrono::steady_clock::now(), looked_ = since_;
  double cpu_ = 0;  // when `since_` was set; the first look at /proc sets it
};

// Waits until done() is true, asking every `pause`; false where it never became so.
template <typename Done>
bool wait_until(const Done& done, std::chrono::milliseconds pause = std::chrono::milliseconds(5)) {
  Progress progress;
  while (!done()) {
    if (progress.stalled()) return done();
    std::this_thread::sleep_for(pause);
  }
  return true;
}

}  // namespace mneme
