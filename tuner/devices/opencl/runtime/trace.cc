#include "trace.h"

namespace edgetune::opencl {

Trace& Trace::Global() {
  static auto* trace = new Trace;
  return *trace;
}

std::vector<TracedLaunch> Trace::Stop() {
  on_ = false;
  std::lock_guard<std::mutex> lock(mutex_);
  return std::move(launches_);
}

void Trace::Add(const std::string& kernel, const Stream& stream, cl_event event) {
  std::lock_guard<std::mutex> lock(mutex_);
  launches_.push_back({kernel, &stream.device, &stream, event});
}

}  // namespace edgetune::opencl
