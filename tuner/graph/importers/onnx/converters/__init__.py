"""This package converts ONNX operators to Relax where TVM's converters are not used.

Start at `elementwise.CONVERTERS`, `layers.LAYERS` and `vision.VISION`.
"""
