"""Runs whatever a candidate may break in child processes. `build_main` compiles and `run_main` measures there;
`build_pool` and `run_client` are the tuner's side of them. Start at `worker.ProcessServer`, which starts the processes.
"""
