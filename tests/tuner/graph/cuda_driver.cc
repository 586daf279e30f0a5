// What TVM's CUDA runtime calls of Nvidia's libraries, without a GPU: memory, copies, streams, events and captures are
// real, kernels compute nothing. It refuses what a driver refuses while a stream is captured: to allocate or to wait, to
// launch on the default stream, and to end before all that was forked is joined; with EDGETUNE_CUDA_NO_GRAPHS, to capture
// at all. Every launch is a line of the file that EDGETUNE_CUDA_LOG names.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int kSuccess = 0, kUnsupported = 900, kUnjoined = 904, kImplicit = 906;

struct Stream {
  int number = 0;
  Stream* origin = nullptr;  // of the capture that it is in
  int work = 0, joined = 0;  // launches in that capture, and how many of them its origin waits for
};
struct Event {
  Stream* of = nullptr;
  Stream* origin = nullptr;
  int work = 0;
};
struct Graph {
  std::vector<std::string> kernels;
};

Stream standard;  // the default stream
std::vector<Stream*> streams{&standard};
std::map<Stream*, Graph*> captures;  // by their origins

Stream* Of(void* stream) { return stream ? static_cast<Stream*>(stream) : &standard; }

void Log(const char* what, const std::string& kernel, const Stream* stream) {
  static FILE* file = std::fopen(std::getenv("EDGETUNE_CUDA_LOG"), "w");
  std::fprintf(file, "%s %s %d\n", what, kernel.c_str(), stream->number);
  std::fflush(file);
}

template <typename T>
int Made(T** where) {
  *where = new T;
  return kSuccess;
}

int UnlessCaptured() { return captures.empty() ? kSuccess : kUnsupported; }

}  // namespace

extern "C" {

int cudaGetDeviceCount(int* count) { return *count = 1, kSuccess; }
int cudaGetDevice(int* device) { return *device = 0, kSuccess; }
int cudaSetDevice(int) { return kSuccess; }
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  *value = attribute == 75 ? 8 : attribute == 76 ? 7 : attribute == 10 ? 32 : 1024;  // compute capability, warps
  return kSuccess;
}
int cudaGetDeviceProperties(char* properties, int) {
  std::strcpy(properties, "no GPU");                               // its first field
  *reinterpret_cast<size_t*>(properties + 288) = size_t{1} << 32;  // its memory, behind identifiers
  return kSuccess;
}
int cudaMemGetInfo(size_t* free, size_t* total) { return *free = *total = size_t{1} << 32, kSuccess; }
const char* cudaGetErrorName(int) { return "error of the test's driver"; }
const char* cudaGetErrorString(int) { return "refused while a stream is captured"; }
int cudaGetLastError() { return kSuccess; }
int cudaPeekAtLastError() { return kSuccess; }

int cudaMalloc(void** where, size_t bytes) {
  *where = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  return UnlessCaptured();
}
int cudaFree(void* memory) { return std::free(memory), UnlessCaptured(); }
int cudaMallocHost(void** where, size_t bytes) { return cudaMalloc(where, bytes); }
int cudaFreeHost(void* memory) { return cudaFree(memory); }
int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  std::memcpy(to, from, bytes);
  return Of(stream)->origin ? kUnsupported : kSuccess;
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void* stream) {
  return cudaMemcpyAsync(to, from, bytes, 0, stream);
}

int cudaStreamCreate(void** where) {
  auto* stream = new Stream;
  stream->number = int(streams.size());
  streams.push_back(stream);
  return *where = stream, kSuccess;
}
int cudaStreamCreateWithFlags(void** where, unsigned) { return cudaStreamCreate(where); }
int cudaStreamDestroy(void*) { return kSuccess; }
int cudaStreamSynchronize(void*) { return UnlessCaptured(); }
int cudaEventCreate(void** where) { return Made(reinterpret_cast<Event**>(where)); }
int cudaEventDestroy(void* event) { return delete static_cast<Event*>(event), kSuccess; }
int cudaEventSynchronize(void*) { return UnlessCaptured(); }
int cudaEventElapsedTime(float* milliseconds, void*, void*) { return *milliseconds = 1.0f, kSuccess; }
int cudaEventRecord(void* event, void* stream) {
  Stream* of = Of(stream);
  *static_cast<Event*>(event) = {of, of->origin, of->work};
  return kSuccess;
}
int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  Stream* waits = Of(stream);
  const Event& given = *static_cast<Event*>(event);
  if (!given.origin) return waits->origin ? kUnsupported : kSuccess;
  if (waits->origin && waits->origin != given.origin) return kUnsupported;
  if (!waits->origin) waits->work = waits->joined = 0;
  waits->origin = given.origin;
  if (waits == given.origin) given.of->joined = given.work;
  return kSuccess;
}

int cudaStreamBeginCapture(void* stream, int) {
  Stream* origin = Of(stream);
  if (std::getenv("EDGETUNE_CUDA_NO_GRAPHS") || origin == &standard || origin->origin) return kUnsupported;
  origin->origin = origin;
  captures[origin] = new Graph;
  return kSuccess;
}
int cudaStreamEndCapture(void* stream, void** graph) {
  Stream* origin = Of(stream);
  bool joined = true;
  for (Stream* other : streams) {
    if (other->origin != origin) continue;
    joined &= other == origin || other->joined == other->work;
    other->origin = nullptr;
  }
  *graph = captures.at(origin);
  captures.erase(origin);
  if (!joined) *graph = nullptr;
  return joined ? kSuccess : kUnjoined;
}
int cudaGraphInstantiate(void** made, void* graph, uint64_t) {
  if (!graph) return kUnjoined;
  return *made = new Graph(*static_cast<Graph*>(graph)), kSuccess;
}
int cudaGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), kSuccess; }
int cudaGraphExecDestroy(void* graph) { return delete static_cast<Graph*>(graph), kSuccess; }
int cudaGraphLaunch(void* graph, void* stream) {
  if (Of(stream)->origin) return kUnsupported;
  for (const std::string& kernel : static_cast<Graph*>(graph)->kernels) Log("graph", kernel, Of(stream));
  return kSuccess;
}

int cuDeviceGetName(char* name, int length, int) { return std::snprintf(name, length, "no GPU"), kSuccess; }
int cuGetErrorName(int, const char** name) { return *name = cudaGetErrorName(0), kSuccess; }
int cuGetErrorString(int, const char** text) { return *text = cudaGetErrorString(0), kSuccess; }
int cuModuleLoadData(void** module, const void*) { return *module = &standard, kSuccess; }
int cuModuleUnload(void*) { return kSuccess; }
int cuModuleGetFunction(void** function, void*, const char* name) { return *function = strdup(name), kSuccess; }
int cuFuncSetAttribute(void*, int, int) { return kSuccess; }
int cuTensorMapEncodeTiled() { return kUnsupported; }

struct LaunchConfig {
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
};
int cuLaunchKernelEx(const LaunchConfig* config, void* function, void**, void**) {
  Stream* stream = Of(config->stream);
  const char* kernel = static_cast<const char*>(function);
  if (stream == &standard && !captures.empty()) return kImplicit;
  if (stream->origin) {
    ++stream->work;
    captures.at(stream->origin)->kernels.push_back(kernel);
  }
  Log(stream->origin ? "captured" : "launched", kernel, stream);
  return kSuccess;
}

}  // extern "C"
