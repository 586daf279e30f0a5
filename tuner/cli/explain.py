"""`tune explain WORKLOAD` tells why the workload's kernel was chosen."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from tuner.cli.common import (
    DEFAULT_DB,
    DEFAULT_DEVICE,
    DbOption,
    DeviceOption,
    JsonOption,
    Output,
    PluginOption,
    ThreadsOption,
    VendorOption,
    check_parent_writable,
    import_plugins,
    templates_asked,
    threads_text,
)
from tuner.cli.compile_only import TargetOption
from tuner.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tuner.devices import Device
    from tuner.graph.layout.choice import Choice, Source
    from tuner.measure.offline import Compiler
    from tuner.report.explain import Explanation
    from tuning_db.record import Workload
    from tuning_db.store import Store

_AROUND = 3  # lines shown before and after the loop
_MOST = 24  # lines of the loop shown; --code writes all
_WIDEST = 160  # characters shown of each line
KNOWN: Mapping[Source, str] = {
    "device": "measured on this device",
    "family": "measured on another device of the family",
    "shipped": "shipped with the package, measured on a device like this one, never here",
    "shipped family": "shipped with the package, measured on a relative of this device, never here",
    "plan": "said by a plan",
    "default": "its template's default: nothing is known of it here",
    "none": "no template applies",
}

EXAMPLES = (
    'tune explain "64x56x56 -> 64, 3x3"',
    'tune explain "64x56x56 -> 64, 3x3/1 +bias +relu" --code kernel.s',
    "tune explain conv2d --target jetson-orin:cpu",
)


def command(
    workload: Annotated[
        str, typer.Argument(metavar="WORKLOAD", help='As reports name it, or a part of that: "64x56x56 -> 64, 3x3".')
    ],
    *,
    device: DeviceOption = DEFAULT_DEVICE,
    threads: ThreadsOption = None,
    target: TargetOption = None,
    code: Annotated[
        Path | None, typer.Option("--code", metavar="FILE", help="Write all of the code, the loop marked with >.")
    ] = None,
    schedule: Annotated[bool, typer.Option("--schedule", help="Show the schedule as TVMScript, too.")] = False,
    db: DbOption = DEFAULT_DB,
    plugin: PluginOption = None,
    vendor: VendorOption = "",
    as_json: JsonOption = False,
) -> None:
    """Tell why a workload's kernel was chosen: knobs, counts, the hot loop of its code, the nearest rivals.

    Of several workloads whose names have WORKLOAD in them it lists kernels and times. --target jetson-orin:cpu is that
    board's CPU.
    """
    if code is not None:
        check_parent_writable(code)
    with Output(as_json) as out:
        import_plugins(templates_asked(plugin, vendor))
        on, compilers = _device(device, threads, target, out)

        from tuner.report.explain import explain
        from tuner.report.hot_loop import marked
        from tuning_db.store import open_db

        with open_db(db, create=False, read_only=True) as store:
            one = _asked(store, workload, on, option="--code" if code else "--schedule" if schedule else None, out=out)
            if one is None:
                return
            found = explain(store, one, on, compilers)
        _show(found, on, out)
        if schedule:
            out.show(found.schedule)
        if code is not None:
            code.write_text(marked(found.code, found.loop), encoding="utf-8")
            out.show(f"wrote {code}: {found.language}, the hot loop marked with >")
        out.result({"device": on.key.as_dict(), **found.as_dict()})


def _asked(store: Store, text: str, on: Device, *, option: str | None, out: Output) -> Workload | None:
    """Return the workload that `text` names. If it names several, list them and return None.

    `option` is a given option that applies to one kernel only. Raises BadInput if `text` names no workload, and if it
    names several while there is such an option.
    """
    from tuner.graph.layout.choice import choose
    from tuner.report.explain import workloads_like

    found = workloads_like(store, text)
    if len(found) > 1:  # steps, transforms and copies that plans measured have no kernel: leave them out
        chosen = choose(found.values(), on, store)
        found = {name: w for name, w in found.items() if chosen[w].config is not None} or found
    if len(found) == 1:
        return next(iter(found.values()))
    if option is not None:
        raise BadInput(f"{option} is of one kernel, {len(found)} workloads are called so: {_how(found)}")
    _list(found, [chosen[w] for w in found.values()], on, out)
    return None


def _list(asked: Mapping[str, Workload], choices: Sequence[Choice], on: Device, out: Output) -> None:
    """List several workloads, the slowest first."""
    from tuner.report.text import clipped, microseconds

    order = sorted(zip(asked.items(), choices, strict=True), key=lambda entry: -(entry[1].seconds or 0.0))
    table = Table(box=None, title=f"{len(order)} workloads on {on.title}", title_justify="left")
    for title in ("workload", "us", "kernel", "known from"):
        table.add_column(title, justify="right" if title == "us" else "left", overflow="fold")
    rows = []
    for (name, workload), choice in order:
        template = "-" if choice.config is None else choice.config.template
        table.add_row(clipped(name), microseconds(choice.seconds), template, choice.source)
        known = {
            "source": choice.source,
            "seconds": choice.seconds,
            "config": choice.config and choice.config.as_dict(),
        }
        rows.append({"text": name, "workload": workload.as_dict(), **known})
    out.show(table)
    out.show(_how(name for (name, _), _ in order))
    out.result({"device": on.key.as_dict(), "workloads": rows})


def _how(names: Iterable[str]) -> str:
    """Return a hint that shows how to name one of several workloads."""
    from tuner.report.text import clipped

    return f"name one in full: tune explain {shlex.quote(clipped(next(iter(names))))}"


def _device(name: str, threads: int | None, target: str | None, out: Output) -> tuple[Device, Sequence[Compiler]]:
    from tuner.devices import Device, open_device

    if target is None:
        return open_device(name, threads), ()
    if name != DEFAULT_DEVICE or threads is not None:
        raise BadInput("--target is a device that is not here: leave out --device and --threads")
    from tuner.devices.profiles import host_of_profile, profile_named
    from tuner.measure.offline import compiler_named

    board, _, part = target.rpartition(":")
    if part == "cpu":
        return host_of_profile(profile_named(board)), ()
    profile = profile_named(target)
    compilers = []
    for compiler in profile.compilers:
        try:
            compilers.append(compiler_named(compiler, profile))
        except BadInput as error:
            out.remark(str(error))
    return Device(profile.name, profile.target(), profile.key(), threads=1, cache_bytes=0), compilers


def _show(found: Explanation, on: Device, out: Output) -> None:
    from tuner.report.text import knobs_text, microseconds

    choice = found.choice
    assert choice.config is not None
    time = "" if choice.seconds is None else f": {microseconds(choice.seconds)} us"
    known = KNOWN[choice.source]
    threads = f", {threads_text(on.threads)}" if on.is_host else ""
    out.show(f"{found.text} on {on.title}{threads}{time} ({known}; {found.configs} configs tried)")
    out.show(f"{choice.config.template}: {knobs_text(choice.config.knobs)}")
    out.show(_counts(found))
    for kernel in found.kernels:
        told = knobs_text(kernel["compiled"]) if kernel["compiled"] else "no compiler here tells its registers"
        out.show(
            f"kernel {kernel['name']}: {kernel['grid']} groups of {kernel['group']}, {kernel['local_bytes']} bytes of "
            f"local memory, {kernel['barriers']} barriers; {told}"
        )
    _show_loop(found, out)
    if found.rivals:
        table = Table(box=None, title="Nearest rivals", title_justify="left")
        for title in ("us", "times slower", "differs in"):
            table.add_column(title, justify="left" if title == "differs in" else "right", overflow="fold")
        for rival in found.rivals:
            table.add_row(microseconds(rival.seconds), f"{rival.times_slower:.3f}", rival.differs)
        out.show(table)


def _counts(found: Explanation) -> str:
    from tuner.precision import INT8, precision_of, rate_unit
    from tuner.report.text import number

    seconds = found.choice.seconds if found.choice.source == "device" else None
    counted, rates = [], []
    precision = precision_of(found.workload.dtype)
    if found.flop is not None:
        operations = "MFLOP" if precision != INT8 else "million operations on integers"
        counted.append(f"{number(found.flop / 1e6)} {operations} by the direct algorithm")
        rates += [f"{number(found.flop / seconds / 1e9)} {rate_unit(precision)}"] if seconds else []
    if found.bytes is not None:
        size = f"{number(found.bytes / 1e6)} MB" if found.bytes >= 1e4 else f"{found.bytes:.0f} bytes"
        counted.append(f"{size} to move at least")
        rates += [f"{number(found.bytes / seconds / 1e9)} GB/s"] if seconds else []
    text = ", ".join(counted) + (f": {', '.join(rates)}" if rates else "")
    if found.flop is None:
        text += ("; " if text else "") + f"operations of {found.workload.op} are not counted: it is not about them"
    return text


def _no_loop(found: Explanation) -> str:
    from templates.workloads import is_anchor
    from tuner.vendors import vendor_of

    assert found.choice.config is not None
    if (vendor := vendor_of(found.choice.config.template)) is not None:
        return f"its {found.language} calls {vendor}: the loop is in that library"
    if is_anchor(found.workload):
        return f"no loop with multiply-adds in its {found.language}: all are unrolled"
    return f"no loop of its {found.language} has multiply-adds, by which a hot loop is found: --code FILE writes it all"


def _show_loop(found: Explanation, out: Output) -> None:
    from tuner.report.hot_loop import marked

    loop = found.loop
    if loop is None:
        out.show(_no_loop(found))
        return
    what = "instructions" if loop.registers is not None else "statements"
    text = f"hot loop, by its text: {loop.instructions} {what}, {loop.multiply_adds} of them multiply-adds"
    if loop.registers is not None:
        text += (
            f"; {loop.registers} vector registers; {loop.stack_stores} vectors stored to and {loop.stack_loads} loaded "
            "from the stack (spilled, or a small array)"
        )
    out.show(text)
    lines = marked(found.code, loop).splitlines()
    first, last = max(0, loop.first - _AROUND), min(loop.last, loop.first + _MOST) + 1
    rest = [f"  ... {loop.last + 1 - last} more lines of the loop: --code FILE"] if last <= loop.last else []
    shown = lines[first : last + (0 if rest else _AROUND)]
    out.show("\n".join([*(line if len(line) <= _WIDEST else f"{line[:_WIDEST]}..." for line in shown), *rest]))
