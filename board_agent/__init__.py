"""This package is the agent, which runs on a board with Python 3.8, NumPy, and TVM's runtime, pyopencl or pycuda.

It imports nothing of the tuner. Start at `serve`, or at `bundle` where no host can reach the board. The other parts:
`wire` (frames), `pairing` and `keys` (which hosts may connect), `turn_queue` (which host measures), `session` (one
connection), `kernel_server` (the process that runs kernels), `sandbox` (what that process may do), `facts` (constant
properties of the board), `condition` (clocks and temperature), `clock_monitor` (whether the board keeps its speed),
`journal` (results of a bundle so far), `disk` (full disks, and files that are written whole or not at all).
"""
