/* Maps memory and files. */
#define _GNU_SOURCE
#include "pages.h"

#include <stdint.h>
#include <sys/mman.h>

#define LARGE_PAGE ((size_t)1 << 21)

/* It is mapped, so that it is zero and takes no room before it is used. */
int edgetune_pages_get(Pages *pages, size_t size) {
  size_t large = size >= LARGE_PAGE ? LARGE_PAGE : 0;
  pages->length = (size ? size : 1) + large;
  pages->mapped = mmap(0, pages->length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages->mapped == MAP_FAILED) return 0;
  uintptr_t begin = (uintptr_t)pages->mapped;
  if (large) begin = (begin + LARGE_PAGE - 1) & ~(uintptr_t)(LARGE_PAGE - 1);
  pages->begin = (unsigned char *)begin;
#ifdef MADV_HUGEPAGE
  if (large) madvise(pages->begin, size, MADV_HUGEPAGE);
#endif
  return 1;
}

int edgetune_pages_map(Pages *pages, int file, size_t size) {
  pages->length = size;
  pages->mapped = mmap(0, size, PROT_READ, MAP_PRIVATE, file, 0);
  pages->begin = pages->mapped;
  if (pages->mapped == MAP_FAILED) return 0;
  madvise(pages->mapped, size, MADV_WILLNEED); /* a file that is not in memory yet is read while a context is made */
  return 1;
}

void edgetune_pages_free(const Pages *pages) { munmap(pages->mapped, pages->length); }
