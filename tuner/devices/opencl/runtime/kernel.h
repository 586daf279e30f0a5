// One kernel of a module: how TVM calls it, and the launch itself.
#pragma once
#include <tvm/ffi/function.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "devices.h"

namespace edgetune::opencl {

// As TVM's code generator describes a kernel, and as it is stored in a saved module.
struct KernelInfo {
  std::string name;
  std::vector<DLDataType> arguments;
  std::vector<std::string> launch_parameters;  // "blockIdx.x" and the like, in the order of the call's last arguments
  std::vector<int32_t> argument_tags;
};

// The module's program on a device, built when it is first asked for.
class Programs {
 public:
  explicit Programs(std::string source) : source_(std::move(source)) {}
  ~Programs();
  Programs(const Programs&) = delete;
  cl_program On(Device& device);
  const std::string& source() const { return source_; }

 private:
  const std::string source_;
  std::mutex mutex_;
  std::vector<std::pair<Device*, cl_program>> built_;
};

class Kernel {
 public:
  // Throws ValueError for a kernel that OpenCL cannot be given.
  Kernel(const KernelInfo& info, std::shared_ptr<Programs> programs);
  ~Kernel();
  Kernel(const Kernel&) = delete;

  // `call`: the arguments, then the launch parameters.
  void Launch(tvm::ffi::PackedArgs call);

 private:
  enum class Kind : uint8_t { kBuffer, kInteger, kHalf, kFloat, kDouble };
  struct Argument {
    Kind kind;
    uint8_t size;  // in bytes
  };
  cl_kernel On(Device& device);
  void Set(const Device& device, cl_kernel kernel, cl_uint index, const TVMFFIAny& value) const;
  void Enqueue(Stream& stream, cl_kernel kernel, const TVMFFIAny* extents) const;
  [[noreturn]] void Reject(cl_uint index, const char* what) const;

  const std::string name_;
  const std::shared_ptr<Programs> programs_;
  std::vector<Argument> arguments_;
  std::vector<uint8_t> extents_;  // of each launch parameter: 0 to 2 groups in x, y, z, 3 to 5 work-items of a group
  cl_uint dimensions_ = 1;
  std::mutex mutex_;  // a kernel's arguments are part of it: no other thread may set them before it is enqueued
  std::vector<std::pair<Device*, cl_kernel>> made_;
};

}  // namespace edgetune::opencl
