"""This package loads networks from ONNX files and torch.export programs. Start at `load.load_onnx`."""
