"""Measures what a bundle holds, on a device that no host can reach: `python3 BUNDLE -o RESULTS`.

A bundle (`tune bundle make`) is this package with candidates in it: a manifest, and blobs by their digests. Results are
one ZIP archive: a line for each candidate, and what it computed, which the host checks at `tune bundle import`. It goes
on where it was interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from board_agent.clock_monitor import WARM_CALLS, WINDOW, ClockMonitor
from board_agent.condition import steady_answer
from board_agent.disk import full_disk
from board_agent.facts import facts
from board_agent.journal import Journal, packed_results
from board_agent.parsing import parse_json
from board_agent.serve import check_scratch
from board_agent.session import Session, scratch_for_candidates
from board_agent.topology import usable_cpus
from board_agent.turn_queue import Alone
from board_agent.wire import receive, send

FORMAT = 3  # of a bundle and its results
MANIFEST = "bundle/manifest.json"
BLOBS = "bundle/blobs/"
_MOST_BYTES = 1 << 30
_PREPARE_SECONDS = 300.0
_MOST_BEGUN = 2  # times, none of which came to a result
_FAILED = ("died", "failed", "refused", "unfit", "late", "not_compiled")
_LOST = f"the device went down each time it ran, {_MOST_BEGUN} times"


class Failed(Exception):
    """What a candidate, or the device, answered instead of a result."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(str(next(iter(answer.values()))))
        self.answer = answer


class Stopped(Exception):
    """Measuring cannot go on, and no candidate is to blame; one line says why."""


class Device:
    """A session of this very machine. A context manager."""

    def __init__(self, scratch: str) -> None:
        self._ours, theirs = socket.socketpair()
        self._theirs, self._left = theirs, False
        self._thread = threading.Thread(target=self._serve, args=(scratch,), daemon=True)
        self._thread.start()
        receive(self._ours, _MOST_BYTES)  # its greeting

    def _serve(self, scratch: str) -> None:
        with self._theirs:
            try:
                Session(self._theirs, scratch, Alone()).serve()
            except Exception:
                if not self._left:  # in which case it had nobody to serve any more
                    raise

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        self._ours.close()
        self._thread.join()

    def ask(self, message: dict[str, Any], parts: Any = (), seconds: float = _PREPARE_SECONDS) -> Any:
        """Raises Failed."""
        send(self._ours, {**message, "seconds": seconds}, parts)
        answer, more = receive(self._ours, _MOST_BYTES)
        while answer.get("alive"):
            answer, more = receive(self._ours, _MOST_BYTES)
        if any(key in answer for key in _FAILED):
            raise Failed(answer)
        return answer, more


class _Call:
    """A call of a candidate: the request for it, the numbers of the tensors that it writes, and what fills them."""

    def __init__(self, asked: dict[str, Any], outputs: list[int], fill: list[list[Any]]) -> None:
        self.asked, self.outputs, self.fill = asked, outputs, fill


class Run:
    """One bundle on one device. What candidates in a row read is sent once for each process that runs kernels.
    `seconds`: what the reference kernel took when it was last measured. Methods raise Stopped."""

    def __init__(
        self, bundle: zipfile.ZipFile, manifest: dict[str, Any], device: Device, seconds: float | None
    ) -> None:
        self._bundle, self._device, self._manifest = bundle, device, manifest
        self._sent: dict[str, int] = {}  # numbers of the tensors that are there
        self._last = 0
        self._started = False
        self._reference: dict[str, Any] = {}  # its call,
        self._kept: set[str] = set()  # and its tensors
        self._pace = ClockMonitor(self._reference_times, seconds)
        settings = manifest["settings"]  # which cores measure: none, where it is a GPU
        self._cores = usable_cpus()[: settings["threads"]] if settings["device"] == "cpu" else None
        self.described: dict[str, Any] = {}  # what the device's driver says of it

    def ready(self, measure: bool = False) -> float | None:
        """See that there is a process that runs kernels; seconds of the reference kernel where it was measured: if that
        was due, or is asked for."""
        if self._started and not (measure or self._pace.is_due()):
            return None
        if self._started:
            with contextlib.suppress(Failed):  # a candidate may have written where it should not
                return self._pace.measure()
        self._start()
        try:
            return self._pace.measure()
        except Failed as failed:
            raise _unfit(failed) from failed

    def _start(self) -> None:
        """Open the device and see that it can run a kernel that is known to be good."""
        preflight = self._manifest["preflight"]
        try:
            self._device.ask({"do": "start", "settings": self._manifest["settings"]})
            self._sent, self._kept = {}, set()
            self.described = self._device.ask({"do": "describe"})[0]
        except Failed as failed:
            raise Stopped(str(failed)) from failed
        try:
            (call,) = self._loaded(preflight, 0)
            self._reference, found = call.asked, self._called(call)
            self._kept = set(self._sent)
            self._device.ask({"do": "ready"})
        except Failed as failed:
            raise _unfit(failed) from failed
        if found != [self._bundle.read(BLOBS + preflight["expected"])]:
            raise Stopped("a kernel that adds numbers computed something else on this device")
        self._started = True

    def _reference_times(self) -> list[float]:
        how = {"repetition": asdict(WINDOW), "before": WARM_CALLS, "reference": True}
        seconds = self._manifest["seconds"]
        return self._device.ask({"do": "repeat", **self._reference, **how}, seconds=seconds)[0]["times"]

    def _numbers(self, candidate: dict[str, Any]) -> list[list[int]]:
        """A candidate's tensors, those of each of its calls, in place of those of the candidate before. Those that it
        writes to are its own."""
        written = [i in candidate["outputs"] for i, _ in enumerate(candidate["calls"][0])]
        calls = [
            [(json.dumps([t, w], sort_keys=True), t, w) for t, w in zip(call, written)] for call in candidate["calls"]
        ]
        wanted = {key: (tensor, own) for call in calls for key, tensor, own in call}
        gone = [key for key in self._sent if key not in self._kept and key not in wanted]
        self._device.ask({"do": "drop", "tensors": [self._sent.pop(key) for key in gone], "functions": []})
        for key, (tensor, own) in wanted.items():
            if key not in self._sent or own:
                self._last += key not in self._sent
                number = self._sent.setdefault(key, self._last)
                given = {**{k: v for k, v in tensor.items() if k != "blob"}, "written": own}
                parts = [self._bundle.read(BLOBS + tensor["blob"])] if "blob" in tensor else []
                place = {"part": 0} if parts else {}
                self._device.ask({"do": "put", "tensors": [{**given, **place, "id": number}]}, parts)
        return [[self._sent[key] for key, _, _ in call] for call in calls]

    def _loaded(self, candidate: dict[str, Any], function: int) -> list[_Call]:
        """Loads a candidate as `function`; its calls. Raises Failed."""
        self._device.ask({"do": "load", "id": function}, [self._bundle.read(BLOBS + candidate["library"])])
        return [
            _Call(
                {"function": function, "arguments": numbers},
                [numbers[i] for i in candidate["outputs"]],
                [[numbers[i], value] for i, value in zip(candidate["outputs"], candidate["fill"])],
            )
            for numbers in self._numbers(candidate)
        ]

    def _called(self, call: _Call, poisoned: bool = True) -> list[bytes]:
        """Calls a candidate once; what it computed. `poisoned`: its outputs are filled before. Raises Failed."""
        fill = call.fill if poisoned else []
        self._device.ask({"do": "call", **call.asked, "fill": fill}, seconds=self._manifest["seconds"])
        return self._found(call)

    def _found(self, call: _Call) -> list[bytes]:
        return [self._device.ask({"do": "get", "tensor": number})[1][0] for number in call.outputs]

    def _damage(self, candidate: dict[str, Any], calls: list[_Call]) -> str | None:
        """How a candidate spoiled its operands, if it did. Raises Failed."""
        places = {
            number: place
            for call, given in zip(calls, candidate["calls"])
            for place, number in enumerate(call.asked["arguments"])
            if "cold" not in given[place]
        }
        found = self._device.ask({"do": "damage", "tensors": list(places)})[0]
        return None if found["tensor"] is None else f"operand {places[found['tensor']]}: {found['how']}"

    def measure(self, candidate: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """The result of a candidate, and what it computed: in a call of its own, when it was timed, and with the
        operands of each further call. Timed once more where the device slowed down meanwhile."""
        outputs: list[bytes] = []
        try:
            timed, *others = self._loaded(candidate, 1)
            outputs += self._called(timed)
            how = {"repetition": self._manifest["repetition"], "before": candidate["before"]}
            asked, seconds = {"do": "repeat", **timed.asked, **how}, self._manifest["seconds"]
            self._device.ask({"do": "fill", "fill": timed.fill})
            answer, throttled, condition = steady_answer(
                lambda: self._device.ask(asked, seconds=seconds)[0], self._cores
            )
            outputs += self._found(timed)
            for call in others:  # the last over the results of the one before, see tuner/measure/targets/kinds.py
                outputs += self._called(call, poisoned=call is not others[-1])
            damage = self._damage(candidate, [timed, *others])
            if damage is not None:
                self._started = False  # what it spoiled is sent anew
                return {"failed": {"damaged": damage}}, outputs
        except Failed as failed:
            self._started = False  # the next one gets a process of its own
            if "unfit" in failed.answer or full_disk(str(failed)):
                raise Stopped(str(failed)) from failed
            return {"failed": failed.answer}, outputs
        return {"times": answer["times"], "throttled": throttled, "condition": condition}, outputs


def _unfit(failed: Failed) -> Stopped:
    return Stopped(f"a kernel that is known to be good cannot be run on this device: {failed}")


class Outcome(NamedTuple):
    """How many candidates have a result, how many of them failed, and how many were measured by this very run."""

    candidates: int
    failed: int
    measured: int


def carry_out(bundle: str, results: str, say: Callable[[str], object]) -> Outcome:
    """Measure what a bundle holds and has no result yet, and write the archive of all results. `say` is told how it
    goes, a line each. Raises Stopped; after that, or an interrupt, the next call goes on."""
    with _opened(bundle) as archive:
        manifest = parse_json(archive.read(MANIFEST))
        if manifest["format"] != FORMAT:
            raise Stopped(f"{bundle}: made by another version of edgetune: python3 {bundle} measures it")
        folder = f"{results}.{manifest['name']}.partial"
        try:
            known = packed_results(results, manifest["name"])
            if known is None:
                return _carried_out(archive, manifest, folder, results=results, say=say)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            why = f"{error.filename or folder}: {error.strerror}" if error.strerror else str(error)
            raise Stopped(f"{why}: the same command goes on") from error
    say(f"{results} is here already: to measure once more, give another -o")
    return _outcome(known, 0)


def _outcome(results: Iterable[dict[str, Any]], measured: int) -> Outcome:
    failed = [("failed" in line) for line in results]
    return Outcome(len(failed), sum(failed), measured)


def end_by_interrupt() -> None:
    """Being asked to end, as when the system goes down, is an interrupt: no candidate is to blame for it."""
    for asked in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(asked) == signal.SIG_DFL:
            signal.signal(asked, signal.default_int_handler)


def _carried_out(
    bundle: zipfile.ZipFile, manifest: dict[str, Any], folder: str, *, results: str, say: Callable[[str], object]
) -> Outcome:
    with contextlib.ExitStack() as stack:
        check_scratch(tempfile.gettempdir())
        scratch = stack.enter_context(scratch_for_candidates(tempfile.gettempdir()))
        journal = stack.enter_context(Journal(folder))
        run = Run(bundle, manifest, stack.enter_context(Device(scratch)), journal.reference)
        known = len(journal.results)
        if known:
            say(f"{known} of {len(manifest['candidates'])} have results: going on")
        _measure(run, manifest["candidates"], journal, say)
        journal.pack(results, manifest["name"], {**facts(), "described": run.described})
        found = list(journal.results.values())
    shutil.rmtree(folder)
    return _outcome(found, len(found) - known)


def _measure(run: Run, candidates: list[dict[str, Any]], journal: Journal, say: Callable[[str], object]) -> None:
    """Every candidate that has no result; at the end the reference kernel, which ends the last interval of it."""
    known, begun = journal.results, journal.begun
    for place, candidate in enumerate(candidates, 1):
        name = candidate["name"]
        if name in known:
            continue
        if begun[name] >= _MOST_BEGUN:
            result: dict[str, Any] = {"failed": {"lost": _LOST}}
            journal.add_result(name, result, [])
        else:
            _look(run, journal)
            with journal.attempt(name):
                result, outputs = run.measure(candidate)
                journal.add_result(name, result, outputs)
        failed = str(next(iter(result["failed"].values())))[:100] if "failed" in result else ""
        said = f"failed: {failed}" if failed else f"{1e6 * min(result['times']):.1f} us"
        say(f"{place} of {len(candidates)}: {said}")
    _look(run, journal, True)


def _look(run: Run, journal: Journal, measure: bool = False) -> None:
    """Whether the device keeps its speed."""
    seconds = run.ready(measure)
    if seconds is not None:
        journal.add_reference(seconds)


def _opened(bundle: str) -> zipfile.ZipFile:
    try:
        archive = zipfile.ZipFile(bundle)
        archive.getinfo(MANIFEST)
    except OSError as error:
        raise Stopped(f"{bundle}: {error.strerror}") from error
    except (KeyError, zipfile.BadZipFile) as error:
        raise Stopped(f"{bundle}: not a bundle: `tune bundle make` writes one") from error
    return archive


def main(arguments: list[str] | None = None) -> int:
    """Measure what the bundle holds, those left over from before alone, and pack the results; the exit status."""
    parser = argparse.ArgumentParser(prog=os.path.basename(sys.argv[0]), description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-o", "--output", default="results.zip", metavar="RESULTS")
    given = parser.parse_args(arguments)
    try:
        carry_out(sys.argv[0], given.output, lambda line: print(line, file=sys.stderr, flush=True))
    except Stopped as stopped:
        print(f"{parser.prog}: {stopped}", file=sys.stderr)
        return 2
    command = f"tune bundle import {parser.prog} {given.output}"
    print(f"{given.output} has all results: take it back to the host, and there: {command}")
    return 0


def run() -> None:
    """`main` as a program of its own."""
    end_by_interrupt()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        sys.exit(130)
