// From OpenCL C to a program for one device, by way of the cache of binaries.
#pragma once
#include <string>

#include "devices.h"

namespace edgetune::opencl {

// A source may hold lines "// edgetune-build-options: ..."; what follows is added to the device's build options, so
// that options which a kernel was tuned with go wherever its module goes.
// Throws RuntimeError with the driver's log if it cannot be built.
cl_program BuildProgram(Device& device, const std::string& source);

}  // namespace edgetune::opencl
