/* Counts the allocations of runs: there are none, the first run included, on any thread. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tiny.h"

static _Atomic int counting, counted;

static void *next(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) abort();
  return found;
}

#define COUNT() (void)(counting && counted++)

void *malloc(size_t size) {
  static void *(*real)(size_t);
  if (!real) *(void **)&real = next("malloc");
  COUNT();
  return real(size);
}

void *realloc(void *old, size_t size) {
  static void *(*real)(void *, size_t);
  if (!real) *(void **)&real = next("realloc");
  COUNT();
  return real(old, size);
}

void *aligned_alloc(size_t alignment, size_t size) {
  static void *(*real)(size_t, size_t);
  if (!real) *(void **)&real = next("aligned_alloc");
  COUNT();
  return real(alignment, size);
}

void *mmap(void *at, size_t size, int protection, int flags, int file, off_t offset) {
  static void *(*real)(void *, size_t, int, int, int, off_t);
  if (!real) *(void **)&real = next("mmap");
  COUNT();
  return real(at, size, protection, flags, file, offset);
}

int main(int argc, char **argv) {
  static _Alignas(64) unsigned char in[1 << 16], out[1 << 16];
  const void *inputs[] = {in, 0};
  void *outputs[] = {out, 0};
  tiny_weights *weights;
  if (argc != 2 || tiny_inputs[0].bytes > sizeof in || tiny_outputs[0].bytes > sizeof out) return 2;
  if (tiny_weights_open(argv[1], TINY_OWN, &weights)) return 3;
  for (int threads = 1; threads <= 4; threads++) {
    tiny_options options = {.threads = threads, .anywhere = 1};
    tiny_context *context;
    counting = 1;
    if (tiny_create(weights, &options, &context)) return 4;
    if (!counted) return 5; /* creating allocates: the counter works */
    counted = 0;
    for (int i = 0; i < 20; i++)
      if (tiny_run(context, inputs, outputs)) return 6;
    counting = 0;
    if (counted) printf("%d allocations with %d threads\n", counted, threads);
    if (counted) return 7;
    tiny_destroy(context);
  }
  tiny_weights_close(weights);
  return 0;
}
