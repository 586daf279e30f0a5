"""Templates of CPUs that compute in halves: right numbers under qemu, and vectors of halves in their hot loops."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tvm.target import Target

from templates.cpu.isa import computes_in, vector_unit
from templates.reference import random_operands, reference, relative_error
from templates.template import AnchorTemplate, all_templates
from tests.templates.emulated import needs_qemu, run_emulated
from tests.templates.support import Compiled
from tests.templates.workloads import WORKLOADS
from tuning_db.record import tolerance_of


def arm(mcpu: str) -> Target:
    return Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": mcpu, "mattr": ["+neon"], "num-cores": 4})


HALVES = {name: replace(workload, dtype="float16") for name, workload in WORKLOADS.items()}
TEMPLATES = {t.name: t for t in all_templates() if isinstance(t, AnchorTemplate) and "float16" in t.dtypes}


@pytest.mark.parametrize("mcpu", ["cortex-a76", "neoverse-n1", "neoverse-v1", "cortex-a78", "carmel", "apple-m1"])
def test_processors_with_halves(mcpu: str) -> None:
    assert computes_in(arm(mcpu), "float16")
    assert (vector_unit(arm(mcpu), "float16").lanes, vector_unit(arm(mcpu)).lanes) == (8, 4)


@pytest.mark.parametrize("mcpu", ["cortex-a72", "cortex-a53", "cortex-a57", "generic"])
def test_processors_without(mcpu: str) -> None:
    assert not computes_in(arm(mcpu), "float16")
    assert all(t.space(w, arm(mcpu)) is None for t in TEMPLATES.values() for w in HALVES.values() if t.op == w.op)


@needs_qemu
@pytest.mark.parametrize("name", sorted(n for n in TEMPLATES if n.startswith("cpu.")))
def test_results_match_float64(name: str, tmp_path: Path) -> None:
    template, target, rng = TEMPLATES[name], arm("cortex-a76"), random.Random(5)
    kernels = []
    for workload in HALVES.values():
        space = template.space(workload, target) if template.op == workload.op else None
        if space is not None:
            configs = [space.seed_configs()[0], *filter(None, (space.sample(rng) for _ in range(2)))]
            kernels += [Compiled(template, workload, target, config) for config in configs]
    assert kernels
    inputs = [random_operands(kernel.workload, 0) for kernel in kernels]
    expected = [reference(k.workload, i) for k, i in zip(kernels, inputs, strict=True)]
    results = run_emulated(kernels, inputs, [e.shape for e in expected], tmp_path, "cortex-a76")
    errors = {
        f"{k.workload} {dict(k.config.knobs)}": relative_error(r, e)
        for k, r, e in zip(kernels, results, expected, strict=True)
    }
    print(max(errors.values()))
    wrong = {k: v for k, v in errors.items() if not v <= tolerance_of("float16")}
    assert not wrong
