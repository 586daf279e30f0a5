#include "program.h"

#include "binary_cache.h"
#include "counters.h"
#include "fail.h"

namespace edgetune::opencl {

namespace {

std::string BuildOptions(const Device& device, const std::string& source) {
  static const std::string marker = "// edgetune-build-options:";
  std::string options = device.build_options();
  for (size_t at = source.find(marker); at != std::string::npos; at = source.find(marker, at)) {
    const size_t start = at + marker.size();
    const size_t end = std::min(source.find('\n', start), source.size());
    options += source.substr(start, end - start);
    at = end;
  }
  return options;
}

std::string CacheKey(const Device& device, const std::string& options, const std::string& source) {
  std::string key;
  for (const std::string& part : {device.platform.name, device.platform.version, device.name, device.driver_version,
                                  DeviceText(device.cl, device.id, CL_DEVICE_VERSION), options, source})
    key += std::to_string(part.size()) + ":" + part + "\n";
  return key;
}

std::string BuildLog(const Device& device, cl_program program) {
  size_t size = 0;
  device.cl.clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &size);
  std::string log(size, '\0');
  device.cl.clGetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, size, log.data(), nullptr);
  return log.c_str();
}

// Null if the driver does not take the binary: a changed machine or driver that its names do not tell of.
cl_program LoadBinary(Device& device, const std::string& binary, const std::string& options) {
  const size_t size = binary.size();
  const auto* bytes = reinterpret_cast<const unsigned char*>(binary.data());
  cl_int status = CL_SUCCESS;
  cl_program program =
      device.cl.clCreateProgramWithBinary(device.context(), 1, &device.id, &size, &bytes, nullptr, &status);
  if (status != CL_SUCCESS) return nullptr;
  if (device.cl.clBuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr) == CL_SUCCESS) return program;
  device.cl.clReleaseProgram(program);
  return nullptr;
}

// Empty if the driver gives none.
std::string Binary(const Device& device, cl_program program) {
  size_t size = 0;
  if (device.cl.clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, nullptr) != CL_SUCCESS)
    return "";
  std::string binary(size, '\0');
  char* where = binary.data();
  const cl_int status = device.cl.clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof where, &where, nullptr);
  return status == CL_SUCCESS ? binary : "";
}

cl_program Compile(Device& device, const std::string& options, const std::string& source) {
  const char* text = source.data();
  const size_t size = source.size();
  cl_int status = CL_SUCCESS;
  cl_program program = device.cl.clCreateProgramWithSource(device.context(), 1, &text, &size, &status);
  device.Check(status, "clCreateProgramWithSource");
  status = device.cl.clBuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr);
  if (status == CL_SUCCESS) return program;
  const std::string log = BuildLog(device, program);
  device.cl.clReleaseProgram(program);
  Fail("RuntimeError", device.label(), ": a program cannot be built (", ErrorName(status),
       (options.empty() ? "" : ", options " + options), "); the driver's log:\n", log);
}

}  // namespace

cl_program BuildProgram(Device& device, const std::string& source) {
  const std::string options = BuildOptions(device, source);
  const std::string key = CacheKey(device, options, source);
  BinaryCache& cache = BinaryCache::Global();
  if (const auto found = cache.Find(key)) {
    if (cl_program program = LoadBinary(device, *found, options)) {
      counters.programs_loaded.fetch_add(1, std::memory_order_relaxed);
      return program;
    }
  }
  cl_program program = Compile(device, options, source);
  counters.programs_compiled.fetch_add(1, std::memory_order_relaxed);
  if (cache.folder().empty()) return program;
  const std::string binary = Binary(device, program);
  if (!binary.empty()) cache.Store(key, binary);
  return program;
}

}  // namespace edgetune::opencl
