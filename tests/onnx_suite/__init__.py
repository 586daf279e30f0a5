"""ONNX's own backend tests, run through this project's importer and kernels."""
