"""Prepared networks and their samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tuner.quantization.networks import classifier, samples
from tuner.quantization import (
    Prepared,
    Quantized,
    Samples,
    Wanted,
    open_samples,
    prepare,
    quantize,
)


@dataclass(frozen=True)
class Case:
    """A file with a network, what `prepare` makes of it, and samples."""

    file: Path
    prepared: Prepared
    samples: Samples
    scratch: Path

    def quantized(self, **wanted: Any) -> Quantized:
        """Quantise it with the options of `Wanted`."""
        return quantize(self.prepared, self.samples, Wanted(**wanted), scratch=self.scratch)


def case(folder: Path, **options: Any) -> Case:
    file = classifier(folder / "net.onnx", **options)
    prepared = prepare(file, {}, scratch=folder)
    np.savez(folder / "x.npz", x=samples())
    return Case(file, prepared, open_samples(folder / "x.npz", prepared.inputs), folder)


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A classifier that takes quantising well."""
    return case(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="session")
def sensitive(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A classifier with one operator that does not: what it reads has a channel of outliers."""
    return case(tmp_path_factory.mktemp("sensitive"), outlier=True)
