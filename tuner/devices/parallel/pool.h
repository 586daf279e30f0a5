/* The pool's threads, as a whole or in teams. See pool.c. */
#ifndef EDGETUNE_POOL_H_
#define EDGETUNE_POOL_H_

#include <stdint.h>

#define MOST_THREADS 256

/* TVM's, from tvm/runtime/base.h. */
typedef struct {
  void* sync_handle;
  int32_t num_task;
} Group;
typedef int (*Lambda)(int task, Group* group, void* data);

/* TVMBackendParallelLaunch: run the parts of a loop on the calling thread's threads. */
int edgetune_launch(Lambda function, void* argument, int tasks);

/* Run `function(g, argument)` for every group from 0 to `groups` - 1 at the same time, each on a part of the calling
 * thread's threads in proportion to its `work` (from 1 on); the last is the caller's, unless it is late. Returns when
 * all have ended. One after the other, on all threads, where there is one thread, or they are another caller's. */
void edgetune_together(int groups, const int* work, void (*function)(int group, void* argument), void* argument);

/* Share the loops that the calling thread launches from now on between `count` threads, itself included. Missing ones
 * are started. Returns how many there are now. */
int edgetune_threads(int count);

/* A call of a network begins: share loops as edgetune_threads does, and keep the calling thread on the core `cpu` until
 * edgetune_leave (-1: where the system wants it). Calls may be nested. */
void edgetune_enter(int count, int cpu);
void edgetune_leave(void);

/* Keep each worker, also those that are started later, on one of the cores `cpus`, of which the first is the caller's.
 * With a `count` of 0, workers that are started from now on run on any core. */
void edgetune_keep(const int* cpus, int count);

/* Say whether workers wait actively for the next loop, for about the time between two kernels, or sleep at once. */
void edgetune_spin(int active);

/* The number of the calling worker, from 1 on, or 0 if another thread calls. */
int edgetune_number(void);

/* Let idle workers sleep, and leave their cores to the threads of another library, until they are called back or have a
 * loop. */
void edgetune_rest(void);
void edgetune_rise(void);

#endif
