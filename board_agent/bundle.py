"""This program measures the candidates of a bundle on a device that no host can reach: `python3 BUNDLE -o RESULTS`.

A bundle (`tune bundle make`) is this package together with candidates: a manifest, and blobs named by their digests.
The results are one ZIP archive with a line for each candidate and with what it computed. The host checks them at
`tune bundle import`. An interrupted run is continued by the same command. Start at `main` and `Run`.
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

FORMAT = 3  # version of the format of bundles and their results
MANIFEST = "bundle/manifest.json"
BLOBS = "bundle/blobs/"
_MOST_BYTES = 1 << 30
_PREPARE_SECONDS = 300.0
_MOST_BEGUN = 2  # times that a candidate may be begun without a result
_FAILED = ("died", "failed", "refused", "unfit", "late", "not_compiled")
_LOST = f"the device went down each time it ran, {_MOST_BEGUN} times"


class Failed(Exception):
    """Raised when a candidate or the device answered with an error instead of a result; `answer` is the answer."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(str(next(iter(answer.values()))))
        self.answer = answer


class Stopped(Exception):
    """Raised with one line when measuring cannot go on and no candidate is to blame."""


class Device:
    """A session with this machine itself, which a thread serves. It is a context manager that ends the session."""

    def __init__(self, scratch: str) -> None:
        self._ours, theirs = socket.socketpair()
        self._theirs, self._left = theirs, False
        self._thread = threading.Thread(target=self._serve, args=(scratch,), daemon=True)
        self._thread.start()
        receive(self._ours, _MOST_BYTES)  # the session's greeting

    def _serve(self, scratch: str) -> None:
        with self._theirs:
            try:
                Session(self._theirs, scratch, Alone()).serve()
            except Exception:
                if not self._left:  # after this object has left, an error of the session does not matter
                    raise

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: object) -> None:
        self._left = True
        self._ours.close()
        self._thread.join()

    def ask(self, message: dict[str, Any], parts: Any = (), seconds: float = _PREPARE_SECONDS) -> Any:
        """Send a request and return the answer with its parts. Raises Failed if the answer is an error."""
        send(self._ours, {**message, "seconds": seconds}, parts)
        answer, more = receive(self._ours, _MOST_BYTES)
        while answer.get("alive"):
            answer, more = receive(self._ours, _MOST_BYTES)
        if any(key in answer for key in _FAILED):
            raise Failed(answer)
        return answer, more


class _Call:
    """A call of a candidate.

    `asked` is the request, `outputs` are the numbers of the tensors that the call writes, and `fill` says with what
    they are filled before.
    """

    def __init__(self, asked: dict[str, Any], outputs: list[int], fill: list[list[Any]]) -> None:
        self.asked, self.outputs, self.fill = asked, outputs, fill


class Run:
    """A run that measures the candidates of one bundle on one device.

    Operands that successive candidates read are sent once to each kernel process. `seconds` is what the reference
    kernel took when it was last measured. Methods raise Stopped.
    """

    def __init__(
        self, bundle: zipfile.ZipFile, manifest: dict[str, Any], device: Device, seconds: float | None
    ) -> None:
        self._bundle, self._device, self._manifest = bundle, device, manifest
        self._sent: dict[str, int] = {}  # numbers of the tensors that the kernel process has
        self._last = 0
        self._started = False
        self._reference: dict[str, Any] = {}  # the call of the reference kernel
        self._kept: set[str] = set()  # the tensors of the reference kernel
        self._clock_monitor = ClockMonitor(self._reference_times, seconds)
        settings = manifest["settings"]
        # The cores that candidates are measured on, or None for a GPU.
        self._cores = usable_cpus()[: settings["threads"]] if settings["device"] == "cpu" else None
        self.described: dict[str, Any] = {}  # the properties that the device's driver reports

    def ready(self, measure: bool = False) -> float | None:
        """Make sure that there is a kernel process.

        Return the seconds of the reference kernel if it was measured, which happens when it is due, when the process
        was started, or on request (`measure`).
        """
        if self._started and not (measure or self._clock_monitor.is_due()):
            return None
        if self._started:
            with contextlib.suppress(Failed):  # a candidate may have damaged the process by a stray write
                return self._clock_monitor.measure()
        self._start()
        try:
            return self._clock_monitor.measure()
        except Failed as failed:
            raise _unfit(failed) from failed

    def _start(self) -> None:
        """Open the device and check that it runs the reference kernel, which is known to be good, correctly."""
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
        """Send the tensors of a candidate and return their numbers, a list for each of its calls.

        Tensors of the previous candidate that are not needed any more are dropped. Tensors that the candidate writes
        are not shared with others.
        """
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
        """Load a candidate as `function` and return its calls. Raises Failed."""
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
        """Call a candidate once and return what it computed. Raises Failed.

        With `poisoned`, its outputs are filled before, so that values of an earlier call cannot pass for results.
        """
        fill = call.fill if poisoned else []
        self._device.ask({"do": "call", **call.asked, "fill": fill}, seconds=self._manifest["seconds"])
        return self._found(call)

    def _found(self, call: _Call) -> list[bytes]:
        return [self._device.ask({"do": "get", "tensor": number})[1][0] for number in call.outputs]

    def _damage(self, candidate: dict[str, Any], calls: list[_Call]) -> str | None:
        """Return how a candidate damaged its operands, or None if it did not. Raises Failed."""
        places = {
            number: place
            for call, given in zip(calls, candidate["calls"])
            for place, number in enumerate(call.asked["arguments"])
            if "cold" not in given[place]
        }
        found = self._device.ask({"do": "damage", "tensors": list(places)})[0]
        return None if found["tensor"] is None else f"operand {places[found['tensor']]}: {found['how']}"

    def measure(self, candidate: dict[str, Any]) -> tuple[dict[str, Any], list[bytes]]:
        """Measure a candidate and return its result and what it computed.

        It is called once for checking, then timed, and then called with the operands of each further call. The outputs
        of all of these are returned. The timing is repeated if the device slowed down meanwhile.
        """
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
            # The last call writes over the results of the one before, see tuner/measure/targets/kinds.py.
            for call in others:
                outputs += self._called(call, poisoned=call is not others[-1])
            damage = self._damage(candidate, [timed, *others])
            if damage is not None:
                self._started = False  # a new process gets undamaged operands
                return {"failed": {"damaged": damage}}, outputs
        except Failed as failed:
            self._started = False  # the next candidate gets a new process
            if "unfit" in failed.answer or full_disk(str(failed)):
                raise Stopped(str(failed)) from failed
            return {"failed": failed.answer}, outputs
        return {"times": answer["times"], "throttled": throttled, "condition": condition}, outputs


def _unfit(failed: Failed) -> Stopped:
    return Stopped(f"a kernel that is known to be good cannot be run on this device: {failed}")


class Outcome(NamedTuple):
    """Numbers of candidates: those that have a result, those of them that failed, and those that this run measured."""

    candidates: int
    failed: int
    measured: int


def carry_out(bundle: str, results: str, say: Callable[[str], object]) -> Outcome:
    """Measure the candidates of a bundle that have no result yet, and write the archive of all results.

    `say` gets one line of progress at a time. Raises Stopped. After that, or after an interrupt, the next call goes on.
    """
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
    """Treat SIGTERM and SIGHUP, such as at a shutdown, as interrupts, so that no candidate is blamed for them."""
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
    """Measure every candidate that has no result, and then the reference kernel, which ends its last interval."""
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
    """Start a kernel process if needed, and record the time of the reference kernel if it was measured."""
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
    """Measure the candidates that have no result yet, pack all results, and return the exit status."""
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
    """Run `main` as a program and exit with its status."""
    end_by_interrupt()
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("interrupted: the same command goes on", file=sys.stderr)
        sys.exit(130)
