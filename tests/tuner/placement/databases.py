"""Fill databases with times that tests make up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from templates.template import template_named
from tuner.devices import Device
from tuner.graph import FusedGraph, float_form
from tuner.graph.layout.choice import choose
from tuner.placement.conversions import SIZES, TYPES
from tuner.placement.step_costs import PIECE, VERSION, conversion_of
from tuning_db.record import Trial, Workload
from tuning_db.store import Store


def measured(store: Store, device: Device, workload: Workload, seconds: float) -> None:
    config = choose([workload], device, None)[workload].config
    assert config is not None
    version = template_named(config.template).version
    store.add(Trial(workload, device.key, config, version, (seconds,), error=0.0))


def converted(store: Store, device: Device, latency: float, each: float) -> None:
    """Let the database say what conversions take."""
    for to, values in product(TYPES, SIZES):
        store.add(Trial(conversion_of(values, to), device.key, PIECE, VERSION, (latency + each * values,)))


def tuned(
    store: Store, device: Device, graph: FusedGraph, *, integers: Sequence[float], floats: Sequence[float]
) -> None:
    """Let the database say what each anchor takes in both forms, in microseconds."""
    for step, whole, real in zip(graph.anchors, integers, floats, strict=True):
        form = float_form(step)
        assert form is not None
        measured(store, device, step.workload, 1e-6 * whole)
        measured(store, device, form.workload, 1e-6 * real)
