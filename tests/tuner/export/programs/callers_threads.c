/* Runs the network on the caller's own threads, in the caller's own arena, on weights that the caller holds: the result
 * is the usual one. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

#define THREADS 3

typedef struct {
  int (*task)(void *, int);
  void *closure;
  int index, status;
} Work;

static int loops, seen[THREADS];

static void *work(void *argument) {
  Work *mine = argument;
  mine->status = mine->task(mine->closure, mine->index);
  return 0;
}

static int parallel(void *user, int tasks, int (*task)(void *, int), void *closure) {
  pthread_t threads[THREADS];
  Work works[THREADS];
  if (user != &loops || tasks != THREADS) return 1;
  loops++;
  for (int i = 0; i < tasks; i++) {
    works[i] = (Work){task, closure, i, 0};
    seen[i]++;
    if (pthread_create(&threads[i], 0, work, &works[i])) return 1;
  }
  int status = 0;
  for (int i = 0; i < tasks; i++) {
    pthread_join(threads[i], 0);
    if (works[i].status) status = works[i].status;
  }
  return status;
}

static void *whole_file(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) return 0;
  *size = (size_t)ftell(file);
  rewind(file);
  void *made = aligned_alloc(64, (*size + 63) / 64 * 64);
  size_t got = fread(made, 1, *size, file);
  fclose(file);
  return got == *size ? made : 0;
}

int main(int argc, char **argv) {
  static _Alignas(64) float in[1 << 14], usual[1 << 14], own[1 << 14];
  const void *inputs[] = {in};
  void *outputs[] = {usual}, *owns[] = {own};
  size_t size;
  tiny_weights *weights;
  tiny_context *context, *other;
  if (argc != 2) return 2;
  void *bytes = whole_file(argv[1], &size);
  if (!bytes || tiny_weights_use(bytes, size, &weights) || tiny_weights_check(weights)) return 3;
  for (size_t i = 0; i < tiny_inputs[0].bytes / sizeof *in; i++) in[i] = (float)(i % 17) - 8;
  if (tiny_create(weights, 0, &context) || tiny_run(context, inputs, outputs)) return 4;
  tiny_options options = {.threads = THREADS, .parallel = parallel, .user = &loops};
  options.arena_bytes = tiny_arena_bytes(THREADS);
  options.arena = aligned_alloc(64, options.arena_bytes);
  if (tiny_create(weights, &options, &other)) return 5;
  for (int i = 0; i < 5; i++) {
    memset(own, 0, sizeof own);
    if (tiny_run(other, inputs, owns)) return 6;
    if (memcmp(own, usual, tiny_outputs[0].bytes)) return 7;
  }
  if (!loops || !seen[THREADS - 1]) return 8;
  tiny_destroy(other);
  tiny_destroy(context);
  tiny_weights_close(weights);
  free(options.arena);
  free(bytes);
  return 0;
}
