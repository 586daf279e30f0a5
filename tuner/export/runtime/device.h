/* A device beside the host, as far as an exported network needs one. A library has one kind: opencl.c or cuda.c. */
#ifndef EDGETUNE_DEVICE_H_
#define EDGETUNE_DEVICE_H_

#include <stddef.h>
#include <stdint.h>

/* The kernels of a function. OpenCL: text for the driver's compiler, which ends with a null byte, and its options.
 * CUDA: machine code, and the architecture that it is for ("sm_87"). */
typedef struct {
  const void *content;
  size_t size;
  const char *options;
} Code;

/* A buffer of the device, of `size` bytes. A constant has the bytes of the weights from `offset` on. */
typedef struct {
  size_t offset, size;
  int constant;
} Buffer;

/* An argument of a kernel: a buffer, or (if that is -1) the first `bytes` bytes of a number. */
typedef struct {
  int32_t buffer;
  uint32_t bytes;
  uint64_t value;
} Argument;

typedef struct {
  int code; /* whose kernel it is */
  const char *kernel;
  size_t groups[3], items[3]; /* how many groups there are, and the items of one */
  size_t local_bytes;         /* of a group, beyond what the kernel declares */
  int first, count;           /* of its arguments */
} Launch;

/* Rows of a table that follow each other. */
typedef struct {
  int first, count;
} Rows;

/* What a network has for the device. */
typedef struct {
  const Code *codes;
  int code_count;
  const Buffer *buffers;
  int buffer_count;
  const Argument *arguments;
  int argument_count;
  const Launch *launches;
  int launch_count;
  const Rows *groups; /* launches, one after the other */
  const Rows *stages; /* groups that run at the same time */
  int most_groups;    /* of a stage */
  const Rows *spans;  /* stages, one after the other, with nothing of the host between them */
  int span_count;
  int flush_every; /* launches; 0 leaves it to the driver */
} DeviceTables;

enum { DEVICE_OK, DEVICE_NO_DRIVER, DEVICE_NOT_COMPILED, DEVICE_NO_MEMORY, DEVICE_FAILED };

typedef struct Device Device;   /* opened, with the kernels and constants of a network */
typedef struct Session Session; /* queues with buffers of their own */

/* Which device: the `number`-th of the `driver` of that path (NULL: the system's). OpenCL counts GPUs first. `cache` is
 * a folder for what the driver compiles, or NULL. */
typedef struct {
  int number;
  const char *driver, *cache;
} Place;

/* Open a device, load the kernels and copy the constants there. What the driver said of an error is kept:
 * edgetune_device_said. */
int edgetune_device_open(const DeviceTables *tables, const unsigned char *weights, const Place *place, Device **device);
void edgetune_device_close(Device *device);
const char *edgetune_device_said(void);

/* Open a session. It has as many queues as the driver makes, up to the most groups of a stage. Where there are fewer, some
 * groups run one after the other. CUDA makes a graph of every span, unless launches are to be `plain`. */
int edgetune_session_open(Device *device, int plain, Session **session);
void edgetune_session_close(Session *session);

/* Whether the device is a processor: its driver computes on the cores of this machine. */
int edgetune_device_computes_here(const Session *session);

/* Queue the launches of a span. After an error nothing of it runs any more. */
int edgetune_session_launch(Session *session, int span);

/* Copy to a buffer, after everything that is queued. With `wait` the host's memory may be changed on return, without it
 * only after a read. */
int edgetune_session_write(Session *session, int buffer, const void *from, size_t size, int wait);

/* Copy from a buffer, and return when everything that was queued is done. */
int edgetune_session_read(Session *session, int buffer, void *to, size_t size);

#endif
