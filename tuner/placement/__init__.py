"""Which device computes which step of a network. One placer a file; start at `fallback.fall_back`."""
