// Devices of all drivers, and their streams. Start at `Registry`. Nothing here opens a driver before it is asked for a
// device: processes fork after they have imported TVM, and a driver's threads do not survive that.
#pragma once
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "driver.h"

namespace edgetune::opencl {

class Device;

// An in-order queue; TVM's stream handles point to these. Queues always profile: that costs a tenth of a microsecond a
// launch, and a queue made for timing alone would not be the one that is used afterwards.
struct Stream {
  Device& device;
  cl_command_queue queue;
  std::atomic<uint32_t> unflushed{0};  // launches since the last flush that this library asked for
};

class Device {
 public:
  Device(int index, const Driver& driver, const Platform& platform, cl_device_id id);

  const int index;
  const Driver& driver;
  const Functions& cl;
  const Platform& platform;
  const cl_device_id id;
  const std::string name;
  const std::string driver_version;
  const bool is_processor;  // its memory is the host's
  const bool is_open;       // and the host may use buffers without mapping them (fine-grained shared virtual memory)

  std::atomic<uint32_t> flush_every{0};  // launches after which a stream is flushed; 0: the driver decides

  cl_context context();  // made at first use, as is the default stream
  Stream& default_stream();
  Stream* NewStream();
  void FreeStream(Stream* stream);
  void Finish();  // waits for every stream
  void Finish(const Stream& stream);
  cl_int TryFinish(const Stream& stream);

  // Releases a buffer that enqueued commands may still use.
  void ReleaseBuffer(cl_mem buffer);

  std::string build_options() const;
  void set_build_options(std::string options);

  // Throws RuntimeError, naming this device and `call`, unless `status` is CL_SUCCESS.
  void Check(cl_int status, const char* call) const;
  // "opencl:0 (name)"
  std::string label() const;

 private:
  std::unique_ptr<Stream> OpenQueue();
  void OpenContext();

  // Whether commands that were enqueued may lose a buffer that is released. OpenCL forbids it ("after the reference
  // count becomes zero and commands queued for execution that use memobj have finished, the memory object is
  // deleted"), but early drivers of these vendors did it.
  const bool releases_early_;

  std::once_flag opened_;
  cl_context context_ = nullptr;
  std::atomic<Stream*> default_stream_{nullptr};
  std::mutex streams_mutex_;
  std::vector<std::unique_ptr<Stream>> streams_;
  mutable std::mutex options_mutex_;
  std::string build_options_;
};

class Registry {
 public:
  // Adds a driver to open after the system's ICD loader. Without effect once the drivers are open.
  static void AddDriver(const std::string& path);

  // Opens the drivers at the first call. Throws RuntimeError in a process forked from one that had opened them.
  static Registry& Get();

  // Whether objects of drivers may still be released: not once the process exits, when the drivers' own exit handlers
  // may have run, nor in a forked child.
  static bool Alive();

  // Throws ValueError, saying what there is, if there is no such device.
  Device& At(int64_t index);
  bool Has(int64_t index) const { return index >= 0 && size_t(index) < devices_.size(); }
  int size() const { return int(devices_.size()); }
  const std::deque<Driver>& drivers() const { return drivers_; }

 private:
  Registry();
  void DropKnownPlatforms(Driver* driver) const;
  void NumberDevices();

  std::deque<Driver> drivers_;
  std::deque<Device> devices_;
};

}  // namespace edgetune::opencl
