/* Opens the library of a device's driver at run time, so that nothing has to be linked, and keeps what is said of
 * errors. */
#ifndef EDGETUNE_DRIVER_H_
#define EDGETUNE_DRIVER_H_

/* A function of the driver, and the pointer that it is called by. Without an `optional` one the pointer is null. */
typedef struct {
  const char *name;
  void **pointer;
  int optional;
} Function;

/* Keep a line on an error for the calling thread: edgetune_device_said. */
__attribute__((format(printf, 1, 2))) void edgetune_say(const char *format, ...);

/* Open the driver of a path, or else the first of some libraries (the list ends with NULL), and find its functions (the
 * list ends with a null name). A process has one driver. Return 0 and say why if that fails. */
int edgetune_driver_load(const char *path, const char *const *libraries, const Function *functions);

#endif
