/* Asks the processor for its instruction sets, and the system for the cores. */
#define _GNU_SOURCE
#include "processor.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#if defined(__x86_64__)
#include <cpuid.h>

enum { EBX, ECX, EDX, EAX };
typedef struct {
  const char *name;
  unsigned leaf, sub;
  int word, bit;
  unsigned state; /* registers that the system has to save, as in XCR0 */
} Feature;

#define YMM 0x6u
#define ZMM 0xe6u
static const Feature known[] = {
    {"sse4.1", 1, 0, ECX, 19, 0},        {"sse4.2", 1, 0, ECX, 20, 0},        {"avx", 1, 0, ECX, 28, YMM},
    {"f16c", 1, 0, ECX, 29, YMM},        {"fma", 1, 0, ECX, 12, YMM},         {"avx2", 7, 0, EBX, 5, YMM},
    {"bmi", 7, 0, EBX, 3, 0},            {"bmi2", 7, 0, EBX, 8, 0},           {"avx512f", 7, 0, EBX, 16, ZMM},
    {"avx512dq", 7, 0, EBX, 17, ZMM},    {"avx512cd", 7, 0, EBX, 28, ZMM},    {"avx512bw", 7, 0, EBX, 30, ZMM},
    {"avx512vl", 7, 0, EBX, 31, ZMM},    {"avx512vnni", 7, 0, ECX, 11, ZMM},  {"avx512bf16", 7, 1, EAX, 5, ZMM},
    {"avxvnni", 7, 1, EAX, 4, YMM},
    {"xop", 0x80000001u, 0, ECX, 11, YMM},
};

static unsigned saved_state(void) {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return a;
}

static int has(const Feature *feature) {
  unsigned words[4];
  if (!__get_cpuid_count(feature->leaf, feature->sub, &words[EAX], &words[EBX], &words[ECX], &words[EDX])) return 0;
  return (words[feature->word] >> feature->bit & 1) && (saved_state() & feature->state) == feature->state;
}

#elif defined(__aarch64__) || defined(__arm__)
#include <sys/auxv.h>

typedef struct {
  const char *name;
  unsigned long vector;
  int bit;
} Feature;

static const Feature known[] = {
#if defined(__aarch64__)
    {"neon", AT_HWCAP, 1}, {"fullfp16", AT_HWCAP, 10}, {"dotprod", AT_HWCAP, 20},
    {"sve", AT_HWCAP, 22}, {"sve2", AT_HWCAP2, 1},   {"i8mm", AT_HWCAP2, 13},
    {"bf16", AT_HWCAP2, 14},
#else
    {"neon", AT_HWCAP, 12},
#endif
};

static int has(const Feature *feature) { return getauxval(feature->vector) >> feature->bit & 1; }

#elif defined(__riscv)
#include <sys/auxv.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct {
  const char *name;
} Feature;

static const Feature known[] = {{"zve64d"}};

/* Whether vectors can be computed with. Kernels before Linux 6.5, and some emulators, do not say it, so that a process
 * of its own tries. */
static int has(const Feature *feature) {
  int status = 0;
  if (getauxval(AT_HWCAP) >> ('v' - 'a') & 1) return feature != 0;
  pid_t child = fork();
  if (!child) {
    __asm__ volatile(".4byte 0xcd00f057"); /* vsetivli zero, 1, e32, m1, ta, ma */
    _exit(0);
  }
  return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status);
}

#else
typedef struct {
  const char *name;
} Feature;

static const Feature known[] = {{""}};

static int has(const Feature *feature) { return feature != 0; }
#endif

const char *edgetune_lacks(const char *const *needed, int count) {
  for (int i = 0; i < count; i++)
    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
      if (needed[i] && !strcmp(needed[i], known[k].name) && !has(&known[k])) return needed[i];
  return 0;
}

/* Read a number from a file of a core in /sys, or return `otherwise`. */
static long about_core(int cpu, const char *file, long otherwise) {
  char path[96];
  long value;
  snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, file);
  FILE *stream = fopen(path, "r");
  if (!stream) return otherwise;
  if (fscanf(stream, "%ld", &value) != 1) value = otherwise;
  fclose(stream);
  return value;
}

int edgetune_cores(int *cpus, int most) {
  cpu_set_t allowed;
  long speeds[CPU_SETSIZE];
  int found = 0, cores[CPU_SETSIZE];
  if (sched_getaffinity(0, sizeof allowed, &allowed)) return 1;
  for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    long first = about_core(cpu, "topology/thread_siblings_list", cpu);
    if (first != cpu && first >= 0 && first < CPU_SETSIZE && CPU_ISSET((int)first, &allowed)) continue;
    long speed = about_core(cpu, "cpu_capacity", 0);
    int at = found++;
    for (; at > 0 && speeds[at - 1] < speed; at--) {
      speeds[at] = speeds[at - 1];
      cores[at] = cores[at - 1];
    }
    speeds[at] = speed;
    cores[at] = cpu;
  }
  for (int i = 0; cpus && i < found && i < most; i++) cpus[i] = cores[i];
  return found ? found : 1;
}
