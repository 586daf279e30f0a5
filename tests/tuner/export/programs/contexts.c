/* Runs eight threads at a time on one set of weights, each with a context of its own, some of them on the pool: all
 * results are the same. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

#define CONTEXTS 8
#define RUNS 30

static tiny_weights *weights;
static _Alignas(64) float in[1 << 14], wanted[1 << 14];
static _Alignas(64) float made[CONTEXTS][1 << 14];

static void *run(void *argument) {
  float *out = argument;
  const void *inputs[] = {in};
  void *outputs[] = {out};
  tiny_options options = {.threads = 2, .anywhere = 1};
  tiny_context *context;
  if (tiny_create(weights, &options, &context)) return argument;
  void *failed = 0;
  for (int i = 0; i < RUNS && !failed; i++)
    if (tiny_run(context, inputs, outputs) || memcmp(out, wanted, tiny_outputs[0].bytes)) failed = argument;
  tiny_destroy(context);
  return failed;
}

int main(int argc, char **argv) {
  pthread_t threads[CONTEXTS];
  const void *inputs[] = {in};
  void *outputs[] = {wanted};
  tiny_context *context;
  int status = 0;
  if (argc != 2 || tiny_weights_open(argv[1], TINY_SHARED, &weights)) return 2;
  for (size_t i = 0; i < tiny_inputs[0].bytes / sizeof *in; i++) in[i] = (float)(i % 17) - 8;
  if (tiny_create(weights, 0, &context) || tiny_run(context, inputs, outputs)) return 3;
  for (int i = 0; i < CONTEXTS; i++)
    if (pthread_create(&threads[i], 0, run, made[i])) return 4;
  for (int i = 0; i < CONTEXTS; i++) {
    void *failed;
    pthread_join(threads[i], &failed);
    if (failed) status = 5;
  }
  tiny_destroy(context);
  tiny_weights_close(weights);
  return status;
}
