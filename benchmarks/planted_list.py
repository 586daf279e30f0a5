"""This file lists the faults that planted_faults.py plants.

What tests find is no reason to add one, to change it or to take it out.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """Edits one line. `old` occurs once in the file; `wrong` says what goes wrong then; `first`: files or folders
    of the tests that are the most likely to find it."""

    name: str
    place: str
    file: str
    old: str
    new: str
    wrong: str
    first: tuple[str, ...]


FAULTS = (
    Fault(
        "cpu-skipped-rows",
        "CPU template",
        "templates/cpu/direct.py",
        "y < conv.height + conv.padding[0])",
        "y < conv.height + conv.padding[2])",
        "Kernel rows at the bottom are skipped where an image has more padding above it than below.",
        ("tests/templates/cpu", "tests/templates/test_contract.py"),
    ),
    Fault(
        "cpu-chunk-tiles",
        "CPU template",
        "templates/cpu/depthwise.py",
        '(v["rows"] or conv.out_height) % v["th"] == 0',
        'conv.out_height % v["th"] == 0',
        "Configs whose tile of rows does not divide their chunk are tried as if they were valid.",
        ("tests/templates/cpu", "tests/templates/test_contract.py"),
    ),
    Fault(
        "gpu-local-memory",
        "GPU template",
        "templates/gpu/tiling.py",
        "return p.value_bytes * values * (2 if self.asynchronous(v) else 1)",
        "return p.value_bytes * values",
        "Configs are compiled whose second buffer no longer fits into the device's local memory.",
        ("tests/templates/gpu/test_asynchronous.py", "tests/templates/gpu/test_direct.py"),
    ),
    Fault(
        "gpu-dense-end",
        "GPU template",
        "templates/gpu/dense.py",
        "tirx.min(index, extent - 1)",
        "tirx.min(index, extent)",
        "A dense layer reads one row or input behind the last, where tiles do not divide them.",
        ("tests/templates/gpu/test_contract.py", "tests/tuner/devices/opencl"),
    ),
    Fault(
        "roi-align-border",
        "vision operator",
        "vision_ops/roi_align.py",
        "(place <= _f(float(self.size)))",
        "(place < _f(float(self.size)))",
        "Samples that lie exactly one pixel outside of the map count as zero.",
        ("tests/vision_ops/test_roi_align.py", "tests/vision_ops/test_torchvision.py"),
    ),
    Fault(
        "db-throttled-best",
        "database store",
        "tuning_db/store.py",
        "throttled = throttled or trial",
        "throttled = trial",
        "Where all trials are throttled the slowest is the best, not the fastest.",
        ("tests/tuning_db/test_trial_flags.py", "tests/tuning_db/test_store.py"),
    ),
    Fault(
        "db-later-trials",
        "database store",
        "tuning_db/store.py",
        "later.c.id > trials.c.id,",
        "later.c.id < trials.c.id,",
        "Of two trials of a config the earlier one counts.",
        ("tests/tuning_db/test_store.py", "tests/tuning_db/test_maintain.py"),
    ),
    Fault(
        "db-relatives",
        "database look-up",
        "tuning_db/lookup.py",
        "return other.model != device.model, -equal, other.key",
        "return other.model != device.model, equal, other.key",
        "Of several devices of a family the least alike lends its configs.",
        ("tests/tuning_db/test_lookup.py", "tests/tuner/graph/test_choice.py"),
    ),
    Fault(
        "annealing-ratio",
        "searcher",
        "tuner/search/annealing.py",
        "ratio = self._known[to.key] / self._known[self._chains[chain].key]",
        "ratio = self._known[self._chains[chain].key] / self._known[to.key]",
        "Simulated annealing goes to slower configs, and only by chance to faster ones.",
        ("tests/tuner/search/test_annealing.py", "tests/tuner/search"),
    ),
    Fault(
        "board-memory-limit",
        "board agent",
        "board_agent/kernel_server.py",
        'most = min(int(settings["memory_bytes"]), int(_MEMORY_SHARE * installed))',
        'most = max(int(settings["memory_bytes"]), int(_MEMORY_SHARE * installed))',
        "A request may take more of a board's memory than the host said, or than the board allows.",
        ("tests/board_agent/test_containment.py", "tests/board_agent/test_serve.py"),
    ),
    Fault(
        "layouts-only-reader",
        "layout planner",
        "tuner/graph/layout/plan.py",
        "for place, o in enumerate(node.operands) if readers[o] == 1]",
        "for place, o in enumerate(node.operands) if readers[o] >= 1]",
        "A plan's seconds leave out copies into a joined tensor that have to be made for other readers.",
        ("tests/tuner/graph/test_layouts.py", "tests/tuner/studies/test_ways.py"),
    ),
    Fault(
        "placement-lifetimes",
        "placement planner",
        "tuner/placement/memory.py",
        "changes[last[var] + 1] -= bytes_of(var.ty)",
        "changes[last[var]] -= bytes_of(var.ty)",
        "Values count as gone while their last reader still reads them: a device's memory overflows.",
        ("tests/tuner/placement/test_memory.py", "tests/tuner/studies/test_memories.py"),
    ),
    Fault(
        "report-latency-ratio",
        "number in a report",
        "tuner/report/bench.py",
        '"latency_ratio": self.ours.seconds / peer.seconds',
        '"latency_ratio": peer.seconds / self.ours.seconds',
        "The ratio of latencies in the JSON of a comparison is upside down.",
        ("tests/tuner/report/test_bench.py", "tests/tuner/cli/test_main_job.py"),
    ),
    Fault(
        "onnx-dilated-same",
        "ONNX importer",
        "tuner/graph/importers/onnx/windows.py",
        "(math.ceil(size / stride) - 1) * stride + dilation * (k - 1) + 1 - size",
        "(math.ceil(size / stride) - 1) * stride + k - size",
        "The automatic padding of a dilated convolution is that of one without dilation.",
        ("tests/tuner/graph/test_fuse.py", "tests/tuner/graph/test_load.py"),
    ),
    Fault(
        "fuse-subtract",
        "operator fusion",
        "tuner/graph/fusion/chain.py",
        '"subtract": (one, -value) if at == 0 else (-one, value)',
        '"subtract": (one, -value)',
        "A constant less a convolution becomes the convolution less the constant.",
        ("tests/tuner/graph/test_fuse.py",),
    ),
    Fault(
        "fuse-disjoint-clips",
        "operator fusion",
        "tuner/graph/fusion/activations.py",
        "_clip(min(max(a, low), high), min(max(b, low), high))",
        "_clip(max(a, low), min(b, high))",
        "Two clips that follow each other and have no value in common become one with its bounds crossed.",
        ("tests/tuner/graph/test_fuse.py",),
    ),
    Fault(
        "session-cap",
        "session's budget",
        "tuner/session/session_budget.py",
        "size = min(size, self._preset.trials - state.begun)",
        "size = min(size, self._preset.trials)",
        "The last batch of a task goes beyond what its preset allows.",
        ("tests/tuner/session",),
    ),
    Fault(
        "session-reserve",
        "session's budget",
        "tuner/session/budget.py",
        "_COMPARING_SECONDS * tasks)",
        "_COMPARING_SECONDS * new_tasks)",
        "A session that goes on with known tasks keeps no time for the comparisons at its end.",
        ("tests/tuner/session",),
    ),
    Fault(
        "module-errors",
        "built module",
        "tuner/module/verification.py",
        "errors = {name: max(errors[name], found[name]) for name in errors}",
        "errors = dict(found)",
        "A module's errors are those of the last inputs that it was verified with, not the largest of all.",
        ("tests/tuner/module/test_run.py", "tests/tuner/module/test_build.py"),
    ),
    Fault(
        "import-exact-sums",
        "ONNX import",
        "tuner/graph/importers/onnx/rewrites/quantized.py",
        "_EXACT = 2**24",
        "_EXACT = 2**40",
        "Long sums of products of integers are added up in float32, which has no digits for them.",
        ("tests/tuner/graph/test_written.py",),
    ),
    Fault(
        "import-halves-out",
        "ONNX import",
        "tuner/graph/importers/onnx/dtypes.py",
        "leaving += [] if is_input else [_cast(inside, value.name, kind)]",
        "leaving += [] if is_input else [_cast(inside, value.name, self.wide)]",
        "Outputs of a file in half precision are float32.",
        ("tests/tuner/graph/test_halves.py",),
    ),
    Fault(
        "module-other-gpu",
        "built module",
        "tuner/module/placement.py",
        "has.local_memory_bytes >= needs.local_memory_bytes",
        "has.local_memory_bytes <= needs.local_memory_bytes",
        "A module is loaded on a GPU whose local memory is too small, and refused by one that has more.",
        ("tests/tuner/module/test_gpu.py",),
    ),
    Fault(
        "stages-groups",
        "stages",
        "tuner/stages/endings.py",
        "limits.groups is not None and len(chosen) == limits.groups",
        "limits.groups is not None and len(chosen) > limits.groups",
        "A stage may have one group more than the limit says.",
        ("tests/tuner/stages",),
    ),
)
