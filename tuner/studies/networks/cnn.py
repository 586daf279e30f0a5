"""Builds LeNet, AlexNet, ResNet-101 and Inception-v3. Activations and normalisations are part of their convolutions."""

from __future__ import annotations

from tuner.studies.networks.operators import Builder, Network


def lenet(batch: int = 64) -> Network:
    """Return LeNet-5 (LeCun 1998): two convolutions, two poolings and three dense layers."""
    b = Builder(batch)
    x = b.conv(b.image(1, 28), 6, 5, 1, 2, name="conv1")
    x = b.pool(x, 2, 2, name="pool1")
    x = b.conv(x, 16, 5, name="conv2")
    x = b.pool(x, 2, 2, name="pool2")
    x = b.dense(x, 120, name="dense1")
    x = b.dense(x, 84, name="dense2")
    b.dense(x, 10, name="dense3")
    return b.network("lenet")


def alexnet(batch: int = 256) -> Network:
    """Return AlexNet (Krizhevsky 2014, one tower): five convolutions, three poolings and three dense layers."""
    b = Builder(batch)
    x = b.conv(b.image(3, 224), 64, 11, 4, 2, name="conv1")
    x = b.pool(x, 3, 2, name="pool1")
    x = b.conv(x, 192, 5, 1, 2, name="conv2")
    x = b.pool(x, 3, 2, name="pool2")
    x = b.conv(x, 384, 3, 1, 1, name="conv3")
    x = b.conv(x, 256, 3, 1, 1, name="conv4")
    x = b.conv(x, 256, 3, 1, 1, name="conv5")
    x = b.pool(x, 3, 2, name="pool5")
    for i, size in enumerate((4096, 4096, 1000), 6):
        x = b.dense(x, size, name=f"dense{i}")
    return b.network("alexnet")


def resnet101(batch: int = 64) -> Network:
    """Return ResNet-101 (He et al. 2016), which has stages of 3, 4, 23 and 3 bottleneck blocks."""
    b = Builder(batch)
    x = b.pool(b.conv(b.image(3, 224), 64, 7, 2, 3, name="conv1"), 3, 2, 1, name="pool1")
    for stage, (blocks, width) in enumerate(((3, 64), (4, 128), (23, 256), (3, 512)), 2):
        for block in range(blocks):
            b.branch = f"block{stage}.{block}"
            stride = 2 if block == 0 and stage > 2 else 1
            short = x
            if block == 0:
                short = b.conv(x, 4 * width, 1, stride, name=f"{b.branch}.short")
            x = b.conv(x, width, 1, name=f"{b.branch}.a")
            x = b.conv(x, width, 3, stride, 1, name=f"{b.branch}.b")
            x = b.conv(x, 4 * width, 1, name=f"{b.branch}.c")
            x = b.add(x, short, name=f"{b.branch}.add")
    b.branch = ""
    b.dense(b.global_pool(x, name="pool"), 1000, name="dense")
    return b.network("resnet101")


def inception_v3(batch: int = 64) -> Network:
    """Return Inception-v3 (Szegedy et al. 2016) for 299 x 299 images, without the auxiliary classifier.

    A branch of a module is a group, as in Mirhoseini et al., "Device Placement Optimization with Reinforcement
    Learning".
    """
    b = Builder(batch)
    x = b.conv(b.image(3, 299), 32, 3, 2, name="stem1")
    x = b.conv(x, 32, 3, name="stem2")
    x = b.conv(x, 64, 3, 1, 1, name="stem3")
    x = b.pool(x, 3, 2, name="stem4")
    x = b.conv(x, 80, 1, name="stem5")
    x = b.conv(x, 192, 3, name="stem6")
    x = b.pool(x, 3, 2, name="stem7")
    for i, pooled in enumerate((32, 64, 64)):
        x = _module_a(b, x, f"a{i}", pooled)
    x = _reduction_a(b, x, "b")
    for i, width in enumerate((128, 160, 160, 192)):
        x = _module_c(b, x, f"c{i}", width)
    x = _reduction_d(b, x, "d")
    for i in range(2):
        x = _module_e(b, x, f"e{i}")
    b.branch = ""
    b.dense(b.global_pool(x, name="pool"), 1000, name="dense")
    return b.network("inception_v3")


_Step = tuple[int, int | tuple[int, int], int, int | tuple[int, int]]  # filters, kernel, stride, padding


def _chain(b: Builder, x: int, module: str, branch: str, *steps: _Step) -> int:
    b.branch = f"{module}.{branch}"
    for i, (filters, kernel, stride, pad) in enumerate(steps):
        x = b.conv(x, filters, kernel, stride, pad, name=f"{b.branch}.{i}")
    return x


def _pooled(b: Builder, x: int, module: str, filters: int) -> int:
    b.branch = f"{module}.pool"
    return b.conv(b.pool(x, 3, 1, 1, name=f"{b.branch}.0"), filters, 1, name=f"{b.branch}.1")


def _joined(b: Builder, module: str, parts: list[int]) -> int:
    b.branch = f"{module}.join"
    return b.concat(parts, name=b.branch)


def _module_a(b: Builder, x: int, name: str, pooled: int) -> int:
    parts = [
        _chain(b, x, name, "1x1", (64, 1, 1, 0)),
        _chain(b, x, name, "5x5", (48, 1, 1, 0), (64, 5, 1, 2)),
        _chain(b, x, name, "3x3", (64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 1, 1)),
        _pooled(b, x, name, pooled),
    ]
    return _joined(b, name, parts)


def _reduction_a(b: Builder, x: int, name: str) -> int:
    parts = [
        _chain(b, x, name, "3x3", (384, 3, 2, 0)),
        _chain(b, x, name, "double", (64, 1, 1, 0), (96, 3, 1, 1), (96, 3, 2, 0)),
    ]
    b.branch = f"{name}.pool"
    parts.append(b.pool(x, 3, 2, name=b.branch))
    return _joined(b, name, parts)


def _module_c(b: Builder, x: int, name: str, w: int) -> int:
    row, column = ((1, 7), 1, (0, 3)), ((7, 1), 1, (3, 0))
    parts = [
        _chain(b, x, name, "1x1", (192, 1, 1, 0)),
        _chain(b, x, name, "7x7", (w, 1, 1, 0), (w, *row), (192, *column)),
        _chain(b, x, name, "double", (w, 1, 1, 0), (w, *column), (w, *row), (w, *column), (192, *row)),
        _pooled(b, x, name, 192),
    ]
    return _joined(b, name, parts)


def _reduction_d(b: Builder, x: int, name: str) -> int:
    parts = [
        _chain(b, x, name, "3x3", (192, 1, 1, 0), (320, 3, 2, 0)),
        _chain(b, x, name, "7x7", (192, 1, 1, 0), (192, (1, 7), 1, (0, 3)), (192, (7, 1), 1, (3, 0)), (192, 3, 2, 0)),
    ]
    b.branch = f"{name}.pool"
    parts.append(b.pool(x, 3, 2, name=b.branch))
    return _joined(b, name, parts)


def _module_e(b: Builder, x: int, name: str) -> int:
    row, column = (384, (1, 3), 1, (0, 1)), (384, (3, 1), 1, (1, 0))
    parts = [_chain(b, x, name, "1x1", (320, 1, 1, 0))]
    middle = _chain(b, x, name, "3x3", (384, 1, 1, 0))
    parts += [_chain(b, middle, name, "3x3.row", row), _chain(b, middle, name, "3x3.column", column)]
    middle = _chain(b, x, name, "double", (448, 1, 1, 0), (384, 3, 1, 1))
    parts += [_chain(b, middle, name, "double.row", row), _chain(b, middle, name, "double.column", column)]
    parts.append(_pooled(b, x, name, 192))
    return _joined(b, name, parts)
