"""What runs on a board: Python 3.8, NumPy, and TVM's runtime or pyopencl. Nothing of the tuner is imported here.

Start at `serve`, or at `bundle` where there is no host. The parts: `wire` (frames), `pairing` (who may connect), `line`
(whose turn it is), `session` (one connection), `bench` (the process that runs kernels), `sandbox` (what that process
may do), `facts` (what the board is), `condition` (how it feels), `pace` (whether it keeps its speed), `journal` (what a
bundle has come to so far), `disk` (one that is full, and files that are whole).
"""
