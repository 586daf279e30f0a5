#include "threads.h"

#include <dirent.h>
#include <sched.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <vector>

namespace edgetune::opencl {

std::set<int> Threads() {
  std::set<int> found;
  DIR* folder = opendir("/proc/self/task");
  if (folder == nullptr) return found;
  while (const dirent* entry = readdir(folder)) {
    const int number = std::atoi(entry->d_name);
    if (number > 0) found.insert(number);
  }
  closedir(folder);
  return found;
}

void SpreadWorkers(const std::set<int>& before, unsigned compute_units) {
  const std::set<int> now = Threads();
  std::vector<int> workers;
  std::set_difference(now.begin(), now.end(), before.begin(), before.end(), std::back_inserter(workers));
  cpu_set_t usable;
  // A machine with more cores than the mask holds keeps what the system decides.
  if (sched_getaffinity(0, sizeof(usable), &usable) != 0) return;
  if (workers.size() != compute_units || size_t(CPU_COUNT(&usable)) != workers.size()) return;
  int core = -1;
  for (const int worker : workers) {
    do ++core;
    while (!CPU_ISSET(core, &usable));
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(core, &own);
    sched_setaffinity(worker, sizeof(own), &own);  // one that has ended meanwhile needs no core
  }
}

std::atomic<HostThreads::Function> HostThreads::rest_{nullptr};
std::atomic<HostThreads::Function> HostThreads::rise_{nullptr};

void HostThreads::Set(Function rest, Function rise) {
  rest_ = rest;
  rise_ = rise;
}

void HostThreads::Rest() {
  if (const Function rest = rest_.load(std::memory_order_relaxed)) rest();
}

void HostThreads::Rise() {
  if (const Function rise = rise_.load(std::memory_order_relaxed)) rise();
}

}  // namespace edgetune::opencl
