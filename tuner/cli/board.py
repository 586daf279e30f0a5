"""`tune board` works with boards across the network: serve, pair, list, ping, forget, and write the agent's file."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from board_agent.defaults import ALIVE_SECONDS, MOST_ALIVE_SECONDS, PORT, TURN_SECONDS, default_folder
from tuner.cli.common import JsonOption, Output, check_parent_writable
from tuner.cli.examples import examples
from tuner.errors import BadInput

app = typer.Typer(
    no_args_is_help=True,
    help="Measure on boards across the network.",
    epilog=examples("tune board pair kitchen", "tune board list", "tune board ping kitchen"),
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What this host calls the board.")]


@app.command(
    epilog=examples(
        "tune board serve --address 0.0.0.0 --pair CODE", "tune board serve --address 0.0.0.0 --port 9191 --turn 30"
    )
)
def serve(
    pair_code: Annotated[
        str | None,
        typer.Option("--pair", metavar="CODE", help="Become known to the host whose `tune board pair` shows it."),
    ] = None,
    address: Annotated[str, typer.Option(help="Where to listen; the default is for this machine alone.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = PORT,
    folder: Annotated[
        Path | None, typer.Option(help="Where keys are kept (default: the user's configuration).")
    ] = None,
    turn: Annotated[
        float, typer.Option(metavar="SECONDS", help="What a host measures for while others wait.")
    ] = TURN_SECONDS,
    alive: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="Between signs of life: without some of them a host sees the board gone."),
    ] = ALIVE_SECONDS,
) -> None:
    """Serve this machine as a board, until interrupted."""
    from board_agent import serve as agent

    if not 0 < turn < float("inf"):
        raise BadInput(f"--turn must be a positive number of seconds, not {turn:g}")
    if not 0 < alive <= MOST_ALIVE_SECONDS:
        raise BadInput(f"--alive must be a positive number of seconds, {MOST_ALIVE_SECONDS:g} at most, not {alive:g}")

    more = () if pair_code is None else ("--pair", pair_code)
    given = ["--address", address, "--port", str(port), "--turn", str(turn), "--alive", str(alive)]
    given += ["--folder", str(folder or default_folder()), *more]
    raise typer.Exit(agent.main(given))


@app.command(
    epilog=examples("tune board pair kitchen", "tune board pair kitchen --address 192.168.1.20 --seconds 3600")
)
def pair(
    name: NameArgument,
    address: Annotated[str | None, typer.Option(help="This host's address as the board sees it.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the board's agent will listen.")] = PORT,
    seconds: Annotated[float, typer.Option(min=1, help="How long the code is good for.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Make a board known: shows a code for it, and waits until the board has used it, once."""
    from tuner.devices.board import Boards, Pairing
    from tuner.devices.board.pairing import own_address

    with Output(as_json) as out, Pairing(Boards(), name, address or own_address(), seconds=seconds) as pairing:
        out.remark(f"on the board, within {seconds / 60:.0f} minutes:")
        out.remark(f"  tune board serve --address 0.0.0.0 --port {port} --pair {pairing.code}")
        out.remark("without edgetune there: `tune board agent` writes a file; python3 it with the same options")
        board = pairing.wait(port)
        out.show(f"paired with {board.title}; use it as --device board:{name}")
        out.result({"name": name, "address": board.address, "port": board.port})


@app.command("list", epilog=examples("tune board list", "tune board list --json"))
def list_boards(as_json: JsonOption = False) -> None:
    """List the boards that this host knows, who answers, who measures there, and which went away of late."""
    from tuner.devices.board import BoardBusy, BoardGone, Boards, Link

    with Output(as_json) as out:
        boards = Boards()
        table, rows = Table(box=None), []
        for title in ("board", "address", "state", "machine", "cores"):
            table.add_column(title)
        for board in boards:
            facts, state, record = {}, "ready", boards.record(board.name)
            try:
                with Link(board, seconds=3.0) as link:
                    facts = link.facts
                    state = str(link.standing) if link.standing.measures else "ready"
            except (BoardGone, BoardBusy) as error:
                state = str(error).partition(": ")[2]
            state = f"{state}; {record}" if record.faults else state
            cores = str(len(facts.get("cpus", ()))) if facts else "-"
            table.add_row(board.name, f"{board.address}:{board.port}", state, _machine(facts), cores)
            place = {"name": board.name, "address": board.address, "port": board.port}
            rows.append({**place, "state": state, **asdict(record), "facts": facts})
        out.show(table if rows else "no boards: `tune board pair NAME` makes one known")
        out.result({"boards": rows})


@app.command(epilog=examples("tune board ping kitchen", "tune board ping kitchen --json"))
def ping(name: NameArgument, as_json: JsonOption = False) -> None:
    """See that a board answers and can run kernels, what it is, and how it feels; its faults are forgotten then."""
    from tuner.devices import kinds_on_boards
    from tuner.devices.board import BoardBusy, BoardGone, Boards, Link

    with Output(as_json) as out:
        boards, began, busy = Boards(), time.perf_counter(), None
        started: dict[str, Any] = {}
        kinds: dict[str, str] = {}
        try:
            with Link(boards[name]) as link:
                connected = time.perf_counter() - began
                condition, _ = link.ask({"do": "condition"})
                facts = link.facts
                try:
                    for device in (kind.example for kind in kinds_on_boards()):
                        kinds[device], answer = _tried(link, name, device)
                        started = started or answer
                except BoardBusy as error:
                    busy = str(error).rpartition(": ")[2]
        except (BoardGone, BoardBusy) as error:
            raise BadInput(str(error)) from error
        if not started and busy is None:
            raise BadInput(f"board {name}: it answers, but cannot run kernels: {'; '.join(kinds.values())}")
        record = boards.record(name)
        boards.forgive(name)
        contained = ", ".join(started.get("contained", ())) or "nothing: see SECURITY.md"
        found = {"connect_seconds": connected, "facts": facts, "condition": condition, "busy": busy, "devices": kinds}
        rows = {
            "connected in": f"{1e3 * connected:.0f} ms",
            **about(facts, condition),
            **kinds,
            "kernels are kept from": contained if busy is None else f"not asked now: {busy}",
            **({"forgotten": str(record)} if record.faults else {}),
        }
        out.show(_facts_table(rows))
        out.result({**found, **asdict(record), **started})


def _tried(link: Any, name: str, device: str) -> tuple[str, dict[str, Any]]:
    """Start a kernel process for a kind of device on the board.

    Return the names of the devices, or why there are none, and what the process answered when it started (an empty
    dictionary if there are none).
    """
    from tuner.devices.board import KernelDied, name_on_board, on_board

    form = on_board(name_on_board(name, device)).form
    settings = {"device": device, "form": form, "threads": 1, "memory_bytes": 1 << 30}
    try:
        started, _ = link.start(settings, 60.0)
        described, _ = link.ask({"do": "describe"})
    except (KernelDied, RuntimeError) as error:
        return str(error), {}
    return ", ".join(described.get("devices", ["ready"])), started


def about(facts: dict[str, Any], condition: dict[str, Any]) -> dict[str, str]:
    """Return what a board is and the condition that it is in (memory, clocks, temperatures) as lines for a person."""
    from board_agent.condition import why_throttled

    slowed = [why for cores in (facts["cpus"], None) if (why := why_throttled(condition, condition, cores))]
    clocks = {**condition.get("mhz", {}), **condition.get("gpu_mhz", {})}
    limits = {**condition.get("limits", {}), **condition.get("gpu_limits", {})}
    return {
        "machine": f"{_machine(facts)}, {facts['cpu_name'] or facts['cpu_ids'][1] or 'unknown'}",
        "key": _key(facts),
        "TVM": _tvm(facts),
        "cores": str(len(facts["cpus"])),
        "free memory": f"{condition['free_bytes'] / 2**20:.0f} MiB",
        **{f"{k} MHz": f"{v:.0f}" + (f" of {limits[k][1]:.0f}" if k in limits else "") for k, v in clocks.items()},
        **{f"{k} C": f"{v:.0f}" for k, v in condition.get("degrees", {}).items()},
        "slowed down": "; ".join(slowed) or "no, as far as its system tells",
    }


def _key(facts: dict[str, Any]) -> str:
    """Return the device key that the board's CPU has in a tuning database, with all cores, or why it has none."""
    from tvm.target import Target

    from tuner.devices.cpu.on_boards import cpu_of, key_of

    threads = len(facts["cpus"])
    try:
        key = key_of(facts, Target(cpu_of(facts, threads)), threads)
    except BadInput as error:
        return f"none: {error}"
    return f"{key.kind}, {key.family}, {key.model}, {threads} threads"


def _tvm(facts: dict[str, Any]) -> str:
    """Return the board's version of TVM, and whether libraries that are built here are for another version."""
    from board_agent.facts import tvm_version

    there, here = facts.get("tvm"), tvm_version()
    if not there:
        return "none: its CPU needs it, its GPU does not" if there == "" else "an older agent does not say"
    return there if there == here else f"{there}, and {here} here: install apache-tvm=={here} there"


def _machine(facts: dict[str, Any]) -> str:
    """Return the board's architecture, and whether it is emulated, so that its times mean nothing."""
    return f"{facts.get('machine', '-')}{' (emulated)' if facts.get('emulated') else ''}"


def _facts_table(rows: dict[str, str]) -> Table:
    table = Table(box=None, show_header=False)
    for title, value in rows.items():
        table.add_row(title, value)
    return table


@app.command(epilog=examples("tune board forget kitchen", "tune board forget kitchen --json"))
def forget(name: NameArgument, as_json: JsonOption = False) -> None:
    """Forget a board: its certificates are removed here; remove the pairing's folder on the board too."""
    from tuner.devices.board import Boards

    with Output(as_json) as out:
        Boards().forget(name)
        out.show(f"forgot {name}")
        out.result({"forgotten": name})


@app.command(epilog=examples("tune board agent", "tune board agent -o /media/usb/agent.pyz"))
def agent(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The file to write.")] = Path(
        "agent.pyz"
    ),
    as_json: JsonOption = False,
) -> None:
    """Write the agent as one file, for boards where edgetune is not installed: it needs Python 3.8, NumPy, and TVM's
    wheel for the CPU."""
    from tuner.devices.board.packing import write_agent

    with Output(as_json) as out:
        check_parent_writable(output)
        write_agent(output)
        out.show(f"wrote {output}; on the board: python3 {output.name} --address 0.0.0.0 --pair CODE")
        out.result({"file": str(output), "bytes": output.stat().st_size})
