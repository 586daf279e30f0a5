"""This package writes ONNX operators out in simpler ones before a model is imported.

Start at `registry.write_operators`. A rewrite and its `NodeWriter` are explained in `writer`.
"""
