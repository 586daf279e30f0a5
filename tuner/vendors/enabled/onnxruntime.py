"""Import it to make the templates of onnxruntime known: what `open_vendor` does, here for child processes."""

from tuner.vendors.registry import register_templates

register_templates("onnxruntime")
