"""`tune op OPERATOR --shape ...` tunes one operator, without a model."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DEFAULT_LEASE,
    DTYPES,
    INTEGERS,
    DbOption,
    DeviceOption,
    ExactOption,
    JsonOption,
    LeaseOption,
    MinutesOption,
    Output,
    PluginOption,
    PresetOption,
    RayOption,
    SearcherOption,
    SeedOption,
    TemplateOption,
    ThreadsOption,
    TrialsOption,
    VendorOption,
    check_dtype,
    integers,
    seconds_of,
    split_list,
    templates_asked,
)
from tuner.cli.compile_only import CompileOnlyOption, ConfigsOption, TargetOption, compile_all, profile_asked
from tuner.cli.completion import one_of
from tuner.cli.names import operator_shapes
from tuner.cli.tuning import Request, finish, tune_tasks
from tuner.errors import BadInput

if TYPE_CHECKING:
    from templates.workloads import Conv2d, Dense
    from tuner.session import Task
    from tuning_db.record import Workload

SHAPES = {"conv2d": "N,C,H,W,K,R,S", "dense": "ROWS,IN,OUT", **operator_shapes()}
_ANCHORS = ("conv2d", "dense")
_GEOMETRY = ((1, 1), (0, 0, 0, 0), (1, 1), 1)  # a convolution's default stride, padding, dilation and groups

EXAMPLES = (
    "tune op conv2d --shape 1,64,56,56,64,3,3 --padding 1 --epilogue bias,relu",
    "tune op dense --shape 1,512,1000 --dtype uint8 --epilogue relu --minutes 1",
    "tune op nms --shape 1,1,8000,8000,1000 --attr iou=0.5 --device opencl:0",
)


_TypeOption = Annotated[
    str,
    typer.Option(
        "--dtype",
        help="How values are stored: as of `tune model`, or uint8 for conv2d, dense and batch_matmul, as quantised "
        "files have them: weights are int8, and real,scale stands before the --epilogue and quantize behind it, unless "
        "it names real. Operators without a weight have types of their own.",
        autocompletion=one_of((*DTYPES, INTEGERS)),
    ),
]


def command(
    operator: Annotated[
        str, typer.Argument(help="One of " + ", ".join(SHAPES) + ".", autocompletion=one_of(tuple(SHAPES)))
    ],
    *,
    shape: Annotated[str, typer.Option("--shape", help="; ".join(f"{k}: {v}" for k, v in SHAPES.items()) + ".")],
    stride: Annotated[str, typer.Option("--stride", help="One number, or H,W.")] = "1",
    padding: Annotated[str, typer.Option("--padding", help="One number, H,W or TOP,LEFT,BOTTOM,RIGHT.")] = "0",
    dilation: Annotated[str, typer.Option("--dilation", help="One number, or H,W.")] = "1",
    groups: Annotated[int, typer.Option("--groups", min=1, help="C for a depthwise convolution.")] = 1,
    epilogue: Annotated[
        str, typer.Option("--epilogue", help="What is fused behind it, in order: bias,relu or add,clip:0:6 ...")
    ] = "",
    attrs: Annotated[
        list[str] | None,
        typer.Option("--attr", help="NAME=VALUE, of operators without a weight: kind=max, descending=1, iou=0.5 ..."),
    ] = None,
    dtype: _TypeOption = "float32",
    device: DeviceOption = DEFAULT_DEVICE,
    threads: ThreadsOption = None,
    searcher: SearcherOption = None,
    trials: TrialsOption = None,
    minutes: MinutesOption = None,
    preset: PresetOption = None,
    db: DbOption = DEFAULT_DB,
    seed: SeedOption = 0,
    lease: LeaseOption = DEFAULT_LEASE,
    no_winograd: ExactOption = False,
    plugin: PluginOption = None,
    vendor: VendorOption = "",
    template: TemplateOption = None,
    ray: RayOption = None,
    target: TargetOption = None,
    compile_only: CompileOnlyOption = False,
    configs: ConfigsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tune one operator."""
    if operator not in SHAPES:
        raise BadInput(f"unknown operator {operator!r} (known: {', '.join(SHAPES)})")
    if operator in _ANCHORS:
        check_dtype(dtype, (*DTYPES, INTEGERS))
    sizes = integers(shape, "--shape", [len(SHAPES[operator].split(","))])
    geometry = (_pair(stride, "--stride"), _padding(padding), _pair(dilation, "--dilation"), groups)
    more = templates_asked(plugin, vendor), tuple(template or ()), dtype, ray
    request = Request(device, threads, searcher, trials, seconds_of(minutes), preset, db, seed, no_winograd, *more)
    request = replace(request, lease_seconds=lease)
    profile = profile_asked(target, compile_only, configs, request)
    with Output(as_json) as out:
        workload = _workload(operator, sizes, geometry, epilogue=_epilogue(epilogue), attrs=attrs or [], dtype=dtype)
        if profile is not None:
            compile_all(profile, configs, request, make_tasks=lambda _: _task(workload), out=out)
        else:
            finish(tune_tasks(request, lambda _: _task(workload), out), out)


def _workload(
    operator: str, sizes: list[int], geometry: tuple[Any, ...], *, epilogue: list[str], attrs: list[str], dtype: str
) -> Workload:
    if operator != "conv2d" and geometry != _GEOMETRY:
        raise BadInput(f"{operator} has no --stride, --padding, --dilation or --groups")
    if operator not in _ANCHORS:
        if epilogue:
            raise BadInput(f"{operator} has no --epilogue: nothing is fused behind it")
        return _of_operator(operator, sizes, attrs, dtype)
    if attrs:
        raise BadInput(f"{operator} has no --attr")
    anchor = _conv2d(sizes, *geometry) if operator == "conv2d" else _dense(sizes)
    return anchor.workload(_complete(epilogue, dtype), dtype)


def _complete(epilogue: list[str], dtype: str) -> list[str]:
    """Return the tokens that a quantised file has, too, if they say nothing of real numbers. Raises BadInput if one
    cannot stand where it does."""
    from templates.epilogue import OF_SUMS, check_order

    if dtype == INTEGERS and "real" not in epilogue:
        sums = [token for token in epilogue if token in OF_SUMS]
        epilogue = [*sums, "real", "scale", *(token for token in epilogue if token not in OF_SUMS), "quantize"]
    try:
        check_order(epilogue, integers=dtype == INTEGERS)
    except ValueError as error:
        raise BadInput(f"--epilogue {','.join(epilogue)}: {error}") from None
    return epilogue


def _of_operator(operator: str, sizes: list[int], attrs: list[str], dtype: str) -> Workload:
    import vision_ops  # noqa: F401  (registers the operators)
    from templates.operator import operator_named
    from templates.template import all_templates

    types = sorted({dtype for t in all_templates() if t.op == operator for dtype in t.dtypes})
    if dtype not in types:
        raise BadInput(f"{operator}: unknown dtype {dtype!r} (known: {', '.join(types)})")
    view = operator_named(operator).view
    values: dict[str, Any] = dict(zip(view.sizes(), sizes, strict=True))
    kinds = {f.name: str(f.type) for f in fields(view) if f.name not in values}
    for text in attrs:
        name, _, value = text.partition("=")
        if name not in kinds:
            raise BadInput(f"--attr {text}: {operator} has no such attribute (known: {', '.join(kinds) or 'none'})")
        values[name] = _value(text, value, kinds[name])
    try:
        workload: Workload = view(**values).workload(dtype)
    except TypeError:
        missing = [f.name for f in fields(view) if f.default is MISSING and f.name not in values]
        raise BadInput(f"{operator} needs --attr {missing[0]}=...") from None
    except ValueError as error:
        raise BadInput(str(error)) from None
    return workload


def _value(text: str, value: str, kind: str) -> Any:
    try:
        if kind == "bool":
            return {"0": False, "1": True}[value]
        return {"int": int, "float": float, "str": str}[kind](value)
    except (KeyError, ValueError):
        wanted = {"bool": "0 or 1", "int": "a whole number", "float": "a number"}[kind]
        raise BadInput(f"--attr {text}: {value!r} is not {wanted}") from None


def _task(workload: Workload) -> list[Task]:
    from tuner.session import Task

    return [Task(workload, 1, workload.op)]


def _conv2d(
    sizes: list[int],
    stride: tuple[int, int],
    padding: tuple[int, int, int, int],
    dilation: tuple[int, int],
    groups: int,
) -> Conv2d:
    from templates.workloads import Conv2d

    if min(sizes) < 1 or min(stride) < 1 or min(dilation) < 1 or min(padding) < 0:
        raise BadInput("conv2d: sizes, strides and dilations are positive, padding is not negative")
    n, c, h, w, k, r, s = sizes
    try:
        return Conv2d(n, c, h, w, k, (r, s), stride, padding, dilation, groups)
    except ValueError as error:
        raise BadInput(str(error)) from None


def _dense(sizes: list[int]) -> Dense:
    from templates.workloads import Dense

    if min(sizes) < 1:
        raise BadInput("dense: sizes are positive")
    return Dense(*sizes)


def _pair(text: str, option: str) -> tuple[int, int]:
    values = integers(text, option, [1, 2])
    return values[0], values[-1]


def _padding(text: str) -> tuple[int, int, int, int]:
    values = integers(text, "--padding", [1, 2, 4])
    if len(values) == 4:
        return values[0], values[1], values[2], values[3]
    return values[0], values[-1], values[0], values[-1]


def _epilogue(text: str) -> list[str]:
    """Parse the option --epilogue into canonical tokens. Raises BadInput for an unknown token."""
    from templates.epilogue import parse, token

    tokens = []
    for item in split_list(text):
        try:
            name, numbers = parse(item)
        except ValueError as error:
            raise BadInput(f"--epilogue: {error}") from None
        tokens.append(token(name, *numbers))
    return tokens
