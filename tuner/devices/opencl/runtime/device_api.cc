#include "device_api.h"

#include <tvm/ffi/extra/c_env_api.h>

#include "memory.h"

namespace edgetune::opencl {

thread_local int OpenCLDeviceAPI::current_ = 0;

OpenCLDeviceAPI* OpenCLDeviceAPI::Global() {
  static auto* api = new OpenCLDeviceAPI;
  return api;
}

Device& OpenCLDeviceAPI::CurrentDevice() { return Registry::Get().At(current_); }

Stream& OpenCLDeviceAPI::StreamOf(Device& device, TVMStreamHandle handle) {
  if (handle == nullptr) handle = TVMFFIEnvGetStream(kDLOpenCL, device.index);
  return handle == nullptr ? device.default_stream() : *static_cast<Stream*>(handle);
}

void OpenCLDeviceAPI::SetDevice(tvm::Device device) { current_ = device.device_id; }

void OpenCLDeviceAPI::GetAttr(tvm::Device device, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* result) {
  using namespace tvm::runtime;
  Registry& registry = Registry::Get();
  if (kind == kExist) {
    *result = int64_t(registry.Has(device.device_id));
    return;
  }
  const Device& d = registry.At(device.device_id);
  auto number = [&d](auto sample, cl_uint what) { return int64_t(DeviceValue<decltype(sample)>(d.cl, d.id, what)); };
  switch (kind) {
    case kMaxThreadsPerBlock: *result = number(size_t{}, CL_DEVICE_MAX_WORK_GROUP_SIZE); break;
    // Anything but 1 makes TVM put barriers into divergent control flow where it reduces across work-items.
    case kWarpSize: *result = int64_t(1); break;
    case kMaxSharedMemoryPerBlock: *result = number(cl_ulong{}, CL_DEVICE_LOCAL_MEM_SIZE); break;
    case kComputeVersion:
    case kApiVersion: *result = tvm::ffi::String(DeviceText(d.cl, d.id, CL_DEVICE_VERSION)); break;
    case kDeviceName: *result = tvm::ffi::String(d.name); break;
    case kMaxClockRate: *result = 1000 * number(cl_uint{}, CL_DEVICE_MAX_CLOCK_FREQUENCY); break;
    case kMultiProcessorCount: *result = number(cl_uint{}, CL_DEVICE_MAX_COMPUTE_UNITS); break;
    case kMaxThreadDimensions: {
      struct Sizes {
        size_t of[3];
      };
      const auto sizes = DeviceValue<Sizes>(d.cl, d.id, CL_DEVICE_MAX_WORK_ITEM_SIZES);
      *result = tvm::ffi::String("[" + std::to_string(sizes.of[0]) + ", " + std::to_string(sizes.of[1]) + ", " +
                                 std::to_string(sizes.of[2]) + "]");
      break;
    }
    case kDriverVersion: *result = tvm::ffi::String(d.driver_version); break;
    case kL2CacheSizeBytes: *result = number(cl_ulong{}, CL_DEVICE_GLOBAL_MEM_CACHE_SIZE); break;
    case kTotalGlobalMemory: *result = number(cl_ulong{}, CL_DEVICE_GLOBAL_MEM_SIZE); break;
    default: break;  // TVM takes None for what a kind of device does not tell
  }
}

void* OpenCLDeviceAPI::AllocDataSpace(tvm::Device device, size_t size, size_t, DLDataType) {
  return AllocateBuffer(Registry::Get().At(device.device_id), size);
}

void OpenCLDeviceAPI::FreeDataSpace(tvm::Device device, void* data) {
  if (Registry::Alive()) FreeBuffer(Registry::Get().At(device.device_id), static_cast<cl_mem>(data));
}

// Compiled code calls this through C and looks for a null: it cannot be unwound.
void* OpenCLDeviceAPI::AllocWorkspace(tvm::Device device, size_t size, DLDataType) {
  try {
    return WorkspacePool::Global().Take(StreamOf(Registry::Get().At(device.device_id)), size);
  } catch (const tvm::ffi::Error& error) {
    tvm::ffi::details::SetSafeCallRaised(error);
    return nullptr;
  }
}

void OpenCLDeviceAPI::FreeWorkspace(tvm::Device device, void* data) {
  WorkspacePool::Global().Give(Registry::Get().At(device.device_id), static_cast<cl_mem>(data));
}

TVMStreamHandle OpenCLDeviceAPI::CreateStream(tvm::Device device) {
  return Registry::Get().At(device.device_id).NewStream();
}

void OpenCLDeviceAPI::FreeStream(tvm::Device device, TVMStreamHandle stream) {
  if (!Registry::Alive()) return;
  WorkspacePool::Global().Drop(*static_cast<Stream*>(stream));
  Registry::Get().At(device.device_id).FreeStream(static_cast<Stream*>(stream));
}

void OpenCLDeviceAPI::StreamSync(tvm::Device device, TVMStreamHandle stream) {
  Device& d = Registry::Get().At(device.device_id);
  if (stream == nullptr) {
    d.Finish();
  } else {
    d.Finish(*static_cast<Stream*>(stream));
  }
}

void OpenCLDeviceAPI::SyncStreamFromTo(tvm::Device device, TVMStreamHandle from, TVMStreamHandle to) {
  Device& d = Registry::Get().At(device.device_id);
  auto queue = [&d](TVMStreamHandle s) { return s ? static_cast<Stream*>(s)->queue : d.default_stream().queue; };
  cl_event reached = nullptr;
  d.Check(d.cl.clEnqueueMarkerWithWaitList(queue(from), 0, nullptr, &reached), "clEnqueueMarkerWithWaitList");
  // Another queue may only wait for commands that are sure to be submitted.
  cl_int status = d.cl.clFlush(queue(from));
  if (status == CL_SUCCESS) status = d.cl.clEnqueueBarrierWithWaitList(queue(to), 1, &reached, nullptr);
  d.cl.clReleaseEvent(reached);
  d.Check(status, "clEnqueueBarrierWithWaitList");
}

void OpenCLDeviceAPI::CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size,
                                     tvm::Device from_device, tvm::Device to_device, DLDataType,
                                     TVMStreamHandle stream) {
  Registry& registry = Registry::Get();
  auto* source = static_cast<cl_mem>(const_cast<void*>(from));
  auto* target = static_cast<cl_mem>(to);
  // The stream belongs to one device only; the other side of a copy between devices uses its own.
  auto stream_on = [&](tvm::Device d) -> Stream& {
    Device& device = registry.At(d.device_id);
    const bool its_own = stream != nullptr && &static_cast<Stream*>(stream)->device == &device;
    return StreamOf(device, its_own ? stream : nullptr);
  };
  if (from_device.device_type != kDLOpenCL) {
    CopyToDevice(stream_on(to_device), static_cast<const char*>(from) + from_offset, target, to_offset, size);
  } else if (to_device.device_type != kDLOpenCL) {
    CopyFromDevice(stream_on(from_device), source, from_offset, static_cast<char*>(to) + to_offset, size);
  } else if (from_device.device_id == to_device.device_id) {
    CopyOnDevice(stream_on(from_device), source, from_offset, target, to_offset, size);
  } else {
    CopyBetweenDevices(stream_on(from_device), source, from_offset, stream_on(to_device), target, to_offset, size);
  }
}

}  // namespace edgetune::opencl
