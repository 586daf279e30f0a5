// A driver: one shared library that implements OpenCL (an ICD loader counts as one), with its own function table.
#pragma once
#include <string>
#include <vector>

#include "cl.h"

namespace edgetune::opencl {

struct Platform {
  cl_platform_id id;
  std::string name;
  std::string version;
  std::vector<cl_device_id> devices;
  std::vector<std::string> device_names;  // with driver versions: what tells one driver from another
};

struct Driver {
  std::string path;     // as given; where it could be opened, the file that was found
  std::string problem;  // why it offers no device; empty if it does
  Functions cl;
  std::vector<Platform> platforms;  // those that no earlier driver offers
};

// Opens `path` and reads what it offers. Never throws: what goes wrong is the driver's `problem`.
Driver OpenDriver(const std::string& path);

// The symbolic name of an error code, such as CL_INVALID_VALUE.
std::string ErrorName(cl_int code);

// The text of an info query of a device; empty where the driver does not answer.
std::string DeviceText(const Functions& cl, cl_device_id device, cl_uint what);

// The value of an info query of a device; zero where the driver does not answer.
template <typename T>
T DeviceValue(const Functions& cl, cl_device_id device, cl_uint what) {
  T value{};
  cl.clGetDeviceInfo(device, what, sizeof value, &value, nullptr);
  return value;
}

}  // namespace edgetune::opencl
