/* Runs a model with onnxruntime by its C interface and times it, as an export's example.c does.
 *
 *   ./onnxruntime MODEL.onnx THREADS RUNS OUTPUTS NAME ... [NAME TYPE DIMENSIONS FILE] ...
 *
 * OUTPUTS names follow, then the inputs. TYPE is the number of an element type in ONNX, DIMENSIONS are written as
 * 1x3x224x224, and FILE holds the raw values. onnxruntime's wheel has the library and no header, so the few functions
 * that are called here stand below at their places in its table of functions, which never change. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST = 16 };
enum { MESSAGE = 2, ENVIRONMENT = 3, SESSION = 7, RUN = 9, OPTIONS = 10, THREADS = 24, TENSOR = 49, MEMORY = 69 };
enum { WARNING = 2, DEVICE_ALLOCATOR = 0, DEFAULT_MEMORY = 0 };

typedef struct {
  const void *(*table)(uint32_t version);
  const char *(*version)(void);
} Base;
extern const Base *OrtGetApiBase(void);

static void *const *functions;

static void check(void *status) {
  if (!status) return;
  fprintf(stderr, "onnxruntime: %s\n", ((const char *(*)(const void *))functions[MESSAGE])(status));
  exit(2);
}

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static double peak_memory(void) {
  char line[256];
  long kilobytes = 0;
  FILE *status = fopen("/proc/self/status", "r");
  while (status && fgets(line, sizeof line, status))
    if (sscanf(line, "VmHWM: %ld", &kilobytes) == 1) break;
  if (status) fclose(status);
  return (double)kilobytes / 1024;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Return a file's content and its size. */
static void *content(const char *path, size_t *size) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) {
    perror(path);
    exit(2);
  }
  *size = (size_t)ftell(file);
  rewind(file);
  void *made = malloc(*size + 1);
  if (!made || fread(made, 1, *size, file) != *size) {
    perror(path);
    exit(2);
  }
  fclose(file);
  return made;
}

/* Return a tensor over the values of an input, which `argument` describes from its type on. */
static void *tensor(char **argument, const void *memory) {
  int64_t dimensions[MOST];
  size_t rank = 0, size;
  char *rest = argument[1];
  while (*rest && rank < MOST) {
    dimensions[rank++] = strtoll(rest, &rest, 10);
    rest += *rest == 'x';
  }
  void *values = content(argument[2], &size), *made = 0;
  typedef void *Make(const void *, void *, size_t, const int64_t *, size_t, int, void **);
  check(((Make *)functions[TENSOR])(memory, values, size, dimensions, rank, atoi(argument[0]), &made));
  return made;
}

int main(int argc, char **argv) {
  double start = now(), first = 0;
  if (argc < 6) return 2;
  int runs = atoi(argv[3]), outputs = atoi(argv[4]), inputs = (argc - 5 - outputs) / 4;
  if (runs < 1 || outputs < 1 || outputs > MOST || inputs > MOST) return 2;
  functions = OrtGetApiBase()->table(1);
  void *environment = 0, *options = 0, *session = 0, *memory = 0;
  check(((void *(*)(int, const char *, void **))functions[ENVIRONMENT])(WARNING, "deploy", &environment));
  check(((void *(*)(void **))functions[OPTIONS])(&options));
  check(((void *(*)(void *, int))functions[THREADS])(options, atoi(argv[2])));
  typedef void *Open(const void *, const char *, const void *, void **);
  check(((Open *)functions[SESSION])(environment, argv[1], options, &session));
  check(((void *(*)(int, int, void **))functions[MEMORY])(DEVICE_ALLOCATOR, DEFAULT_MEMORY, &memory));
  const char *names[MOST];
  const void *values[MOST];
  for (int i = 0; i < inputs; i++) {
    char **argument = argv + 5 + outputs + 4 * i;
    names[i] = argument[0];
    values[i] = tensor(argument + 1, memory);
  }
  double *seconds = calloc((size_t)runs, sizeof *seconds);
  if (!seconds) return 2;
  for (int i = 0; i < runs; i++) {
    void *results[MOST] = {0};
    double begin = now();
    typedef void *Run(void *, const void *, const char *const *, const void *const *, size_t, const char *const *, size_t,
                      void **);
    check(((Run *)functions[RUN])(session, 0, names, values, (size_t)inputs, (const char *const *)argv + 5,
                                  (size_t)outputs, results));
    seconds[i] = now() - begin;
    if (!i) first = now() - start;
  }
  qsort(seconds, (size_t)runs, sizeof *seconds, compare);
  printf("first result after %.3f ms, median of %d runs %.3f ms\n", first * 1e3, runs, seconds[runs / 2] * 1e3);
  printf("peak memory %.1f MiB\n", peak_memory());
  return 0;
}
