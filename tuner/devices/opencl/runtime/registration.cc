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
#include "timer.cc"
#include "trace.h"

namespace edgetune::opencl {

namespace {

using Fields = ffi::Map<ffi::String, ffi::Any>;

ffi::Array<int64_t> Sizes(const Device& device, cl_uint what) {
  size_t bytes = 0;
  device.Check(device.cl.clGetDeviceInfo(device.id, what, 0, nullptr, &bytes), "clGetDeviceInfo");
  std::vector<size_t> sizes(bytes / sizeof(size_t));
  device.Check(device.cl.clGetDeviceInfo(device.id, what, bytes, sizes.data(), nullptr), "clGetDeviceInfo");
  ffi::Array<int64_t> found;
  for (size_t size : sizes) found.push_back(int64_t(size));
  return found;
}

const char* TypeName(cl_bitfield type) {
  if (type & CL_DEVICE_TYPE_GPU) return "gpu";
  if (type & CL_DEVICE_TYPE_CPU) return "cpu";
  return type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator" : "other";
}

Fields DeviceInfo(int64_t index) {
  const Device& d = Registry::Get().At(int(index));
  auto text = [&d](cl_uint what) { return ffi::String(DeviceText(d.cl, d.id, what)); };
  auto uint = [&d](cl_uint what) { return int64_t(DeviceValue<cl_uint>(d.cl, d.id, what)); };
  auto ulong = [&d](cl_uint what) { return int64_t(DeviceValue<cl_ulong>(d.cl, d.id, what)); };
  const std::string extensions = " " + DeviceText(d.cl, d.id, CL_DEVICE_EXTENSIONS) + " ";
  auto has = [&extensions](const char* name) {
    return extensions.find(" " + std::string(name) + " ") != std::string::npos;
  };
  Fields fields;
  fields.Set("platform", ffi::String(d.platform.name));
  fields.Set("name", ffi::String(d.name));
  fields.Set("vendor", text(CL_DEVICE_VENDOR));
  fields.Set("version", text(CL_DEVICE_VERSION));
  fields.Set("driver_version", ffi::String(d.driver_version));
  fields.Set("type", ffi::String(TypeName(DeviceValue<cl_bitfield>(d.cl, d.id, CL_DEVICE_TYPE))));
  fields.Set("compute_units", uint(CL_DEVICE_MAX_COMPUTE_UNITS));
  fields.Set("max_work_group_size", int64_t(DeviceValue<size_t>(d.cl, d.id, CL_DEVICE_MAX_WORK_GROUP_SIZE)));
  fields.Set("max_work_item_sizes", Sizes(d, CL_DEVICE_MAX_WORK_ITEM_SIZES));
  fields.Set("local_memory_bytes", ulong(CL_DEVICE_LOCAL_MEM_SIZE));
  fields.Set("local_memory_type", ffi::String(uint(CL_DEVICE_LOCAL_MEM_TYPE) == CL_LOCAL ? "local" : "global"));
  fields.Set("global_memory_bytes", ulong(CL_DEVICE_GLOBAL_MEM_SIZE));
  fields.Set("max_alloc_bytes", ulong(CL_DEVICE_MAX_MEM_ALLOC_SIZE));
  fields.Set("clock_mhz", uint(CL_DEVICE_MAX_CLOCK_FREQUENCY));
  fields.Set("extensions", text(CL_DEVICE_EXTENSIONS));
  fields.Set("subgroup_sizes", has("cl_intel_required_subgroup_size") ? Sizes(d, CL_DEVICE_SUB_GROUP_SIZES_INTEL)
                                                                      : ffi::Array<int64_t>());
  fields.Set("fp16", has("cl_khr_fp16"));
  fields.Set("fp64", has("cl_khr_fp64"));
  fields.Set("native_float_lanes", uint(CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT));
  fields.Set("preferred_float_lanes", uint(CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT));
  fields.Set("library", ffi::String(d.driver.path));
  return fields;
}

ffi::Array<Fields> Drivers() {
  Registry& registry = Registry::Get();
  ffi::Array<Fields> found;
  for (const Driver& driver : registry.drivers()) {
    ffi::Array<int64_t> devices;
    for (int i = 0; i < registry.size(); ++i)
      if (&registry.At(i).driver == &driver) devices.push_back(i);
    Fields fields;
    fields.Set("path", ffi::String(driver.path));
    fields.Set("problem", ffi::String(driver.problem));
    fields.Set("devices", devices);
    found.push_back(fields);
  }
  return found;
}

Fields CounterValues() {
  Fields fields;
#define EDGETUNE_OPENCL_COUNTER(name) fields.Set(#name, counters.name.load(std::memory_order_relaxed));
  EDGETUNE_OPENCL_COUNTERS(EDGETUNE_OPENCL_COUNTER)
#undef EDGETUNE_OPENCL_COUNTER
  return fields;
}

// [kernel, stream, queued, submitted, started, ended] of every launch since the trace was started; nanoseconds of the
// device's clock. Streams are numbered as they appear.
ffi::Array<ffi::Array<ffi::Any>> StopTrace() {
  ffi::Array<ffi::Array<ffi::Any>> rows;
  std::vector<const Stream*> streams;
  for (const TracedLaunch& launch : Trace::Global().Stop()) {
    const Device& device = launch.stream->device;
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
    device.cl.clReleaseEvent(launch.event);
    rows.push_back(row);
  }
  return rows;
}

Device& At(int64_t index) { return Registry::Get().At(int(index)); }

void SetFlushEvery(int64_t index, int64_t launches) {
  if (launches < 0 || launches > UINT32_MAX)
    Fail("ValueError", "a queue cannot be flushed every ", launches, " launches");
  At(index).flush_every = uint32_t(launches);
}

// Leaves the program in the cache of binaries, where a process that runs it finds it.
void CompileToCache(int64_t index, const ffi::String& source) {
  Device& device = At(index);
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
      .def_packed("edgetune.time_call", TimeCall)
      .def("edgetune.opencl.compile", CompileToCache)
      .def("edgetune.opencl.counters", CounterValues)
      .def("edgetune.opencl.start_trace", [] { Trace::Global().Start(); })
      .def("edgetune.opencl.stop_trace", StopTrace)
      .def("edgetune.opencl.set_flush_every", SetFlushEvery)
      .def("edgetune.opencl.set_build_options",
           [](int64_t index, const ffi::String& options) { At(index).set_build_options(std::string(options)); })
      .def("edgetune.opencl.set_binary_cache",
           [](const ffi::String& folder) { BinaryCache::Global().SetFolder(std::string(folder)); });
}

}  // namespace edgetune::opencl
