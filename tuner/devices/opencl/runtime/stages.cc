// Stages: groups of kernels that run at the same time, each on a stream of its own. The last group is on the caller's
// stream; the others' begin when what is on it so far has ended, and it goes on when they have. For devices of any kind
// whose API has streams.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>
#include <tvm/runtime/device_api.h>
#include <tvm/runtime/timer.h>

#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "fail.h"

namespace edgetune {

namespace ffi = tvm::ffi;

namespace {

// The side streams of every device. Threads share them, as they share the device's default stream: in-order queues on
// which others' work may come in between. Never freed: drivers' exit handlers may run before ours.
class SideStreams {
 public:
  static TVMStreamHandle Get(tvm::Device device, size_t number) {
    static auto* all = new SideStreams;
    const std::lock_guard<std::mutex> lock(all->mutex_);
    auto& streams = all->streams_[{device.device_type, device.device_id}];
    while (streams.size() <= number) streams.push_back(tvm::runtime::DeviceAPI::Get(device)->CreateStream(device));
    return streams[number];
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<int, int>, std::vector<TVMStreamHandle>> streams_;
};

void SetStream(tvm::Device device, TVMStreamHandle stream) {
  if (TVMFFIEnvSetStream(device.device_type, device.device_id, stream, nullptr) != 0)
    opencl::Fail("RuntimeError", "a stream cannot be set");
}

// The stage that the calling thread is in, if it is in one.
struct Stage {
  tvm::Device device{};
  TVMStreamHandle main = nullptr;
  size_t groups = 0;  // on side streams

  // Go on with the next group, on a side stream.
  void Aside(tvm::Device on) {
    if (groups == 0) {
      device = on;
      main = TVMFFIEnvGetStream(on.device_type, on.device_id);
    }
    TVMStreamHandle side = SideStreams::Get(device, groups++);
    tvm::runtime::DeviceAPI::Get(device)->SyncStreamFromTo(device, main, side);
    SetStream(device, side);
  }

  // Go on with the last group.
  void Back() { SetStream(device, main); }

  // The end; also of a stage that an error has left.
  void Join() {
    if (groups == 0) return;
    Back();
    const size_t count = std::exchange(groups, 0);
    for (size_t i = 0; i < count; ++i)
      tvm::runtime::DeviceAPI::Get(device)->SyncStreamFromTo(device, SideStreams::Get(device, i), main);
  }
};

thread_local Stage current;

void Call(const ffi::Array<ffi::Any>& call) {
  std::vector<ffi::AnyView> arguments(call.begin() + 1, call.end());
  ffi::Any result;
  call[0].cast<ffi::Function>().CallPacked(arguments.data(), int32_t(arguments.size()), &result);
}

// device, groups, each of calls, each a function and its arguments: launches one stage.
void Run(tvm::Device device, const ffi::Array<ffi::Array<ffi::Array<ffi::Any>>>& groups) {
  try {
    for (size_t i = 0; i < groups.size(); ++i) {
      if (i + 1 < groups.size()) {
        current.Aside(device);
      } else if (i > 0) {
        current.Back();
      }
      for (const auto& call : groups[i]) Call(call);
    }
  } catch (...) {
    current.Join();
    throw;
  }
  current.Join();
}

// device, stages, each of groups as above: launches them in their order; nanoseconds of each between two events of the
// device. What the host takes to launch is in them where the device waits for it, and only there: most of it passes
// while the device works on earlier stages, for whose threads a processor's driver may even hold the host up.
ffi::Array<int64_t> Time(tvm::Device device, const ffi::Array<ffi::Array<ffi::Array<ffi::Array<ffi::Any>>>>& stages) {
  std::vector<tvm::runtime::Timer> timers;
  for (const auto& stage : stages) {
    timers.push_back(tvm::runtime::Timer::Start(device));
    Run(device, stage);
    timers.back()->Stop();
  }
  ffi::Array<int64_t> nanoseconds;
  for (tvm::runtime::Timer& timer : timers) nanoseconds.push_back(timer->SyncAndGetElapsedNanos());
  return nanoseconds;
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  if (ffi::Function::GetGlobal("edgetune.stage.run").has_value()) return;
  // A module's calls name the device by one of the stage's tensors. What else is given to join is only kept until then:
  // memory planning must not give it to others before.
  ffi::reflection::GlobalDef()
      .def("edgetune.stage.aside", [](const ffi::Tensor& of) { current.Aside(of.device()); })
      .def("edgetune.stage.back", [] { current.Back(); })
      .def_packed("edgetune.stage.join", [](ffi::PackedArgs, ffi::Any*) { current.Join(); })
      .def("edgetune.stage.run", Run)
      .def("edgetune.stage.time", Time);
}

}  // namespace edgetune
