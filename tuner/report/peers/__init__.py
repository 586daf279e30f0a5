"""This package has the systems that a built module is compared with. Start at `peer_named`.

A new peer is one file here and one line in `_PEERS`. A peer's library is imported when the peer is opened, in a process
of its own (see tuner.report.contender).
"""

from __future__ import annotations

from tuner.errors import BadInput
from tuner.report.peers import base, default, mnn, ncnn, opencv, openvino, ort, ours
from tuner.report.peers.base import Inference, Peer

__all__ = ["Inference", "Peer", "available", "peer_named", "peer_names"]

OURS = ours.Ours.name
_ALL = (
    ort.OnnxRuntime(),
    openvino.OpenVino(),
    opencv.OpenCv(),
    ncnn.Ncnn(),
    mnn.Mnn(),
    default.TvmDefault(),
)
_PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}

available = base.available


def peer_names() -> list[str]:
    """Return the names that `tune bench --against` takes."""
    return list(_PEERS)


def peer_named(name: str) -> Peer:
    """Return the peer of that name, or the built module itself for "edgetune".

    Raises BadInput, with the known names, for any other name.
    """
    if name == OURS:
        return ours.Ours()
    if name not in _PEERS:
        raise BadInput(f"unknown peer {name!r} (known: {', '.join(_PEERS)})")
    return _PEERS[name]
