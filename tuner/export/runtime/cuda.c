/* Runs the kernels of an exported network on a CUDA device, by the driver's interface. Every function here that calls the
 * driver makes the device's context the calling thread's, and gives back the thread's own afterwards. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_driver.h"
#include "device.h"
#include "driver.h"

#define STATIC_BYTES (48u << 10) /* of shared memory that a group may have without asking for more */

struct Device {
  const DeviceTables *tables;
  CUdevice id;
  cu_object context;
  cu_object *modules;     /* of every code */
  cu_object *functions;   /* of every launch */
  CUdeviceptr *constants; /* of every buffer, 0 for others */
};

struct Session {
  Device *device;
  cu_object stream;     /* that of copies */
  cu_object *streams;   /* it, and those of the groups of stages */
  cu_object *events;    /* that all of each stream so far has ended */
  int stream_count;
  CUdeviceptr *buffers; /* constants are the device's */
  void **parameters;    /* where the value of every argument is */
  cu_object *graphs;    /* of every span, or NULL: its kernels are launched one by one */
};

static const char *text_of(CUresult status) {
  const char *text = 0;
  return cuGetErrorString(status, &text) || !text ? "unknown error" : text;
}

static int failed(const char *what, CUresult status) {
  edgetune_say("%s: %s (error %d)", what, text_of(status), status);
  return status == CUDA_ERROR_OUT_OF_MEMORY ? DEVICE_NO_MEMORY : DEVICE_FAILED;
}

/* Return from a function that returns a status if a call of the driver fails. */
#define TRY(call)                                        \
  do {                                                   \
    CUresult tried = (call);                             \
    if (tried) return failed(called(#call), tried);      \
  } while (0)

/* The name of the function in the text of a call. */
static const char *called(const char *call) {
  static _Thread_local char name[64];
  snprintf(name, sizeof name, "%.*s", (int)strcspn(call, "_("), call);
  return name;
}

static int enter(const Device *device) {
  TRY(cuCtxPushCurrent_v2(device->context));
  return DEVICE_OK;
}

static void leave(void) {
  cu_object own;
  cuCtxPopCurrent_v2(&own);
}

/* ---- Devices ---- */

static int find_device(const Place *place, CUdevice *found) {
  int count = 0;
  CUresult status;
  if (!edgetune_driver_load(place->driver, libraries, functions)) return DEVICE_NO_DRIVER;
  if ((status = cuInit(0)) || (status = cuDeviceGetCount(&count))) {
    failed("cuInit", status);
    return DEVICE_NO_DRIVER;
  }
  if (place->number >= count || cuDeviceGet(found, place->number)) {
    edgetune_say("there is no device cuda:%d here (%d found)", place->number, count);
    return DEVICE_NO_DRIVER;
  }
  return DEVICE_OK;
}

static int load_module(Device *device, int i) {
  const Code *code = &device->tables->codes[i];
  CUresult status = cuModuleLoadData(&device->modules[i], code->content);
  if (!status) return DEVICE_OK;
  if (status == CUDA_ERROR_OUT_OF_MEMORY) return failed("cuModuleLoadData", status);
  char name[128] = "";
  int major = 0, minor = 0;
  cuDeviceGetName(name, sizeof name - 1, device->id);
  cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device->id);
  cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device->id);
  edgetune_say("the kernels are for %s, and the device is %s (sm_%d%d): %s (error %d)", code->options, name, major,
               minor, text_of(status), status);
  return DEVICE_NOT_COMPILED;
}

static int find_function(Device *device, int i) {
  const Launch *launch = &device->tables->launches[i];
  CUresult status = cuModuleGetFunction(&device->functions[i], device->modules[launch->code], launch->kernel);
  if (status) return failed(launch->kernel, status);
  if (launch->local_bytes > STATIC_BYTES)
    TRY(cuFuncSetAttribute(device->functions[i], CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                           (int)launch->local_bytes));
  return DEVICE_OK;
}

static int copy_constants(Device *device, const unsigned char *weights, cu_object stream) {
  const DeviceTables *tables = device->tables;
  for (int i = 0; i < tables->buffer_count; i++) {
    const Buffer *buffer = &tables->buffers[i];
    if (!buffer->constant || !buffer->size) continue;
    TRY(cuMemAlloc_v2(&device->constants[i], buffer->size));
    TRY(cuMemcpyHtoDAsync_v2(device->constants[i], weights + buffer->offset, buffer->size, stream));
  }
  TRY(cuStreamSynchronize(stream));
  return DEVICE_OK;
}

/* Load all kernels and copy the constants. The device's context is current. */
static int fill_device(Device *device, const unsigned char *weights) {
  const DeviceTables *tables = device->tables;
  cu_object stream;
  int status = DEVICE_OK;
  for (int i = 0; !status && i < tables->code_count; i++) status = load_module(device, i);
  for (int i = 0; !status && i < tables->launch_count; i++) status = find_function(device, i);
  if (status) return status;
  TRY(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  status = copy_constants(device, weights, stream);
  cuStreamDestroy_v2(stream);
  return status;
}

static int open_device(Device *device, const unsigned char *weights) {
  const DeviceTables *tables = device->tables;
  device->modules = calloc((size_t)tables->code_count + 1, sizeof *device->modules);
  device->functions = calloc((size_t)tables->launch_count + 1, sizeof *device->functions);
  device->constants = calloc((size_t)tables->buffer_count + 1, sizeof *device->constants);
  if (!device->modules || !device->functions || !device->constants) return DEVICE_NO_MEMORY;
  TRY(cuDevicePrimaryCtxRetain(&device->context, device->id));
  int status = enter(device);
  if (status) return status;
  status = fill_device(device, weights);
  leave();
  return status;
}

int edgetune_device_open(const DeviceTables *tables, const unsigned char *weights, const Place *place,
                         Device **device) {
  CUdevice id = 0;
  edgetune_say("%s", "");
  int status = find_device(place, &id);
  if (status) return status;
  Device *made = calloc(1, sizeof *made);
  if (!made) return DEVICE_NO_MEMORY;
  made->tables = tables;
  made->id = id;
  status = open_device(made, weights);
  if (status)
    edgetune_device_close(made);
  else
    *device = made;
  return status;
}

static void empty_device(Device *device) {
  for (int i = 0; i < device->tables->buffer_count; i++)
    if (device->constants[i]) cuMemFree_v2(device->constants[i]);
  for (int i = 0; i < device->tables->code_count; i++)
    if (device->modules[i]) cuModuleUnload(device->modules[i]);
  leave();
}

void edgetune_device_close(Device *device) {
  if (!device) return;
  if (device->context && !cuCtxPushCurrent_v2(device->context)) empty_device(device);
  if (device->context) cuDevicePrimaryCtxRelease(device->id);
  free(device->constants);
  free(device->functions);
  free(device->modules);
  free(device);
}

/* ---- Sessions ---- */

static int make_buffers(Session *session) {
  const DeviceTables *tables = session->device->tables;
  for (int i = 0; i < tables->buffer_count; i++) {
    const Buffer *buffer = &tables->buffers[i];
    session->buffers[i] = session->device->constants[i];
    if (!buffer->constant) TRY(cuMemAlloc_v2(&session->buffers[i], buffer->size));
  }
  for (int i = 0; i < tables->argument_count; i++) {
    const Argument *argument = &tables->arguments[i];
    const void *value = argument->buffer < 0 ? (const void *)&argument->value : &session->buffers[argument->buffer];
    session->parameters[i] = (void *)value;
  }
  return DEVICE_OK;
}

/* Make as many streams beside the first as there can be and are of use. */
static void make_streams(Session *session) {
  int most = session->device->tables->most_groups;
  session->streams[0] = session->stream;
  session->stream_count = 1;
  if (most < 2 || cuEventCreate(&session->events[0], CU_EVENT_DISABLE_TIMING)) return;
  for (int i = 1; i < most; i++) {
    if (cuStreamCreate(&session->streams[i], CU_STREAM_NON_BLOCKING)) return;
    if (cuEventCreate(&session->events[i], CU_EVENT_DISABLE_TIMING)) return;
    session->stream_count++;
  }
}

static int launch_group(Session *session, cu_object stream, const Rows *group) {
  const DeviceTables *tables = session->device->tables;
  for (int i = group->first; i < group->first + group->count; i++) {
    const Launch *launch = &tables->launches[i];
    const size_t *groups = launch->groups, *items = launch->items;
    CUresult status =
        cuLaunchKernel(session->device->functions[i], (unsigned)groups[0], (unsigned)groups[1], (unsigned)groups[2],
                       (unsigned)items[0], (unsigned)items[1], (unsigned)items[2], (unsigned)launch->local_bytes,
                       stream, session->parameters + launch->first, 0);
    if (status) return failed(launch->kernel, status);
  }
  return DEVICE_OK;
}

/* Run groups of a stage in side streams, behind what is in the first stream so far. */
static int launch_aside(Session *session, int count, const Rows *groups) {
  cu_object *streams = session->streams, *events = session->events;
  TRY(cuEventRecord(events[0], streams[0]));
  for (int i = 1; i <= count; i++) {
    TRY(cuStreamWaitEvent(streams[i], events[0], 0));
    int status = launch_group(session, streams[i], &groups[i - 1]);
    if (status) return status;
    TRY(cuEventRecord(events[i], streams[i]));
  }
  return DEVICE_OK;
}

/* Let the first stream wait for the side streams. */
static int join(Session *session, int count) {
  for (int i = 1; i <= count; i++) TRY(cuStreamWaitEvent(session->stream, session->events[i], 0));
  return DEVICE_OK;
}

/* Run groups at the same time. The last is in the first stream, and before it those that there is no side stream for. */
static int launch_stage(Session *session, const Rows *stage) {
  const Rows *groups = session->device->tables->groups + stage->first;
  int aside = (stage->count < session->stream_count ? stage->count : session->stream_count) - 1;
  int status = aside ? launch_aside(session, aside, groups) : DEVICE_OK;
  for (int i = aside; !status && i < stage->count; i++) status = launch_group(session, session->stream, &groups[i]);
  return status ? status : join(session, aside);
}

static int launch_all(Session *session, int span) {
  const DeviceTables *tables = session->device->tables;
  const Rows *stages = &tables->spans[span];
  int status = DEVICE_OK;
  for (int i = stages->first; !status && i < stages->first + stages->count; i++)
    status = launch_stage(session, &tables->stages[i]);
  return status;
}

static CUresult instantiate(cu_object *made, cu_object graph) {
  if (cuGraphInstantiateWithFlags) return cuGraphInstantiateWithFlags(made, graph, 0);
  return cuGraphInstantiate(made, graph, 0, 0, 0);
}

/* Record the launches of a span as a graph, which is launched in their place. Side streams that wait for an event of the
 * first are recorded with it, as branches. */
static int make_graph(Session *session, int span) {
  cu_object graph = 0;
  TRY(cuStreamBeginCapture_v2(session->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  int status = launch_all(session, span);
  CUresult ended = cuStreamEndCapture(session->stream, &graph);
  if (!status && ended) status = failed("cuStreamEndCapture", ended);
  if (!status && (ended = instantiate(&session->graphs[span], graph))) status = failed("cuGraphInstantiate", ended);
  if (graph) cuGraphDestroy(graph);
  if (!status && cuGraphUpload) TRY(cuGraphUpload(session->graphs[span], session->stream));
  return status;
}

/* Take memory and make graphs. The device's context is current. */
static int fill_session(Session *session, int plain) {
  const DeviceTables *tables = session->device->tables;
  TRY(cuStreamCreate(&session->stream, CU_STREAM_NON_BLOCKING));
  make_streams(session);
  int status = make_buffers(session);
  for (int i = 0; !plain && !status && i < tables->span_count; i++) status = make_graph(session, i);
  if (!status) TRY(cuStreamSynchronize(session->stream));
  return status;
}

static int open_session(Session *session, int plain) {
  const DeviceTables *tables = session->device->tables;
  session->buffers = calloc((size_t)tables->buffer_count + 1, sizeof *session->buffers);
  session->parameters = calloc((size_t)tables->argument_count + 1, sizeof *session->parameters);
  session->graphs = calloc((size_t)tables->span_count + 1, sizeof *session->graphs);
  session->streams = calloc((size_t)tables->most_groups + 1, sizeof *session->streams);
  session->events = calloc((size_t)tables->most_groups + 1, sizeof *session->events);
  if (!session->buffers || !session->parameters || !session->graphs || !session->streams || !session->events)
    return DEVICE_NO_MEMORY;
  int status = enter(session->device);
  if (status) return status;
  status = fill_session(session, plain);
  leave();
  return status;
}

int edgetune_session_open(Device *device, int plain, Session **session) {
  Session *made = calloc(1, sizeof *made);
  if (!made) return DEVICE_NO_MEMORY;
  made->device = device;
  int status = open_session(made, plain);
  if (status)
    edgetune_session_close(made);
  else
    *session = made;
  return status;
}

/* Wait until nothing of any stream runs. */
static void finish(const Session *session) {
  for (int i = 0; i < session->stream_count; i++) cuStreamSynchronize(session->streams[i]);
}

static void empty_session(Session *session) {
  const DeviceTables *tables = session->device->tables;
  finish(session);
  for (int i = 0; session->graphs && i < tables->span_count; i++)
    if (session->graphs[i]) cuGraphExecDestroy(session->graphs[i]);
  for (int i = 0; session->buffers && i < tables->buffer_count; i++)
    if (session->buffers[i] && !tables->buffers[i].constant) cuMemFree_v2(session->buffers[i]);
  for (int i = 0; session->events && i < tables->most_groups; i++)
    if (session->events[i]) cuEventDestroy_v2(session->events[i]);
  for (int i = 1; session->streams && i < tables->most_groups; i++)
    if (session->streams[i]) cuStreamDestroy_v2(session->streams[i]);
  if (session->stream) cuStreamDestroy_v2(session->stream);
  leave();
}

void edgetune_session_close(Session *session) {
  if (!session) return;
  if (!cuCtxPushCurrent_v2(session->device->context)) empty_session(session);
  free(session->events);
  free(session->streams);
  free(session->graphs);
  free(session->parameters);
  free(session->buffers);
  free(session);
}

int edgetune_device_computes_here(const Session *session) {
  (void)session;
  return 0;
}

int edgetune_session_launch(Session *session, int span) {
  int status = enter(session->device);
  if (status) return status;
  if (session->graphs[span]) {
    CUresult launched = cuGraphLaunch(session->graphs[span], session->stream);
    if (launched) status = failed("cuGraphLaunch", launched);
  } else {
    status = launch_all(session, span);
  }
  if (status) finish(session); /* nothing may read the caller's inputs any more */
  leave();
  return status;
}

static int write_buffer(Session *session, int buffer, const void *from, size_t size, int wait) {
  TRY(cuMemcpyHtoDAsync_v2(session->buffers[buffer], from, size, session->stream));
  if (wait) TRY(cuStreamSynchronize(session->stream)); /* memory that the caller has locked may still be read */
  return DEVICE_OK;
}

static int read_buffer(Session *session, int buffer, void *to, size_t size) {
  CUresult copied = cuMemcpyDtoHAsync_v2(to, session->buffers[buffer], size, session->stream);
  CUresult done = cuStreamSynchronize(session->stream); /* also where the copy failed: inputs may still be read */
  if (copied) return failed("cuMemcpyDtoHAsync", copied);
  return done ? failed("cuStreamSynchronize", done) : DEVICE_OK;
}

int edgetune_session_write(Session *session, int buffer, const void *from, size_t size, int wait) {
  int status = size ? enter(session->device) : DEVICE_OK;
  if (!size || status) return status;
  status = write_buffer(session, buffer, from, size, wait);
  leave();
  return status;
}

int edgetune_session_read(Session *session, int buffer, void *to, size_t size) {
  int status = size ? enter(session->device) : DEVICE_OK;
  if (!size || status) return status;
  status = read_buffer(session, buffer, to, size);
  leave();
  return status;
}
