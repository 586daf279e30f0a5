#include "kernel.h"

#include <tvm/ffi/container/tensor.h>

#include <algorithm>
#include <cstring>

#include "counters.h"
#include "device_api.h"
#include "fail.h"
#include "program.h"
#include "threads.h"
#include "trace.h"

namespace edgetune::opencl {

namespace {

// IEEE half precision, rounded to the nearest even.
uint16_t ToHalf(double value) {
  const float single = float(value);
  uint32_t bits;
  std::memcpy(&bits, &single, sizeof bits);
  const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
  bits &= 0x7FFFFFFF;
  if (bits > 0x7F800000) return sign | 0x7E00;   // not a number
  if (bits >= 0x477FF000) return sign | 0x7C00;  // rounds to infinity
  if (bits < 0x33000001) return sign;            // rounds to zero
  if (bits < 0x38800000) {                       // subnormal
    const uint32_t shift = 126 - (bits >> 23);   // 14 to 24
    const uint32_t mantissa = (bits & 0x7FFFFF) | 0x800000;
    const uint32_t half = mantissa >> shift;
    const uint32_t rest = mantissa & ((1u << shift) - 1), middle = 1u << (shift - 1);
    return sign | uint16_t(half + (rest > middle || (rest == middle && (half & 1))));
  }
  const uint32_t rounded = bits + 0xFFF + (bits >> 13 & 1);
  return sign | uint16_t((rounded - 0x38000000) >> 13);
}

template <typename T>
T* FindDevice(std::vector<std::pair<Device*, T*>>& entries, const Device& device) {
  for (auto& [where, object] : entries)
    if (where == &device) return object;
  return nullptr;
}

}  // namespace

Programs::~Programs() {
  if (!Registry::Alive()) return;
  for (auto& [device, program] : built_) device->cl.clReleaseProgram(program);
}

cl_program Programs::On(Device& device) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (cl_program found = FindDevice(built_, device)) return found;
  built_.emplace_back(&device, BuildProgram(device, source_));
  return built_.back().second;
}

Kernel::Kernel(const KernelInfo& info, std::shared_ptr<Programs> programs)
    : name_(info.name), programs_(std::move(programs)) {
  for (const DLDataType& type : info.arguments) {
    const auto size = uint8_t(type.bits / 8);
    const bool whole = type.lanes == 1 && (size == 1 || size == 2 || size == 4 || size == 8) && type.bits % 8 == 0;
    if (whole && (type.code == kDLInt || type.code == kDLUInt || type.code == kDLBool)) {
      arguments_.push_back({Kind::kInteger, size});
    } else if (whole && type.code == kDLFloat && size > 1) {
      arguments_.push_back({size == 2 ? Kind::kHalf : size == 4 ? Kind::kFloat : Kind::kDouble, size});
    } else if (type.code == kDLOpaqueHandle) {
      arguments_.push_back({Kind::kBuffer, sizeof(cl_mem)});
    } else {
      Reject(cl_uint(arguments_.size()), "has a type that OpenCL kernels do not take");
    }
  }
  for (const std::string& parameter : info.launch_parameters) {
    const size_t dot = parameter.find('.');
    const std::string rank = parameter.substr(0, dot);
    const int axis = dot + 2 == parameter.size() ? parameter.back() - 'x' : -1;
    if ((rank != "blockIdx" && rank != "threadIdx") || axis < 0 || axis > 2)
      Fail("ValueError", "kernel ", name_, ": OpenCL has no launch parameter ", parameter);
    extents_.push_back(uint8_t(axis + (rank == "threadIdx" ? 3 : 0)));
    dimensions_ = std::max(dimensions_, cl_uint(axis + 1));
  }
}

Kernel::~Kernel() {
  if (!Registry::Alive()) return;
  for (auto& [device, kernel] : made_) device->cl.clReleaseKernel(kernel);
}

void Kernel::Reject(cl_uint index, const char* what) const {
  Fail("ValueError", "kernel ", name_, ": argument ", index, " ", what);
}

cl_kernel Kernel::On(Device& device) {
  if (cl_kernel found = FindDevice(made_, device)) return found;
  cl_int status = CL_SUCCESS;
  cl_kernel kernel = device.cl.clCreateKernel(programs_->On(device), name_.c_str(), &status);
  device.Check(status, ("clCreateKernel(" + name_ + ")").c_str());
  made_.emplace_back(&device, kernel);
  return kernel;
}

void Kernel::Set(const Device& device, cl_kernel kernel, cl_uint index, const TVMFFIAny& value) const {
  using tvm::ffi::TypeIndex;
  const Argument& argument = arguments_[index];
  union {
    void* buffer;
    int64_t integer;
    uint16_t half;
    float single;
    double real;
  } data;
  if (argument.kind == Kind::kBuffer) {
    if (value.type_index == TypeIndex::kTVMFFIOpaquePtr || value.type_index == TypeIndex::kTVMFFINone) {
      data.buffer = value.type_index == TypeIndex::kTVMFFINone ? nullptr : value.v_ptr;
    } else {
      const DLTensor* tensor = tvm::ffi::AnyView::CopyFromTVMFFIAny(value).cast<DLTensor*>();
      if (tensor->device.device_type != kDLOpenCL || tensor->device.device_id != device.index)
        Reject(index, ("is not on " + device.label()).c_str());
      if (tensor->byte_offset != 0) Reject(index, "starts inside its buffer, which OpenCL kernels cannot be given");
      data.buffer = tensor->data;
    }
  } else {
    const bool real = value.type_index == TypeIndex::kTVMFFIFloat;
    if (!real && value.type_index != TypeIndex::kTVMFFIInt && value.type_index != TypeIndex::kTVMFFIBool)
      Reject(index, "is not a number");
    const double number = real ? value.v_float64 : double(value.v_int64);
    switch (argument.kind) {
      case Kind::kHalf: data.half = ToHalf(number); break;
      case Kind::kFloat: data.single = float(number); break;
      case Kind::kDouble: data.real = number; break;
      default:
        if (real) Reject(index, "is not an integer");
        data.integer = value.v_int64;  // little endian: the low bytes come first
    }
  }
  const cl_int status = device.cl.clSetKernelArg(kernel, index, argument.size, &data);
  if (status != CL_SUCCESS) device.Check(status, ("clSetKernelArg(" + name_ + ")").c_str());
}

void Kernel::Enqueue(Stream& stream, cl_kernel kernel, const TVMFFIAny* extents) const {
  const Device& device = stream.device;
  size_t sizes[6] = {1, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < extents_.size(); ++i) {
    if (extents[i].v_int64 <= 0) return;  // of an empty tensor: nothing to compute, and OpenCL has no empty ranges
    sizes[extents_[i]] = size_t(extents[i].v_int64);
  }
  for (int axis = 0; axis < 3; ++axis) sizes[axis] *= sizes[axis + 3];
  Trace& trace = Trace::Global();
  cl_event event = nullptr;
  const bool traced = trace.on();
  const cl_int status = device.cl.clEnqueueNDRangeKernel(stream.queue, kernel, dimensions_, nullptr, sizes, sizes + 3,
                                                         0, nullptr, traced ? &event : nullptr);
  if (status != CL_SUCCESS) device.Check(status, ("clEnqueueNDRangeKernel(" + name_ + ")").c_str());
  if (traced) trace.Add(name_, stream, event);
}

void Kernel::Launch(tvm::ffi::PackedArgs call) {
  const auto* values = reinterpret_cast<const TVMFFIAny*>(call.data());
  const size_t expected = arguments_.size() + extents_.size();
  if (size_t(call.size()) != expected)
    Fail("TypeError", "kernel ", name_, " takes ", expected, " arguments, not ", call.size());
  Device& device = OpenCLDeviceAPI::CurrentDevice();
  Stream& stream = OpenCLDeviceAPI::StreamOf(device);
  if (device.is_processor) HostThreads::Rest();
  {
    std::lock_guard<std::mutex> lock(mutex_);
    cl_kernel kernel = On(device);
    for (cl_uint i = 0; i < arguments_.size(); ++i) Set(device, kernel, i, values[i]);
    Enqueue(stream, kernel, values + arguments_.size());
  }
  counters.launches.fetch_add(1, std::memory_order_relaxed);
  const uint32_t every = device.flush_every.load(std::memory_order_relaxed);
  if (every != 0 && stream.unflushed.fetch_add(1, std::memory_order_relaxed) + 1 >= every) {
    stream.unflushed.store(0, std::memory_order_relaxed);
    counters.flushes.fetch_add(1, std::memory_order_relaxed);
    device.Check(device.cl.clFlush(stream.queue), "clFlush");
  }
}

}  // namespace edgetune::opencl
