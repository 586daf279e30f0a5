"""Vision operators and recurrent layers that are written once, in one IR, for CUDA, OpenCL and CPUs. Start at
`kernels.Emitter`.

An operator is a file of this package with an `OPERATOR` (see templates.operator) and a `TEMPLATE`, and a line below.
"""

from importlib import import_module

from templates.operator import register_operator
from templates.template import register

for _name in (
    "scan",
    "argsort",
    "compact",
    "nms",
    "roi_align",
    "roi_pool",
    "multibox_prior",
    "multibox_decode",
    "yolo",
    "proposal",
    "resize",
    "recurrent",
):
    _module = import_module(f"vision_ops.{_name}")
    register_operator(_module.OPERATOR)
    register(_module.TEMPLATE)
