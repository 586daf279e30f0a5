#include "devices.h"

#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "counters.h"
#include "fail.h"
#include "threads.h"

namespace edgetune::opencl {

namespace {

std::atomic<bool> opened{false};
std::atomic<bool> exiting{false};
bool forked = false;  // written in a forked child only, before it runs anything else

std::mutex& PathsMutex() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

std::vector<std::string>& AddedPaths() {
  static auto* paths = new std::vector<std::string>;
  return *paths;
}

std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

std::vector<std::string> DriverPaths() {
  const char* named = std::getenv("EDGETUNE_OPENCL");
  if (named != nullptr && named[0] != '\0') return Split(named, ':');
  std::vector<std::string> paths{"libOpenCL.so.1"};
  std::lock_guard<std::mutex> lock(PathsMutex());
  paths.insert(paths.end(), AddedPaths().begin(), AddedPaths().end());
  return paths;
}

bool IsProcessor(const Functions& cl, cl_device_id id) {
  return (DeviceValue<cl_bitfield>(cl, id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU) != 0;
}

bool SharesFinely(const Functions& cl, cl_device_id id) {
  const auto shares = DeviceValue<cl_bitfield>(cl, id, CL_DEVICE_SVM_CAPABILITIES);  // 0 before OpenCL 2.0
  return cl.clSVMAlloc != nullptr && cl.clSVMFree != nullptr && (shares & CL_DEVICE_SVM_FINE_GRAIN_BUFFER) != 0;
}

// Compute units of a driver's processors.
unsigned ProcessorUnits(const Driver& driver) {
  unsigned units = 0;
  for (const Platform& platform : driver.platforms)
    for (cl_device_id id : platform.devices)
      if (IsProcessor(driver.cl, id)) units += DeviceValue<cl_uint>(driver.cl, id, CL_DEVICE_MAX_COMPUTE_UNITS);
  return units;
}

bool ReleasesEarly(const std::string& vendor) {
  return vendor.find("ARM") != std::string::npos || vendor.find("QUALCOMM") != std::string::npos;
}

}  // namespace

// ---- Device ---------------------------------------------------------------------------------------------------------

Device::Device(int index, const Driver& driver, const Platform& platform, cl_device_id id)
    : index(index),
      driver(driver),
      cl(driver.cl),
      platform(platform),
      id(id),
      name(DeviceText(cl, id, CL_DEVICE_NAME)),
      driver_version(DeviceText(cl, id, CL_DRIVER_VERSION)),
      is_processor(IsProcessor(cl, id)),
      is_open(is_processor && SharesFinely(cl, id)),
      releases_early_(ReleasesEarly(DeviceText(cl, id, CL_DEVICE_VENDOR))) {}

std::string Device::label() const { return "opencl:" + std::to_string(index) + " (" + name + ")"; }

void Device::Check(cl_int status, const char* call) const {
  if (status != CL_SUCCESS) Fail("RuntimeError", label(), ": ", call, " failed: ", ErrorName(status));
}

void Device::OpenContext() {
  std::call_once(opened_, [this] {
    cl_int status = CL_SUCCESS;
    cl_context context = cl.clCreateContext(nullptr, 1, &id, nullptr, nullptr, &status);
    Check(status, "clCreateContext");
    context_ = context;
    // A driver may register an exit handler of its own now; ours has to run before it.
    std::atexit([] { exiting = true; });
  });
}

cl_context Device::context() {
  OpenContext();
  return context_;
}

std::unique_ptr<Stream> Device::OpenQueue() {
  cl_int status = CL_SUCCESS;
  cl_command_queue queue = cl.clCreateCommandQueue(context(), id, CL_QUEUE_PROFILING_ENABLE, &status);
  Check(status, "clCreateCommandQueue");
  return std::unique_ptr<Stream>(new Stream{*this, queue});
}

Stream& Device::default_stream() {
  Stream* stream = default_stream_.load(std::memory_order_acquire);
  if (stream != nullptr) return *stream;
  std::lock_guard<std::mutex> lock(streams_mutex_);
  stream = default_stream_.load(std::memory_order_relaxed);
  if (stream == nullptr) {
    streams_.push_back(OpenQueue());
    stream = streams_.back().get();
    default_stream_.store(stream, std::memory_order_release);
  }
  return *stream;
}

Stream* Device::NewStream() {
  auto stream = OpenQueue();
  std::lock_guard<std::mutex> lock(streams_mutex_);
  streams_.push_back(std::move(stream));
  return streams_.back().get();
}

void Device::FreeStream(Stream* stream) {
  std::unique_ptr<Stream> owned;
  {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    auto found = std::find_if(streams_.begin(), streams_.end(), [=](const auto& s) { return s.get() == stream; });
    if (found == streams_.end()) Fail("ValueError", label(), ": no such stream");
    owned = std::move(*found);
    streams_.erase(found);
  }
  Finish(*owned);
  Check(cl.clReleaseCommandQueue(owned->queue), "clReleaseCommandQueue");
}

cl_int Device::TryFinish(const Stream& stream) {
  counters.finishes.fetch_add(1, std::memory_order_relaxed);
  return cl.clFinish(stream.queue);
}

void Device::Finish(const Stream& stream) { Check(TryFinish(stream), "clFinish"); }

void Device::Finish() {
  std::lock_guard<std::mutex> lock(streams_mutex_);
  for (const auto& stream : streams_) Finish(*stream);
}

void Device::ReleaseBuffer(cl_mem buffer) {
  // Destructors of tensors come here: nothing may be thrown. The next call that waits for the device says what failed.
  if (releases_early_) {
    std::lock_guard<std::mutex> lock(streams_mutex_);
    for (const auto& stream : streams_) TryFinish(*stream);
  }
  cl.clReleaseMemObject(buffer);
}

std::string Device::build_options() const {
  std::lock_guard<std::mutex> lock(options_mutex_);
  return build_options_;
}

void Device::set_build_options(std::string options) {
  std::lock_guard<std::mutex> lock(options_mutex_);
  build_options_ = std::move(options);
}

// ---- Registry -------------------------------------------------------------------------------------------------------

void Registry::AddDriver(const std::string& path) {
  std::lock_guard<std::mutex> lock(PathsMutex());
  auto& paths = AddedPaths();
  if (std::find(paths.begin(), paths.end(), path) == paths.end()) paths.push_back(path);
}

Registry& Registry::Get() {
  if (forked)
    Fail("RuntimeError",
         "OpenCL was in use in the process that this one was forked from, and no driver works "
         "across a fork: fork first, or start a new process");
  static auto* registry = new Registry;  // never destroyed: used until the process ends
  return *registry;
}

bool Registry::Alive() { return !exiting && !forked; }

Registry::Registry() {
  for (const std::string& path : DriverPaths()) {
    const std::set<int> threads = Threads();
    Driver driver = OpenDriver(path);
    SpreadWorkers(threads, ProcessorUnits(driver));
    DropKnownPlatforms(&driver);
    drivers_.push_back(std::move(driver));
  }
  NumberDevices();
  opened = true;
  pthread_atfork(nullptr, nullptr, [] { forked = opened; });
  std::atexit([] { exiting = true; });
}

// A driver reached through an ICD loader and directly is the same library, so its platforms are the same objects; a
// second copy of it has the same names and versions.
void Registry::DropKnownPlatforms(Driver* driver) const {
  auto known = [this](const Platform& found) {
    for (const Driver& earlier : drivers_)
      for (const Platform& platform : earlier.platforms)
        if (platform.id == found.id || (platform.name == found.name && platform.version == found.version &&
                                        platform.device_names == found.device_names))
          return true;
    return false;
  };
  auto& platforms = driver->platforms;
  const size_t before = platforms.size();
  platforms.erase(std::remove_if(platforms.begin(), platforms.end(), known), platforms.end());
  if (before > 0 && platforms.empty()) driver->problem = "what it offers is listed already, by an earlier driver";
}

void Registry::NumberDevices() {
  for (const bool gpus : {true, false})
    for (const Driver& driver : drivers_)
      for (const Platform& platform : driver.platforms)
        for (cl_device_id id : platform.devices) {
          const auto type = DeviceValue<cl_bitfield>(driver.cl, id, CL_DEVICE_TYPE);
          if (((type & CL_DEVICE_TYPE_GPU) != 0) == gpus) devices_.emplace_back(size(), driver, platform, id);
        }
}

Device& Registry::At(int64_t index) {
  if (Has(index)) return devices_[index];
  std::string there = "there is no OpenCL device";
  if (!devices_.empty()) {
    there = "there are:";
    for (const Device& device : devices_) there += " " + device.label();
  }
  for (const Driver& driver : drivers_)
    if (!driver.problem.empty()) there += "; " + driver.path + ": " + driver.problem;
  Fail("ValueError", "no device opencl:", index, ": ", there);
}

}  // namespace edgetune::opencl
