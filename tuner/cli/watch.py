"""`tune watch` serves the report's page live, while runs go on."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from tuner.cli.common import DEFAULT_DB, DbOption, JsonOption, Output, PluginOption, import_plugins
from tuner.cli.report import BenchOption, ModulesArgument, read_bench
from tuner.errors import BadInput

if TYPE_CHECKING:
    from tuner.report.live import Live
    from tuning_db.store import Store

EXAMPLES = ("tune watch", "tune watch resnet18.tuned --db team.db --port 8000", "tune watch --resume")


def command(
    modules: ModulesArgument = None,
    *,
    db: DbOption = DEFAULT_DB,
    address: Annotated[
        str, typer.Option("--address", help="Listen here; others than 127.0.0.1 can be reached by the network.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 0,
    bench: BenchOption = None,
    resume: Annotated[bool, typer.Option("--resume", help="Only end a pause: all runs in the database go on.")] = False,
    plugin: PluginOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the report live while runs go on, modules with it, with buttons to pause, go on and skip a task.

    The link that is shown has a token; whoever has it can look and press. Runs look between two batches.
    """
    benches = [read_bench(path) for path in bench or ()]
    with Output(as_json) as out:
        import_plugins(plugin or ())
        from tuning_db import run_control
        from tuning_db.store import open_db

        with open_db(db) as store:
            if resume:
                was = run_control.is_paused(store)
                run_control.resume(store)
                out.show("all runs go on" if was else "no pause to end")
                out.result({"was_paused": was})
                return

            from tuner.module import read_manifest
            from tuner.report.live import Live

            for folder in modules or []:
                read_manifest(folder)
            _serve(store, Live(store, modules or [], benches), address, port=port, out=out)


def _serve(store: Store, live: Live, address: str, *, port: int, out: Output) -> None:
    from tuner.report.live import LOOPBACK, LiveServer

    try:
        server = LiveServer(live, address, port)
    except OSError as error:
        raise BadInput(f"--address {address} --port {port}: {error.strerror or error}; choose another") from None
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    try:
        thread.start()
        out.remark(f"watching {store.name}: open {server.link} in a browser; Ctrl-C ends this, no run")
        if not store.stats().trials:
            out.remark(f"{store.name} has no trial yet: the runs to watch are those with this --db")
        if address != LOOPBACK:
            out.remark("the page is not encrypted: whoever hears the network has the token, too")
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()
        out.result({"watched": store.name})
    finally:
        server.server_close()
