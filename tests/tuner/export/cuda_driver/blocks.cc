// Runs the threads of a grid on one thread of the host: those that wait for each other as fibers, in turns.
#include <ucontext.h>

#include <cstdlib>
#include <memory>

#include "cuda.h"

Index threadIdx, blockIdx;

namespace {

constexpr size_t STACK = 1 << 18;
struct Fiber {
  ucontext_t state;
  std::vector<char> stack;
  bool done;
};
std::vector<std::unique_ptr<Fiber>> fibers;
ucontext_t scheduler;
Fiber *running;
std::function<void()> body;

void run_fiber() {
  body();
  running->done = true;
}

Index index_of(unsigned i, const Index &extents) {
  return {i % extents.x, i / extents.x % extents.y, i / extents.x / extents.y};
}

void begin_fibers(unsigned count) {
  while (fibers.size() < count) fibers.push_back(std::make_unique<Fiber>());
  for (unsigned i = 0; i < count; i++) {
    Fiber &fiber = *fibers[i];
    fiber.stack.resize(STACK);
    fiber.done = false;
    getcontext(&fiber.state);
    fiber.state.uc_stack.ss_sp = fiber.stack.data();
    fiber.state.uc_stack.ss_size = STACK;
    fiber.state.uc_link = &scheduler;
    makecontext(&fiber.state, run_fiber, 0);
  }
}

// Run every thread until it returns or waits for the others. Return how many have returned.
unsigned run_to_barrier(const Index &items, unsigned count) {
  for (unsigned i = 0; i < count; i++) {
    running = fibers[i].get();
    threadIdx = index_of(i, items);
    swapcontext(&scheduler, &running->state);
  }
  unsigned done = 0;
  for (unsigned i = 0; i < count; i++) done += fibers[i]->done;
  if (done && done < count) std::abort();  // some threads wait for others that have returned
  return done;
}

// Run the threads of a block in turns.
void run_waiting(const Index &items) {
  unsigned count = items.x * items.y * items.z;
  begin_fibers(count);
  while (!run_to_barrier(items, count)) continue;
}

}  // namespace

void __syncthreads() {
  Fiber *own = running;
  swapcontext(&own->state, &scheduler);
}

void run_grid(const Index &groups, const Index &items, bool waits, const std::function<void()> &thread) {
  body = thread;
  for (unsigned group = 0; group < groups.x * groups.y * groups.z; group++) {
    blockIdx = index_of(group, groups);
    if (waits) {
      run_waiting(items);
      continue;
    }
    for (unsigned i = 0; i < items.x * items.y * items.z; i++) {
      threadIdx = index_of(i, items);
      body();
    }
  }
}
