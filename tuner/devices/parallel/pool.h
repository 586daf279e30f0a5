/* The pool's threads, as a whole or in teams. See pool.c. */
#ifndef EDGETUNE_POOL_H_
#define EDGETUNE_POOL_H_

/* Run `function(g, argument)` for every group from 0 to `groups` - 1 at the same time, each on a part of the calling
 * thread's threads in proportion to its `work` (from 1 on); the last is the caller's, unless it is late. Returns when
 * all have ended. One after the other, on all threads, where there is one thread, or they are another caller's. */
void edgetune_together(int groups, const int* work, void (*function)(int group, void* argument), void* argument);

#endif
