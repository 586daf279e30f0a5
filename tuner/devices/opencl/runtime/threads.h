// Where a driver's own threads run. Start at `SpreadWorkers`.
#pragma once
#include <set>

namespace edgetune::opencl {

// This process's threads, by the system's numbers.
std::set<int> Threads();

// Gives the threads that a driver has started since `before` a core each, if they are as many as its processor has
// compute units and as this process may use cores: then they are its workers. Where they run is left to the system
// otherwise, which wakes two on one core when the other has just been busy, and leaves them there for many short
// kernels, each of which then takes twice as long.
void SpreadWorkers(const std::set<int>& before, unsigned compute_units);

}  // namespace edgetune::opencl
