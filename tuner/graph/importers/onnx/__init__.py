"""This package imports ONNX files.

Start at `check.read_onnx`, which reads a file, and at `relax.import_onnx`, which converts it to Relax.
"""
