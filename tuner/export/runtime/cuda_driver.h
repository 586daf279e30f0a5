/* The functions of Nvidia's driver, by the names that its library exports. Declarations are those of Nvidia's cuda.h; only
 * what is needed of it is repeated here, so that no headers have to be installed. For cuda.c alone. */
#ifndef EDGETUNE_CUDA_DRIVER_H_
#define EDGETUNE_CUDA_DRIVER_H_

#include <stddef.h>
#include <stdint.h>

#include "driver.h"

typedef int CUresult;
typedef int CUdevice;
typedef uintptr_t CUdeviceptr;
typedef void *cu_object; /* a context, module, function, stream, event, graph or graph that can be launched */

enum {
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  CU_STREAM_NON_BLOCKING = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1
};

#define FUNCTIONS(X)                                                                                              \
  X(CUresult, cuInit, (unsigned), 0)                                                                              \
  X(CUresult, cuGetErrorString, (CUresult, const char **), 0)                                                     \
  X(CUresult, cuDeviceGetCount, (int *), 0)                                                                       \
  X(CUresult, cuDeviceGet, (CUdevice *, int), 0)                                                                  \
  X(CUresult, cuDeviceGetName, (char *, int, CUdevice), 0)                                                        \
  X(CUresult, cuDeviceGetAttribute, (int *, int, CUdevice), 0)                                                    \
  X(CUresult, cuDevicePrimaryCtxRetain, (cu_object *, CUdevice), 0)                                               \
  X(CUresult, cuDevicePrimaryCtxRelease, (CUdevice), 0)                                                           \
  X(CUresult, cuCtxPushCurrent_v2, (cu_object), 0)                                                                \
  X(CUresult, cuCtxPopCurrent_v2, (cu_object *), 0)                                                               \
  X(CUresult, cuModuleLoadData, (cu_object *, const void *), 0)                                                   \
  X(CUresult, cuModuleUnload, (cu_object), 0)                                                                     \
  X(CUresult, cuModuleGetFunction, (cu_object *, cu_object, const char *), 0)                                     \
  X(CUresult, cuFuncSetAttribute, (cu_object, int, int), 0)                                                       \
  X(CUresult, cuMemAlloc_v2, (CUdeviceptr *, size_t), 0)                                                          \
  X(CUresult, cuMemFree_v2, (CUdeviceptr), 0)                                                                     \
  X(CUresult, cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, cu_object), 0)                            \
  X(CUresult, cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, cu_object), 0)                                  \
  X(CUresult, cuStreamCreate, (cu_object *, unsigned), 0)                                                         \
  X(CUresult, cuStreamSynchronize, (cu_object), 0)                                                                \
  X(CUresult, cuStreamDestroy_v2, (cu_object), 0)                                                                 \
  X(CUresult, cuStreamWaitEvent, (cu_object, cu_object, unsigned), 0)                                             \
  X(CUresult, cuEventCreate, (cu_object *, unsigned), 0)                                                          \
  X(CUresult, cuEventRecord, (cu_object, cu_object), 0)                                                           \
  X(CUresult, cuEventDestroy_v2, (cu_object), 0)                                                                  \
  X(CUresult, cuStreamBeginCapture_v2, (cu_object, int), 0)                                                       \
  X(CUresult, cuStreamEndCapture, (cu_object, cu_object *), 0)                                                    \
  X(CUresult, cuLaunchKernel,                                                                                     \
    (cu_object, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_object, void **, void **), \
    0)                                                                                                            \
  X(CUresult, cuGraphInstantiateWithFlags, (cu_object *, cu_object, unsigned long long), 1) /* from CUDA 11.4 on */ \
  X(CUresult, cuGraphInstantiate, (cu_object *, cu_object, cu_object *, char *, size_t), 0)                       \
  X(CUresult, cuGraphUpload, (cu_object, cu_object), 1) /* from CUDA 11.1 on */                                   \
  X(CUresult, cuGraphLaunch, (cu_object, cu_object), 0)                                                           \
  X(CUresult, cuGraphDestroy, (cu_object), 0)                                                                     \
  X(CUresult, cuGraphExecDestroy, (cu_object), 0)

#define DECLARE(result, name, parameters, optional) static result(*name) parameters;
FUNCTIONS(DECLARE)

#define ENTRY(result, name, parameters, optional) {#name, (void **)&name, optional},
static const Function functions[] = {FUNCTIONS(ENTRY){0, 0, 0}};

static const char *const libraries[] = {"libcuda.so.1", 0};

#endif
