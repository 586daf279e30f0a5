"""`tune report [DIR ...] -o report.html` writes one page that shows a database and built modules."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from board_agent.parsing import parse_json
from tuner.cli.common import (
    DEFAULT_DB,
    DbOption,
    JsonOption,
    Output,
    PluginOption,
    check_file,
    check_parent_writable,
    import_plugins,
)
from tuner.errors import BadInput
from tuner.files import write_whole

if TYPE_CHECKING:
    from tuner.module import Manifest
    from tuning_db.record import DeviceKey
    from tuning_db.store import Store

ModulesArgument = Annotated[
    list[Path] | None, typer.Argument(metavar="[DIR]...", help="Folders that `tune build` wrote.")
]
BenchOption = Annotated[
    list[Path] | None,
    typer.Option("--bench", metavar="FILE", help="What `tune bench DIR --json` printed (may be repeated)."),
]
EXAMPLES = ("tune report resnet18.tuned -o report.html", "tune report resnet18.tuned --bench bench.json --measure")


def command(
    modules: ModulesArgument = None,
    *,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The page to write.")] = Path(
        "report.html"
    ),
    db: DbOption = DEFAULT_DB,
    bench: BenchOption = None,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="Measure the peaks of the devices that are here, and each module's calls."),
    ] = False,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write one page that shows tasks, searches, failures, rooflines, knobs, modules and drift; it needs no network."""
    check_parent_writable(output)
    benches = [read_bench(path) for path in bench or ()]
    started = time.perf_counter()
    with Output(as_json) as out:
        import_plugins(plugin or ())

        from tuner.module import read_manifest
        from tuner.report.page import collect, render
        from tuning_db.store import open_db

        folders = modules or []
        manifests = [read_manifest(folder, check_files=False) for folder in folders]
        with open_db(db, create=False, read_only=True) as store:
            roofs: dict[str, dict[str, Any]] = {}
            if measure:
                roofs = _roofs(_computed(store, manifests), out)
                benches += [_compared(folder, out) for folder in folders]
            page = render(collect(store, folders, benches, roofs))
        write_whole(output, page.encode())
        size = len(page.encode())
        out.show(f"wrote {output}, {size / 1e6:.1f} MB, in {time.perf_counter() - started:.0f} s: open it in a browser")
        out.result({"output": str(output), "bytes": size, "roofs": roofs})


def read_bench(path: Path) -> dict[str, Any]:
    """Read what `tune bench --json` printed. Raises BadInput if the file holds anything else."""
    check_file(path, "what `tune bench DIR --json` printed")
    try:
        data = parse_json(path.read_text(encoding="utf-8"))
        [row["median_seconds"] for row in (data["ours"], *data["peers"])]
        [call["seconds"] for call in data["profile"]["calls"]]
        data["module"], data["threads"], data["profile"]["peak_gflops"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadInput(
            f"{path}: is not what `tune bench DIR --json` prints ({type(error).__name__}: {error})"
        ) from error
    return dict(data)


def _computed(store: Store, manifests: Sequence[Manifest]) -> dict[DeviceKey, set[str]]:
    """Return the dtypes that each device has computed in, in a database and in modules."""
    from tuning_db.record import DeviceKey

    dtypes = {key: {workload.dtype for workload in store.workloads(key)} for key in store.devices()}
    for manifest in manifests:
        keys = [DeviceKey.from_dict(processor.key) for processor in manifest.devices]
        for key in keys:
            dtypes.setdefault(key, set())
        for operator in manifest.operators:
            dtypes[keys[operator.device]].add(operator.workload.dtype)
    return dtypes


def _roofs(dtypes: Mapping[DeviceKey, set[str]], out: Output) -> dict[str, dict[str, Any]]:
    """Measure the peaks of those devices that are here, in the precisions of these dtypes. Return `roof_of` of each by
    the device's key."""
    from tuner.devices import find_device
    from tuner.devices.roof import roof_of

    roofs = {}
    for key, computed in dtypes.items():
        device = find_device(key)
        if device is None:
            out.remark(f"{key.kind} {key.model} is not here: its peak is not measured")
            continue
        out.remark(f"measuring the peak of {device.title}")
        roofs[key.key] = roof_of(device, computed)
    return roofs


def _compared(folder: Path, out: Output) -> dict[str, Any]:
    """Time the module alone, call by call, as `tune bench --profile` does, and return the result as JSON."""
    from tuner.cli.bench import BenchRequest, compare

    return {"module": str(folder), **compare(BenchRequest(folder), out).as_dict()}
