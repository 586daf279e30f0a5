// An OpenCL driver that computes nothing: what is left of a launch's time is the caller's own. Copies do copy, within
// bounds, and every object is counted, so that it shows what a caller leaks, frees twice or waits for.
// NOOP_VENDOR names the vendor that its devices claim to be of; noop_live and noop_calls tell the counts.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <type_traits>
#include <vector>

#include "cl.h"

using namespace edgetune::opencl;

namespace {

constexpr cl_int kInvalidValue = -30;
constexpr cl_int kAllocationFailure = -4;
constexpr int kDevices = 2;
constexpr size_t kMostBytes = size_t(1) << 30;

std::atomic<long> live_objects{0};
std::atomic<long> finishes{0}, flushes{0}, launches{0}, buffers{0};
std::atomic<cl_ulong> clock_ns{0};

struct Object {
  std::vector<char> bytes;
  explicit Object(size_t size = 0) : bytes(size) { ++live_objects; }
  ~Object() { --live_objects; }
};

template <typename Handle>
Handle Make(cl_int* status, size_t size = 0) {
  if (status != nullptr) *status = CL_SUCCESS;
  return reinterpret_cast<Handle>(new Object(size));
}

template <typename Handle>
cl_int Release(Handle handle) {
  delete reinterpret_cast<Object*>(handle);
  return CL_SUCCESS;
}

template <typename Handle>
std::vector<char>& Bytes(Handle handle) {
  return reinterpret_cast<Object*>(handle)->bytes;
}

bool Inside(cl_mem buffer, size_t offset, size_t size) {
  return offset <= Bytes(buffer).size() && size <= Bytes(buffer).size() - offset;
}

cl_int Answer(const void* value, size_t size, size_t room, void* to, size_t* needed) {
  if (needed != nullptr) *needed = size;
  if (to != nullptr && room < size) return kInvalidValue;
  if (to != nullptr) std::memcpy(to, value, size);
  return CL_SUCCESS;
}

cl_int AnswerText(const char* text, size_t room, void* to, size_t* needed) {
  return Answer(text, std::strlen(text) + 1, room, to, needed);
}

template <typename T>
cl_int AnswerValue(T value, size_t room, void* to, size_t* needed) {
  return Answer(&value, sizeof value, room, to, needed);
}

// An event holds its time: a clock that ticks once for each command that has one.
cl_int MakeEvent(cl_event* event) {
  if (event == nullptr) return CL_SUCCESS;
  const cl_ulong time = ++clock_ns;
  *event = Make<cl_event>(nullptr, sizeof time);
  std::memcpy(Bytes(*event).data(), &time, sizeof time);
  return CL_SUCCESS;
}

}  // namespace

extern "C" {

long noop_live() { return live_objects; }

long noop_calls(const char* name) {
  const std::string what = name;
  return what == "finish" ? finishes : what == "flush" ? flushes : what == "launch" ? launches : buffers;
}

cl_int clGetPlatformIDs(cl_uint room, cl_platform_id* ids, cl_uint* count) {
  if (count != nullptr) *count = 1;
  if (ids != nullptr && room > 0) ids[0] = reinterpret_cast<cl_platform_id>(&live_objects);
  return CL_SUCCESS;
}

cl_int clGetPlatformInfo(cl_platform_id, cl_uint what, size_t room, void* to, size_t* needed) {
  return AnswerText(what == CL_PLATFORM_VERSION ? "OpenCL 1.2 noop" : "No-op", room, to, needed);
}

cl_int clGetDeviceIDs(cl_platform_id, cl_bitfield, cl_uint room, cl_device_id* ids, cl_uint* count) {
  static char devices[kDevices];
  if (count != nullptr) *count = kDevices;
  for (cl_uint i = 0; ids != nullptr && i < std::min<cl_uint>(room, kDevices); ++i)
    ids[i] = reinterpret_cast<cl_device_id>(&devices[i]);
  return CL_SUCCESS;
}

cl_int clGetDeviceInfo(cl_device_id, cl_uint what, size_t room, void* to, size_t* needed) {
  const char* vendor = std::getenv("NOOP_VENDOR");
  const size_t sizes[3] = {256, 256, 64};
  switch (what) {
    case CL_DEVICE_TYPE: return AnswerValue(CL_DEVICE_TYPE_GPU, room, to, needed);
    case CL_DEVICE_NAME: return AnswerText("no-op", room, to, needed);
    case CL_DEVICE_VENDOR: return AnswerText(vendor != nullptr ? vendor : "nobody", room, to, needed);
    case CL_DRIVER_VERSION: return AnswerText("1", room, to, needed);
    case CL_DEVICE_VERSION: return AnswerText("OpenCL 1.2 noop", room, to, needed);
    case CL_DEVICE_EXTENSIONS: return AnswerText("cl_khr_fp16", room, to, needed);
    case CL_DEVICE_MAX_WORK_ITEM_SIZES: return Answer(sizes, sizeof sizes, room, to, needed);
    case CL_DEVICE_MAX_WORK_GROUP_SIZE: return AnswerValue(size_t(256), room, to, needed);
    case CL_DEVICE_GLOBAL_MEM_SIZE:
    case CL_DEVICE_MAX_MEM_ALLOC_SIZE: return AnswerValue(cl_ulong(kMostBytes), room, to, needed);
    case CL_DEVICE_LOCAL_MEM_SIZE: return AnswerValue(cl_ulong(32768), room, to, needed);
    default: return room == sizeof(cl_uint) ? AnswerValue(cl_uint(1), room, to, needed) : kInvalidValue;
  }
}

cl_context clCreateContext(const cl_context_properties*, cl_uint, const cl_device_id*, ContextCallback, void*,
                           cl_int* status) {
  return Make<cl_context>(status);
}

cl_command_queue clCreateCommandQueue(cl_context, cl_device_id, cl_bitfield, cl_int* status) {
  return Make<cl_command_queue>(status);
}
cl_int clReleaseCommandQueue(cl_command_queue queue) { return Release(queue); }
cl_int clFlush(cl_command_queue) { return ++flushes, CL_SUCCESS; }
cl_int clFinish(cl_command_queue) { return ++finishes, CL_SUCCESS; }

cl_mem clCreateBuffer(cl_context, cl_bitfield, size_t size, void*, cl_int* status) {
  if (size > kMostBytes) return *status = kAllocationFailure, nullptr;
  ++buffers;
  return Make<cl_mem>(status, size);
}
cl_int clReleaseMemObject(cl_mem buffer) { return Release(buffer); }
// Only for buffers in the program's own memory, of which a GPU has none.
cl_int clGetMemObjectInfo(cl_mem, cl_uint, size_t, void*, size_t*) { return kInvalidValue; }
cl_int clSetMemObjectDestructorCallback(cl_mem, void (*)(cl_mem, void*), void*) { return kInvalidValue; }

cl_int clEnqueueReadBuffer(cl_command_queue, cl_mem buffer, cl_bool, size_t offset, size_t size, void* to, cl_uint,
                           const cl_event*, cl_event* event) {
  if (!Inside(buffer, offset, size)) return kInvalidValue;
  std::memcpy(to, Bytes(buffer).data() + offset, size);
  return MakeEvent(event);
}

cl_int clEnqueueWriteBuffer(cl_command_queue, cl_mem buffer, cl_bool, size_t offset, size_t size, const void* from,
                            cl_uint, const cl_event*, cl_event* event) {
  if (!Inside(buffer, offset, size)) return kInvalidValue;
  std::memcpy(Bytes(buffer).data() + offset, from, size);
  return MakeEvent(event);
}

cl_int clEnqueueCopyBuffer(cl_command_queue, cl_mem from, cl_mem to, size_t from_offset, size_t to_offset, size_t size,
                           cl_uint, const cl_event*, cl_event* event) {
  if (!Inside(from, from_offset, size) || !Inside(to, to_offset, size)) return kInvalidValue;
  std::memmove(Bytes(to).data() + to_offset, Bytes(from).data() + from_offset, size);
  return MakeEvent(event);
}

cl_program clCreateProgramWithSource(cl_context, cl_uint, const char** texts, const size_t* sizes, cl_int* status) {
  auto program = Make<cl_program>(status);
  Bytes(program).assign(texts[0], texts[0] + sizes[0]);
  return program;
}
cl_program clCreateProgramWithBinary(cl_context, cl_uint, const cl_device_id*, const size_t* sizes,
                                     const unsigned char** binaries, cl_int*, cl_int* status) {
  auto program = Make<cl_program>(status);
  Bytes(program).assign(binaries[0], binaries[0] + sizes[0]);
  return program;
}
cl_int clBuildProgram(cl_program, cl_uint, const cl_device_id*, const char*, BuildCallback, void*) {
  return CL_SUCCESS;
}
cl_int clGetProgramInfo(cl_program program, cl_uint what, size_t room, void* to, size_t* needed) {
  if (what == CL_PROGRAM_BINARY_SIZES) return AnswerValue(Bytes(program).size(), room, to, needed);
  std::memcpy(*static_cast<char**>(to), Bytes(program).data(), Bytes(program).size());
  return CL_SUCCESS;
}
cl_int clGetProgramBuildInfo(cl_program, cl_device_id, cl_uint, size_t room, void* to, size_t* needed) {
  return AnswerText("", room, to, needed);
}
cl_int clReleaseProgram(cl_program program) { return Release(program); }

cl_kernel clCreateKernel(cl_program, const char*, cl_int* status) { return Make<cl_kernel>(status); }
cl_int clReleaseKernel(cl_kernel kernel) { return Release(kernel); }
cl_int clSetKernelArg(cl_kernel, cl_uint, size_t, const void*) { return CL_SUCCESS; }
cl_int clEnqueueNDRangeKernel(cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*,
                              cl_uint, const cl_event*, cl_event* event) {
  launches.fetch_add(1, std::memory_order_relaxed);
  return MakeEvent(event);
}

cl_int clEnqueueMarkerWithWaitList(cl_command_queue, cl_uint, const cl_event*, cl_event* event) {
  return MakeEvent(event);
}
cl_int clEnqueueBarrierWithWaitList(cl_command_queue, cl_uint, const cl_event*, cl_event* event) {
  return MakeEvent(event);
}
cl_int clWaitForEvents(cl_uint, const cl_event*) { return CL_SUCCESS; }
cl_int clGetEventProfilingInfo(cl_event event, cl_uint, size_t room, void* to, size_t* needed) {
  return Answer(Bytes(event).data(), sizeof(cl_ulong), room, to, needed);
}
cl_int clReleaseEvent(cl_event event) { return Release(event); }

}  // extern "C"

#define NOOP_SAME_TYPE(result, name, parameters) \
  static_assert(std::is_same<decltype(&::name), decltype(Functions::name)>::value, #name);
EDGETUNE_CL_FUNCTIONS(NOOP_SAME_TYPE)
