// NVTX range: a named interval of this thread on a profiler's timeline. Does nothing in a build without CUDA.
#pragma once

namespace mneme {

class TraceRange {
 public:
  explicit TraceRange(const char* name);
  ~TraceRange();
  TraceRange(const TraceRange&) = delete;
  TraceRange& operator=(const TraceRange&) = delete;
};

}  // namespace mneme
