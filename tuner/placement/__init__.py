"""Which device computes which step of a network. One placer a file. Start at `fallback.fall_back` for networks that are
built, at `simulator.Simulator` and `mcmc.search` for those that are simulated."""
