"""Writes real architectures as ONNX files with seeded random weights: something to tune where no model is at hand.

`write_model("resnet18", "resnet18.onnx")` writes one, `names()` lists them. The graphs are those of torchvision and
GluonCV exports, with BatchNormalization and Dropout left as nodes. Each architecture is one file with a `build`
function over `builder.GraphBuilder`, and one line in `_ARCHITECTURES`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tuner.errors import BadInput
from tuner.files import write_whole
from tuner.zoo import inception_v3, mobilenet, nasnet, randwire, resnet18, resnet50_v1, squeezenet, ssd, yolo3
from tuner.zoo.builder import GraphBuilder

_ARCHITECTURES: dict[str, Callable[[GraphBuilder, int], str | Sequence[str]]] = {
    "inception_v3": inception_v3.build,
    "mobilenet1.0": mobilenet.build,
    "nasnet_a_large": nasnet.large,
    "nasnet_a_mobile": nasnet.mobile,
    "randwire": randwire.regular,
    "randwire_small": randwire.small,
    "resnet18": resnet18.build,
    "resnet50_v1": resnet50_v1.build,
    "squeezenet1.0": squeezenet.build,
    "ssd_300_mobilenet1.0": partial(ssd.mobilenet, size=300),
    "ssd_300_resnet50_v1": partial(ssd.resnet50_v1, size=300),
    "ssd_512_mobilenet1.0": partial(ssd.mobilenet, size=512),
    "ssd_512_resnet50_v1": partial(ssd.resnet50_v1, size=512),
    "yolo3_416": partial(yolo3.build, size=416),
    "yolo3_512": partial(yolo3.build, size=512),
}


def names() -> list[str]:
    """Return the names of the architectures that can be written, sorted."""
    return sorted(_ARCHITECTURES)


def write_model(name: str, path: str | os.PathLike[str], batch: int = 1, seed: int = 0) -> Path:
    """Write one architecture as an ONNX file (opset 17, static batch) and return its path.

    The same name, batch and seed give the same bytes. The file appears whole or not at all. Raises BadInput for an
    unknown name, a batch below one, or a path that cannot be written.
    """
    if name not in _ARCHITECTURES:
        raise BadInput(f"no model is named {name!r} in the zoo (known: {', '.join(names())})")
    if batch < 1:
        raise BadInput(f"batch must be at least 1, not {batch}")
    target = Path(path)
    if not target.parent.is_dir():
        raise BadInput(f"{target}: the folder {target.parent} does not exist; create it first")
    builder = GraphBuilder(name, np.random.default_rng(seed))
    built = _ARCHITECTURES[name](builder, batch)
    outputs = [built] if isinstance(built, str) else built
    write_whole(target, builder.model(*outputs).SerializeToString(deterministic=True))
    return target
