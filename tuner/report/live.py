"""Serves the report's page while runs go on. Start at `LiveServer`, a small web server on this machine.

It gives the page and its data, and takes requests to pause, to go on and to skip a task. All of them need the token,
which is in the link that is shown. The page keeps the token for its browser tab, so that it can be loaded again.
Without a token the page is empty.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import func, select

from board_agent.parsing import parse_json
from tuner.devices.board.pairing import own_address
from tuner.errors import BadInput
from tuner.report.page import collect, render
from tuner.report.page.names import device_text
from tuner.report.page.render import as_json
from tuner.report.text import workload_text
from tuner.session.journal import is_gone
from tuning_db import run_control, schema
from tuning_db.claims import process_of
from tuning_db.errors import DatabaseError
from tuning_db.keys import Keys
from tuning_db.record import DeviceKey, Workload
from tuning_db.store import Store

LOOPBACK = "127.0.0.1"
REST = 2.0  # least seconds between two looks at the database; a look that took longer is followed by as long a rest
_HTML = "text/html; charset=utf-8"
_LONGEST = 1000  # bytes of a request's body
_DIGITS = 18  # of a row's id: an id with more may not fit into 64 bits


class Live:
    """An object that gives the page's current data and passes requests to the runs in a database.

    Many threads may use it at once. `modules` and `benches` are arguments of `collect`.
    """

    def __init__(self, store: Store, modules: Sequence[Path] = (), benches: Sequence[Mapping[str, Any]] = ()) -> None:
        self._store, self._modules, self._benches = store, modules, benches
        self._lock = threading.Lock()
        self._state: tuple[Any, ...] | None = None
        self._data, self._due = dict[str, Any](), 0.0

    def data(self) -> dict[str, Any]:
        """Return what `collect` returns, with "live" added, reused for REST seconds or for as long as it took.

        Raises DatabaseError if the database cannot be read, BadInput if a module cannot.
        """
        with self._lock:
            began = time.monotonic()
            if began >= self._due:
                state = self._counts()
                if state != self._state:
                    self._data, self._state = collect(self._store, self._modules, self._benches), state
                self._data = {**self._data, "live": self._live()}
                self._due = time.monotonic() + max(REST, time.monotonic() - began)
            return self._data

    def _counts(self) -> tuple[Any, ...]:
        """Return counts that change when anything is measured, flagged or removed."""
        t, e = schema.trials, schema.efforts
        marks = func.sum(func.length(t.c.versions))
        with self._store.reading() as connection:
            counts = connection.execute(select(func.count(), func.max(t.c.id), marks)).one()
            return *counts, connection.scalar(select(func.sum(e.c.seconds)))

    def _live(self) -> dict[str, Any]:
        return {"paused": run_control.is_paused(self._store), "running": self._running()}

    def _running(self) -> list[dict[str, Any]]:
        """Return the tasks that a run is working on, according to the journal and the claims."""
        found: dict[str, dict[str, Any]] = {}
        decode = Keys()
        for table in (schema.in_flight, schema.claims):
            query = select(
                table.c.workload_id,
                table.c.device_id,
                table.c.owner,
                schema.workloads.c.key.label("workload"),
                schema.devices.c.key.label("device"),
            ).select_from(table.join(schema.workloads).join(schema.devices))
            with self._store.reading() as connection:
                rows = connection.execute(query.where(table.c.owner.is_not(None))).all()
            for row in rows:
                process = process_of(row.owner)
                if is_gone(process):
                    continue
                ident = f"{row.workload_id}.{row.device_id}"
                text, device = workload_text(decode.workload(row.workload)), device_text(decode.device(row.device))
                entry = {"id": ident, "text": text, "device": device, "owner": process, "candidates": 0}
                found.setdefault(ident, entry)["candidates"] += table is schema.in_flight
        return list(found.values())

    def ask(self, wish: Mapping[str, Any]) -> None:
        """Carry out a request, {"wish": "pause" | "resume" | "skip", "task": ID}.

        Raises BadInput for anything else, DatabaseError if the database cannot be written.
        """
        if wish.get("wish") == "pause":
            run_control.pause(self._store)
        elif wish.get("wish") == "resume":
            run_control.resume(self._store)
        elif wish.get("wish") == "skip":
            run_control.skip(self._store, *self._task(str(wish.get("task"))))
        else:
            raise BadInput("what is asked is not pause, resume or skip")
        with self._lock:
            self._due = 0.0

    def _task(self, ident: str) -> tuple[Workload, DeviceKey]:
        workload, _, device = ident.partition(".")
        if not all(number.isdecimal() and len(number) <= _DIGITS for number in (workload, device)):
            raise BadInput(f"{ident[:40]!r} is no task")
        with self._store.reading() as connection:
            of_workload = connection.scalar(
                select(schema.workloads.c.key).where(schema.workloads.c.id == int(workload))
            )
            of_device = connection.scalar(select(schema.devices.c.key).where(schema.devices.c.id == int(device)))
        if of_workload is None or of_device is None:
            raise BadInput(f"there is no task {ident}")
        decode = Keys()
        return decode.workload(of_workload), decode.device(of_device)


class LiveServer(ThreadingHTTPServer):
    """A web server that serves the page until `shutdown`. Raises OSError if it cannot listen at the address."""

    daemon_threads = True

    def __init__(self, live: Live, address: str = LOOPBACK, port: int = 0) -> None:
        self.live, self.token = live, secrets.token_urlsafe(24)
        super().__init__((address, port), _Handler)
        listens = str(self.server_address[0])
        self._anywhere = ipaddress.ip_address(listens).is_unspecified
        self._names = {"localhost", address.lower(), listens}
        self.host = f"{own_address() if self._anywhere else address}:{self.server_address[1]}"

    @property
    def link(self) -> str:
        return f"http://{self.host}/?token={self.token}"

    def is_called(self, host: str) -> bool:
        """Return whether a request's Host header names this server, with any port, as a tunnel's port differs.

        If the server listens on every address, any IP address names it. A page of another site could only be answered
        by way of a host name that leads here, and such a name is refused.
        """
        try:
            name = urlsplit(f"//{host}").hostname or ""
            return name in self._names or (self._anywhere and bool(ipaddress.ip_address(name)))
        except ValueError:
            return False


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    protocol_version = "HTTP/1.1"
    timeout = 30  # seconds to wait for a client that sends nothing

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path == "/" and not query and self._is_called():
            self._guarded(lambda: (render({"live": None}, live=True), _HTML))  # the browser tab may have the token
        elif path == "/" and self._knows(query.removeprefix("token=")):
            self._guarded(lambda: (render(self.server.live.data(), live=True), _HTML))
        elif path == "/data" and self._knows(self.headers.get("X-Token", "")):
            self._guarded(lambda: (as_json(self.server.live.data()), "application/json"))
        else:
            self._refuse()

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if self.path != "/wish" or not self._knows(self.headers.get("X-Token", "")):
            self._refuse()
        elif not length.isdecimal() or int(length) > _LONGEST:
            self._answer(HTTPStatus.BAD_REQUEST, '{"error": "too long"}', "application/json")
            self.close_connection = True
        else:
            body = self.rfile.read(int(length))
            self._guarded(lambda: (self._asked(body), "application/json"))

    def _asked(self, body: bytes) -> str:
        try:
            wish = parse_json(body)
        except ValueError as error:
            raise BadInput("the request is not JSON") from error
        if not isinstance(wish, dict):
            raise BadInput("the request is no JSON object")
        self.server.live.ask(wish)
        return as_json(self.server.live.data())

    def _knows(self, token: str) -> bool:
        """Return whether a request has the right token and its Host header names this server.

        The second condition refuses pages of other sites whose host name leads here.
        """
        return hmac.compare_digest(token.encode(), self.server.token.encode()) and self._is_called()

    def _is_called(self) -> bool:
        return self.server.is_called(self.headers.get("Host", ""))

    def _guarded(self, make: Any) -> None:
        try:
            text, kind = make()
        except (BadInput, DatabaseError) as error:
            status = HTTPStatus.BAD_REQUEST if isinstance(error, BadInput) else HTTPStatus.SERVICE_UNAVAILABLE
            text, kind = as_json({"error": str(error)}), "application/json"
            self._answer(status, text, kind)
        else:
            self._answer(HTTPStatus.OK, text, kind)

    def _refuse(self) -> None:
        self._answer(
            HTTPStatus.FORBIDDEN, "The link that `tune watch` shows has the token; this one has not.\n", "text/plain"
        )
        self.close_connection = True

    def _answer(self, status: HTTPStatus, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        for name, value in (
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("X-Frame-Options", "DENY"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, because the lines would contain the token."""
