"""This script records whole search spaces, so that benchmarks/search.py can compare searchers without a device.

    python benchmarks/record_spaces.py --device cpu|opencl:N [--only NAME ...] [--configs 2000] [--quick] [--out DIR]

Every space is thinned to about --configs valid configs, each of which is built, checked and timed as the tuner does it.
The fastest are timed again in turns, because the best of thousands is partly luck, and searchers are judged by it. The
measurements are saved after every batch, so that the same command goes on where it was stopped. The names for --only
are those of WORKLOADS.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from templates.template import search_space, template_named
from templates.workloads import Conv2d, Dense
from tuner.devices import Device, open_device
from tuner.measure import LocalRunner, MeasureOptions
from tuner.measure.replay.recorded import SUFFIX, Record, RecordedSpace, decoded, encoded, thinned
from tuner.measure.replay.runner import recorded
from tuner.measure.runner import Candidate
from tuning_db.record import Config, Failure, Workload

FOLDER = Path(__file__).with_name("spaces")
BATCH = 32
# The fastest COMPARED configs are compared, again and again until each of the fastest SETTLED has been compared.
COMPARED, SETTLED = 16, 4


def _conv(image: tuple[int, int, int], k: int, kernel: int, stride: int = 1, *, groups: int = 1) -> Workload:
    pad = (kernel // 2,) * 4
    conv = Conv2d(1, *image, k, (kernel, kernel), (stride, stride), pad, groups=groups)
    return conv.workload(("bias", "relu"))


# Layers of ResNet-18 and MobileNet. Those named wpk_* are from table 1 of Liu et al., "Woodpecker-DL: Accelerating Deep
# Neural Networks via Hardware-Aware Multifaceted Optimizations".
WORKLOADS = {
    "conv_64x56": _conv((64, 56, 56), 64, 3),
    "conv_64x56_s2": _conv((64, 56, 56), 128, 3, 2),
    "conv_128x28": _conv((128, 28, 28), 128, 3),
    "conv_256x14": _conv((256, 14, 14), 256, 3),
    "conv_512x7": _conv((512, 7, 7), 512, 3),
    "point_128x28": _conv((128, 28, 28), 256, 1),
    "wpk_conv2": _conv((96, 54, 46), 128, 3, 2),
    "wpk_conv3": _conv((128, 26, 22), 256, 3, 2),
    "wpk_conv4": _conv((256, 12, 10), 512, 3),
    "depthwise_256x28": _conv((256, 28, 28), 256, 3, groups=256),
    "dense_512": Dense(1, 512, 1000).workload(("bias",)),
}


def _label(device: Device) -> str:
    """Return a name for the device that a space is recorded on, such as "cpu1.znver5" or "opencl.pocl"."""
    if device.is_host:
        return f"cpu{device.threads}.{device.key.model}"
    platform = str(device.key.attrs.get("platform", device.key.model))
    words = "".join(c if c.isalnum() else " " for c in platform.lower()).split()
    return f"{device.key.kind}.{'pocl' if words[0] == 'portable' else words[0]}"


class Recorder:
    """A recorder that measures the space of one workload on one device.

    `journal` is a file with a line for every config that was measured so far.
    """

    def __init__(self, name: str, device: Device, most: int, folder: Path) -> None:
        self.workload, self.device = WORKLOADS[name], device
        stem = f"{name}.{_label(device)}"
        self.path, self.journal = folder / f"{stem}{SUFFIX}", folder / f"{stem}.journal"
        space = search_space(self.workload, device.target)
        assert space is not None
        share = most // len(space.spaces)
        self.spaces = [thinned(s, share) for s in space.spaces]
        self.whole = space
        self.configs = [c for s in self.spaces for c in s]
        self.known: dict[str, Record] = {}

    def run(self) -> None:
        if self.path.exists():
            print(f"{self.path.name}: is there already", file=sys.stderr)
            return
        self._resume()
        todo = [c for c in self.configs if c.key not in self.known]
        random.Random(0).shuffle(todo)  # so that a drift of the machine correlates with no knob
        with LocalRunner(self.device, MeasureOptions()) as runner, self.journal.open("a") as out:
            best = min((r.result[0] for r in self.known.values() if isinstance(r.result, tuple)), default=None)
            for start in range(0, len(todo), BATCH):
                best = self._measure(runner, todo[start : start + BATCH], best, out)
            self._settle(runner)
        self._write()
        self.journal.unlink(missing_ok=True)

    def _measure(self, runner: LocalRunner, configs: list[Config], best: float | None, out) -> float | None:
        built = runner.spent.build_seconds
        found, ran = [], runner.spent.run_seconds
        for trial in runner.measure([Candidate(self.workload, c) for c in configs], best):
            found.append((trial, runner.spent.run_seconds - ran))
            ran = runner.spent.run_seconds
            best = trial.seconds if trial.ok and (best is None or trial.seconds < best) else best
        build = (runner.spent.build_seconds - built) / len(configs)
        for trial, run in found:
            failure = trial.failure and replace(trial.failure, message=trial.failure.message[:200])
            self._note(trial.config, failure or trial.times, build, run)
            out.write(json.dumps([trial.config.as_dict(), encoded(failure or trial.times), build, run]) + "\n")
        out.flush()
        print(
            f"{self.path.name}: {len(self.known)} of {len(self.configs)}, best {1e6 * (best or 0):.1f} us,"
            f" build {build:.2f} s",
            file=sys.stderr,
            flush=True,
        )
        return best

    def _settle(self, runner: LocalRunner) -> None:
        compared: set[str] = set()
        while any(c.key not in compared for c in self._fastest(SETTLED)):
            chosen = self._fastest(COMPARED)
            trials = runner.compare([Candidate(self.workload, c) for c in chosen])
            if not any(trial.ok for trial in trials):
                raise SystemExit(f"{self.path.name}: comparing failed ({trials[0].failure}): run the command again")
            for trial in trials:
                before = self.known[trial.config.key]
                self.known[trial.config.key] = replace(before, result=trial.failure or trial.times)
                compared.add(trial.config.key)

    def _fastest(self, count: int) -> list[Config]:
        timed = [(median(r.result), c) for c in self.configs if isinstance((r := self.known[c.key]).result, tuple)]
        return [c for _, c in sorted(timed, key=lambda t: t[0])[:count]]

    def _note(self, config: Config, result: tuple[float, ...] | Failure, build: float, run: float) -> None:
        features = self.whole.space_of(config).features
        values = features(config.knobs) if features else {}
        self.known[config.key] = Record(result, build, run, values)

    def _resume(self) -> None:
        if self.journal.exists():
            for line in self.journal.read_text().splitlines():
                config, result, build, run = json.loads(line)
                self._note(Config.from_dict(config), decoded(result), build, run)

    def _write(self) -> None:
        context = self.whole.context
        versions = {s.template: template_named(s.template).version for s in self.spaces}
        note = {
            "recorded": datetime.now(UTC).date().isoformat(),
            "platform": platform.platform(),
            "whole_space": {s.template: s.raw_size for s in self.whole.spaces},
        }
        spaces = tuple(replace(s, seeds=tuple(dict(c.knobs) for c in s.seed_configs())) for s in self.spaces)
        recorded.write(
            RecordedSpace(
                self.workload, self.device.key, spaces, versions, context, tuple(self.configs), self.known, note
            ),
            self.path,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--configs", type=int, default=2000)
    parser.add_argument("--quick", action="store_true", help="a hundred configs of each")
    parser.add_argument("--out", type=Path, default=FOLDER)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    device = open_device(given.device, given.threads if given.device == "cpu" else None)
    for name in given.only:
        started = time.monotonic()
        recorder = Recorder(name, device, 100 if given.quick else given.configs, given.out)
        recorder.run()
        print(f"{recorder.path.name}: {len(recorder.configs)} configs, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
