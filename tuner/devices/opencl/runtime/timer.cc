// Times by the device's own clock: profiled markers around what is timed, on the current stream.
#include <tvm/ffi/reflection/registry.h>
#include <tvm/runtime/timer.h>

#include "device_api.h"

namespace edgetune::opencl {

class OpenCLTimerNode final : public tvm::runtime::TimerNode {
 public:
  explicit OpenCLTimerNode(tvm::Device device)
      : device_(Registry::Get().At(device.device_id)), queue_(OpenCLDeviceAPI::StreamOf(device_).queue) {}

  ~OpenCLTimerNode() {
    if (!Registry::Alive()) return;
    for (cl_event event : {start_, stop_})
      if (event != nullptr) device_.cl.clReleaseEvent(event);
  }

  void Start() final { Mark(&start_); }
  void Stop() final { Mark(&stop_); }

  int64_t SyncAndGetElapsedNanos() final {
    device_.Check(device_.cl.clWaitForEvents(1, &stop_), "clWaitForEvents");
    return int64_t(End(stop_) - End(start_));
  }

  TVM_FFI_DECLARE_OBJECT_INFO_FINAL("edgetune.OpenCLTimer", OpenCLTimerNode, tvm::runtime::TimerNode);

 private:
  void Mark(cl_event* event) {
    device_.Check(device_.cl.clEnqueueMarkerWithWaitList(queue_, 0, nullptr, event), "clEnqueueMarkerWithWaitList");
  }

  cl_ulong End(cl_event event) const {
    cl_ulong nanoseconds = 0;
    device_.Check(
        device_.cl.clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof nanoseconds, &nanoseconds, nullptr),
        "clGetEventProfilingInfo");
    return nanoseconds;
  }

  Device& device_;
  const cl_command_queue queue_;
  cl_event start_ = nullptr;
  cl_event stop_ = nullptr;
};

}  // namespace edgetune::opencl
