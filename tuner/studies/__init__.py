"""This package contains reproductions of the papers on placing networks on several devices.

- `simulator` predicts the seconds of a strategy; `networks` and `topology` describe what it simulates.
- `soap` holds the strategies: how each operator is split and where its parts are. `mcmc` and `exhaustive` search them.
- `learned` learns placements by reinforcement, and `baselines` holds the placements to compare with.

Start at `strategies.place` for a real model and at `simulator.Simulator` for a simulated network. Nothing that builds
modules imports this package, except the command line.
"""
