"""Register the templates of clblast on import. `open_vendor` imports this module here, and child processes import it,
too."""

from tuner.vendors.registry import register_templates

register_templates("clblast")
