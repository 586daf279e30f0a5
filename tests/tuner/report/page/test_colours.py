"""Colours of the page, as people see them who lack one kind of cones: no two of a chart's become one."""

from __future__ import annotations

import re
from importlib.resources import files
from itertools import combinations

import numpy as np
import pytest

# Machado, Oliveira, Fernandes: "A Physiologically-based Model for Simulation of Color Vision Deficiency" (IEEE TVCG
# 2009), table of matrices at severity 1, for linear RGB.
SIGHT = {
    "all cones": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = np.array([0.95047, 1.0, 1.08883])
APART = 15.0  # of CIE 1976 Lab; 2.3 is what a person just notices between areas side by side


def _linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _lab(colour: str, sight: np.ndarray) -> np.ndarray:
    ratio = XYZ @ np.clip(sight @ _linear(colour), 0, 1) / WHITE
    f = np.where(ratio > 216 / 24389, np.cbrt(ratio), (24389 / 27 * ratio + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(one: str, other: str) -> float:
    dark, light = sorted(float(XYZ[1] @ _linear(colour)) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


@pytest.fixture(scope="module", params=["light", "dark"])
def scheme(request: pytest.FixtureRequest) -> dict[str, str]:
    style = (files("tuner.report.page") / "assets" / "style.css").read_text(encoding="utf-8")
    blocks = re.findall(r":root[^{]*{(.*?)}", style, re.DOTALL)
    return dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", blocks[["light", "dark"].index(request.param)]))


@pytest.mark.parametrize("sight", SIGHT)
def test_every_pair_of_series_stays_apart(scheme: dict[str, str], sight: str):
    seen = {name: _lab(scheme[name], SIGHT[sight]) for name in (f"s{i}" for i in range(7))}
    near = {
        (one, other): round(float(np.linalg.norm(seen[one] - seen[other])), 1)
        for one, other in combinations(seen, 2)
        if np.linalg.norm(seen[one] - seen[other]) < APART
    }
    assert near == {}


def test_every_series_stands_out_from_what_is_behind(scheme: dict[str, str]):
    assert {f"s{i}" for i in range(7) if _contrast(scheme[f"s{i}"], scheme["back"]) < 3} == set()
