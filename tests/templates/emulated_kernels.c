/* Calls the kernels of the table `kernels`, one after the other, with operands that are read from standard input, and
 * writes their results to standard output. tests/templates/emulated.py writes the table and the operands. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "network.h"

extern const Kernel kernels[];
extern const int kernel_count;

typedef struct {
  void *sync;
  int32_t tasks;
} Group;

typedef int (*Lambda)(int part, Group *group, void *data);

static int launch(Lambda lambda, void *data, int tasks) {
  (void)tasks;
  Group group = {0, 1};
  return lambda(0, &group, data);
}

static void *take(int device_type, int device, uint64_t size, int code, int bits) {
  (void)device_type, (void)device, (void)code, (void)bits;
  return aligned_alloc(64, (size + 63) / 64 * 64);
}

static int give(int device_type, int device, void *taken) {
  (void)device_type, (void)device;
  free(taken);
  return 0;
}

int (*__TVMBackendParallelLaunch)(Lambda, void *, int) = launch;
void *(*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = take;
int (*__TVMBackendFreeWorkspace)(int, int, void *) = give;

enum { MOST = 16, FENCE = 4096 };

static void get(void *to, size_t size) {
  if (fread(to, 1, size, stdin) != size) exit(4);
}

int main(void) {
  for (int i = 0; i < kernel_count; i++) {
    int32_t count;
    get(&count, sizeof count);
    if (count > MOST) return 5;
    Tensor tensors[MOST];
    Any operands[MOST], result = {0};
    int64_t shapes[MOST][8], bytes[MOST];
    for (int k = 0; k < count; k++) {
      int32_t head[3]; /* type code, bits, rank */
      get(head, sizeof head);
      get(shapes[k], head[2] * sizeof shapes[k][0]);
      get(&bytes[k], sizeof bytes[k]);
      char *data = aligned_alloc(64, (bytes[k] + 2 * FENCE + 63) / 64 * 64);
      for (int b = 0; b < FENCE; b++) data[b] = data[FENCE + bytes[k] + b] = (char)0xff; /* no numbers */
      get(data + FENCE, bytes[k]);
      tensors[k] = (Tensor){data + FENCE, DEVICE_CPU, 0, head[2], {head[0], head[1], 1}, shapes[k], 0, 0};
      operands[k] = (Any){ANY_TENSOR, 0, {.pointer = &tensors[k]}};
    }
    if (kernels[i](0, operands, count, &result)) return 6;
    const unsigned char *out = tensors[count - 1].data;
    for (int b = 1; b <= FENCE; b++)
      if (out[-b] != 0xff || out[bytes[count - 1] + b - 1] != 0xff) return 7; /* written outside of the result */
    fwrite(out, 1, bytes[count - 1], stdout);
    for (int k = 0; k < count; k++) free((char *)tensors[k].data - FENCE);
  }
  return 0;
}
