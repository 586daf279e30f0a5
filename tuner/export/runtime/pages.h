/* Memory for weights and arenas. */
#ifndef EDGETUNE_PAGES_H_
#define EDGETUNE_PAGES_H_

#include <stddef.h>

#define ALIGNMENT 64 /* of the memory, in bytes; of kernels' operands, too */

typedef struct {
  unsigned char *begin;
  void *mapped; /* what the system gave, of this length */
  size_t length;
} Pages;

/* Take memory that is zero, in large pages where the system has any. Returns 0 if there is not enough. */
int edgetune_pages_get(Pages *pages, size_t size);

/* Take the content of an open file, which processes share where the system maps files. Returns 0 if that fails. */
int edgetune_pages_map(Pages *pages, int file, size_t size);

void edgetune_pages_free(const Pages *pages);

#endif
