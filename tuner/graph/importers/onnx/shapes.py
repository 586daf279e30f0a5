"""Give the free axes of an ONNX model's inputs their sizes, before anything else uses its shapes. Start at
`bind_shapes`.

An axis is free if the file has a name for its size, or nothing. One name is one size, wherever it occurs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import onnx

from tuner.errors import BadInput
from tuner.graph.importers.onnx.check import graph_inputs

_UNNAMED = ("", "?")  # the second is what Paddle's exporter writes
_NOTHING = "0 of "  # begins the symbol of an axis of size 0 in the file: only a whole shape may give it another size
_EXAMPLE_SIZES = {3: 128, 4: 224}  # by rank: the size that examples give an axis other than the first

Shape = tuple[int, ...]
_Size = int | str  # a symbol if the axis is free


@dataclass(frozen=True)
class Bound:
    """The sizes that were given to an ONNX model. `shapes` has the whole shapes of those inputs that have free axes in
    the file. `remarks` are lines about sizes that were assumed."""

    shapes: Mapping[str, Shape]
    remarks: tuple[str, ...]


def bind_shapes(
    model: onnx.ModelProto, source: str, shapes: Mapping[str, Sequence[int]], batch: int | None = None
) -> Bound:
    """Write the sizes of all free axes into the model's inputs, and wherever else their names occur.

    `shapes` has whole shapes, by input. `batch` is the size of the first axis of every input where that axis is free.
    Free first axes whose size is not given become 1 if no other axis is left free.

    Raises BadInput in one line for sizes that do not fit the file, and for axes that stay free.
    """
    table = _Table(source, {value.name: _sizes(value) for value in graph_inputs(model.graph)})
    for name, shape in shapes.items():
        table.take_shape(name, tuple(shape))
    if batch is not None:
        table.take_batch(batch)
    remarks = table.take_ones()
    table.refuse_free()
    for value in graph_inputs(model.graph):
        _write(value, table.shape_of(value.name))
    for value in [*model.graph.output, *model.graph.value_info]:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in table.bound:
                dim.dim_value = table.bound[dim.dim_param]
    return Bound({name: table.shape_of(name) for name in table.free_inputs}, remarks)


def identity(digest: str, shapes: Mapping[str, Shape]) -> str:
    """Return the digest of a model: of its file, and of the shapes of those inputs whose axes are free there."""
    if not shapes:
        return digest
    text = "".join(f"\n{name}={','.join(map(str, shapes[name]))}" for name in sorted(shapes))
    return hashlib.sha256(f"{digest}{text}".encode()).hexdigest()


def free_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the names of the inputs with free axes."""
    return _free({value.name: _sizes(value) for value in graph_inputs(model.graph)})


def _sizes(value: onnx.ValueInfoProto) -> list[_Size] | None:
    """Return an input's sizes, or None if not even their number is known. A free axis without a name gets a symbol that
    no other axis has."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    sizes: list[_Size] = []
    for axis, dim in enumerate(tensor.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            sizes.append(dim.dim_value)
        elif dim.HasField("dim_value") and dim.dim_value == 0:
            sizes.append(f"{_NOTHING}{value.name}[{axis}]")
        else:
            sizes.append(f"{value.name}[{axis}]" if dim.dim_param in _UNNAMED else dim.dim_param)
    return sizes


def _free(inputs: Mapping[str, list[_Size] | None]) -> list[str]:
    return [name for name, sizes in inputs.items() if sizes is None or not _is_fixed(sizes)]


def _is_fixed(sizes: Iterable[_Size]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def _write(value: onnx.ValueInfoProto, shape: Shape) -> None:
    tensor = value.type.tensor_type
    tensor.shape.SetInParent()
    del tensor.shape.dim[:]
    for size in shape:
        tensor.shape.dim.add().dim_value = size


@dataclass
class _Table:
    """A table that has the sizes of all inputs, and in `bound` the sizes that symbols were given so far."""

    source: str
    sizes: dict[str, list[_Size] | None]
    bound: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free_inputs = _free(self.sizes)

    def take_shape(self, name: str, shape: Shape) -> None:
        """Bind the symbols of an input to the sizes in its whole shape. Raises BadInput if the shape does not fit."""
        said = f"{self.source}: --shape {name}={','.join(map(str, shape))}"
        if name not in self.sizes:
            raise BadInput(f"{said}: there is no such input; there are {', '.join(self.sizes)}")
        if not shape or min(shape) < 1:
            raise BadInput(f"{said}: give a size of at least 1 for every axis")
        sizes = self.sizes[name]
        if sizes is None:
            self.sizes[name] = list(shape)
            return
        if len(shape) != len(sizes):
            raise BadInput(f"{said}: the input has {len(sizes)} axes: {self._text(name)}")
        for axis, (size, given) in enumerate(zip(sizes, shape, strict=True)):
            known = self.bound.setdefault(size, given) if isinstance(size, str) else size
            if known != given:
                what = f" ({size!r}, which stands elsewhere too)" if isinstance(size, str) else " in the file"
                raise BadInput(f"{said}: axis {axis} is {known}{what}: {self._text(name)}")

    def take_batch(self, batch: int) -> None:
        """Bind every free first axis to `batch`. Raises BadInput if that does not fit."""
        said = f"{self.source}: --batch {batch}"
        if batch < 1:
            raise BadInput(f"{said}: a batch is at least 1")
        first = [sizes[0] for sizes in self.sizes.values() if sizes]
        if not any(isinstance(size, str) for size in first) and batch not in first:
            shapes = ", ".join(f"{name!r} {self._text(name)}" for name in self.sizes)
            raise BadInput(f"{said}: no input's first axis is free: {shapes}")
        for size in first:
            if isinstance(size, str) and not size.startswith(_NOTHING) and self.bound.setdefault(size, batch) != batch:
                raise BadInput(f"{said}: --shape says {self.bound[size]}")

    def take_ones(self) -> tuple[str, ...]:
        """Bind the first axes that are left to 1 if no other axis is free. Return a line that says so, if any were."""
        left = [(axis, size) for sizes in self.sizes.values() for axis, size in enumerate(sizes or [])]
        free = {size: axis for axis, size in reversed(left) if isinstance(size, str) and size not in self.bound}
        others = {size for axis, size in left if axis > 0 and size in free}
        if not free or others or None in self.sizes.values() or any(size.startswith(_NOTHING) for size in free):
            return ()
        names = [name for name, sizes in self.sizes.items() if sizes and sizes[0] in free]
        self.bound.update(dict.fromkeys(free, 1))
        inputs = ", ".join(map(repr, names))
        return (f"{self.source}: the batch of {inputs} is free and taken as 1; for another one give --batch N",)

    def refuse_free(self) -> None:
        """Raise BadInput, naming each input that has a free axis left, with an example of what would help."""
        left = [name for name, sizes in self.sizes.items() if sizes is None or not _is_fixed(map(self._size, sizes))]
        for name in left:
            if any(isinstance(size, str) and size.startswith(_NOTHING) for size in self.sizes[name] or ()):
                raise BadInput(
                    f"{self.source}: input {name!r} {self._text(name, self.bound)} has a size of 0, so there is "
                    f"nothing to compute; if it is meant to be free, give it: --shape {name}={self._example(name)}"
                )
        if left:
            shapes = ", ".join(f"{name!r} {self._text(name, self.bound)}" for name in left)
            examples = " ".join(f"--shape {name}={self._example(name)}" for name in left)
            raise BadInput(f"{self.source}: sizes are free: {shapes}: give them, for example: {examples}")

    def shape_of(self, name: str) -> Shape:
        """Return an input's shape, once none of its axes is free."""
        return tuple(int(self._size(size)) for size in self.sizes[name] or ())

    def _size(self, size: _Size) -> _Size:
        return self.bound.get(size, size) if isinstance(size, str) else size

    def _text(self, name: str, known: Mapping[str, int] = MappingProxyType({})) -> str:
        """Return an input's sizes as text: as the file has them, except for symbols whose sizes are `known`."""
        sizes = self.sizes[name]
        if sizes is None:
            return "of unknown rank"
        unnamed = {f"{name}[{axis}]": "?" for axis in range(len(sizes))}
        unnamed |= {f"{_NOTHING}{name}[{axis}]": "0" for axis in range(len(sizes))}
        return (
            " x ".join(str(known.get(s) or unnamed.get(s, s) if isinstance(s, str) else s) for s in sizes) or "a scalar"
        )

    def _example(self, name: str) -> str:
        sizes = self.sizes[name]
        if sizes is None:
            return "1,3,224,224"
        known = [self._size(size) for size in sizes]
        guess = _EXAMPLE_SIZES.get(len(known), 16)
        return ",".join(str(s if isinstance(s, int) else guess if axis else 1) for axis, s in enumerate(known))
