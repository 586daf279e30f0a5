"""Schedule templates: each says how one operator can be computed and scheduled on one kind of device.

Start at `template.Template`. The built-in templates are listed in `builtin`. This package imports none of them by
itself, so that what only runs kernels can read `gpu.limits`.
"""
