// TVM's view of the devices: what its DeviceAPI asks for.
#pragma once
#include <tvm/runtime/device_api.h>

#include "devices.h"

namespace edgetune::opencl {

class OpenCLDeviceAPI final : public tvm::runtime::DeviceAPI {
 public:
  static OpenCLDeviceAPI* Global();

  // The device that the thread's next kernel runs on, as set by TVM.
  static Device& CurrentDevice();
  // `handle`, else the thread's current stream on `device`, else the device's default stream.
  static Stream& StreamOf(Device& device, TVMStreamHandle handle = nullptr);

  void SetDevice(tvm::Device device) final;
  void GetAttr(tvm::Device device, tvm::runtime::DeviceAttrKind kind, tvm::ffi::Any* result) final;

  void* AllocDataSpace(tvm::Device device, size_t size, size_t alignment, DLDataType type) final;
  void FreeDataSpace(tvm::Device device, void* data) final;
  void* AllocWorkspace(tvm::Device device, size_t size, DLDataType type) final;
  void FreeWorkspace(tvm::Device device, void* data) final;

  TVMStreamHandle CreateStream(tvm::Device device) final;
  void FreeStream(tvm::Device device, TVMStreamHandle stream) final;
  // A null stream stands for all of the device's.
  void StreamSync(tvm::Device device, TVMStreamHandle stream) final;
  void SyncStreamFromTo(tvm::Device device, TVMStreamHandle from, TVMStreamHandle to) final;

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size,
                      tvm::Device from_device, tvm::Device to_device, DLDataType type, TVMStreamHandle stream) final;

 private:
  static thread_local int current_;
};

}  // namespace edgetune::opencl
