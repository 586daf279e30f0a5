"""Explains why a kernel was chosen: `explain` returns its schedule, its compiled code, counts, and its rivals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from tvm import tirx
from tvm.target import Target

from templates.gpu.lowered import lower
from templates.lowering import build
from templates.template import search_space, template_named
from templates.traffic import bytes_of
from tuner.devices import Device
from tuner.errors import BadInput
from tuner.graph.layout.choice import Choice, choose
from tuner.measure.offline import Compiler
from tuner.report.hot_loop import Loop, in_assembly, in_source
from tuner.report.page.names import distinct_texts, flop_or_none
from tuner.report.text import clipped, workload_text
from tuner.session import Task
from tuner.session.task import TaskState
from tuner.session.task_trials import is_current
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import Store

RIVALS = 5
_NEAREST = 5  # similar names that are shown if no workload has the given one


@dataclass(frozen=True)
class Rival:
    """A config that was measured beside the chosen one.

    It is `times_slower` than the chosen one. `differs` has the knobs that differ, with the values of both.
    """

    config: Config
    seconds: float
    times_slower: float
    differs: str


@dataclass(frozen=True)
class Explanation:
    """An account that has the `choice` of a workload's kernel, and what is known about the kernel.

    - `text` is the workload's name.
    - `configs` is the number of configs that were tried.
    - `schedule` is the scheduled function as TVMScript.
    - `code` is the code of its kernels, in `language`.
    - `loop` is where the time goes, judged by the text of the code.
    - `flop` counts the operations of the direct algorithm; `bytes` is what any kernel has to move.
    - `kernels` describes a GPU's kernels as they are lowered, with what its compilers tell. It is empty for the host.
    """

    workload: Workload
    text: str
    choice: Choice
    configs: int
    rivals: tuple[Rival, ...]
    schedule: str
    language: str
    code: str
    loop: Loop | None
    flop: float | None
    bytes: float | None
    kernels: tuple[dict[str, Any], ...]

    def as_dict(self) -> dict[str, Any]:
        assert self.choice.config is not None
        return {
            "workload": self.workload.as_dict(),
            "text": self.text,
            "config": self.choice.config.as_dict(),
            "source": self.choice.source,
            "seconds": self.choice.seconds,
            "error": self.choice.error,
            "configs": self.configs,
            "rivals": [{**asdict(rival), "config": rival.config.as_dict()} for rival in self.rivals],
            "schedule": self.schedule,
            "language": self.language,
            "code": self.code,
            "loop": self.loop and self.loop.as_dict(),
            "flop": self.flop,
            "bytes": self.bytes,
            "kernels": list(self.kernels),
        }


def workloads_like(store: Store, text: str) -> dict[str, Workload]:
    """Return the workload with the name `text`, else all workloads whose names contain `text`, by name.

    Raises BadInput if there is none, DatabaseError if the store cannot be read.
    """
    names = {name: workload for workload, name in distinct_texts(store.workloads()).items()}
    if text in names:
        return {text: names[text]}
    found = {name: workload for name, workload in names.items() if text.lower() in name.lower()}
    if not found:
        nearest = "; ".join(clipped(name) for name in get_close_matches(text, names, _NEAREST, cutoff=0.0))
        known = f"it has, nearest first, {nearest}" if nearest else "it has none"
        raise BadInput(f"no workload of {store.name} is called {text!r}; {known}")
    return found


def explain(store: Store, workload: Workload, on: Device, compilers: Sequence[Compiler] = ()) -> Explanation:
    """Explain the kernel that `tune build` would choose for the workload on the device.

    `compilers` are offline compilers that tell which resources a GPU's kernels take. Raises BadInput if no template
    applies, DatabaseError if the store cannot be read.
    """
    choice = choose([workload], on, store)[workload]
    if choice.config is None:
        raise BadInput(f"{clipped(workload_text(workload))}: no template applies to it on {on.key.model}")
    func = template_named(choice.config.template).prim_func(workload, on.target, choice.config)
    is_host = on.target.kind.name == "llvm"
    code, kernels = (_assembly(func, on.target), ()) if is_host else _source(func, on.target, compilers)
    state = _state(store, workload, on)
    return Explanation(
        workload=workload,
        text=distinct_texts([*store.workloads(), workload])[workload],
        choice=choice,
        configs=state.trials.tried,
        rivals=tuple(_rivals(state, choice)),
        schedule=str(func.script()),
        language="assembly" if is_host else "CUDA" if on.target.kind.name == "cuda" else "OpenCL C",
        code=code,
        loop=in_assembly(code) if is_host else in_source(code),
        flop=flop_or_none(workload),
        bytes=bytes_of(workload),
        kernels=kernels,
    )


def _state(store: Store, workload: Workload, on: Device) -> TaskState:
    space = search_space(workload, on.target)
    templates = {s.template for s in space.spaces} if space else set()
    return TaskState(Task(workload), space, [t for t in store.trials(workload, on.key) if is_current(t, templates)])


def _rivals(state: TaskState, choice: Choice) -> list[Rival]:
    """Return the next best configs, and the best of every template that is not among them.

    Returns none if the choice was not measured on this device.
    """
    others = [t for t in state.trials.standing() if t.config != choice.config]
    if choice.config is None or choice.seconds is None or choice.source != "device":
        return []
    seen = {choice.config.template}
    chosen: list[Trial] = others[:RIVALS]
    seen.update(t.config.template for t in chosen)
    for trial in others:
        if trial.config.template not in seen:
            seen.add(trial.config.template)
            chosen.append(trial)
    return [
        Rival(t.config, t.seconds, t.seconds / choice.seconds, _difference(t.config, choice.config)) for t in chosen
    ]


def _difference(config: Config, chosen: Config) -> str:
    if config.template != chosen.template:
        return f"template {config.template}"
    names = [n for n in config.knobs if config.knobs[n] != chosen.knobs.get(n)]
    return ", ".join(f"{n}={config.knobs[n]} for {chosen.knobs.get(n)}" for n in names) or "nothing"


def _assembly(func: tirx.PrimFunc, target: Target) -> str:
    return str(build(func.with_attr("global_symbol", "main"), target).inspect_source("asm"))


def _source(
    func: tirx.PrimFunc, target: Target, compilers: Sequence[Compiler]
) -> tuple[str, tuple[dict[str, Any], ...]]:
    lowered = lower(func, target)
    source = lowered.source()
    taken: dict[str, dict[str, Any]] = {}
    for compiler in compilers:
        for name, resources in compiler.compile(source).items():
            told = {k: v for k, v in asdict(resources).items() if v is not None}
            taken.setdefault(name, {}).update(told)
    kernels = tuple({**asdict(kernel), "compiled": taken.get(kernel.name)} for kernel in lowered.kernels)
    return source, kernels
