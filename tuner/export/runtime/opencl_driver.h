/* The functions of an OpenCL driver, by their own names. Declarations are those of Khronos's cl.h; only what is needed of
 * it is repeated here, so that no headers have to be installed. For opencl.c alone. */
#ifndef EDGETUNE_OPENCL_DRIVER_H_
#define EDGETUNE_OPENCL_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#include "driver.h"

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_bitfield;
typedef void *cl_object; /* a platform, device, context, queue, program, kernel, buffer or event */

enum {
  CL_SUCCESS = 0,
  CL_DEVICE_NOT_FOUND = -1,
  CL_MEM_READ_WRITE = 1,
  CL_MEM_READ_ONLY = 4,
  CL_MEM_COPY_HOST_PTR = 32,
  CL_DEVICE_TYPE = 0x1000,
  CL_DEVICE_NAME = 0x102B,
  CL_DRIVER_VERSION = 0x102D,
  CL_DEVICE_TYPE_CPU = 2,
  CL_DEVICE_TYPE_GPU = 4,
  CL_PROGRAM_BINARY_SIZES = 0x1165,
  CL_PROGRAM_BINARIES = 0x1166,
  CL_PROGRAM_BUILD_LOG = 0x1183
};
#define CL_DEVICE_TYPE_ALL 0xFFFFFFFFu

#define FUNCTIONS(X)                                                                                               \
  X(cl_int, clGetPlatformIDs, (cl_uint, cl_object *, cl_uint *))                                                   \
  X(cl_int, clGetDeviceIDs, (cl_object, cl_bitfield, cl_uint, cl_object *, cl_uint *))                             \
  X(cl_int, clGetDeviceInfo, (cl_object, cl_uint, size_t, void *, size_t *))                                       \
  X(cl_object, clCreateContext, (const intptr_t *, cl_uint, const cl_object *, void *, void *, cl_int *))          \
  X(cl_object, clCreateCommandQueue, (cl_object, cl_object, cl_bitfield, cl_int *))                                \
  X(cl_object, clCreateBuffer, (cl_object, cl_bitfield, size_t, void *, cl_int *))                                 \
  X(cl_object, clCreateProgramWithSource, (cl_object, cl_uint, const char **, const size_t *, cl_int *))           \
  X(cl_object, clCreateProgramWithBinary,                                                                          \
    (cl_object, cl_uint, const cl_object *, const size_t *, const unsigned char **, cl_int *, cl_int *))           \
  X(cl_int, clBuildProgram, (cl_object, cl_uint, const cl_object *, const char *, void *, void *))                 \
  X(cl_int, clGetProgramInfo, (cl_object, cl_uint, size_t, void *, size_t *))                                      \
  X(cl_int, clGetProgramBuildInfo, (cl_object, cl_object, cl_uint, size_t, void *, size_t *))                      \
  X(cl_object, clCreateKernel, (cl_object, const char *, cl_int *))                                                \
  X(cl_int, clSetKernelArg, (cl_object, cl_uint, size_t, const void *))                                            \
  X(cl_int, clEnqueueNDRangeKernel,                                                                                \
    (cl_object, cl_object, cl_uint, const size_t *, const size_t *, const size_t *, cl_uint, const void *, void *)) \
  X(cl_int, clEnqueueReadBuffer,                                                                                   \
    (cl_object, cl_object, cl_uint, size_t, size_t, void *, cl_uint, const void *, void *))                        \
  X(cl_int, clEnqueueWriteBuffer,                                                                                  \
    (cl_object, cl_object, cl_uint, size_t, size_t, const void *, cl_uint, const void *, void *))                  \
  X(cl_int, clFlush, (cl_object))                                                                                  \
  X(cl_int, clFinish, (cl_object))                                                                                 \
  X(cl_int, clReleaseContext, (cl_object))                                                                         \
  X(cl_int, clReleaseCommandQueue, (cl_object))                                                                    \
  X(cl_int, clReleaseMemObject, (cl_object))                                                                       \
  X(cl_int, clReleaseProgram, (cl_object))                                                                         \
  X(cl_int, clReleaseKernel, (cl_object))

/* From OpenCL 1.2 on. Without them there is one queue. */
#define ORDER_FUNCTIONS(X)                                                                        \
  X(cl_int, clEnqueueMarkerWithWaitList, (cl_object, cl_uint, const cl_object *, cl_object *))  \
  X(cl_int, clEnqueueBarrierWithWaitList, (cl_object, cl_uint, const cl_object *, cl_object *)) \
  X(cl_int, clReleaseEvent, (cl_object))

#define DECLARE(result, name, parameters) static result(*name) parameters;
FUNCTIONS(DECLARE)
ORDER_FUNCTIONS(DECLARE)

static const char *const libraries[] = {
    "libOpenCL.so.1", "libOpenCL.so", "libmali.so", "/vendor/lib64/libOpenCL.so", "/vendor/lib/libOpenCL.so", 0,
};

#define ENTRY(result, name, parameters) {#name, (void **)&name, 0},
#define OPTIONAL(result, name, parameters) {#name, (void **)&name, 1},
static const Function functions[] = {FUNCTIONS(ENTRY) ORDER_FUNCTIONS(OPTIONAL){0, 0, 0}};

#endif
