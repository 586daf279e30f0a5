/* OpenCL, as far as an exported network needs it. The driver is opened at run time: nothing is linked. */
#ifndef EDGETUNE_OPENCL_H_
#define EDGETUNE_OPENCL_H_

#include <stddef.h>
#include <stdint.h>

/* The kernels of a function, as text for the driver's compiler. */
typedef struct {
  const char *source, *options;
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
  size_t global[3], local[3];
  size_t local_bytes; /* of a group, beyond what the kernel declares: the last argument then */
  int first, count;   /* of its arguments */
} Launch;

/* What a network has for the device. */
typedef struct {
  const Code *codes;
  int code_count;
  const Buffer *buffers;
  int buffer_count;
  const Argument *arguments;
  const Launch *launches;
  int launch_count;
  int flush_every; /* launches; 0 leaves it to the driver */
} DeviceTables;

enum { DEVICE_OK, DEVICE_NO_DRIVER, DEVICE_NOT_COMPILED, DEVICE_NO_MEMORY, DEVICE_FAILED };

typedef struct Device Device;   /* opened, with the programs and constants of a network */
typedef struct Session Session; /* a queue with buffers and kernels of its own */

/* Which device: the `number`-th, GPUs first, of the `driver` of that path (NULL: the system's). `cache` is a folder for
 * compiled programs, or NULL. */
typedef struct {
  int number;
  const char *driver, *cache;
} Place;

/* Open a device, compile the programs and copy the constants there. What the driver said of an error is kept:
 * edgetune_device_said. */
int edgetune_device_open(const DeviceTables *tables, const unsigned char *weights, const Place *place, Device **device);
void edgetune_device_close(Device *device);
const char *edgetune_device_said(void);

int edgetune_session_open(Device *device, Session **session);
void edgetune_session_close(Session *session);

/* Whether the device is a processor: its driver computes on the cores of this machine. */
int edgetune_device_computes_here(const Session *session);

/* Queue launches from `first` on. */
int edgetune_session_launch(Session *session, int first, int count);
int edgetune_session_write(Session *session, int buffer, const void *from, size_t size);
int edgetune_session_read(Session *session, int buffer, void *to, size_t size);

#endif
