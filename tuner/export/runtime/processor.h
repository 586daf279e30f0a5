/* What the processor can do. */
#ifndef EDGETUNE_PROCESSOR_H_
#define EDGETUNE_PROCESSOR_H_

/* Return the first of these instruction sets, by LLVM's names, that the processor or the system lacks, or NULL. Names
 * that are not known here count as present. */
const char *edgetune_lacks(const char *const *needed, int count);

/* Return how many cores this process may use, and write up to `most` of them to `cpus`, the fastest first. Of the
 * threads of one core only the first counts. */
int edgetune_cores(int *cpus, int most);

#endif
