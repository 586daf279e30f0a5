"""Import it to make the templates of clblast known: what `open_vendor` does, here for child processes."""

from tuner.vendors.registry import register_templates

register_templates("clblast")
