/* Misuses the interface in every way that has a status: each time the status is the right one, and nothing crashes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tiny.h"

static int failures;

static void expect(int line, int status, int wanted) {
  if (status == wanted) return;
  failures++;
  printf("line %d: %d (%s), not %d\n", line, status, tiny_text(status), wanted);
}
#define EXPECT(status, wanted) expect(__LINE__, status, TINY_##wanted)

static size_t size;
static unsigned char *bytes;

/* Write the first `length` bytes to a new file, and return its path. */
static const char *file_of(size_t length) {
  static char path[64];
  strcpy(path, "/tmp/edgetune-weights-XXXXXX");
  int file = mkstemp(path);
  if (file < 0 || write(file, bytes, length) != (ssize_t)length || close(file)) exit(9);
  return path;
}

static void check_files(const char *good) {
  tiny_weights *weights;
  EXPECT(tiny_weights_open(0, TINY_OWN, &weights), BAD_ARGUMENT);
  EXPECT(tiny_weights_open(good, 7, &weights), BAD_ARGUMENT);
  EXPECT(tiny_weights_open(good, TINY_OWN, 0), BAD_ARGUMENT);
  EXPECT(tiny_weights_open("/nonexistent/file", TINY_OWN, &weights), NO_FILE);
  EXPECT(tiny_weights_open("/tmp", TINY_OWN, &weights), NO_FILE);
  for (int how = TINY_OWN; how <= TINY_SHARED; how++) {
    const size_t lengths[] = {0, 1, 63, 64, size - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
      const char *path = file_of(lengths[i]);
      EXPECT(tiny_weights_open(path, how, &weights), TRUNCATED);
      unlink(path);
    }
  }
}

static void check_memory(void) {
  tiny_weights *weights;
  EXPECT(tiny_weights_use(0, size, &weights), BAD_ARGUMENT);
  EXPECT(tiny_weights_use(bytes + 1, size - 1, &weights), BAD_ARGUMENT);
  EXPECT(tiny_weights_use(bytes, 10, &weights), TRUNCATED);
  EXPECT(tiny_weights_use(bytes, size - 1, &weights), TRUNCATED);
  bytes[0] ^= 1;
  EXPECT(tiny_weights_use(bytes, size, &weights), FOREIGN);
  bytes[0] ^= 1;
  bytes[30] ^= 1; /* of the identity */
  EXPECT(tiny_weights_use(bytes, size, &weights), FOREIGN);
  bytes[30] ^= 1;
  bytes[17] ^= 1; /* of the size */
  EXPECT(tiny_weights_use(bytes, size, &weights), FOREIGN);
  bytes[17] ^= 1;
  EXPECT(tiny_weights_use(bytes, size, &weights), OK);
  EXPECT(tiny_weights_check(weights), OK);
  bytes[size - 100] ^= 4;
  EXPECT(tiny_weights_check(weights), DAMAGED);
  bytes[size - 100] ^= 4;
  EXPECT(tiny_weights_check(0), BAD_ARGUMENT);
  tiny_weights_close(weights);
  tiny_weights_close(0);
}

static void check_contexts(const char *good) {
  static _Alignas(64) unsigned char in[1 << 16], out[1 << 16];
  const void *inputs[] = {in}, *none[] = {0};
  void *outputs[] = {out}, *nowhere[] = {0};
  tiny_weights *weights;
  tiny_context *context;
  EXPECT(tiny_weights_open(good, TINY_OWN, &weights), OK);
  EXPECT(tiny_create(0, 0, &context), BAD_ARGUMENT);
  EXPECT(tiny_create(weights, 0, 0), BAD_ARGUMENT);
  tiny_options options = {.threads = -1};
  EXPECT(tiny_create(weights, &options, &context), BAD_ARGUMENT);
  options.threads = 100000;
  EXPECT(tiny_create(weights, &options, &context), BAD_ARGUMENT);
  if (tiny_arena_bytes(-1) || tiny_arena_bytes(100000) || !tiny_arena_bytes(0)) failures++;
  options.threads = 2;
  options.arena_bytes = tiny_arena_bytes(2);
  unsigned char *arena = aligned_alloc(64, options.arena_bytes + 64);
  options.arena = arena + 4;
  EXPECT(tiny_create(weights, &options, &context), BAD_ARENA);
  options.arena = arena;
  options.arena_bytes--;
  EXPECT(tiny_create(weights, &options, &context), BAD_ARENA);
  options.arena_bytes++;
  EXPECT(tiny_create(weights, &options, &context), OK);
  EXPECT(tiny_run(0, inputs, outputs), BAD_ARGUMENT);
  EXPECT(tiny_run(context, 0, outputs), BAD_ARGUMENT);
  EXPECT(tiny_run(context, inputs, 0), BAD_ARGUMENT);
  EXPECT(tiny_run(context, none, outputs), BAD_ARGUMENT);
  EXPECT(tiny_run(context, inputs, nowhere), BAD_ARGUMENT);
  EXPECT(tiny_run(context, inputs, outputs), OK);
  if (tiny_entries(context, -1) != -1 || tiny_entries(context, 1) != -1 || tiny_entries(0, 0) != -1) failures++;
  tiny_destroy(context);
  tiny_destroy(0);
  tiny_weights_close(weights);
  free(arena);
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  FILE *file = fopen(argv[1], "rb");
  if (!file || fseek(file, 0, SEEK_END)) return 3;
  size = (size_t)ftell(file);
  rewind(file);
  bytes = aligned_alloc(64, (size + 63) / 64 * 64);
  if (fread(bytes, 1, size, file) != size) return 3;
  fclose(file);
  check_files(argv[1]);
  check_memory();
  check_contexts(argv[1]);
  for (int status = TINY_OK; status <= TINY_DEVICE_FAILED; status++)
    if (!strcmp(tiny_text(status), tiny_text(-1))) failures++;
  free(bytes);
  return failures ? 1 : 0;
}
