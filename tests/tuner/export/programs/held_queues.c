/* Stands between an export and an OpenCL driver (REAL, a path). It notes in which queue what is put, holds up queues so
 * that a forgotten wait is seen, and makes no more queues than it is told to.
 *
 * HELD_QUEUES="MOST,WHICH": how many queues there can be; what is launched in the first queue (WHICH is 0) or in the others
 * (1) waits until somebody reads. The queues of all contexts are counted together. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef void *object;

enum { MOST = 64, OUT_OF_RESOURCES = -5 };

static object queues[MOST], held;
static int queue_count;
static char notes[1 << 16];
static size_t noted;

static void *real(const char *name) {
  static void *driver;
  if (!driver) driver = dlopen(REAL, RTLD_NOW | RTLD_LOCAL);
  void *found = driver ? dlsym(driver, name) : 0;
  if (!found) abort();
  return found;
}

#define REAL_ONE(name) ((__typeof__(&name))real(#name))

static int option(int which) {
  int values[2] = {MOST, 1};
  const char *given = getenv("HELD_QUEUES");
  if (given) sscanf(given, "%d,%d", &values[0], &values[1]);
  return values[which];
}

static int number(object queue) {
  int i = 0;
  while (i < queue_count && queues[i] != queue) i++;
  return i;
}

static void note(char what, object queue) {
  noted += (size_t)snprintf(notes + noted, sizeof notes - noted, "%c%d ", what, number(queue));
}

/* What was put where since the last call: launches, marks and waits (l, m, w), each with the number of the queue. */
const char *held_notes(void) {
  static char told[sizeof notes];
  snprintf(told, sizeof told, "%s", notes);
  noted = 0;
  notes[0] = 0;
  return told;
}

object clCreateCommandQueue(object context, object device, uint64_t how, cl_int *status) {
  if (queue_count >= option(0)) {
    *status = OUT_OF_RESOURCES;
    return 0;
  }
  object made = REAL_ONE(clCreateCommandQueue)(context, device, how, status);
  if (made && queue_count < MOST) queues[queue_count++] = made;
  return made;
}

cl_int clReleaseCommandQueue(object queue) {
  queues[number(queue)] = queues[--queue_count];
  return REAL_ONE(clReleaseCommandQueue)(queue);
}

cl_int clEnqueueBarrierWithWaitList(object queue, cl_uint count, const object *events, object *event) {
  note('w', queue);
  return REAL_ONE(clEnqueueBarrierWithWaitList)(queue, count, events, event);
}

cl_int clEnqueueMarkerWithWaitList(object queue, cl_uint count, const object *events, object *event) {
  note('m', queue);
  return REAL_ONE(clEnqueueMarkerWithWaitList)(queue, count, events, event);
}

object clCreateUserEvent(object context, cl_int *status);
cl_int clSetUserEventStatus(object event, cl_int status);
cl_int clGetCommandQueueInfo(object queue, cl_uint what, size_t size, void *value, size_t *wanted);
cl_int clReleaseEvent(object event);

/* Let what comes next in a queue wait until somebody reads. */
static cl_int hold(object queue) {
  enum { CL_QUEUE_CONTEXT = 0x1090 };
  object context = 0;
  cl_int status = 0;
  if (!held) {
    status = REAL_ONE(clGetCommandQueueInfo)(queue, CL_QUEUE_CONTEXT, sizeof context, &context, 0);
    if (!status) held = REAL_ONE(clCreateUserEvent)(context, &status);
  }
  return status ? status : REAL_ONE(clEnqueueBarrierWithWaitList)(queue, 1, &held, 0);
}

cl_int clEnqueueNDRangeKernel(object queue, object kernel, cl_uint axes, const size_t *begin, const size_t *items,
                              const size_t *group, cl_uint count, const object *events, object *event) {
  note('l', queue);
  cl_int status = (number(queue) > 0) == option(1) ? hold(queue) : 0;
  if (status) return status;
  return REAL_ONE(clEnqueueNDRangeKernel)(queue, kernel, axes, begin, items, group, count, events, event);
}

cl_int clEnqueueReadBuffer(object queue, object buffer, cl_uint wait, size_t begin, size_t size, void *to,
                           cl_uint count, const object *events, object *event) {
  if (held && (REAL_ONE(clSetUserEventStatus)(held, 0) || REAL_ONE(clReleaseEvent)(held))) abort();
  held = 0;
  return REAL_ONE(clEnqueueReadBuffer)(queue, buffer, wait, begin, size, to, count, events, event);
}
