/* Stands for the processor, the threads and the memory of a system that has one thread and maps nothing: WebAssembly
 * with WASI. It takes the place of processor.c, pages.c and pool.c. */
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

#include "pages.h"
#include "pool.h"
#include "processor.h"

/* ---- The processor ---- */

/* An engine refuses a module with instructions that it lacks before anything runs. */
const char *edgetune_lacks(const char *const *needed, int count) {
  (void)needed, (void)count;
  return 0;
}

int edgetune_cores(int *cpus, int most) {
  if (cpus && most > 0) cpus[0] = 0;
  return 1;
}

/* ---- Memory ---- */

int edgetune_pages_get(Pages *pages, size_t size) {
  if (size > SIZE_MAX - ALIGNMENT) return 0;
  pages->length = size + ALIGNMENT;
  pages->mapped = calloc(1, pages->length);
  if (!pages->mapped) return 0;
  pages->begin = (unsigned char *)(((uintptr_t)pages->mapped + ALIGNMENT - 1) & ~(uintptr_t)(ALIGNMENT - 1));
  return 1;
}

int edgetune_pages_map(Pages *pages, int file, size_t size) {
  if (!edgetune_pages_get(pages, size)) return 0;
  for (size_t at = 0; at < size;) {
    ssize_t got = pread(file, pages->begin + at, size - at, (off_t)at);
    if (got <= 0) {
      edgetune_pages_free(pages);
      return 0;
    }
    at += (size_t)got;
  }
  return 1;
}

void edgetune_pages_free(const Pages *pages) { free(pages->mapped); }

/* ---- Threads ---- */

int edgetune_launch(Lambda function, void *argument, int tasks) {
  Group one = {0, 1};
  (void)tasks;
  return function(0, &one, argument);
}

void edgetune_together(int groups, const int *work, void (*function)(int group, void *argument), void *argument) {
  (void)work;
  for (int group = 0; group < groups; group++) function(group, argument);
}

int edgetune_threads(int count) {
  (void)count;
  return 1;
}

void edgetune_enter(int count, int cpu) { (void)count, (void)cpu; }
void edgetune_leave(void) {}
void edgetune_keep(const int *cpus, int count) { (void)cpus, (void)count; }
void edgetune_spin(int active) { (void)active; }
int edgetune_number(void) { return 0; }
