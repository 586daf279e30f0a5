// Own declarations of what this library uses of OpenCL 1.2, so that no header package is needed. Names, values and
// signatures are the Khronos registry's. The functions are found in each driver with dlsym: `Functions` holds them,
// and those of OpenCL 2.0 that not every driver has: null there.
#pragma once
#include <cstddef>
#include <cstdint>

namespace edgetune::opencl {

using cl_int = int32_t;
using cl_uint = uint32_t;
using cl_ulong = uint64_t;
using cl_bool = cl_uint;
using cl_bitfield = cl_ulong;
using cl_context_properties = intptr_t;

using cl_platform_id = struct _cl_platform_id*;
using cl_device_id = struct _cl_device_id*;
using cl_context = struct _cl_context*;
using cl_command_queue = struct _cl_command_queue*;
using cl_mem = struct _cl_mem*;
using cl_program = struct _cl_program*;
using cl_kernel = struct _cl_kernel*;
using cl_event = struct _cl_event*;

constexpr cl_int CL_SUCCESS = 0;
constexpr cl_bool CL_TRUE = 1;

constexpr cl_uint CL_PLATFORM_VERSION = 0x0901;
constexpr cl_uint CL_PLATFORM_NAME = 0x0902;

constexpr cl_bitfield CL_DEVICE_TYPE_CPU = 1 << 1;
constexpr cl_bitfield CL_DEVICE_TYPE_GPU = 1 << 2;
constexpr cl_bitfield CL_DEVICE_TYPE_ACCELERATOR = 1 << 3;
constexpr cl_bitfield CL_DEVICE_TYPE_ALL = 0xFFFFFFFF;

constexpr cl_uint CL_DEVICE_TYPE = 0x1000;
constexpr cl_uint CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002;
constexpr cl_uint CL_DEVICE_MAX_WORK_GROUP_SIZE = 0x1004;
constexpr cl_uint CL_DEVICE_MAX_WORK_ITEM_SIZES = 0x1005;
constexpr cl_uint CL_DEVICE_PREFERRED_VECTOR_WIDTH_FLOAT = 0x100A;
constexpr cl_uint CL_DEVICE_MAX_CLOCK_FREQUENCY = 0x100C;
constexpr cl_uint CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_CACHE_SIZE = 0x101E;
constexpr cl_uint CL_DEVICE_GLOBAL_MEM_SIZE = 0x101F;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_TYPE = 0x1022;
constexpr cl_uint CL_DEVICE_LOCAL_MEM_SIZE = 0x1023;
constexpr cl_uint CL_DEVICE_NAME = 0x102B;
constexpr cl_uint CL_DEVICE_VENDOR = 0x102C;
constexpr cl_uint CL_DRIVER_VERSION = 0x102D;
constexpr cl_uint CL_DEVICE_VERSION = 0x102F;
constexpr cl_uint CL_DEVICE_EXTENSIONS = 0x1030;
constexpr cl_uint CL_DEVICE_HOST_UNIFIED_MEMORY = 0x1035;
constexpr cl_uint CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT = 0x103A;
constexpr cl_uint CL_DEVICE_SUB_GROUP_SIZES_INTEL = 0x4108;
constexpr cl_uint CL_LOCAL = 1;
constexpr cl_uint CL_DEVICE_SVM_CAPABILITIES = 0x1053;
constexpr cl_bitfield CL_DEVICE_SVM_FINE_GRAIN_BUFFER = 1 << 1;

constexpr cl_bitfield CL_QUEUE_PROFILING_ENABLE = 1 << 1;
constexpr cl_bitfield CL_MEM_READ_WRITE = 1 << 0;
constexpr cl_bitfield CL_MEM_USE_HOST_PTR = 1 << 3;
constexpr cl_bitfield CL_MEM_SVM_FINE_GRAIN_BUFFER = 1 << 10;
constexpr cl_uint CL_MEM_HOST_PTR = 0x1103;

constexpr cl_uint CL_PROGRAM_BINARY_SIZES = 0x1165;
constexpr cl_uint CL_PROGRAM_BINARIES = 0x1166;
constexpr cl_uint CL_PROGRAM_BUILD_LOG = 0x1183;

constexpr cl_uint CL_PROFILING_COMMAND_QUEUED = 0x1280;
constexpr cl_uint CL_PROFILING_COMMAND_SUBMIT = 0x1281;
constexpr cl_uint CL_PROFILING_COMMAND_START = 0x1282;
constexpr cl_uint CL_PROFILING_COMMAND_END = 0x1283;

using ContextCallback = void (*)(const char*, const void*, size_t, void*);
using BuildCallback = void (*)(cl_program, void*);
using BufferCallback = void (*)(cl_mem, void*);

// X(result, name, parameters)
#define EDGETUNE_CL_FUNCTIONS(X)                                                                                  \
  X(cl_int, clGetPlatformIDs, (cl_uint, cl_platform_id*, cl_uint*))                                               \
  X(cl_int, clGetPlatformInfo, (cl_platform_id, cl_uint, size_t, void*, size_t*))                                 \
  X(cl_int, clGetDeviceIDs, (cl_platform_id, cl_bitfield, cl_uint, cl_device_id*, cl_uint*))                      \
  X(cl_int, clGetDeviceInfo, (cl_device_id, cl_uint, size_t, void*, size_t*))                                     \
  X(cl_context, clCreateContext,                                                                                  \
    (const cl_context_properties*, cl_uint, const cl_device_id*, ContextCallback, void*, cl_int*))                \
  X(cl_command_queue, clCreateCommandQueue, (cl_context, cl_device_id, cl_bitfield, cl_int*))                     \
  X(cl_int, clReleaseCommandQueue, (cl_command_queue))                                                            \
  X(cl_int, clFlush, (cl_command_queue))                                                                          \
  X(cl_int, clFinish, (cl_command_queue))                                                                         \
  X(cl_mem, clCreateBuffer, (cl_context, cl_bitfield, size_t, void*, cl_int*))                                    \
  X(cl_int, clReleaseMemObject, (cl_mem))                                                                         \
  X(cl_int, clGetMemObjectInfo, (cl_mem, cl_uint, size_t, void*, size_t*))                                        \
  X(cl_int, clSetMemObjectDestructorCallback, (cl_mem, BufferCallback, void*))                                    \
  X(cl_int, clEnqueueReadBuffer,                                                                                  \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, void*, cl_uint, const cl_event*, cl_event*))              \
  X(cl_int, clEnqueueWriteBuffer,                                                                                 \
    (cl_command_queue, cl_mem, cl_bool, size_t, size_t, const void*, cl_uint, const cl_event*, cl_event*))        \
  X(cl_int, clEnqueueCopyBuffer,                                                                                  \
    (cl_command_queue, cl_mem, cl_mem, size_t, size_t, size_t, cl_uint, const cl_event*, cl_event*))              \
  X(cl_program, clCreateProgramWithSource, (cl_context, cl_uint, const char**, const size_t*, cl_int*))           \
  X(cl_program, clCreateProgramWithBinary,                                                                        \
    (cl_context, cl_uint, const cl_device_id*, const size_t*, const unsigned char**, cl_int*, cl_int*))           \
  X(cl_int, clBuildProgram, (cl_program, cl_uint, const cl_device_id*, const char*, BuildCallback, void*))        \
  X(cl_int, clGetProgramInfo, (cl_program, cl_uint, size_t, void*, size_t*))                                      \
  X(cl_int, clGetProgramBuildInfo, (cl_program, cl_device_id, cl_uint, size_t, void*, size_t*))                   \
  X(cl_int, clReleaseProgram, (cl_program))                                                                       \
  X(cl_kernel, clCreateKernel, (cl_program, const char*, cl_int*))                                                \
  X(cl_int, clReleaseKernel, (cl_kernel))                                                                         \
  X(cl_int, clSetKernelArg, (cl_kernel, cl_uint, size_t, const void*))                                            \
  X(cl_int, clEnqueueNDRangeKernel,                                                                               \
    (cl_command_queue, cl_kernel, cl_uint, const size_t*, const size_t*, const size_t*, cl_uint, const cl_event*, \
     cl_event*))                                                                                                  \
  X(cl_int, clEnqueueMarkerWithWaitList, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                 \
  X(cl_int, clEnqueueBarrierWithWaitList, (cl_command_queue, cl_uint, const cl_event*, cl_event*))                \
  X(cl_int, clWaitForEvents, (cl_uint, const cl_event*))                                                          \
  X(cl_int, clGetEventProfilingInfo, (cl_event, cl_uint, size_t, void*, size_t*))                                 \
  X(cl_int, clReleaseEvent, (cl_event))

struct Functions {
#define EDGETUNE_CL_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  EDGETUNE_CL_FUNCTIONS(EDGETUNE_CL_MEMBER)
#undef EDGETUNE_CL_MEMBER
  void* (*clSVMAlloc)(cl_context, cl_bitfield, size_t, cl_uint) = nullptr;
  void (*clSVMFree)(cl_context, void*) = nullptr;
};

}  // namespace edgetune::opencl
