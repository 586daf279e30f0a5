"""`tune watch` beside a real run: the page follows it, its buttons reach it; nobody without the token is
answered."""

from __future__ import annotations

import http.client
import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.browser import needs_chromium, opened
from tests.tuner.cli.conftest import TUNE, run_tune
from tests.tuner.cli.test_sharing import running, wait_for_claim
from tests.tuning_db import made
from tuner.devices.board.pairing import own_address
from tuner.report.live import Live, LiveServer
from tuning_db import run_control as wishes
from tuning_db.store import open_db


@contextmanager
def watching(folder: Path, *words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`tune watch` on t.db, and its link."""
    command = [TUNE, "watch", "--db", "t.db", *words]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"http://\S+", line)
        assert found, line
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def trials_in(folder: Path) -> int:
    with open_db(folder / "t.db") as store:
        return store.stats().trials


@pytest.mark.night
@pytest.mark.slow
@needs_chromium
def test_a_run_is_seen_paused_gone_on_with_and_a_task_of_it_skipped(tiny: Path) -> None:
    folder = tiny.parent
    with running(folder, str(folder / "t.db"), "model", tiny.name, "--trials", "100000") as run:
        wait_for_claim(str(folder / "t.db"))
        with watching(folder) as (_, link), opened(link) as page:
            page.page.wait_for_selector("#live button:has-text('Skip this task')", timeout=0)
            assert "token" not in page.page.url
            page.page.wait_for_selector('[data-table="tasks"] tbody tr', timeout=0)
            seen = sum(filter(None, page.numbers("tasks", "trials")))
            page.page.wait_for_function(
                "seen => data.tasks.reduce((a, t) => a + t.trials, 0) > seen", arg=seen, timeout=0
            )
            page.page.click("#live button#pause")
            page.page.wait_for_selector("#live:has-text('Paused')", timeout=0)
            with open_db(folder / "t.db") as store:
                assert wishes.is_paused(store)
                while store.in_flight():
                    time.sleep(0.1)
            paused = trials_in(folder)
            time.sleep(2.0)
            assert trials_in(folder) == paused
            assert run.command.poll() is None
            page.page.click("#live button#pause")
            page.page.wait_for_selector("#live button:has-text('Skip this task')", timeout=0)
            while trials_in(folder) == paused:
                time.sleep(0.1)
            name = page.page.locator("#live li").first.inner_text().split(" on ")[0]
            page.page.locator("#live button:has-text('Skip this task')").first.click()
            page.page.wait_for_function(
                "name => !document.getElementById('live').innerText.includes(name)", arg=name, timeout=0
            )
            assert page.serious_faults() == []
            page.keep_screenshot("watch")
            assert page.complaints == []
            assert all(url.startswith(link.partition("?")[0]) for url in page.requests)
        run.command.send_signal(signal.SIGINT)
        _, err = run.communicate()
        assert run.command.returncode == 130
        assert "skipped, by `tune watch`" in err


def test_it_ends_by_an_interrupt_and_a_pause_can_be_ended_without_it(tmp_path: Path) -> None:
    with open_db(tmp_path / "t.db") as store:
        wishes.pause(store)
    with watching(tmp_path, "--json") as (process, _):
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        assert json.loads(out)["watched"].endswith("t.db")
        assert "Traceback" not in err
    assert run_tune("watch", "--db", "t.db", "--resume", "--json", cwd=tmp_path).json() == {"was_paused": True}
    assert run_tune("watch", "--db", "t.db", "--resume", "--json", cwd=tmp_path).json() == {"was_paused": False}


def test_a_port_that_is_taken_is_refused_in_one_line(tmp_path: Path) -> None:
    with watching(tmp_path) as (_, link):
        port = link.split(":")[2].partition("/")[0]
        done = run_tune("watch", "--db", "t.db", "--port", port, cwd=tmp_path)
        assert done.status == 2
        assert "choose another" in done.error


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    with open_db(tmp_path / "t.db") as store:
        store.add(made.trial(1))
        served = LiveServer(Live(store))
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield served
        served.shutdown()
        thread.join()
        served.server_close()


def ask(server: LiveServer, method: str, path: str, body: str | None = None, **headers: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1])
    connection.request(method, path, body, headers={name.replace("_", "-"): v for name, v in headers.items()})
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, text


def test_without_the_token_or_from_another_name_nothing_is_told_or_done(server: LiveServer) -> None:
    good, here = server.token, server.host
    for status, method, path, headers in (
        (200, "GET", f"/?token={good}", {}),
        (200, "GET", "/data", {"X_Token": good}),
        (200, "GET", "/", {}),
        (403, "GET", "/?", {"Host": "evil.example"}),
        (403, "GET", "/", {"Host": "evil.example"}),
        (403, "GET", "/", {"Host": "192.0.2.1"}),
        (403, "GET", f"/?token={good}x", {}),
        (403, "GET", "/data", {}),
        (403, "GET", "/data", {"X_Token": "wrong"}),
        (403, "GET", f"/data?token={good}", {}),
        (403, "GET", "/data", {"X_Token": good, "Host": "evil.example"}),
        (403, "GET", "/../../etc/passwd", {"X_Token": good}),
        (403, "POST", "/wish", {}),
        (403, "POST", "/wish", {"X_Token": good, "Host": "evil.example"}),
        (403, "POST", "/", {"X_Token": good}),
        (200, "GET", "/data", {"X_Token": good, "Host": here}),
        (200, "GET", "/data", {"X_Token": good, "Host": "localhost:9000"}),  # through a tunnel
    ):
        body = '{"wish": "pause"}' if method == "POST" else None
        found, text = ask(server, method, path, body, **headers)
        assert (found, good in text) == (status, False), (method, path, headers)
        assert ("conv2d" in text) == (status == 200 and path != "/"), (method, path, headers)
    with open_db(server.live._store.path) as store:
        assert not wishes.is_paused(store)


def test_a_server_on_every_address_is_called_by_any_of_them_but_by_no_name(tmp_path: Path) -> None:
    own = own_address()
    with watching(tmp_path, "--address", "0.0.0.0") as (_, link):
        host, token = re.fullmatch(r"http://(\S+)/\?token=(\S+)", link).groups()
        port = int(host.partition(":")[2])
        assert host == f"{own}:{port}"
        for status, name in (
            (200, host),
            (200, f"127.0.0.1:{port}"),
            (200, "192.0.2.7"),
            (200, f"localhost:{port}"),
            (200, "[2001:db8::7]:80"),
            (403, "evil.example"),
            (403, f"evil.example:{port}"),
            (403, "192.0.2.7.evil.example"),
            (403, ""),
        ):
            connection = http.client.HTTPConnection(own, port)
            connection.request("GET", "/data", headers={"X-Token": token, "Host": name})
            assert connection.getresponse().status == status, name
            connection.close()


def test_modules_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    done = run_tune("watch", "nowhere", "--db", "t.db", cwd=tmp_path)
    assert done.status == 2
    assert "nowhere" in done.error


def test_what_cannot_be_asked_is_refused(server: LiveServer) -> None:
    token = server.token
    long = '{"wish": "skip", "task": "99999999999999999999.1"}'
    for body in (
        "",
        "[]",
        "{",
        "{}",
        "[" * 900,
        long,
        '{"wish": "stop"}',
        '{"wish": "skip"}',
        '{"wish": "skip", "task": "9.9"}',
    ):
        status, text = ask(server, "POST", "/wish", body, X_Token=token)
        assert status == 400, body
        assert json.loads(text)["error"]
    assert ask(server, "POST", "/wish", "x" * 2000, X_Token=token)[0] == 400
    status, text = ask(server, "POST", "/wish", '{"wish": "pause"}', X_Token=token)
    assert (status, json.loads(text)["live"]["paused"]) == (200, True)


def test_new_trials_are_in_the_data_at_the_next_look(tmp_path: Path) -> None:
    with open_db(tmp_path / "t.db") as store:
        live = Live(store)
        assert live.data()["tasks"] == []
        store.add(made.trial(1))
        live.ask({"wish": "resume"})  # which looks anew
        (task,) = live.data()["tasks"]
        assert task["trials"] == 1
        live.ask({"wish": "skip", "task": task["id"]})
        store.add(made.trial(2))
        live.ask({"wish": "resume"})  # which looks anew
        assert live.data()["tasks"][0]["trials"] == 2
