"""Templates that compute operators on OpenCL and CUDA devices. Start at `limits.gpu_limits`, what a target allows."""
