// What TVM and Python find by name: "device_api.opencl" and the like for TVM, "edgetune.opencl.*" for our own package.
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>

#include <cstring>

#include "binary_cache.h"
#include "counters.h"
#include "device_api.h"
#include "fail.h"
#include "module.cc"
#include "program.h"
#include "threads.h"
#include "timer.cc"
#include "trace.h"

namespace edgetune::opencl {

namespace {

// A dictionary for Python. Not inlined: each use of TVM's map takes a third of a second to compile.
class Fields {
 public:
  using Map = ffi::Map<ffi::String, ffi::Any>;
  [[gnu::noinline]] void Set(const char* name, const ffi::Any& value) { map_.Set(name, value); }
  [[gnu::noinline]] void Text(const char* name, const std::string& value) { Set(name, ffi::String(value)); }
  [[gnu::noinline]] void Number(const char* name, int64_t value) { Set(name, value); }
  [[gnu::noinline]] void Flag(const char* name, bool value) { Set(name, value); }
  template <typename T>
  [[gnu::noinline]] void Numbers(const char* name, const std::vector<T>& values) {
    ffi::Array<int64_t> array;
    for (T value : values) array.push_back(int64_t(value));
    Set(name, array);
  }
  const Map& map() const { return map_; }

 private:
  Map map_;
};

std::vector<size_t> Sizes(const Device& device, cl_uint what) {
  size_t bytes = 0;
  device.Check(device.cl.clGetDeviceInfo(device.id, what, 0, nullptr, &bytes), "clGetDeviceInfo");
  std::vector<size_t> sizes(bytes / sizeof(size_t));
  device.Check(device.cl.clGetDeviceInfo(device.id, what, bytes, sizes.data(), nullptr), "clGetDeviceInfo");
  return sizes;
}

const char* TypeName(cl_bitfield type) {
  if (type & CL_DEVICE_TYPE_GPU) return "gpu";
  if (type & CL_DEVICE_TYPE_CPU) return "cpu";
  return type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator" : "other";
}

Fields::Map DeviceInfo(int64_t index) {
  const Device& d = Registry::Get().At(index);
  auto text = [&d](cl_uint what) { return DeviceText(d.cl, d.id, what); };
  auto uint = [&d](cl_uint what) { return DeviceValue<cl_uint>(d.cl, d.id, what); };
  auto ulong = [&d](cl_uint what) { return int64_t(DeviceValue<cl_ulong>(d.cl, d.id, what)); };
  const std::string extensions = " " + text(CL_DEVICE_EXTENSIONS) + " ";
  auto has = [&](const std::string& name) { return extensions.find(" " + name + " ") != std::string::npos; };
  const bool subgroups = has("cl_intel_required_subgroup_size");
  Fields fields;
  fields.Text("platform", d.platform.name);
  fields.Text("name", d.name);
  fields.Text("vendor", text(CL_DEVICE_VENDOR));
  fields.Text("version", text(CL_DEVICE_VERSION));
  fields.Text("driver_version", d.driver_version);
  fields.Text("type", TypeName(DeviceValue<cl_bitfield>(d.cl, d.id, CL_DEVICE_TYPE)));
  fields.Number("compute_units", uint(CL_DEVICE_MAX_COMPUTE_UNITS));
  fields.Number("max_work_group_size", int64_t(DeviceValue<size_t>(d.cl, d.id, CL_DEVICE_MAX_WORK_GROUP_SIZE)));
  fields.Numbers("max_work_item_sizes", Sizes(d, CL_DEVICE_MAX_WORK_ITEM_SIZES));
  fields.Number("local_memory_bytes", ulong(CL_DEVICE_LOCAL_MEM_SIZE));
  fields.Text("local_memory_type", uint(CL_DEVICE_LOCAL_MEM_TYPE) == CL_LOCAL ? "local" : "global");
  fields.Number("global_memory_bytes", ulong(CL_DEVICE_GLOBAL_MEM_SIZE));
  fields.Number("max_alloc_bytes", ulong(CL_DEVICE_MAX_MEM_ALLOC_SIZE));
  fields.Number("clock_mhz", uint(CL_DEVICE_MAX_CLOCK_FREQUENCY));
  fields.Text("extensions", text(CL_DEVICE_EXTENSIONS));
  fields.Numbers("subgroup_sizes", subgroups ? Sizes(d, CL_DEVICE_SUB_GROUP_SIZES_INTEL) : std::vector<size_t>());
  fields.Flag("fp16", has("cl_khr_fp16"));
  fields.Flag("fp64", has("cl_khr_fp64"));
  fields.Number("native_float_lanes", uint(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT));
  fields.Number("preferred_float_lanes", uint(CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT));
  fields.Text("library", d.driver.path);
  return fields.map();
}

bool HasHostMemory(int64_t index) {
  const Device& d = Registry::Get().At(index);
  return DeviceValue<cl_uint>(d.cl, d.id, CL_DEVICE_HOST_UNIFIED_MEMORY) != 0;
}

ffi::Array<Fields::Map> Drivers() {
  Registry& registry = Registry::Get();
  ffi::Array<Fields::Map> found;
  for (const Driver& driver : registry.drivers()) {
    std::vector<int> devices;
    for (int i = 0; i < registry.size(); ++i)
      if (&registry.At(i).driver == &driver) devices.push_back(i);
    Fields fields;
    fields.Text("path", driver.path);
    fields.Text("problem", driver.problem);
    fields.Numbers("devices", devices);
    found.push_back(fields.map());
  }
  return found;
}

Fields::Map CounterValues() {
  Fields fields;
#define EDGETUNE_OPENCL_COUNTER(name) fields.Number(#name, counters.name.load(std::memory_order_relaxed));
  EDGETUNE_OPENCL_COUNTERS(EDGETUNE_OPENCL_COUNTER)
#undef EDGETUNE_OPENCL_COUNTER
  return fields.map();
}

struct TracedLaunches {
  std::vector<TracedLaunch> all;
  ~TracedLaunches() {
    for (const TracedLaunch& launch : all) launch.device->cl.clReleaseEvent(launch.event);
  }
};

// [kernel, stream, queued, submitted, started, ended] of every launch since the trace was started; nanoseconds of the
// device's clock. Streams are numbered as they appear.
ffi::Array<ffi::Array<ffi::Any>> StopTrace() {
  ffi::Array<ffi::Array<ffi::Any>> rows;
  std::vector<const void*> streams;
  const TracedLaunches launches{Trace::Global().Stop()};
  for (const TracedLaunch& launch : launches.all) {
    const Device& device = *launch.device;
    auto known = std::find(streams.begin(), streams.end(), launch.stream);
    ffi::Array<ffi::Any> row{ffi::String(launch.kernel), int64_t(known - streams.begin())};
    if (known == streams.end()) streams.push_back(launch.stream);
    device.Check(device.cl.clWaitForEvents(1, &launch.event), "clWaitForEvents");
    for (cl_uint what : {CL_PROFILING_COMMAND_QUEUED, CL_PROFILING_COMMAND_SUBMIT, CL_PROFILING_COMMAND_START,
                         CL_PROFILING_COMMAND_END}) {
      cl_ulong time = 0;
      device.Check(device.cl.clGetEventProfilingInfo(launch.event, what, sizeof time, &time, nullptr),
                   "clGetEventProfilingInfo");
      row.push_back(int64_t(time));
    }
    rows.push_back(row);
  }
  return rows;
}

// Streams as TVM gives them to Python: handles as integers.
void OrderStreams(int64_t index, int64_t first, int64_t then) {
  OpenCLDeviceAPI::Global()->SyncStreamFromTo(tvm::Device{kDLOpenCL, int32_t(index)},
                                              reinterpret_cast<TVMStreamHandle>(first),
                                              reinterpret_cast<TVMStreamHandle>(then));
}

void SetFlushEvery(int64_t index, int64_t launches) {
  if (launches < 0 || launches > UINT32_MAX)
    Fail("ValueError", "a queue cannot be flushed every ", launches, " launches");
  Registry::Get().At(index).flush_every = uint32_t(launches);
}

// Leaves the program in the cache of binaries, where a process that runs it finds it.
void CompileToCache(int64_t index, const ffi::String& source) {
  Device& device = Registry::Get().At(index);
  device.cl.clReleaseProgram(BuildProgram(device, std::string(source)));
}

// device, function, arguments: calls the function; nanoseconds between two events of the device around it.
void TimeCall(ffi::PackedArgs args, ffi::Any* nanoseconds) {
  tvm::runtime::Timer timer = tvm::runtime::Timer::Start(args[0].cast<tvm::Device>());
  ffi::Any result;
  args[1].cast<ffi::Function>().CallPacked(args.Slice(2), &result);
  timer->Stop();
  *nanoseconds = timer->SyncAndGetElapsedNanos();
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  // A second registration would end the process: TVM's own runtime, or another copy of this one, is there already.
  if (ffi::Function::GetGlobal("device_api.opencl").has_value()) return;
  ffi::reflection::GlobalDef()
      .def_packed("device_api.opencl",
                  [](ffi::PackedArgs, ffi::Any* result) {
                    *result = static_cast<void*>(static_cast<tvm::runtime::DeviceAPI*>(OpenCLDeviceAPI::Global()));
                  })
      .def("ffi.Module.create.opencl", OpenCLModule::Create)
      .def("ffi.Module.load_from_bytes.opencl", OpenCLModule::Load)
      .def("runtime.timer.opencl",
           [](tvm::Device device) { return tvm::runtime::Timer(ffi::make_object<OpenCLTimerNode>(device)); })
      .def("edgetune.opencl.add_driver", [](const ffi::String& path) { Registry::AddDriver(std::string(path)); })
      .def("edgetune.opencl.drivers", Drivers)
      .def("edgetune.opencl.device_count", [] { return int64_t(Registry::Get().size()); })
      .def("edgetune.opencl.device_info", DeviceInfo)
      .def("edgetune.opencl.has_host_memory", HasHostMemory)
      .def_packed("edgetune.time_call", TimeCall)
      .def("edgetune.opencl.compile", CompileToCache)
      .def("edgetune.opencl.counters", CounterValues)
      .def("edgetune.opencl.start_trace", [] { Trace::Global().Start(); })
      .def("edgetune.opencl.stop_trace", StopTrace)
      .def("edgetune.opencl.order_streams", OrderStreams)
      .def("edgetune.opencl.set_flush_every", SetFlushEvery)
      .def("edgetune.opencl.set_host_threads",
           [](int64_t rest, int64_t rise) {
             HostThreads::Set(reinterpret_cast<HostThreads::Function>(rest),
                              reinterpret_cast<HostThreads::Function>(rise));
           })
      .def("edgetune.opencl.current_queue",
           [] { return static_cast<void*>(OpenCLDeviceAPI::StreamOf(OpenCLDeviceAPI::CurrentDevice()).queue); })
      .def("edgetune.opencl.set_build_options",
           [](int64_t index, const ffi::String& options) {
             Registry::Get().At(index).set_build_options(std::string(options));
           })
      .def("edgetune.opencl.set_binary_cache",
           [](const ffi::String& folder) { BinaryCache::Global().SetFolder(std::string(folder)); });
}

}  // namespace edgetune::opencl
