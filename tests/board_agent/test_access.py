"""Who gets in: only a paired host, with its own certificate, one at a time; and what a pairing code is good for."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from board_agent.keys import Hosts
from board_agent.pairing import Code, PairingError, pair
from board_agent.wire import MAGIC, Gone, receive
from tests.board_agent.support import Agent, eventually, paired_agent
from tuner.devices.board import Board, BoardBusy, BoardGone, Boards, Link, Pairing
from tuner.devices.board.pairing import certificate
from tuner.errors import BadInput


def connect(board: Board, own: Path | None = None, name: str | None = None) -> ssl.SSLSocket:
    """As whoever: with a certificate of one's own, or none, and the name of a pairing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(own)
    plain = socket.create_connection((board.address, board.port), 10)
    return context.wrap_socket(plain, server_hostname=name)


def is_refused(board: Board, own: Path | None = None, name: str | None = None) -> bool:
    """With TLS 1.3 a client only learns that it was refused when it reads."""
    try:
        with connect(board, own, name) as stranger:
            return stranger.recv(1) == b""
    except OSError:
        return True


def can_be_used(board: Board) -> bool:
    try:
        with Link(board) as link:
            return "free_bytes" in link.ask({"do": "condition"})[0]
    except (BoardBusy, BoardGone):
        return False


def test_the_paired_host_is_told_what_the_board_is(served) -> None:
    _, board = served
    with Link(board) as link:
        assert link.facts["machine"] == os.uname().machine
        assert link.facts["cpus"]


def test_no_certificate(served) -> None:
    assert is_refused(served[1], None, served[1].pairing)


def test_a_foreign_certificate(served, tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(certificate(served[1].pairing)[1])  # with the right name in it
    assert is_refused(served[1], own, served[1].pairing)


@pytest.mark.parametrize("name", [None, "somebody-else", "xn--etc"])
def test_no_name_or_one_of_no_pairing(served, name) -> None:
    assert is_refused(served[1], served[1].ours, name)


def test_a_certificate_that_a_paired_host_signed(served, tmp_path: Path) -> None:
    """A pairing is with one certificate, not with an authority."""
    import datetime

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    pem = served[1].ours.read_bytes()
    issuer, issuer_key = x509.load_pem_x509_certificate(pem), serialization.load_pem_private_key(pem, None)
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "friend")]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.datetime(2020, 1, 1))
        .not_valid_after(datetime.datetime(2100, 1, 1))
        .sign(issuer_key, hashes.SHA256())
    )
    own = tmp_path / "friend.pem"
    form = serialization.PrivateFormat.PKCS8
    own.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    )
    assert is_refused(served[1], own, served[1].pairing)


def test_older_tls_and_no_tls(served) -> None:
    board = served[1]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(board.ours)
    with (
        socket.create_connection((board.address, board.port), 10) as plain,
        pytest.raises((ssl.SSLError, ConnectionError)),
    ):
        context.wrap_socket(plain, server_hostname=board.pairing)
    with socket.create_connection((board.address, board.port), 10) as plain:
        plain.sendall(MAGIC + bytes(100))
        plain.settimeout(10)
        try:
            answer = plain.recv(100)
        except ConnectionResetError:
            answer = b""
        assert not answer or answer[0] == 21  # a TLS alert


def test_another_board_under_the_same_address(served, tmp_path: Path) -> None:
    with paired_agent(tmp_path) as (_, other), pytest.raises(BoardGone, match=r"pair it again|another board"):
        Link(replace(served[1], port=other.port))


def test_a_peer_that_says_nothing_blocks_nobody(served) -> None:
    board = served[1]
    silent = [socket.create_connection((board.address, board.port), 10) for _ in range(5)]
    try:
        assert can_be_used(board)
    finally:
        for connection in silent:
            connection.close()


def test_malformed_requests_of_a_paired_host_end_its_connection_alone(served) -> None:
    board, rng = served[1], random.Random(3)
    for _ in range(20):
        eventually(lambda: can_be_used(board))
        with Link(board) as link:
            link._socket.sendall(b"edt0" + rng.randbytes(200))
            answer, _ = receive(link._socket, 1000)
            assert "not the protocol" in answer["refused"]
            with pytest.raises(Gone):
                receive(link._socket, 1000)
    eventually(lambda: can_be_used(board))


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"do": 7},
        {"do": "start"},
        {"do": "start", "settings": {"device": "cpu"}},
        {"do": "call", "function": 1, "arguments": []},
        {"do": "put", "tensors": [{"id": 1, "shape": [1 << 40], "dtype": "float32"}]},
        {"do": "put", "tensors": [{"id": 1, "shape": [2], "dtype": "object", "part": 0}]},
        {"do": "load", "id": "../x"},
        {"do": "repeat", "function": 1, "arguments": [], "repetition": {"no": "such"}},
    ],
)
def test_a_request_that_makes_no_sense_is_refused_in_one_line(served, request_) -> None:
    eventually(lambda: can_be_used(served[1]))
    settings = {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}
    with Link(served[1]) as link:
        if request_.get("do") != "start":
            link.ask({"do": "start", "settings": settings})
        with pytest.raises((ValueError, RuntimeError)) as refused:
            link.ask(request_)
        assert "\n" not in str(refused.value)
        link.ask({"do": "start", "settings": settings})


def test_an_impossible_limit_is_refused(served) -> None:
    eventually(lambda: can_be_used(served[1]))
    with Link(served[1]) as link, pytest.raises(ValueError, match="makes no sense"):
        link.ask({"do": "start", "settings": {}}, seconds=-1)


def test_a_board_that_is_off(served) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(BoardGone, match="tune board serve"):
        Link(replace(served[1], port=port))


def test_an_agent_of_another_version(served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.devices.board.link.VERSION", 4)
    with pytest.raises(BoardGone, match="update both"):
        Link(served[1])


def test_an_agent_that_promises_hardly_any_sign_of_life(served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.devices.board.link.MOST_ALIVE_SECONDS", 0.01)
    with pytest.raises(BoardGone, match="promises a sign of life every"):
        Link(served[1])


def waiting(pairing: Pairing, port: int = 1) -> tuple[threading.Thread, list[object]]:
    found: list[object] = []

    def wait() -> None:
        try:
            found.append(pairing.wait(port))
        except BadInput as error:
            found.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread, found


def test_a_code_is_good_once(tmp_path: Path) -> None:
    hosts = Hosts(tmp_path / "hosts")
    with Pairing(Boards(tmp_path / "boards"), "pi", "127.0.0.1") as pairing:
        thread, found = waiting(pairing, 9)
        name = pair(Code.parse(str(pairing.code)), hosts)
        thread.join()
        assert [board.name for board in found] == ["pi"]
        assert hosts.names() == [name]
    with pytest.raises(PairingError, match="tune board pair"):
        pair(pairing.code, hosts)


def test_a_wrong_secret_is_refused_and_five_end_it(tmp_path: Path) -> None:
    with Pairing(Boards(tmp_path / "boards"), "pi", "127.0.0.1") as pairing:
        thread, found = waiting(pairing)
        for _ in range(5):
            with pytest.raises(PairingError, match="refused"):
                pair(replace(pairing.code, secret=bytes(10)), Hosts(tmp_path / "hosts"))
        thread.join()
    assert "wrong attempts" in str(found[0])
    assert list(Boards(tmp_path / "boards")) == []


@pytest.mark.parametrize("strangers", [4, 7])  # with four the board's own connection is the first too many
def test_slow_strangers_keep_nobody_from_pairing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strangers: int
) -> None:
    """They connect and send a byte now and then, more of them than are looked at together; no secret was shown."""
    monkeypatch.setattr("tuner.devices.board.pairing.HANDSHAKE_SECONDS", 3.0)
    hosts, over = Hosts(tmp_path / "hosts"), threading.Event()

    def drip(stranger: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for byte in b"\x16\x03\x01\x02\x00\x01" * 1000:
                stranger.sendall(bytes([byte]))
                if over.wait(0.1):
                    return

    with Pairing(Boards(tmp_path / "boards"), "pi", "127.0.0.1") as pairing, contextlib.ExitStack() as stack:
        thread, found = waiting(pairing, 9)
        for _ in range(strangers):
            stranger = stack.enter_context(socket.create_connection(("127.0.0.1", pairing.code.port)))
            threading.Thread(target=drip, args=(stranger,), daemon=True).start()
        pair(Code.parse(str(pairing.code)), hosts)
        thread.join()
        over.set()
        assert [board.name for board in found] == ["pi"]


def test_a_code_expires_however_slowly_somebody_talks(tmp_path: Path) -> None:
    with (
        Pairing(Boards(tmp_path), "pi", "127.0.0.1", seconds=1.5) as pairing,
        socket.create_connection(("127.0.0.1", pairing.code.port)),
        pytest.raises(BadInput, match="expired"),
    ):
        pairing.wait(1)


def test_an_expired_code(tmp_path: Path) -> None:
    now = [0.0]
    with Pairing(Boards(tmp_path), "pi", "127.0.0.1", seconds=60, clock=lambda: now[0]) as pairing:
        now[0] = 61.0
        with pytest.raises(BadInput, match="expired"):
            pairing.wait(1)


def test_somebody_in_between_is_not_shown_the_secret(tmp_path: Path) -> None:
    """Whoever answers under the host's address must have the host's certificate."""
    boards = Boards(tmp_path / "boards")
    with Pairing(boards, "pi", "127.0.0.1") as real, Pairing(boards, "pi", "127.0.0.1", seconds=3) as between:
        thread, found = waiting(between)
        with pytest.raises(PairingError, match="not the host that made this code"):
            pair(replace(real.code, port=between.code.port), Hosts(tmp_path / "hosts"))
        thread.join()
    assert "expired" in str(found[0])
    assert list(boards) == []


@pytest.mark.parametrize(
    "text", ["", "x", "host:1/abc", "host:99999/" + "a" * 40, "host/" + "a" * 40, ":1/" + "a" * 40]
)
def test_what_is_no_code_is_named(text: str) -> None:
    with pytest.raises(PairingError, match="not a pairing code"):
        Code.parse(text)


def test_keys_are_for_their_owner_alone(served) -> None:
    agent, board = served
    files = [board.ours, *(agent.folder / "agent").rglob("*.pem")]
    assert len(files) == 3
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)


def test_an_agent_that_ends_takes_its_sessions_along(tmp_path: Path) -> None:
    with paired_agent(tmp_path) as (agent, board):
        link = Link(board)
        agent.stop(signal.SIGTERM)
        with pytest.raises(BoardGone):
            link.ask({"do": "condition"})
        agent.start()
        eventually(lambda: can_be_used(board))


def test_the_agent_is_one_file(tmp_path: Path) -> None:
    from tuner.devices.board.packing import write_agent

    write_agent(tmp_path / "agent.pyz")
    agent = Agent(tmp_path, [str(tmp_path / "agent.pyz")])
    try:
        board = agent.pair(Boards(tmp_path / "boards"))
        with Link(board) as link:
            started, _ = link.ask(
                {"do": "start", "settings": {"device": "cpu", "form": "library", "threads": 1, "memory_bytes": 1 << 30}}
            )
        assert "processes" in started["contained"]
    finally:
        agent.stop()


@pytest.mark.skipif(os.geteuid() != 0, reason="candidates run as the agent's own user")
def test_a_scratch_folder_that_candidates_cannot_enter_is_named(tmp_path: Path, monkeypatch) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    agent = Agent(tmp_path)
    with pytest.raises(AssertionError, match="set TMPDIR to another folder"):
        agent.start()
    agent.stop()
