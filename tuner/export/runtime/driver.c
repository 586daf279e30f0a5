#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "device.h"

static _Thread_local char said[512];

const char *edgetune_device_said(void) { return said; }

void edgetune_say(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(said, sizeof said, format, values);
  va_end(values);
}

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static void *library; /* the driver, or a loader of drivers; it stays open */
static char opened[512];

static int find_functions(void *found, const char *name, const Function *functions) {
  for (; functions->name; functions++) {
    *functions->pointer = dlsym(found, functions->name);
    if (*functions->pointer || functions->optional) continue;
    edgetune_say("%s lacks the function %s", name, functions->name);
    return 0;
  }
  return 1;
}

static int open_library(const char *name, const Function *functions) {
  void *found = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!found) {
    edgetune_say("%s cannot be opened", name);
    return 0;
  }
  if (!find_functions(found, name, functions)) {
    dlclose(found);
    return 0;
  }
  library = found;
  snprintf(opened, sizeof opened, "%s", name);
  return 1;
}

static int load(const char *path, const char *const *libraries, const Function *functions) {
  if (library && (!path || !strcmp(path, opened))) return 1;
  if (library) {
    edgetune_say("%s is open already", opened);
    return 0;
  }
  if (path) return open_library(path, functions);
  for (; *libraries; libraries++)
    if (open_library(*libraries, functions)) return 1;
  return 0;
}

int edgetune_driver_load(const char *path, const char *const *libraries, const Function *functions) {
  pthread_mutex_lock(&loading);
  int found = load(path, libraries, functions);
  pthread_mutex_unlock(&loading);
  return found;
}
