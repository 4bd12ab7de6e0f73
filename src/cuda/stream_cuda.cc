#include <cuda_runtime.h>

#include "src/cuda/check.h"
#include "src/cuda/stream.h"

namespace mneme {

Stream Stream::make(Priority priority) {
  int low = 0, high = 0;
  cuda_check(cudaDeviceGetStreamPriorityRange(&low, &high), "reading stream priorities");
  Stream s;
  cuda_check(cudaStreamCreateWithPriority(&s.handle_, cudaStreamNonBlocking, priority == Priority::kHigh ? high : low),
             "making a stream");
  return s;
}

Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(handle_);
}

void Stream::synchronize() const {
  cuda_check(cudaStreamSynchronize(handle_), "waiting for the device");
}

void Stream::wait(const Event& event) const {
  cuda_check(cudaStreamWaitEvent(handle_, event.get(), 0), "waiting for an event");
}

Event Event::make(Timing timing) {
  Event e;
  cuda_check(cudaEventCreateWithFlags(&e.handle_,
                                      timing == Timing::kTimed ? cudaEventDefault : unsigned{cudaEventDisableTiming}),
             "making an event");
  return e;
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(handle_);
}

void Event::record(const Stream& stream) const {
  cuda_check(cudaEventRecord(handle_, stream.get()), "recording an event");
}

void Event::record_replayed(const Stream& stream) const {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cuda_check(cudaStreamIsCapturing(stream.get(), &status), "asking for a capture");
  const unsigned flags = status == cudaStreamCaptureStatusActive ? cudaEventRecordExternal : cudaEventRecordDefault;
  cuda_check(cudaEventRecordWithFlags(handle_, stream.get(), flags), "recording an event");
}

bool Event::happened() const {
  const cudaError_t error = cudaEventQuery(handle_);
  if (error != cudaErrorNotReady) cuda_check(error, "asking for an event");
  return error == cudaSuccess;
}

void Event::synchronize() const {
  cuda_check(cudaEventSynchronize(handle_), "waiting for an event");
}

double Event::seconds_since(const Event& begin) const {
  float milliseconds = 0;
  cuda_check(cudaEventElapsedTime(&milliseconds, begin.handle_, handle_), "timing");
  return static_cast<double>(milliseconds) * 1e-3;
}

Graph Graph::capture(const Stream& stream, const std::function<void()>& launches) {
  cuda_check(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capturing launches");
  cudaGraph_t graph = nullptr;
  try {
    launches();
  } catch (...) {
    cudaStreamEndCapture(stream.get(), &graph);
    if (graph != nullptr) cudaGraphDestroy(graph);
    throw;
  }
  cuda_check(cudaStreamEndCapture(stream.get(), &graph), "capturing launches");
  Graph out;
  const cudaError_t error = cudaGraphInstantiate(&out.handle_, graph, 0);
  cudaGraphDestroy(graph);
  cuda_check(error, "making a graph of launches");
  return out;
}

Graph::~Graph() {
  if (handle_ != nullptr) cudaGraphExecDestroy(handle_);
}

void Graph::launch(const Stream& stream) const {
  cuda_check(cudaGraphLaunch(handle_, stream.get()), "launching a graph");
}

}  // namespace mneme
