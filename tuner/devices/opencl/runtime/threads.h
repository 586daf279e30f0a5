// Where a driver's own threads run. Start at `SpreadWorkers`.
#pragma once
#include <atomic>
#include <set>

namespace edgetune::opencl {

// This process's threads, by the system's numbers.
std::set<int> Threads();

// Gives the threads that a driver has started since `before` a core each, if they are as many as its processor has
// compute units and as this process may use cores: then they are its workers. Where they run is left to the system
// otherwise, which wakes two on one core when the other has just been busy, and leaves them there for many short
// kernels, each of which then takes twice as long.
void SpreadWorkers(const std::set<int>& before, unsigned compute_units);

// The threads of another library that compute on the cores of the host, if it has said how they rest and rise: a
// processor's driver needs the cores that they wait on for their next work. Functions are C's.
class HostThreads {
 public:
  using Function = void (*)();
  // Null for both: nobody is told any more.
  static void Set(Function rest, Function rise);
  // Before a processor gets work: waiting threads sleep from now on.
  static void Rest();
  // The host has what a processor computed, and may go on with it.
  static void Rise();

 private:
  static std::atomic<Function> rest_, rise_;
};

}  // namespace edgetune::opencl
