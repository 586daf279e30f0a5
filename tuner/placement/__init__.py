"""Decides which device computes which step of a network, one method a file. Start at `fallback.fall_back`, or at
`exact.plan_network` for plans by measured costs. `tuner.studies` places networks that are simulated."""
