// Stands in for Nvidia's driver where there is no GPU: it computes on the host what kernels were compiled to from the
// same source (images), and checks how it is called. What is wrong becomes an error whose text says it. Work on a stream
// is done when somebody waits for the stream, so that whoever does not wait gets nothing. Of what may be done, the last
// that came is done first, so that an order that nobody asked for is not kept.
//
// EMULATED_FAULT="FUNCTION=CODE" lets a function fail, and EMULATED_STREAMS="COUNT" allows so many streams. The functions
// below `---- Reports`, here and in queues.cc, tell a test what was done.
#include "queues.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

namespace {

enum { INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NO_BINARY = 209, UNJOINED = 904 };

struct Module {
  const Image *image;
};
struct Event {
  bool recorded = false;
  Work last;
  std::shared_ptr<Graph> capture;
};

std::recursive_mutex lock;  // of everything below, and of the kernels' memory
std::map<uintptr_t, size_t> memory;
std::set<Module *> modules;
std::set<Stream *> streams;
std::set<Event *> events;
std::map<Graph *, std::shared_ptr<Graph>> graphs, executables;
std::map<void *, unsigned> shared_limits;  // of functions, in bytes
int retained, made, plain, replayed, stream_count;
int context;  // its address is the context
thread_local std::vector<void *> stack;
thread_local std::string fault;

int wrong(const std::string &what) {
  fault = what;
  return INVALID;
}

int planned(const char *function) {
  const char *given = std::getenv("EMULATED_FAULT");
  size_t length = std::strlen(function);
  return given && !std::strncmp(given, function, length) && given[length] == '=' ? std::atoi(given + length + 1) : 0;
}

#define BEGIN(function)                                        \
  std::lock_guard<std::recursive_mutex> held(lock);            \
  if (int code = planned(#function)) return code
#define BEGIN_IN_CONTEXT(function)                             \
  BEGIN(function);                                             \
  if (stack.empty()) return wrong("no context is current")
#define KNOWN(set, object) \
  if (!set.count(static_cast<typename decltype(set)::key_type>(object))) return wrong("an unknown object is named")

// Compare byte by byte, as the caller's may be fewer: a sanitizer takes memcmp to read all of them.
bool begins_with(const unsigned char *bytes, const Image &image) {
  size_t i = 0;
  while (i < image.size && bytes[i] == image.bytes[i]) i++;
  return i == image.size;
}

bool is_memory(uintptr_t begin, size_t size) {
  auto found = memory.upper_bound(begin);
  if (found == memory.begin()) return false;
  --found;
  return begin + size <= found->first + found->second;
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  BEGIN(cuInit);
  return 0;
}

int cuGetErrorString(int code, const char **text) {
  static const std::map<int, const char *> texts = {{OUT_OF_MEMORY, "out of memory"},
                                                    {NO_DEVICE, "no CUDA-capable device is detected"},
                                                    {NO_BINARY, "no kernel image is available for the device"}};
  auto found = texts.find(code);
  *text = code == INVALID ? fault.c_str() : found == texts.end() ? nullptr : found->second;
  return *text ? 0 : INVALID;
}

int cuDeviceGetCount(int *count) {
  BEGIN(cuDeviceGetCount);
  *count = 1;
  return 0;
}

int cuDeviceGet(int *device, int number) {
  BEGIN(cuDeviceGet);
  *device = number + 7;  // no number that a caller could guess
  return number ? wrong("there is one device") : 0;
}

int cuDeviceGetName(char *name, int size, int device) {
  BEGIN(cuDeviceGetName);
  std::strncpy(name, "Emulated GPU", static_cast<size_t>(size));
  return device == 7 ? 0 : wrong("this is no device");
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
  BEGIN(cuDeviceGetAttribute);
  *value = attribute == 75 ? 5 : 3;
  return device == 7 ? 0 : wrong("this is no device");
}

int cuDevicePrimaryCtxRetain(void **made_context, int device) {
  BEGIN(cuDevicePrimaryCtxRetain);
  if (device != 7) return wrong("this is no device");
  retained++;
  *made_context = &context;
  return 0;
}

int cuDevicePrimaryCtxRelease(int device) {
  BEGIN(cuDevicePrimaryCtxRelease);
  if (device != 7 || !retained) return wrong("a context is released that nobody has");
  retained--;
  return 0;
}

int cuCtxPushCurrent_v2(void *given) {
  BEGIN(cuCtxPushCurrent_v2);
  if (given != &context || !retained) return wrong("this is no context");
  stack.push_back(given);
  return 0;
}

int cuCtxPopCurrent_v2(void **popped) {
  BEGIN_IN_CONTEXT(cuCtxPopCurrent_v2);
  *popped = stack.back();
  stack.pop_back();
  return 0;
}

int cuModuleLoadData(void **module, const void *bytes) {
  BEGIN_IN_CONTEXT(cuModuleLoadData);
  for (const Image &image : images) {
    if (!begins_with(static_cast<const unsigned char *>(bytes), image)) continue;
    made++;
    *module = *modules.insert(new Module{&image}).first;
    return 0;
  }
  return NO_BINARY;
}

int cuModuleUnload(void *module) {
  BEGIN_IN_CONTEXT(cuModuleUnload);
  KNOWN(modules, module);
  modules.erase(static_cast<Module *>(module));
  delete static_cast<Module *>(module);
  return 0;
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
  BEGIN_IN_CONTEXT(cuModuleGetFunction);
  KNOWN(modules, module);
  for (const Kernel &found : static_cast<Module *>(module)->image->kernels) {
    if (std::strcmp(found.name, name)) continue;
    *function = const_cast<Kernel *>(&found);
    return 0;
  }
  return wrong(std::string("there is no kernel ") + name);
}

int cuFuncSetAttribute(void *function, int attribute, int value) {
  BEGIN_IN_CONTEXT(cuFuncSetAttribute);
  if (attribute != 8) return wrong("an attribute is set that is not that of dynamic shared memory");
  shared_limits[function] = static_cast<unsigned>(value);
  return 0;
}

int cuMemAlloc_v2(uintptr_t *pointer, size_t size) {
  BEGIN_IN_CONTEXT(cuMemAlloc_v2);
  if (!size) return wrong("no bytes are asked for");
  made++;
  *pointer = reinterpret_cast<uintptr_t>(std::aligned_alloc(256, (size + 255) / 256 * 256));
  std::memset(reinterpret_cast<void *>(*pointer), 0xff, size);  // every float is not a number
  memory[*pointer] = size;
  return 0;
}

int cuMemFree_v2(uintptr_t pointer) {
  BEGIN_IN_CONTEXT(cuMemFree_v2);
  if (!memory.erase(pointer)) return wrong("memory is freed that nobody has");
  std::free(reinterpret_cast<void *>(pointer));
  return 0;
}

int cuStreamCreate(void **stream, unsigned) {
  BEGIN_IN_CONTEXT(cuStreamCreate);
  const char *most = std::getenv("EMULATED_STREAMS");
  if (most && static_cast<int>(streams.size()) >= std::atoi(most)) return OUT_OF_MEMORY;
  made++;
  *stream = *streams.insert(new Stream{stream_count++}).first;
  return 0;
}

int cuStreamDestroy_v2(void *stream) {
  BEGIN_IN_CONTEXT(cuStreamDestroy_v2);
  KNOWN(streams, stream);
  streams.erase(static_cast<Stream *>(stream));
  delete static_cast<Stream *>(stream);
  return 0;
}

int cuStreamSynchronize(void *stream) {
  Stream &own = *static_cast<Stream *>(stream);
  if (planned("cuStreamSynchronize")) own.last.reset();  // nobody waits for it any more
  BEGIN_IN_CONTEXT(cuStreamSynchronize);
  KNOWN(streams, stream);
  if (own.capture) return wrong("somebody waits for a stream that is captured");
  if (own.last) run(own.last);
  own.last.reset();
  return 0;
}

int cuEventCreate(void **event, unsigned flags) {
  BEGIN_IN_CONTEXT(cuEventCreate);
  if (flags != 2) return wrong("an event is to measure time");
  made++;
  *event = *events.insert(new Event).first;
  return 0;
}

int cuEventDestroy_v2(void *event) {
  BEGIN_IN_CONTEXT(cuEventDestroy_v2);
  KNOWN(events, event);
  events.erase(static_cast<Event *>(event));
  delete static_cast<Event *>(event);
  return 0;
}

int cuEventRecord(void *event, void *stream) {
  BEGIN_IN_CONTEXT(cuEventRecord);
  KNOWN(events, event);
  KNOWN(streams, stream);
  const Stream &own = *static_cast<Stream *>(stream);
  *static_cast<Event *>(event) = {true, own.last, own.capture};
  return 0;
}

// A stream that waits for an event of a graph that is being captured becomes a branch of it.
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  BEGIN_IN_CONTEXT(cuStreamWaitEvent);
  KNOWN(streams, stream);
  KNOWN(events, event);
  Stream &own = *static_cast<Stream *>(stream);
  const Event &awaited = *static_cast<Event *>(event);
  std::shared_ptr<Graph> capture = awaited.capture && awaited.capture->capturing ? awaited.capture : nullptr;
  if (flags || !awaited.recorded) return wrong("an event was not recorded, or flags are given");
  if (own.capture && own.capture != capture) return wrong("a captured stream waits for what is not captured");
  if (capture && !own.capture) {
    own.before = std::exchange(own.last, nullptr);
    own.capture = capture;
  }
  Item item;
  if (awaited.last) item.after.push_back(awaited.last);
  append(own, item);
  return 0;
}

static int copy(void *stream, uintptr_t device, void *to, const void *from, size_t size) {
  KNOWN(streams, stream);
  Stream &own = *static_cast<Stream *>(stream);
  if (own.capture) return wrong("a copy is captured");
  if (!is_memory(device, size)) return wrong("a copy reaches out of the device's memory");
  Item item;
  item.work = [=] { std::memcpy(to, from, size); };
  append(own, item);
  return 0;
}

int cuMemcpyHtoDAsync_v2(uintptr_t to, const void *from, size_t size, void *stream) {
  BEGIN_IN_CONTEXT(cuMemcpyHtoDAsync_v2);
  return copy(stream, to, reinterpret_cast<void *>(to), from, size);
}

int cuMemcpyDtoHAsync_v2(void *to, uintptr_t from, size_t size, void *stream) {
  BEGIN_IN_CONTEXT(cuMemcpyDtoHAsync_v2);
  return copy(stream, from, to, reinterpret_cast<const void *>(from), size);
}

int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **values, void **) {
  BEGIN_IN_CONTEXT(cuLaunchKernel);
  KNOWN(streams, stream);
  const Kernel *own = static_cast<const Kernel *>(function);
  Launch launch{own, {gx, gy, gz}, {bx, by, bz}, {}};
  if (!gx || !gy || !gz || !bx || !by || !bz || bx * by * bz > 1024) return wrong("a launch has no such shape");
  if (shared > 48 << 10 && shared > shared_limits[function]) return wrong("a launch has too much shared memory");
  for (size_t i = 0; i < own->sizes.size(); i++) {
    auto begin = static_cast<const unsigned char *>(values[i]);
    launch.values.emplace_back(begin, begin + own->sizes[i]);
    uintptr_t pointer = 0;
    if (own->memory[i]) std::memcpy(&pointer, begin, sizeof pointer);
    if (own->memory[i] && !memory.count(pointer)) return wrong("an argument is no memory of the device");
  }
  Stream &queue = *static_cast<Stream *>(stream);
  if (!queue.capture) plain++;
  Item item;
  item.launch = std::make_shared<Launch>(launch);
  append(queue, item);
  return 0;
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
  BEGIN_IN_CONTEXT(cuStreamBeginCapture_v2);
  KNOWN(streams, stream);
  Stream &own = *static_cast<Stream *>(stream);
  if (own.capture || mode != 1) return wrong("a stream is captured already, or in a mode that stops other threads");
  own.before = std::exchange(own.last, nullptr);
  own.capture = std::make_shared<Graph>();
  return 0;
}

int cuStreamEndCapture(void *stream, void **graph) {
  BEGIN_IN_CONTEXT(cuStreamEndCapture);
  KNOWN(streams, stream);
  Stream &own = *static_cast<Stream *>(stream);
  if (!own.capture) return wrong("no capture was begun");
  std::shared_ptr<Graph> captured = own.capture;
  std::map<int, Work> joined = needed(own.last);
  captured->capturing = false;
  int status = 0;
  for (Stream *branch : streams) {
    if (branch->capture != captured) continue;
    if (branch->last && !joined.count(branch->last->number)) status = UNJOINED;
    branch->last = std::exchange(branch->before, nullptr);
    branch->capture.reset();
  }
  if (status) return status;
  made++;
  graphs[captured.get()] = captured;
  *graph = captured.get();
  return 0;
}

int cuGraphInstantiate(void **executable, void *graph, void *, char *, size_t) {
  BEGIN_IN_CONTEXT(cuGraphInstantiate);
  KNOWN(graphs, graph);
  if (static_cast<Graph *>(graph)->items.empty()) return wrong("a graph is empty");
  made++;
  auto own = std::make_shared<Graph>(*static_cast<Graph *>(graph));
  executables[own.get()] = own;
  *executable = own.get();
  return 0;
}

#ifndef OLD_DRIVER  // that of a Jetson Nano: CUDA 10.2
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  BEGIN_IN_CONTEXT(cuGraphInstantiateWithFlags);
  return flags ? wrong("flags are given") : cuGraphInstantiate(executable, graph, nullptr, nullptr, 0);
}

int cuGraphUpload(void *executable, void *stream) {
  BEGIN_IN_CONTEXT(cuGraphUpload);
  KNOWN(executables, executable);
  KNOWN(streams, stream);
  return 0;
}
#endif

int cuGraphLaunch(void *executable, void *stream) {
  BEGIN_IN_CONTEXT(cuGraphLaunch);
  KNOWN(executables, executable);
  KNOWN(streams, stream);
  Stream &queue = *static_cast<Stream *>(stream);
  if (queue.capture) return wrong("a graph is launched while another is captured");
  replayed++;
  std::map<Work, Work> copies;
  Item end;
  for (const Work &item : static_cast<Graph *>(executable)->items) {
    Item copy = *item;
    copy.number = next_number();
    for (Work &before : copy.after) before = copies.at(before);
    if (copy.after.empty() && queue.last) copy.after.push_back(queue.last);
    end.after.push_back(copies[item] = std::make_shared<Item>(copy));
  }
  append(queue, end);
  return 0;
}

int cuGraphDestroy(void *graph) {
  BEGIN_IN_CONTEXT(cuGraphDestroy);
  KNOWN(graphs, graph);
  graphs.erase(static_cast<Graph *>(graph));
  return 0;
}

int cuGraphExecDestroy(void *executable) {
  BEGIN_IN_CONTEXT(cuGraphExecDestroy);
  KNOWN(executables, executable);
  executables.erase(static_cast<Graph *>(executable));
  return 0;
}

// ---- Reports

// How many objects there are now.
int emulated_alive() {
  std::lock_guard<std::recursive_mutex> held(lock);
  return static_cast<int>(memory.size() + modules.size() + streams.size() + events.size() + graphs.size() +
                          executables.size() + stack.size()) +
         retained;
}

// How many objects were made so far, kernels launched one by one, and graphs launched.
int emulated_made() { return made; }
int emulated_plain() { return plain; }
int emulated_replayed() { return replayed; }
}
