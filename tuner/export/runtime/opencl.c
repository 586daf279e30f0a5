/* Runs the kernels of an exported network on an OpenCL device. */
#define _GNU_SOURCE
#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "driver.h"
#include "opencl_driver.h"

/* Open the driver of a path, or the system's. */
static int load_driver(const char *path) {
  if (edgetune_driver_load(path, libraries, functions)) return 1;
  if (!path) edgetune_say("none of libOpenCL.so.1, libOpenCL.so and libmali.so can be opened");
  return 0;
}

#define MOST_PLATFORMS 16
#define MOST_DEVICES 64

/* Find the `number`-th device: GPUs of all platforms, then others. */
static cl_object find_device(int number) {
  cl_object platforms[MOST_PLATFORMS], devices[MOST_DEVICES];
  cl_uint platform_count = 0, found = 0;
  if (clGetPlatformIDs(MOST_PLATFORMS, platforms, &platform_count)) platform_count = 0;
  if (platform_count > MOST_PLATFORMS) platform_count = MOST_PLATFORMS;
  for (int gpus = 1; gpus >= 0; gpus--)
    for (cl_uint p = 0; p < platform_count; p++) {
      cl_uint count = 0;
      if (clGetDeviceIDs(platforms[p], CL_DEVICE_TYPE_ALL, MOST_DEVICES, devices, &count)) continue;
      for (cl_uint d = 0; d < count && d < MOST_DEVICES; d++) {
        cl_bitfield type = 0;
        clGetDeviceInfo(devices[d], CL_DEVICE_TYPE, sizeof type, &type, 0);
        if (((type & CL_DEVICE_TYPE_GPU) != 0) == gpus && (int)found++ == number) return devices[d];
      }
    }
  edgetune_say("there is no device opencl:%d here (%u found)", number, found);
  return 0;
}

struct Device {
  const DeviceTables *tables;
  cl_object id, context;
  cl_object *programs;  /* of every code */
  cl_object *constants; /* of every buffer, NULL for others */
  int is_processor;
};

typedef struct {
  cl_object id;
  cl_object ended; /* an event: its part of the present stage has ended */
  int unflushed;   /* launches */
} Queue;

struct Session {
  Device *device;
  Queue *queues; /* copies are in the first */
  int queue_count;
  cl_object *buffers; /* constants are the device's */
  cl_object *kernels; /* of every launch */
  cl_object *events;  /* room for one of each queue */
};

static int failed(const char *what, cl_int status) {
  edgetune_say("%s: error %d", what, (int)status);
  return status == -4 || status == -5 || status == -6 ? DEVICE_NO_MEMORY : DEVICE_FAILED; /* out of one or another */
}

/* ---- Programs ---- */

static uint64_t hashed(uint64_t hash, const char *text) {
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  return hash;
}

/* The path of a compiled program in the cache: of this text for this device and driver. */
static void cache_path(const Device *device, const Code *code, const char *folder, char *path, size_t size) {
  char about[256] = "";
  uint64_t hash = hashed(hashed(0xcbf29ce484222325u, code->content), code->options);
  if (!clGetDeviceInfo(device->id, CL_DEVICE_NAME, sizeof about - 1, about, 0)) hash = hashed(hash, about);
  if (!clGetDeviceInfo(device->id, CL_DRIVER_VERSION, sizeof about - 1, about, 0)) hash = hashed(hash, about);
  snprintf(path, size, "%s/%016llx.clbin", folder, (unsigned long long)hash);
}

static cl_object cached_program(const Device *device, const Code *code, const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) return 0;
  unsigned char *binary = 0;
  long size = fseek(file, 0, SEEK_END) ? 0 : ftell(file);
  rewind(file);
  if (size > 0) binary = malloc((size_t)size);
  cl_object program = 0;
  if (binary && fread(binary, 1, (size_t)size, file) == (size_t)size) {
    size_t length = (size_t)size;
    cl_int status = 0, own = 0;
    program = clCreateProgramWithBinary(device->context, 1, &device->id, &length, (const unsigned char **)&binary, &own,
                                        &status);
    if (program && (status || own || clBuildProgram(program, 1, &device->id, code->options, 0, 0))) {
      clReleaseProgram(program); /* of another driver, or damaged: it is compiled again */
      program = 0;
    }
  }
  free(binary);
  fclose(file);
  return program;
}

/* Keep a compiled program. Where that fails, it is compiled again the next time. */
static void keep_program(cl_object program, const char *path) {
  size_t size = 0;
  if (clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof size, &size, 0) || !size) return;
  unsigned char *binary = malloc(size);
  char partial[640];
  snprintf(partial, sizeof partial, "%s.%ld", path, (long)getpid());
  FILE *file = binary ? fopen(partial, "wb") : 0;
  if (file) {
    int whole = !clGetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof binary, &binary, 0) &&
                fwrite(binary, 1, size, file) == size;
    if (fclose(file) || !whole || rename(partial, path)) unlink(partial);
  }
  free(binary);
}

static int build_program(Device *device, int i, const char *cache) {
  const Code *code = &device->tables->codes[i];
  char path[600] = "";
  cl_int status = 0;
  if (cache) {
    cache_path(device, code, cache, path, sizeof path);
    device->programs[i] = cached_program(device, code, path);
    if (device->programs[i]) return DEVICE_OK;
  }
  const char *source = code->content;
  device->programs[i] = clCreateProgramWithSource(device->context, 1, &source, 0, &status);
  if (status) return failed("clCreateProgramWithSource", status);
  status = clBuildProgram(device->programs[i], 1, &device->id, code->options, 0, 0);
  if (status) {
    char log[512] = "";
    failed("clBuildProgram", status);
    clGetProgramBuildInfo(device->programs[i], device->id, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, 0);
    if (*log) edgetune_say("%s", log);
    return DEVICE_NOT_COMPILED;
  }
  if (cache) keep_program(device->programs[i], path);
  return DEVICE_OK;
}

/* ---- Devices ---- */

static int fill_device(Device *device, const unsigned char *weights, const char *cache) {
  const DeviceTables *tables = device->tables;
  cl_bitfield type = 0;
  cl_int status = 0;
  clGetDeviceInfo(device->id, CL_DEVICE_TYPE, sizeof type, &type, 0);
  device->is_processor = (type & CL_DEVICE_TYPE_CPU) != 0;
  device->context = clCreateContext(0, 1, &device->id, 0, 0, &status);
  if (status) return failed("clCreateContext", status);
  for (int i = 0; i < tables->code_count; i++) {
    int found = build_program(device, i, cache);
    if (found) return found;
  }
  for (int i = 0; i < tables->buffer_count; i++) {
    const Buffer *buffer = &tables->buffers[i];
    if (!buffer->constant || !buffer->size) continue;
    void *from = (void *)(weights + buffer->offset);
    cl_bitfield how = CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR;
    device->constants[i] = clCreateBuffer(device->context, how, buffer->size, from, &status);
    if (status) return failed("clCreateBuffer of weights", status);
  }
  return DEVICE_OK;
}

int edgetune_device_open(const DeviceTables *tables, const unsigned char *weights, const Place *place,
                         Device **device) {
  edgetune_say("%s", "");
  if (!load_driver(place->driver)) return DEVICE_NO_DRIVER;
  cl_object id = find_device(place->number);
  if (!id) return DEVICE_NO_DRIVER;
  Device *made = calloc(1, sizeof *made);
  if (!made) return DEVICE_NO_MEMORY;
  made->tables = tables;
  made->id = id;
  made->programs = calloc((size_t)tables->code_count + 1, sizeof *made->programs);
  made->constants = calloc((size_t)tables->buffer_count + 1, sizeof *made->constants);
  int status = made->programs && made->constants ? fill_device(made, weights, place->cache) : DEVICE_NO_MEMORY;
  if (status)
    edgetune_device_close(made);
  else
    *device = made;
  return status;
}

void edgetune_device_close(Device *device) {
  if (!device) return;
  for (int i = 0; device->constants && i < device->tables->buffer_count; i++)
    if (device->constants[i]) clReleaseMemObject(device->constants[i]);
  for (int i = 0; device->programs && i < device->tables->code_count; i++)
    if (device->programs[i]) clReleaseProgram(device->programs[i]);
  if (device->context) clReleaseContext(device->context);
  free(device->constants);
  free(device->programs);
  free(device);
}

/* ---- Sessions ---- */

static int most_queues(const Session *session) {
  int most = session->device->tables->most_groups;
  return most > 1 ? most : 1;
}

static int make_buffers(Session *session) {
  const DeviceTables *tables = session->device->tables;
  cl_int status = 0;
  for (int i = 0; i < tables->buffer_count; i++) {
    const Buffer *buffer = &tables->buffers[i];
    session->buffers[i] = session->device->constants[i];
    if (buffer->constant) continue;
    session->buffers[i] = clCreateBuffer(session->device->context, CL_MEM_READ_WRITE, buffer->size, 0, &status);
    if (status) return failed("clCreateBuffer", status);
  }
  return DEVICE_OK;
}

/* Make the kernel of a launch, which keeps its arguments. */
static int make_kernel(Session *session, int i) {
  const DeviceTables *tables = session->device->tables;
  const Launch *launch = &tables->launches[i];
  cl_int status = 0;
  cl_object kernel = clCreateKernel(session->device->programs[launch->code], launch->kernel, &status);
  session->kernels[i] = kernel;
  if (status) return failed(launch->kernel, status);
  for (int a = 0; a < launch->count && !status; a++) {
    const Argument *argument = &tables->arguments[launch->first + a];
    if (argument->buffer < 0)
      status = clSetKernelArg(kernel, (cl_uint)a, argument->bytes, &argument->value);
    else
      status = clSetKernelArg(kernel, (cl_uint)a, sizeof(cl_object), &session->buffers[argument->buffer]);
  }
  if (!status && launch->local_bytes) status = clSetKernelArg(kernel, (cl_uint)launch->count, launch->local_bytes, 0);
  return status ? failed("clSetKernelArg", status) : DEVICE_OK;
}

/* Make the first queue, and as many more as there can be and are of use. */
static int make_queues(Session *session) {
  int most = clEnqueueMarkerWithWaitList && clEnqueueBarrierWithWaitList && clReleaseEvent ? most_queues(session) : 1;
  for (cl_int status = 0; session->queue_count < most; session->queue_count++) {
    cl_object made = clCreateCommandQueue(session->device->context, session->device->id, 0, &status);
    if (status) return session->queue_count ? DEVICE_OK : failed("clCreateCommandQueue", status);
    session->queues[session->queue_count].id = made;
  }
  return DEVICE_OK;
}

static int fill_session(Session *session) {
  int status = make_queues(session);
  if (!status) status = make_buffers(session);
  for (int i = 0; !status && i < session->device->tables->launch_count; i++) status = make_kernel(session, i);
  return status;
}

int edgetune_session_open(Device *device, int plain, Session **session) {
  (void)plain; /* OpenCL has nothing else */
  Session *made = calloc(1, sizeof *made);
  if (!made) return DEVICE_NO_MEMORY;
  made->device = device;
  made->buffers = calloc((size_t)device->tables->buffer_count + 1, sizeof *made->buffers);
  made->kernels = calloc((size_t)device->tables->launch_count + 1, sizeof *made->kernels);
  made->queues = calloc((size_t)most_queues(made), sizeof *made->queues);
  made->events = calloc((size_t)most_queues(made), sizeof *made->events);
  int whole = made->buffers && made->kernels && made->queues && made->events;
  int status = whole ? fill_session(made) : DEVICE_NO_MEMORY;
  if (status)
    edgetune_session_close(made);
  else
    *session = made;
  return status;
}

/* Wait until nothing of any queue runs. */
static void finish(const Session *session) {
  for (int i = 0; i < session->queue_count; i++) clFinish(session->queues[i].id);
}

void edgetune_session_close(Session *session) {
  if (!session) return;
  const DeviceTables *tables = session->device->tables;
  finish(session);
  for (int i = 0; session->kernels && i < tables->launch_count; i++)
    if (session->kernels[i]) clReleaseKernel(session->kernels[i]);
  for (int i = 0; session->buffers && i < tables->buffer_count; i++)
    if (session->buffers[i] && !tables->buffers[i].constant) clReleaseMemObject(session->buffers[i]);
  for (int i = 0; i < session->queue_count; i++) clReleaseCommandQueue(session->queues[i].id);
  free(session->events);
  free(session->queues);
  free(session->kernels);
  free(session->buffers);
  free(session);
}

int edgetune_device_computes_here(const Session *session) { return session->device->is_processor; }

static int flush(Queue *queue) {
  queue->unflushed = 0;
  cl_int status = clFlush(queue->id);
  return status ? failed("clFlush", status) : DEVICE_OK;
}

static int launch_group(Session *session, Queue *queue, const Rows *group) {
  const DeviceTables *tables = session->device->tables;
  for (int i = group->first, status; i < group->first + group->count; i++) {
    const Launch *launch = &tables->launches[i];
    size_t items[3];
    for (int axis = 0; axis < 3; axis++) items[axis] = launch->groups[axis] * launch->items[axis];
    cl_int refused = clEnqueueNDRangeKernel(queue->id, session->kernels[i], 3, 0, items, launch->items, 0, 0, 0);
    if (refused) return failed(launch->kernel, refused);
    if (tables->flush_every && ++queue->unflushed >= tables->flush_every && (status = flush(queue))) return status;
  }
  return DEVICE_OK;
}

/* Make the event that all of a queue so far has ended. Other queues may only wait for what is sure to be submitted. */
static int mark(Queue *queue) {
  cl_int status = clEnqueueMarkerWithWaitList(queue->id, 0, 0, &queue->ended);
  return status ? failed("clEnqueueMarkerWithWaitList", status) : flush(queue);
}

/* Let a queue wait for events. */
static int wait_for(const Queue *queue, int count, const cl_object *events) {
  cl_int status = clEnqueueBarrierWithWaitList(queue->id, (cl_uint)count, events, 0);
  return status ? failed("clEnqueueBarrierWithWaitList", status) : DEVICE_OK;
}

/* Run groups of a stage in side queues, behind what is in the first queue so far. */
static int launch_aside(Session *session, int count, const Rows *groups) {
  Queue *queues = session->queues;
  int status = mark(&queues[0]);
  for (int i = 1; !status && i <= count; i++) {
    status = wait_for(&queues[i], 1, &queues[0].ended);
    if (!status) status = launch_group(session, &queues[i], &groups[i - 1]);
    if (!status) status = mark(&queues[i]);
  }
  return status;
}

/* Let the first queue wait for the side queues. */
static int join(Session *session, int count) {
  for (int i = 0; i < count; i++) session->events[i] = session->queues[i + 1].ended;
  return wait_for(&session->queues[0], count, session->events);
}

/* Run groups at the same time. The last is in the first queue, and before it those that there is no side queue for. */
static int launch_stage(Session *session, const Rows *stage) {
  const Rows *groups = session->device->tables->groups + stage->first;
  int aside = (stage->count < session->queue_count ? stage->count : session->queue_count) - 1;
  int status = aside ? launch_aside(session, aside, groups) : DEVICE_OK;
  for (int i = aside; !status && i < stage->count; i++) status = launch_group(session, session->queues, &groups[i]);
  if (!status && aside) status = join(session, aside);
  for (int i = 0; i <= aside; i++) {
    if (session->queues[i].ended) clReleaseEvent(session->queues[i].ended);
    session->queues[i].ended = 0;
  }
  return status;
}

int edgetune_session_launch(Session *session, int span) {
  const DeviceTables *tables = session->device->tables;
  const Rows *stages = &tables->spans[span];
  int status = DEVICE_OK;
  for (int i = stages->first; !status && i < stages->first + stages->count; i++)
    status = launch_stage(session, &tables->stages[i]);
  if (status) finish(session);
  return status;
}

int edgetune_session_write(Session *session, int buffer, const void *from, size_t size, int wait) {
  (void)wait; /* it always does */
  if (!size) return DEVICE_OK;
  cl_int status = clEnqueueWriteBuffer(session->queues->id, session->buffers[buffer], 1, 0, size, from, 0, 0, 0);
  return status ? failed("clEnqueueWriteBuffer", status) : DEVICE_OK;
}

int edgetune_session_read(Session *session, int buffer, void *to, size_t size) {
  if (!size) return DEVICE_OK;
  cl_int status = clEnqueueReadBuffer(session->queues->id, session->buffers[buffer], 1, 0, size, to, 0, 0, 0);
  return status ? failed("clEnqueueReadBuffer", status) : DEVICE_OK;
}
