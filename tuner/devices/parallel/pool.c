/* Runs the parallel loops of compiled kernels, in place of TVM's thread pool.
 *
 * TVM cuts a loop into as many parts as there are threads, before it starts, and then waits for all of them: where
 * another process has taken a core for a while, every loop of a network waits for that core. Here a loop is cut into
 * many parts. Each thread begins with a contiguous range of them, from its front, so that threads keep to what lies in
 * their own caches; one that has finished takes parts from the back of whoever has most left; and the caller waits only
 * for threads that have begun. A thread that does not run takes no part, and delays nobody.
 *
 * Compiled kernels call TVMBackendParallelLaunch through a pointer in their library, which is set to edgetune_launch.
 *
 * Groups of kernels may also run at the same time (edgetune_together), each on its part of the threads: the loops of a
 * group are shared by its team alone. A group is led by whichever thread of its team comes first; groups that are left
 * are led by threads that have ended their own, the caller among them. So here, too, a thread that does not run delays
 * nobody.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "pool.h"

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

/* What threads share: at one time one loop, or all of them a stage. */
typedef struct {
  _Alignas(128) _Atomic uint64_t epoch; /* odd: a loop is open, even: none is, OVER: none will be */
  _Atomic int active;                   /* threads that look at the loop */
  _Atomic int failed;                   /* what the first part that failed returned */
  _Atomic int threads;                  /* that share the open loop, the one that opened it included */
  Lambda lambda;
  void* data;
  Group group;
  Share* shares; /* of every thread */
} Loop;

#define OVER (UINT64_MAX - 1)

static Share shares[MOST_THREADS];
static Loop whole = {.shares = shares}; /* of all threads */

/* The threads of a stage's group: `count` from `first` on. */
typedef struct {
  Loop loop;
  int first, count;
  _Atomic int led; /* a thread runs the group, or has */
} Team;

static Team teams[MOST_THREADS];
static struct {
  int open; /* `whole` is no loop, but this stage */
  int groups;
  void (*run)(int group, void* argument);
  void* argument;
} stage;

static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t sleep_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static _Atomic int sleeping;
static _Atomic int resting;      /* workers are to leave their cores to others' threads */
static _Atomic uint64_t stirred; /* how often they were called back */
static int started = 1; /* threads that exist, the caller included */

static _Atomic long patience = SPINS; /* how long a worker spins before it sleeps */
static pthread_mutex_t keeping = PTHREAD_MUTEX_INITIALIZER;
static int cores[MOST_THREADS], kept; /* the cores that threads are kept on: see edgetune_keep */
static pid_t ids[MOST_THREADS];       /* of the workers that run */

static _Thread_local int number;     /* of this worker; 0 in every other thread */
static _Thread_local int wanted = 1; /* threads for the loops of this caller */
static _Thread_local int inside;     /* a part is being run: its own loops are not shared */
static _Thread_local Team* team;     /* a group is being run: its loops are its team's */
static _Thread_local int seat;       /* in the team */

static int take(Share* share, int from_front) {
  uint64_t range = atomic_load(&share->range);
  for (;;) {
    uint32_t first = (uint32_t)(range >> 32), end = (uint32_t)range;
    if (first >= end) return -1;
    uint64_t rest = from_front ? ((uint64_t)(first + 1) << 32) | end : ((uint64_t)first << 32) | (end - 1);
    if (atomic_compare_exchange_weak(&share->range, &range, rest)) return (int)(from_front ? first : end - 1);
  }
}

static Share* most_left(Loop* loop, int count) {
  Share* found = 0;
  uint32_t most = 0;
  for (int i = 0; i < count; i++) {
    uint64_t range = atomic_load_explicit(&loop->shares[i].range, memory_order_relaxed);
    uint32_t first = (uint32_t)(range >> 32), end = (uint32_t)range;
    if (end > first && end - first > most) {
      most = end - first;
      found = &loop->shares[i];
    }
  }
  return found;
}

static void run(Loop* loop, int part) {
  int status = loop->lambda(part, &loop->group, loop->data);
  int none = 0;
  if (status) atomic_compare_exchange_strong(&loop->failed, &none, status);
}

static void work(Loop* loop, int self, int count) {
  int part;
  Share* victim;
  inside = 1;
  while ((part = take(&loop->shares[self], 1)) >= 0) run(loop, part);
  while ((victim = most_left(loop, count)) != 0)
    if ((part = take(victim, 0)) >= 0) run(loop, part);
  inside = 0;
}

static void sleep_until_not(Loop* loop, uint64_t seen) {
  pthread_mutex_lock(&sleep_mutex);
  atomic_fetch_add(&sleeping, 1);
  uint64_t before = atomic_load(&stirred);
  while (atomic_load(&loop->epoch) == seen && atomic_load(&stirred) == before)
    pthread_cond_wait(&wake, &sleep_mutex);
  atomic_fetch_sub(&sleeping, 1);
  pthread_mutex_unlock(&sleep_mutex);
}

static void wake_all(void) {
  if (!atomic_load(&sleeping)) return;
  pthread_mutex_lock(&sleep_mutex);
  pthread_cond_broadcast(&wake);
  pthread_mutex_unlock(&sleep_mutex);
}

static void attend(int self);

/* Work on what others open, until it is over. */
static void serve(Loop* loop, int self) {
  uint64_t seen = 0;
  for (;;) {
    long spins = atomic_load_explicit(&patience, memory_order_relaxed);
    for (long n = 0; n < spins && atomic_load_explicit(&loop->epoch, memory_order_acquire) == seen; n++) {
      if (atomic_load_explicit(&resting, memory_order_relaxed)) break;
      relax();
    }
    if (atomic_load(&loop->epoch) == seen) sleep_until_not(loop, seen);
    seen = atomic_load(&loop->epoch);
    if (seen == OVER) return;
    /* The loop stays open while `active` is not 0: whoever finds the same epoch after it has raised it may look. */
    atomic_fetch_add(&loop->active, 1);
    int count = atomic_load(&loop->threads);
    if ((seen & 1) && atomic_load(&loop->epoch) == seen && self < count) {
      if (loop == &whole && stage.open)
        attend(self);
      else
        work(loop, self, count);
    }
    atomic_fetch_sub(&loop->active, 1);
  }
}

/* Keep a thread (0: the calling one) on a core; where that is refused, it runs on any. */
static void hold(pid_t thread, int cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return;
  cpu_set_t own;
  CPU_ZERO(&own);
  CPU_SET(cpu, &own);
  sched_setaffinity(thread, sizeof own, &own);
}

static void* worker(void* argument) {
  number = (int)(intptr_t)argument;
  pthread_mutex_lock(&keeping);
  hold(0, number < kept ? cores[number] : -1);
  ids[number] = (pid_t)syscall(SYS_gettid);
  pthread_mutex_unlock(&keeping);
  serve(&whole, number);
  return 0;
}

static void wait_for_others(Loop* loop) {
  for (long n = 0; atomic_load(&loop->active); n++) {
    if (n < CLOSING_SPINS)
      relax();
    else
      sched_yield();
  }
}

static int alone(Lambda function, void* argument) {
  Group one = {0, 1};
  return function(0, &one, argument);
}

/* Run a loop with the threads that serve `loop`, as the `self`-th of `count`. */
static int share_out(Loop* loop, Lambda function, void* argument, int self, int count) {
  wait_for_others(loop); /* late ones, who will find that the last loop is closed */
  loop->lambda = function;
  loop->data = argument;
  loop->group.sync_handle = 0;
  loop->group.num_task = PARTS * count;
  atomic_store(&loop->failed, 0);
  atomic_store(&loop->threads, count);
  for (uint64_t i = 0; i < (uint64_t)count; i++)
    atomic_store(&loop->shares[i].range, (i * PARTS) << 32 | (i + 1) * PARTS);
  atomic_store(&resting, 0);
  atomic_fetch_add(&loop->epoch, 1);
  wake_all();
  work(loop, self, count);
  atomic_fetch_add(&loop->epoch, 1);
  wait_for_others(loop);
  return atomic_load(&loop->failed);
}

/* What is parallel inside a part, or while another thread's loop is open, is not shared. */
int edgetune_launch(Lambda function, void* argument, int tasks) {
  (void)tasks; /* TVM's wish: 0, as many as there are threads */
  if (team && !inside)
    return team->count < 2 ? alone(function, argument)
                           : share_out(&team->loop, function, argument, seat, team->count);
  int count = wanted < started ? wanted : started;
  if (inside || count < 2) return alone(function, argument);
  if (pthread_mutex_trylock(&launching)) return alone(function, argument);
  int status = share_out(&whole, function, argument, 0, count);
  pthread_mutex_unlock(&launching);
  return status;
}

/* Run a group unless it has been; whether it had not. */
static int lead(int group, int from) {
  Team* mine = &teams[group];
  if (atomic_exchange(&mine->led, 1)) return 0;
  team = mine;
  seat = from;
  stage.run(group, stage.argument);
  team = 0;
  atomic_store(&mine->loop.epoch, OVER);
  wake_all();
  return 1;
}

/* Take part in the open stage. */
static void attend(int self) {
  for (int g = 0; g < stage.groups; g++) {
    Team* home = &teams[g];
    int from = self - home->first;
    if (from >= 0 && from < home->count && !lead(g, from) && home->count > 1) serve(&home->loop, from);
  }
  for (int g = stage.groups - 1; g >= 0; g--) lead(g, 0);
}

/* Each group's part of `threads`, at least one: the rest go, one by one, to whoever has most work for each (Adams's
 * method), which is in proportion to `work` where that comes out even. The last group has the first threads. */
static void divide(const int* work, int threads) {
  int groups = stage.groups, first = 0;
  for (int g = 0; g < groups; g++) teams[g].count = 1;
  for (int rest = threads - groups; rest > 0; rest--) {
    int most = 0;
    for (int g = 1; g < groups; g++)
      if ((int64_t)work[g] * teams[most].count >= (int64_t)work[most] * teams[g].count) most = g;
    teams[most].count++;
  }
  for (int g = groups - 1; g >= 0; first += teams[g--].count) {
    Team* one = &teams[g];
    one->first = first;
    one->loop.shares = &shares[first < threads ? first : 0]; /* teams of one thread use none */
    atomic_store(&one->led, 0);
    atomic_store(&one->loop.epoch, 0);
  }
}

void edgetune_together(int groups, const int* work, void (*function)(int group, void* argument), void* argument) {
  int count = wanted < started ? wanted : started;
  int together = groups > 1 && groups <= MOST_THREADS && count > 1 && !inside && !team;
  if (!together || pthread_mutex_trylock(&launching)) {
    for (int g = 0; g < groups; g++) function(g, argument);
    return;
  }
  wait_for_others(&whole);
  stage.groups = groups;
  stage.run = function;
  stage.argument = argument;
  divide(work, count);
  stage.open = 1;
  atomic_store(&whole.threads, count);
  atomic_store(&resting, 0);
  atomic_fetch_add(&whole.epoch, 1);
  wake_all();
  attend(0);
  atomic_fetch_add(&whole.epoch, 1);
  wait_for_others(&whole); /* who run the other groups */
  stage.open = 0;
  pthread_mutex_unlock(&launching);
}

void edgetune_rest(void) { atomic_store(&resting, 1); }

void edgetune_rise(void) {
  atomic_store(&resting, 0);
  atomic_fetch_add(&stirred, 1);
  wake_all();
}

/* A forked child has no workers. */
static void reset(void) {
  started = 1;
  atomic_store(&whole.epoch, 0); /* a loop of another thread may have been open */
  atomic_store(&whole.active, 0);
  stage.open = 0;
  team = 0;
  atomic_store(&sleeping, 0);
  atomic_store(&resting, 0);
  pthread_mutex_init(&launching, 0);
  pthread_mutex_init(&keeping, 0);
  for (int i = 0; i < MOST_THREADS; i++) ids[i] = 0;
  pthread_mutex_init(&sleep_mutex, 0);
  pthread_cond_init(&wake, 0); /* it remembers who waited */
}

static int runs(int worker) {
  pthread_mutex_lock(&keeping);
  int id = ids[worker];
  pthread_mutex_unlock(&keeping);
  return id != 0;
}

int edgetune_threads(int count) {
  static int watching;
  pthread_mutex_lock(&launching);
  if (!watching) watching = !pthread_atfork(0, 0, reset);
  if (count > MOST_THREADS) count = MOST_THREADS;
  for (; started < count; started++) {
    pthread_t thread;
    if (pthread_create(&thread, 0, worker, (void*)(intptr_t)started)) break;
    pthread_detach(thread);
    while (!runs(started)) sched_yield(); /* until it is on its core */
  }
  wanted = count;
  int found = started < count ? started : count;
  pthread_mutex_unlock(&launching);
  return found;
}

void edgetune_keep(const int* cpus, int count) {
  pthread_mutex_lock(&keeping);
  kept = count < MOST_THREADS ? count : MOST_THREADS;
  for (int i = 0; i < kept; i++) {
    cores[i] = cpus[i];
    if (i && ids[i]) hold(ids[i], cpus[i]);
  }
  pthread_mutex_unlock(&keeping);
}

void edgetune_spin(int active) { atomic_store(&patience, active ? SPINS : 0); }

int edgetune_number(void) { return number; }

static _Thread_local int depth;         /* of calls inside calls */
static _Thread_local int held;          /* the outermost one keeps its thread on a core */
static _Thread_local cpu_set_t outside; /* where that thread may be otherwise */

/* The calling thread is kept on its core here, as cold Python takes ten times as long for it. */
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
