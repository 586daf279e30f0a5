/* Runs the parallel loops of compiled kernels, in place of TVM's thread pool.
 *
 * TVM cuts a loop into as many parts as there are threads, before it starts, and then waits for all of them: where
 * another process has taken a core for a while, every loop of a network waits for that core. Here a loop is cut into
 * many parts. Each thread begins with a contiguous range of them, from its front, so that threads keep to what lies in
 * their own caches; one that has finished takes parts from the back of whoever has most left; and the caller waits only
 * for threads that have begun. A thread that does not run takes no part, and delays nobody.
 *
 * Compiled kernels call TVMBackendParallelLaunch through a pointer in their library, which is set to edgetune_launch.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

/* TVM's, from tvm/runtime/base.h. */
typedef struct {
  void* sync_handle;
  int32_t num_task;
} Group;
typedef int (*Lambda)(int task, Group* group, void* data);

#define MOST_THREADS 256
#define PARTS 16             /* of a loop, per thread */
#define SPINS 20000          /* of a worker before it sleeps: about the time between two kernels, many times over */
#define CLOSING_SPINS 2000   /* of the caller before it yields its core */

#if defined(__x86_64__) || defined(__i386__)
#define relax() __builtin_ia32_pause()
#elif defined(__aarch64__) || defined(__arm__)
#define relax() __asm__ __volatile__("yield")
#else
#define relax() ((void)0)
#endif

/* Parts that are left: the first in the high half, the one behind the last in the low half. On a line of its own. */
typedef struct {
  _Alignas(128) _Atomic uint64_t range;
} Share;

static Share shares[MOST_THREADS];
static _Atomic uint64_t epoch; /* odd: a loop is open, even: none is */
static _Atomic int active;     /* workers that look at the loop */
static _Atomic int failed;     /* what the first part that failed returned */
static Lambda lambda;
static void* data;
static Group group;
static _Atomic int threads;    /* that share the open loop, the caller included */

static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleep_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static _Atomic int sleeping;
static _Atomic int resting;      /* workers are to leave their cores to others' threads */
static _Atomic uint64_t stirred; /* how often they were called back */
static int started = 1; /* threads that exist, the caller included */

static _Thread_local int wanted = 1; /* threads for the loops of this caller */
static _Thread_local int inside;     /* a part is being run: its own loops are not shared */

static int take(Share* share, int from_front) {
  uint64_t range = atomic_load(&share->range);
  for (;;) {
    uint32_t first = (uint32_t)(range >> 32), end = (uint32_t)range;
    if (first >= end) return -1;
    uint64_t rest = from_front ? ((uint64_t)(first + 1) << 32) | end : ((uint64_t)first << 32) | (end - 1);
    if (atomic_compare_exchange_weak(&share->range, &range, rest)) return (int)(from_front ? first : end - 1);
  }
}

static Share* most_left(int count) {
  Share* found = 0;
  uint32_t most = 0;
  for (int i = 0; i < count; i++) {
    uint64_t range = atomic_load_explicit(&shares[i].range, memory_order_relaxed);
    uint32_t first = (uint32_t)(range >> 32), end = (uint32_t)range;
    if (end > first && end - first > most) {
      most = end - first;
      found = &shares[i];
    }
  }
  return found;
}

static void run(int part) {
  int status = lambda(part, &group, data);
  int none = 0;
  if (status) atomic_compare_exchange_strong(&failed, &none, status);
}

static void work(int self, int count) {
  int part;
  Share* victim;
  inside = 1;
  while ((part = take(&shares[self], 1)) >= 0) run(part);
  while ((victim = most_left(count)) != 0)
    if ((part = take(victim, 0)) >= 0) run(part);
  inside = 0;
}

static void sleep_until_not(uint64_t seen) {
  pthread_mutex_lock(&sleep_mutex);
  atomic_fetch_add(&sleeping, 1);
  uint64_t before = atomic_load(&stirred);
  while (atomic_load(&epoch) == seen && atomic_load(&stirred) == before) pthread_cond_wait(&wake, &sleep_mutex);
  atomic_fetch_sub(&sleeping, 1);
  pthread_mutex_unlock(&sleep_mutex);
}

static void wake_all(void) {
  if (!atomic_load(&sleeping)) return;
  pthread_mutex_lock(&sleep_mutex);
  pthread_cond_broadcast(&wake);
  pthread_mutex_unlock(&sleep_mutex);
}

static void* worker(void* argument) {
  int self = (int)(intptr_t)argument;
  uint64_t seen = 0;
  for (;;) {
    for (long n = 0; n < SPINS && atomic_load_explicit(&epoch, memory_order_acquire) == seen; n++) {
      if (atomic_load_explicit(&resting, memory_order_relaxed)) break;
      relax();
    }
    if (atomic_load(&epoch) == seen) sleep_until_not(seen);
    seen = atomic_load(&epoch);
    /* The loop stays open while `active` is not 0: whoever finds the same epoch after it has raised it may look. */
    atomic_fetch_add(&active, 1);
    int count = atomic_load(&threads);
    if ((seen & 1) && atomic_load(&epoch) == seen && self < count) work(self, count);
    atomic_fetch_sub(&active, 1);
  }
  return 0;
}

static void wait_for_workers(void) {
  for (long n = 0; atomic_load(&active); n++) {
    if (n < CLOSING_SPINS)
      relax();
    else
      sched_yield();
  }
}

static int alone(Lambda function, void* argument) {
  Group whole = {0, 1};
  return function(0, &whole, argument);
}

/* TVMBackendParallelLaunch: what is parallel inside a part, or while another thread's loop is open, is not shared. */
int edgetune_launch(Lambda function, void* argument, int tasks) {
  (void)tasks; /* TVM's wish: 0, as many as there are threads */
  int count = wanted < started ? wanted : started;
  if (inside || count < 2) return alone(function, argument);
  if (pthread_mutex_trylock(&launching)) return alone(function, argument);
  wait_for_workers(); /* late ones, who will find that the last loop is closed */
  lambda = function;
  data = argument;
  group.sync_handle = 0;
  group.num_task = PARTS * count;
  atomic_store(&failed, 0);
  atomic_store(&threads, count);
  for (uint64_t i = 0; i < (uint64_t)count; i++) atomic_store(&shares[i].range, (i * PARTS) << 32 | (i + 1) * PARTS);
  atomic_store(&resting, 0);
  atomic_fetch_add(&epoch, 1);
  wake_all();
  work(0, count);
  atomic_fetch_add(&epoch, 1);
  wait_for_workers();
  int status = atomic_load(&failed);
  pthread_mutex_unlock(&launching);
  return status;
}

/* Workers sleep, and leave their cores to the threads of another library, until they are called back or have a loop. */
void edgetune_rest(void) { atomic_store(&resting, 1); }

void edgetune_rise(void) {
  atomic_store(&resting, 0);
  atomic_fetch_add(&stirred, 1);
  wake_all();
}

/* A forked child has no workers. */
static void reset(void) {
  started = 1;
  atomic_store(&epoch, 0); /* a loop of another thread may have been open */
  atomic_store(&active, 0);
  atomic_store(&sleeping, 0);
  atomic_store(&resting, 0);
  pthread_mutex_init(&launching, 0);
  pthread_mutex_init(&sleep_mutex, 0);
  pthread_cond_init(&wake, 0); /* it remembers who waited */
}

/* Loops that the calling thread launches from now on are shared by `count` threads, itself included; those that do not
 * exist yet are started. Returns how many there are now. */
int edgetune_threads(int count) {
  static int watching;
  pthread_mutex_lock(&launching);
  if (!watching) watching = !pthread_atfork(0, 0, reset);
  if (count > MOST_THREADS) count = MOST_THREADS;
  for (; started < count; started++) {
    pthread_t thread;
    if (pthread_create(&thread, 0, worker, (void*)(intptr_t)started)) break;
    pthread_detach(thread);
  }
  wanted = count;
  int found = started < count ? started : count;
  pthread_mutex_unlock(&launching);
  return found;
}

static _Thread_local int depth;         /* of calls inside calls */
static _Thread_local int held;          /* the outermost one keeps its thread on a core */
static _Thread_local cpu_set_t outside; /* where that thread may be otherwise */

/* A call of a network begins: until edgetune_leave the calling thread shares its loops between `count` threads, and
 * stays on the core `cpu` (-1: where the system wants it). Here, as cold Python takes ten times as long for it. */
void edgetune_enter(int count, int cpu) {
  if (count > started)
    edgetune_threads(count);
  else
    wanted = count; /* another network's number may differ */
  if (depth++ || cpu < 0 || cpu >= CPU_SETSIZE) return;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  held = !sched_getaffinity(0, sizeof outside, &outside) && !CPU_EQUAL(&one, &outside) &&
         !sched_setaffinity(0, sizeof one, &one);
}

void edgetune_leave(void) {
  if (--depth || !held) return;
  held = 0;
  sched_setaffinity(0, sizeof outside, &outside);
}
