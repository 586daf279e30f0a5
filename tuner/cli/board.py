"""`tune board`: boards across the network: serve, pair, list, ping, forget, and the agent in one file."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from board_agent.serve import PORT, default_folder
from tuner.cli.common import JsonOption, Output, check_parent_writable
from tuner.errors import BadInput

app = typer.Typer(no_args_is_help=True, help="Measure on boards across the network.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What this host calls the board.")]


@app.command()
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
) -> None:
    """Serve this machine as a board, until interrupted."""
    from board_agent import serve as agent

    more = () if pair_code is None else ("--pair", pair_code)
    given = ["--address", address, "--port", str(port), "--folder", str(folder or default_folder()), *more]
    raise typer.Exit(agent.main(given))


@app.command()
def pair(
    name: NameArgument,
    address: Annotated[str | None, typer.Option(help="This host's address as the board sees it.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Where the board's agent will listen.")] = PORT,
    seconds: Annotated[float, typer.Option(min=1, help="How long the code is good for.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Make a board known: shows a code for it, and waits until the board has used it, once."""
    from tuner.devices.board import Boards, Pairing

    with Output(as_json) as out, Pairing(Boards(), name, address or _own_address(), seconds=seconds) as pairing:
        out.remark(f"on the board, within {seconds / 60:.0f} minutes:")
        out.remark(f"  tune board serve --address 0.0.0.0 --port {port} --pair {pairing.code}")
        out.remark("without edgetune there: `tune board agent` writes a file; python3 it with the same options")
        board = pairing.wait(port)
        out.show(f"paired with {board.title}; use it as --device board:{name}")
        out.result({"name": name, "address": board.address, "port": board.port})


@app.command("list")
def list_boards(as_json: JsonOption = False) -> None:
    """List the boards that this host knows, and who answers."""
    from tuner.devices.board import BoardBusy, BoardGone, Boards, Link

    with Output(as_json) as out:
        table, rows = Table(box=None), []
        for title in ("board", "address", "state", "machine", "cores"):
            table.add_column(title)
        for board in Boards():
            facts, state = {}, "ready"
            try:
                with Link(board, seconds=3.0) as link:
                    facts = link.facts
            except BoardBusy:
                state = "busy"
            except BoardGone as error:
                state = str(error).partition(": ")[2]
            cores = str(len(facts.get("cpus", ()))) if facts else "-"
            table.add_row(board.name, f"{board.address}:{board.port}", state, facts.get("machine", "-"), cores)
            rows.append(
                {"name": board.name, "address": board.address, "port": board.port, "state": state, "facts": facts}
            )
        out.show(table if rows else "no boards: `tune board pair NAME` makes one known")
        out.result({"boards": rows})


@app.command()
def ping(name: NameArgument, as_json: JsonOption = False) -> None:
    """See that a board answers and can run kernels, what it is, and how it feels."""
    from tuner.devices.board import BoardBusy, BoardGone, Boards, KernelDied, Link

    with Output(as_json) as out:
        began = time.perf_counter()
        try:
            with Link(Boards()[name]) as link:
                connected = time.perf_counter() - began
                settings = {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}
                started, _ = link.ask({"do": "start", "settings": settings})
                condition, _ = link.ask({"do": "condition"})
                facts = link.facts
        except (BoardGone, BoardBusy) as error:
            raise BadInput(str(error)) from error
        except (KernelDied, RuntimeError) as error:
            raise BadInput(f"board {name}: it answers, but cannot run kernels: {error}") from error
        table = Table(box=None, show_header=False)
        rows = {
            "connected in": f"{1e3 * connected:.0f} ms",
            "machine": f"{facts['machine']}, {facts['cpu_name'] or facts['cpu_ids'][1] or 'unknown'}",
            "cores": str(len(facts["cpus"])),
            "free memory": f"{condition['free_bytes'] / 2**20:.0f} MiB",
            "kernels are kept from": ", ".join(started["contained"]) or "nothing: see SECURITY.md",
            **{f"{k} C": f"{v:.0f}" for k, v in condition.get("degrees", {}).items()},
        }
        for title, value in rows.items():
            table.add_row(title, value)
        out.show(table)
        out.result({"connect_seconds": connected, "facts": facts, "condition": condition, **started})


@app.command()
def forget(name: NameArgument, as_json: JsonOption = False) -> None:
    """Forget a board: its certificates are removed here; remove the pairing's folder on the board too."""
    from tuner.devices.board import Boards

    with Output(as_json) as out:
        Boards().forget(name)
        out.show(f"forgot {name}")
        out.result({"forgotten": name})


@app.command()
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


def _own_address() -> str:
    """Of the interface that leads out of this machine; no packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
