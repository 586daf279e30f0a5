"""`tune pack` shares what was tuned, in signed files: make, check, list, pull, push, and whose packs are trusted."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    SeedOption,
    ThreadsOption,
    check_parent_writable,
    import_plugins,
)
from tuner.cli.db import current_bests
from tuner.cli.examples import examples
from tuner.cli.pulling import Pull, as_dict, exit_of, looked_at, pull_all, remarked, untrusted
from tuner.errors import BadInput, VerificationFailed

if TYPE_CHECKING:
    from tuner.packs.pack import Pack
    from tuning_db.record import DeviceKey
    from tuning_db.store import Store

app = typer.Typer(
    no_args_is_help=True,
    help="Share what was tuned, in signed files.",
    epilog=examples(
        "tune pack make avx512.pack", "tune pack push avx512.pack ../packs", "tune pack pull ../packs --measure 8"
    ),
)

PlaceArgument = Annotated[
    str,
    typer.Argument(
        metavar="PLACE", help="A pack, a folder, https://..., or a git repository (git+https://..., *.git)."
    ),
]
FilesArgument = Annotated[list[Path], typer.Argument(metavar="PACK...", help="Files NAME.pack.")]


@app.command(
    epilog=examples(
        "tune pack make avx512.pack", "tune pack make mali.pack --family opencl/mali-g610 --note 'Orange Pi 5'"
    )
)
def make(
    file: Annotated[Path, typer.Argument(metavar="PACK", help="The file to write: NAME.pack.")],
    family: Annotated[
        str | None, typer.Option("--family", metavar="KIND/FAMILY", help="Whose configs (default: the only one's).")
    ] = None,
    note: Annotated[str, typer.Option("--note", help="What to say of it: the machine, the networks.")] = "",
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Write the best configs of one family of devices to a file, signed with your key. The first call makes the key."""
    from tuner.packs.keys import Keys
    from tuner.packs.pack import SUFFIX, write_pack
    from tuning_db.store import open_db

    if file.suffix != SUFFIX:
        raise BadInput(f"{file}: the name of a pack's file ends in {SUFFIX}")
    check_parent_writable(file)
    with Output(as_json) as out, open_db(db, create=False, read_only=True) as store:
        chosen = family or _only_family(store)
        trials = [trial for trial in current_bests(store) if _group(trial.device) == chosen]
        if not trials:
            raise BadInput(f"{store.name}: has no config for {chosen} that could be a best; it has {_families(store)}")
        pack = write_pack(file, file.stem, trials, Keys().own(), note)
        out.show(f"{file}: {pack.what}, signed with key {pack.key}")
        out.result({"file": str(file), **as_dict(pack)})


@app.command(epilog=examples("tune pack check avx512.pack", "tune pack check *.pack --json"))
def check(files: FilesArgument, as_json: JsonOption = False) -> None:
    """Verify packs' signatures, and say who signed them and which of their configs would be taken. Exit status 4 if one
    is damaged, was changed, or is signed by a key that you do not trust."""
    from tuner.packs.keys import Keys

    with Output(as_json) as out:
        found, trusted = list[dict[str, Any]](), Keys().trusted()
        for path in files:
            row: dict[str, Any] = {"file": str(path)}
            try:
                pack, taken, dropped = looked_at(_file(path), str(path))
                row |= {**as_dict(pack), "trusted": trusted.get(pack.key), "taken": len(taken)}
                row["dropped"] = remarked(out, dropped)
                row["refused"] = untrusted(pack, trusted, str(path))
                out.show(f"{path}: {pack.what}, {len(taken)} would be taken; {_signer(pack, trusted)}")
            except BadInput as error:
                row["refused"] = str(error)
                out.show(str(error))
            found.append(row)
        out.result({"packs": found})
    if any(row["refused"] for row in found):
        raise typer.Exit(VerificationFailed.exit_status)


@app.command("list", epilog=examples("tune pack list ../packs", "tune pack list https://example.org/packs"))
def list_(place: PlaceArgument, as_json: JsonOption = False) -> None:
    """Show the packs of a place, and whether you trust who signed them."""
    from tuner.packs.keys import Keys
    from tuner.packs.pack import read_pack
    from tuner.packs.places import fetch

    with Output(as_json) as out:
        trusted, rows = Keys().trusted(), list[dict[str, Any]]()
        table = Table(box=None)
        for title in ("pack", "for", "configs", "made", "signed by", "note"):
            table.add_column(title, overflow="fold")
        for title, content in fetch(place).items():
            try:
                pack = read_pack(content, title)
            except BadInput as error:
                out.remark(str(error))
                rows.append({"place": title, "refused": str(error)})
                continue
            signer = trusted.get(pack.key, f"{pack.key[:16]}..., not trusted")
            count = str(len(pack.trials))
            table.add_row(pack.name, f"{pack.kind} {pack.family}", count, f"{pack.made:%Y-%m-%d}", signer, pack.note)
            rows.append({"place": title, **as_dict(pack), "trusted": trusted.get(pack.key)})
        out.show(table)
        out.result({"packs": rows})


@app.command(
    epilog=examples("tune pack pull ../packs", "tune pack pull git@example.org:packs.git --device opencl:0 --measure 9")
)
def pull(
    place: PlaceArgument,
    *,
    device: DeviceOption = DEFAULT_DEVICE,
    threads: ThreadsOption = None,
    measure: Annotated[
        int,
        typer.Option("--measure", min=0, metavar="N", help="How many of each pack's configs to measure here first."),
    ] = 4,
    seed: SeedOption = 0,
    plugin: PluginOption = None,
    db: DbOption = DEFAULT_DB,
    as_json: JsonOption = False,
) -> None:
    """Take the configs of a place's packs for a device's family into a database, from those whose keys you trust.

    N of each, drawn at random, are measured here first, beside the untuned configs. One that fails, is wrong or is
    slower than that is dropped, and then N more are measured. Exit status 4 if a pack is refused.
    """
    from tuner.devices import open_device
    from tuner.packs.places import fetch
    from tuning_db.store import open_db

    contents, plugins = fetch(place), import_plugins(plugin or ())
    opened = open_device(device, threads)
    with Output(as_json) as out, open_db(db) as store:
        result = pull_all(contents, Pull(opened, store, out, measure, seed, plugins))
        out.result(result)
    exit_of(place, opened, result)


@app.command(
    epilog=examples("tune pack push avx512.pack ../packs", "tune pack push avx512.pack git@example.org:packs.git")
)
def push(
    file: Annotated[Path, typer.Argument(metavar="PACK", help="A file NAME.pack.")],
    place: Annotated[str, typer.Argument(metavar="PLACE", help="A folder, or a git repository.")],
    as_json: JsonOption = False,
) -> None:
    """Copy a pack to a folder, which a web server may serve, or commit it to a git repository and push that."""
    from tuner.packs.pack import read_pack
    from tuner.packs.places import push as push_to

    with Output(as_json) as out:
        read_pack(_file(file), str(file))  # nothing else is pushed
        where = push_to(file, place)
        out.show(f"pushed {where}")
        out.result({"pushed": where})


@app.command(epilog=examples("tune pack trust 6b1f...e2 --name lab", "tune pack trust avx512.pack --name lab"))
def trust(
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY", help="64 hexadecimal digits, as their owner gives you, or a pack of the owner's."
        ),
    ],
    name: Annotated[str, typer.Option("--name", help="What to call its owner.")],
    as_json: JsonOption = False,
) -> None:
    """Take packs that are signed by a key from now on."""
    from tuner.packs.keys import Keys
    from tuner.packs.pack import SUFFIX, read_pack

    with Output(as_json) as out:
        Keys().trust(read_pack(_file(Path(key)), key).key if key.endswith(SUFFIX) else key, name)
        out.show(f"packs signed by {name} are taken from now on")
        out.result({"trusted": Keys().trusted()})


@app.command(epilog=examples("tune pack distrust lab", "tune pack distrust lab --json"))
def distrust(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What its owner is called.")], as_json: JsonOption = False
) -> None:
    """Take no more packs that are signed by a key. What was pulled before stays."""
    from tuner.packs.keys import Keys

    with Output(as_json) as out:
        Keys().distrust(name)
        out.show(f"packs signed by {name} are refused from now on")
        out.result({"trusted": Keys().trusted()})


@app.command(epilog=examples("tune pack keys", "tune pack keys --json"))
def keys(as_json: JsonOption = False) -> None:
    """Show your own key, which others need to trust your packs, and the keys that you trust."""
    from tuner.packs.keys import Keys, public_key

    with Output(as_json) as out:
        own = public_key(Keys().own())
        table = Table(box=None)
        table.add_column("name")
        table.add_column("key", overflow="fold")
        for key, name in sorted(Keys().trusted().items(), key=lambda item: item[1]):
            table.add_row(name, key)
        out.show(table)
        out.result({"own": own, "trusted": Keys().trusted()})


def _group(device: DeviceKey) -> str:
    """Return what --family calls the devices of a kind and a family."""
    return f"{device.kind}/{device.family}"


def _families(store: Store) -> str:
    return ", ".join(sorted(set(map(_group, store.devices())))) or "none"


def _only_family(store: Store) -> str:
    found = set(map(_group, store.devices()))
    if len(found) > 1:
        raise BadInput(f"{store.name}: has configs of several families: choose with --family: {_families(store)}")
    return next(iter(found), "any device")


def _file(path: Path) -> bytes:
    from tuner.packs.places import fetch

    if path.is_dir():
        raise BadInput(f"{path}: is a folder; give its packs, or `tune pack list {path}`")
    return fetch(str(path))[str(path)]


def _signer(pack: Pack, trusted: dict[str, str]) -> str:
    name = trusted.get(pack.key)
    return f"signed by {name}" if name else f"signed by key {pack.key}, which you do not trust"
