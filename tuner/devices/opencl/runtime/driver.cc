#include "driver.h"

#include <dlfcn.h>
#include <link.h>

#include <iterator>

namespace edgetune::opencl {

std::string ErrorName(cl_int code) {
  static const char* const runtime[] = {"CL_SUCCESS",
                                        "CL_DEVICE_NOT_FOUND",
                                        "CL_DEVICE_NOT_AVAILABLE",
                                        "CL_COMPILER_NOT_AVAILABLE",
                                        "CL_MEM_OBJECT_ALLOCATION_FAILURE",
                                        "CL_OUT_OF_RESOURCES",
                                        "CL_OUT_OF_HOST_MEMORY",
                                        "CL_PROFILING_INFO_NOT_AVAILABLE",
                                        "CL_MEM_COPY_OVERLAP",
                                        "CL_IMAGE_FORMAT_MISMATCH",
                                        "CL_IMAGE_FORMAT_NOT_SUPPORTED",
                                        "CL_BUILD_PROGRAM_FAILURE",
                                        "CL_MAP_FAILURE",
                                        "CL_MISALIGNED_SUB_BUFFER_OFFSET",
                                        "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
                                        "CL_COMPILE_PROGRAM_FAILURE",
                                        "CL_LINKER_NOT_AVAILABLE",
                                        "CL_LINK_PROGRAM_FAILURE",
                                        "CL_DEVICE_PARTITION_FAILED",
                                        "CL_KERNEL_ARG_INFO_NOT_AVAILABLE"};
  static const char* const invalid[] = {"VALUE",
                                        "DEVICE_TYPE",
                                        "PLATFORM",
                                        "DEVICE",
                                        "CONTEXT",
                                        "QUEUE_PROPERTIES",
                                        "COMMAND_QUEUE",
                                        "HOST_PTR",
                                        "MEM_OBJECT",
                                        "IMAGE_FORMAT_DESCRIPTOR",
                                        "IMAGE_SIZE",
                                        "SAMPLER",
                                        "BINARY",
                                        "BUILD_OPTIONS",
                                        "PROGRAM",
                                        "PROGRAM_EXECUTABLE",
                                        "KERNEL_NAME",
                                        "KERNEL_DEFINITION",
                                        "KERNEL",
                                        "ARG_INDEX",
                                        "ARG_VALUE",
                                        "ARG_SIZE",
                                        "KERNEL_ARGS",
                                        "WORK_DIMENSION",
                                        "WORK_GROUP_SIZE",
                                        "WORK_ITEM_SIZE",
                                        "GLOBAL_OFFSET",
                                        "EVENT_WAIT_LIST",
                                        "EVENT",
                                        "OPERATION",
                                        "GL_OBJECT",
                                        "BUFFER_SIZE",
                                        "MIP_LEVEL",
                                        "GLOBAL_WORK_SIZE",
                                        "PROPERTY",
                                        "IMAGE_DESCRIPTOR",
                                        "COMPILER_OPTIONS",
                                        "LINKER_OPTIONS",
                                        "DEVICE_PARTITION_COUNT"};
  const int positive = -code;
  if (positive >= 0 && positive < int(std::size(runtime))) return runtime[positive];
  if (positive >= 30 && positive < 30 + int(std::size(invalid)))
    return std::string("CL_INVALID_") + invalid[positive - 30];
  if (code == -1001) return "CL_PLATFORM_NOT_FOUND_KHR";
  return "OpenCL error " + std::to_string(code);
}

std::string DeviceText(const Functions& cl, cl_device_id device, cl_uint what) {
  size_t size = 0;
  if (cl.clGetDeviceInfo(device, what, 0, nullptr, &size) != CL_SUCCESS || size == 0) return "";
  std::string text(size, '\0');
  if (cl.clGetDeviceInfo(device, what, size, text.data(), nullptr) != CL_SUCCESS) return "";
  return text.c_str();  // without the final zero, and whatever a driver left behind it
}

namespace {

std::string PlatformText(const Functions& cl, cl_platform_id platform, cl_uint what) {
  char text[1024] = {};
  cl.clGetPlatformInfo(platform, what, sizeof text - 1, text, nullptr);
  return text;
}

// The name of the first function that the library lacks; empty if it has all that it needs.
std::string FindFunctions(void* library, Functions* cl) {
#define EDGETUNE_CL_FIND(result, name, parameters)                          \
  cl->name = reinterpret_cast<result(*) parameters>(dlsym(library, #name)); \
  if (cl->name == nullptr) return #name;
  EDGETUNE_CL_FUNCTIONS(EDGETUNE_CL_FIND)
#undef EDGETUNE_CL_FIND
  cl->clSVMAlloc = reinterpret_cast<decltype(cl->clSVMAlloc)>(dlsym(library, "clSVMAlloc"));
  cl->clSVMFree = reinterpret_cast<decltype(cl->clSVMFree)>(dlsym(library, "clSVMFree"));
  return "";
}

Platform ReadPlatform(const Functions& cl, cl_platform_id id) {
  Platform platform{id, PlatformText(cl, id, CL_PLATFORM_NAME), PlatformText(cl, id, CL_PLATFORM_VERSION), {}, {}};
  cl_uint count = 0;
  if (cl.clGetDeviceIDs(id, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS || count == 0) return platform;
  platform.devices.resize(count);
  if (cl.clGetDeviceIDs(id, CL_DEVICE_TYPE_ALL, count, platform.devices.data(), nullptr) != CL_SUCCESS)
    platform.devices.clear();
  for (cl_device_id device : platform.devices)
    platform.device_names.push_back(DeviceText(cl, device, CL_DEVICE_NAME) + " " +
                                    DeviceText(cl, device, CL_DRIVER_VERSION));
  return platform;
}

std::string ReadPlatforms(Driver* driver) {
  cl_uint count = 0;
  cl_int status = driver->cl.clGetPlatformIDs(0, nullptr, &count);
  if (status == CL_SUCCESS && count == 0) return "it offers no platform";
  if (status != CL_SUCCESS) return "it offers no platform (" + ErrorName(status) + ")";
  std::vector<cl_platform_id> ids(count);
  status = driver->cl.clGetPlatformIDs(count, ids.data(), nullptr);
  if (status != CL_SUCCESS) return "its platforms cannot be read (" + ErrorName(status) + ")";
  for (cl_platform_id id : ids) {
    Platform platform = ReadPlatform(driver->cl, id);
    if (!platform.devices.empty()) driver->platforms.push_back(std::move(platform));
  }
  return driver->platforms.empty() ? "it offers no device" : "";
}

}  // namespace

Driver OpenDriver(const std::string& path) {
  Driver driver;
  driver.path = path;
  // Never closed: drivers keep threads that run their code.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    driver.problem = std::string("it cannot be opened: ") + (reason ? reason : "for no reason given");
    return driver;
  }
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map->l_name[0] != '\0') driver.path = map->l_name;
  const std::string missing = FindFunctions(library, &driver.cl);
  if (missing.empty()) {
    driver.problem = ReadPlatforms(&driver);
  } else if (dlsym(library, "clGetExtensionFunctionAddress") != nullptr) {
    driver.problem = "it lacks " + missing + ": a library for an ICD loader; give the loader, libOpenCL.so.1, instead";
  } else {
    driver.problem = "it lacks " + missing + ": it is not an OpenCL 1.2 driver";
  }
  return driver;
}

}  // namespace edgetune::opencl
