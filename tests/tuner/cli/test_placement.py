"""`tune build --placement`: every way on PoCL and the CPU builds what it placed; what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from templates.template import search_space, template_named
from tests.templates.gpu.support import device_number
from tests.tuner.cli.conftest import Done, everything_under, result_and_reference, run_tune
from tests.tuner.studies.test_known import convolutions, truth
from tests.tuner.tiny_network import write_tiny_network
from tuner.devices import Device, open_device
from tuner.graph import fuse, load_onnx
from tuner.studies.topology import DeviceSpec, Link, Memory, Topology, as_toml
from tuning_db.record import Config, Trial, Workload
from tuning_db.store import open_db

GPU = f"opencl:{device_number('pocl')}"
BOTH = ("--device", f"{GPU},cpu", "--threads", 1)
HAS_TORCH = find_spec("torch") is not None
learned = pytest.param("learned", marks=pytest.mark.skipif(not HAS_TORCH, reason="needs the extra rl"))


@dataclass(frozen=True)
class Made:
    """A folder with the tiny network, databases of what its operators take, and here.toml."""

    folder: Path
    model: Path

    def tune(self, *words: object) -> Done:
        return run_tune(*words, cwd=self.folder)

    def build(self, output: str, *words: object, db: str = "split.db") -> Done:
        return self.tune("build", self.model.name, "--db", db, "-o", output, *words)

    def manifest(self, output: str) -> dict[str, Any]:
        return json.loads((self.folder / output / "manifest.json").read_text())

    def assert_right(self, output: str) -> None:
        value, expected = result_and_reference(self.tune, self.model, output)
        np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5)


def known(workload: Workload, device: Device, seconds: float) -> Trial:
    """Of the first config that can be built."""
    space = search_space(workload, device.target)
    assert space is not None
    config = next(iter(space.seed_configs()))
    return Trial(workload, device.key, config, template_named(config.template).version, (seconds,), error=1e-6)


def fill(path: Path, model: Path, devices: Sequence[Device], behind: str, slow: Callable[[str], str]) -> None:
    """Other networks' convolutions, which take the device `behind` ten times as long, and the network's own operators,
    which take 20 ms on the device that `slow` names, 20 us on the other."""
    with open_db(path) as store:
        for device in devices:
            factor = 10 if device.name == behind else 1
            for w in convolutions():
                store.add(Trial(w, device.key, Config("some", {}), 1, (factor * truth(w),), error=1e-6))
            for w in dict.fromkeys(s.workload for s in fuse(load_onnx(model)).tuned):
                store.add(known(w, device, 2e-2 if slow(w.op) == device.name else 2e-5))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("placement")
    model = write_tiny_network(folder / "tiny.onnx")
    devices = [open_device(GPU), open_device("cpu", 1)]
    fill(folder / "split.db", model, devices, "cpu", lambda op: GPU if op == "dense" else "cpu")
    fill(folder / "cpu.db", model, devices, GPU, lambda _: GPU)
    names = (GPU, "cpu", "another")
    specs = tuple(DeviceSpec(n, n, 1e11, 1e10, "ram") for n in names)
    links = tuple(Link(a, b, 1e10, 1e-5) for a in names for b in names if a != b)
    (folder / "here.toml").write_text(as_toml(Topology("here", specs, (Memory("ram", 1e10),), links)))
    with open_db(folder / "few.db") as store:
        store.add(known(convolutions()[0], open_device(GPU), 1e-5))
    return Made(folder, model)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", ["exact", "mcmc", learned])
def test_every_step_is_built_where_it_was_placed(made: Made, way: str) -> None:
    """Convolutions take the CPU too long, the dense layer the GPU."""
    words = ("--placement", way, "--topology", "here.toml", "--placement-seconds", 10 if way == "learned" else 2)
    built = made.build(way, *BOTH, *words, "--json")
    assert built.status == 0, built.err
    result = built.json()
    said = result["placement"]
    assert (said["way"], said["taken"], said["seconds"]) == (way, way, said["found"])
    assert said["seconds"] < 1e-3 < min(said["simple"].values())
    assert set(said["simple"]) == {f"{GPU} alone", "cpu alone", "fallback"}
    assert f"{way} placement: simulated {1e3 * said['seconds']:.3f} ms, {GPU} alone 2" in built.err
    assert f"{sum(said['placement'])} of {len(said['placement'])} steps are computed by the CPU" in built.err
    assert result["devices"] == [GPU, "cpu"]
    manifest = made.manifest(way)
    assert [d["name"] for d in manifest["devices"]] == [GPU, "cpu"]
    placed = [(o["workload"]["op"], o["device"], o["source"]) for o in manifest["operators"]]
    assert placed == [("conv2d", 0, "device")] * 3 + [("dense", 1, "device")]
    made.assert_right(way)


@pytest.mark.skipif(not HAS_TORCH, reason="needs the extra rl")
def test_a_placement_is_learned_from_runs(made: Made) -> None:
    words = ("--placement", "learned", "--placement-reward", "measured", "--topology", "here.toml")
    built = made.build("runs", *BOTH, *words, "--placement-seconds", 2, "--json")
    assert built.status == 0, built.err
    said = built.json()["placement"]
    assert 0 < said["seconds"] <= min(said["found"], *(s for s in said["simple"].values() if s is not None))
    assert "learned placement: measured " in built.err
    made.assert_right("runs")


@pytest.mark.sampled(3)
@pytest.mark.parametrize("way", ["exact", "mcmc", learned])
def test_where_nothing_is_gained_one_device_is_taken(made: Made, way: str) -> None:
    """Everything takes the GPU too long."""
    words = ("--placement", way, "--topology", "here.toml", "--placement-seconds", 2)
    built = made.build(f"cpu.{way}", *BOTH, *words, "--json", db="cpu.db")
    assert built.status == 0, built.err
    said = built.json()["placement"]
    assert said["taken"] == "cpu alone"
    assert said["seconds"] == said["simple"]["cpu alone"] <= min(said["found"], *said["simple"].values())
    assert set(said["placement"]) == {1}
    assert "no gain: cpu alone is taken" in built.err
    assert built.json()["devices"] == [d["name"] for d in made.manifest(f"cpu.{way}")["devices"]] == ["cpu"]
    made.assert_right(f"cpu.{way}")


@pytest.mark.night
def test_without_a_file_the_links_are_measured(made: Made) -> None:
    built = made.build("measured", *BOTH, "--placement", "exact", "--json")
    assert built.status == 0, built.err
    assert f"copies from {GPU} to cpu" in built.err
    assert [o["device"] for o in built.json()["operators"]] == [0, 0, 0, 1]
    made.assert_right("measured")


def test_the_fallback_is_the_default(made: Made) -> None:
    for output, words in (("plain", ()), ("said", ("--placement", "fallback"))):
        built = made.build(output, *BOTH, *words, "--json")
        assert built.status == 0, built.err
        assert built.json()["placement"] is None
        assert built.json()["devices"] == [GPU]


def test_what_is_unwanted_on_the_gpu_is_not_placed_there(made: Made) -> None:
    words = ("--placement", "mcmc", "--topology", "here.toml", "--placement-seconds", 1, "--fallback", "conv2d")
    built = made.build("unwanted", *BOTH, *words, "--json")
    assert built.status == 0, built.err
    result = built.json()
    assert {result["devices"][o["device"]] for o in result["operators"] if o["workload"]["op"] == "conv2d"} == {"cpu"}
    assert result["placement"]["simple"][f"{GPU} alone"] is None
    assert f"{GPU} alone cannot" in built.err


def edited(made: Made, name: str, change: Callable[[dict[str, Any]], None]) -> str:
    """A file with the fallback's placement, of which a person changed the operators."""
    path = made.folder / name
    if not (made.folder / "written.json").exists():
        built = made.build("written", *BOTH, "--write-placement", "written.json")
        assert built.status == 0, built.err
        assert "wrote written.json: change it, or build it with --placement written.json" in built.out
    said = json.loads((made.folder / "written.json").read_text())
    change(said["operators"])
    path.write_text(json.dumps(said))
    return name


def test_a_split_that_a_person_wrote_is_built_and_runs(made: Made) -> None:
    """A convolution three quarters of which are the GPU's, one with a residual, and the dense layer in halves."""

    def change(operators: dict[str, Any]) -> None:
        stem, _, pointwise, *_, dense = operators
        operators[stem] = {"split": {"channels": 4}, "devices": [GPU, GPU, GPU, "cpu"]}
        operators[pointwise] = {"split": {"channels": 2}, "devices": ["cpu", GPU]}
        operators[dense] = {"split": {"channels": 2}, "devices": [GPU, "cpu"]}

    built = made.build("edited", *BOTH, "--placement", edited(made, "edited.json", change), "--json")
    assert built.status == 0, built.err
    assert "edited.json: 3 of " in built.err
    result = built.json()
    assert len(result["placement"]["parts"]) == 3
    assert result["devices"] == [GPU, "cpu"]
    operators = [
        (o["workload"]["op"], o["workload"]["attrs"].get("out_channels", 10), o["device"])
        for o in made.manifest("edited")["operators"]
    ]
    convs = [("conv2d", 12, 0), ("conv2d", 4, 1), ("conv2d", 16, 0), ("conv2d", 8, 0), ("conv2d", 8, 1)]
    assert operators == [*convs, ("dense", 10, 0), ("dense", 10, 1)]
    assert result["relative_error"].keys() == {o["name"] for o in made.manifest("edited")["outputs"]}
    made.assert_right("edited")


def test_a_split_by_rows_is_built_and_verified(made: Made) -> None:
    """The stem, the depthwise convolution behind it and the residual one: of the first nobody reads all."""

    def change(operators: dict[str, Any]) -> None:
        stem, depthwise, pointwise, *_ = operators
        operators[stem] = {"split": {"rows": 4}, "devices": [GPU, GPU, GPU, "cpu"]}
        operators[depthwise] = {"split": {"rows": 2}, "devices": [GPU, "cpu"]}
        operators[pointwise] = {"split": {"rows": 2}, "devices": [GPU, "cpu"]}

    built = made.build("rows", *BOTH, "--placement", edited(made, "rows.json", change), "--json")
    assert built.status == 0, built.err
    parts = built.json()["placement"]["parts"]
    assert [[name[name.index("[") :] for name in names] for names in parts.values()] == [
        ["[rows 0:12]", "[rows 12:16]"],
        ["[rows 0:8]", "[rows 8:16]"],
        ["[rows 0:8]", "[rows 8:16]"],
    ]
    attrs = [(o["workload"]["attrs"], o["device"]) for o in made.manifest("rows")["operators"]]
    convs = [(a["height"], a["padding"], device) for a, device in attrs if "height" in a]
    assert convs[:4] == [(13, [1, 1, 0, 1], 0), (5, [0, 1, 1, 1], 1), (9, [1, 1, 0, 1], 0), (9, [0, 1, 1, 1], 1)]
    (error,) = built.json()["relative_error"].values()
    assert error < 1e-4
    made.assert_right("rows")


def test_parts_are_tuned_like_any_other_step(made: Made) -> None:
    def change(operators: dict[str, Any]) -> None:
        operators[next(iter(operators))] = {"split": {"channels": 2}, "devices": [GPU, "cpu"]}

    file = edited(made, "halves.json", change)
    done = made.tune("model", made.model.name, "--db", "halves.db", "--placement", file, "--trials", 1, "--threads", 1)
    assert done.status == 0, done.err
    assert "5 tasks, " in done.err  # the network has four


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("said", "words", "says"),
    [
        (
            {"split": {"columns": 2}, "devices": [GPU, "cpu"]},
            (),
            "cannot be split along 'columns': give channels, rows",
        ),
        ({"split": {"rows": 17}, "devices": [GPU, "cpu"] * 8 + [GPU]}, (), "rows can be cut into 1 to 16 parts, not"),
        ({"split": {"channels": 17}, "devices": ["cpu"] * 17}, (), "channels can be cut into 1 to 16 parts, not 17"),
        (
            {"split": {"rows": 2, "channels": 2}, "devices": [GPU, "cpu"] * 2},
            (),
            "split it along channels or along rows",
        ),
        ({"devices": ["cuda:7"]}, (), "unknown device 'cuda:7'"),
        ({"devices": ["cpu"]}, ("--fallback", "conv2d"), "bad.json says which device computes what: leave --fallback"),
        ({"devices": ["cpu"]}, ("--topology", "here.toml"), "bad.json says which device computes what, and asks for"),
    ],
)
def test_a_placement_file_that_cannot_be_built(
    made: Made, said: dict[str, Any], words: tuple[object, ...], says: str
) -> None:
    file = edited(made, "bad.json", lambda operators: operators.update({next(iter(operators)): said}))
    before = everything_under(made.folder)
    done = made.build("never", *BOTH, "--placement", file, *words)
    assert done.status == 2
    assert says in done.error
    assert "bad.json" in done.error
    assert everything_under(made.folder) == before


PLACED = ("--device", f"{GPU},cpu", "--threads", 1, "--placement")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((*PLACED, "mcmc", "--placement-reward", "measured"), "only --placement learned learns from rewards"),
        ((*PLACED, "fastest"), "'fastest' is not one of 'fallback', 'exact', 'mcmc', 'learned'"),
        ((*PLACED, "mcmc", "--placement-seconds", 0), "--placement-seconds must be a positive number, not 0"),
        ((*PLACED, "mcmc", "--placement-seconds", "nan"), "--placement-seconds must be a positive number, not nan"),
        (("--placement", "mcmc"), "--placement mcmc: between which devices? Name a GPU and the CPU: opencl:0,cpu"),
        ((*PLACED, "none.json"), "none.json: no such file; give a placement"),
        (("--write-placement", "p.json"), "--placement fallback: between which devices?"),
        ((*PLACED, "exact", "--plan", "p.json"), "--plan says which device computes what: leave --placement away"),
        ((*PLACED, "fallback", "--topology", "here.toml"), "--topology here.toml: a fallback asks for no links"),
        (
            (*PLACED, "mcmc", "--topology", "none.toml"),
            "topology none.toml: cannot be read (No such file",
        ),
        (
            (*PLACED, "mcmc", "--topology", "deeplens"),
            "give a TOML file, as `tune devices --topology FILE.toml`",
        ),
        (
            (*PLACED, "fallback", "--placement-trace", "t.json"),
            "--placement-trace t.json: only --placement exact",
        ),
        ((*PLACED, "mcmc", "--placement-trace", "no/t.json"), "no/t.json: the folder"),
        ((*PLACED, "mcmc", "--topology", "lone.toml"), f"lone.toml: no device '{GPU}': it has cpu"),
        ((*PLACED, "mcmc", "--db", "none.db"), "there is no tuning database"),
        ((*PLACED, "mcmc", "--db", "few.db"), f"device '{GPU}': a roofline needs 4 measured workloads, not 1"),
        ((*PLACED, "exact", "--fallback", "nms"), "no operator 'nms' to fall back: the network has conv2d"),
    ],
)
def test_what_cannot_be_placed(made: Made, words: tuple[object, ...], says: str) -> None:
    lone = Topology("lone", (DeviceSpec("cpu", "cpu", 1e11, 1e10, "ram"),), (Memory("ram", 1e10),), ())
    (made.folder / "lone.toml").write_text(as_toml(lone))
    before = everything_under(made.folder)
    topology = () if "--topology" in words or "--fallback" not in words else ("--topology", "here.toml")
    done = made.build("never", *words, *topology)
    assert done.status == 2
    assert says in done.error
    assert everything_under(made.folder) == before


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('to = "cpu"', 'to = "npu"', f"bad.toml: link: unknown device 'npu': the devices are {GPU}, cpu, another"),
        (f'[[link]]\nfrom = "{GPU}"\nto = "cpu"', "", f"bad.toml: no link from '{GPU}' to 'cpu': add a [[link]]"),
        (
            "bandwidth = 10000000000.0\nlatency",
            "bandwidth = -5\nlatency",
            "bandwidth must be above 0 bytes per second",
        ),
        ("flops = 100000000000.0", f"flops = {10**400}", "flops must be below 1.8e308, not an integer of 401 digits"),
        ("bytes = 10000000000.0", "bytes = 10", "bad.toml: memory 'ram' has 10 bytes, the network needs "),
        ("bytes = 10000000000.0", "bytes = 0", "bad.toml: memory 'ram': bytes must be above 0, not 0"),
    ],
)
@pytest.mark.parametrize("way", ["exact", "mcmc"])
def test_a_topology_that_cannot_be(made: Made, way: str, old: str, new: str, says: str) -> None:
    text = (made.folder / "here.toml").read_text()
    assert old in text
    changed = text.replace(old, new, 1)
    if not new:  # the rest of the table goes, too
        head, tail = text.split(old)
        changed = head + tail[tail.index("[[link]]") :]
    (made.folder / "bad.toml").write_text(changed)
    before = everything_under(made.folder)
    done = made.build("never", *BOTH, "--placement", way, "--topology", "bad.toml", "--placement-seconds", 1)
    assert done.status == 2
    assert says in done.error
    assert "bad.toml" in done.error
    assert everything_under(made.folder) == before


def test_a_gpus_memory_in_a_topology_is_kept_to(made: Made) -> None:
    """The GPU of here.toml has too little for the network, the CPU enough, which takes its convolutions longer."""
    text = (made.folder / "here.toml").read_text().replace('memory = "ram"', 'memory = "vram"', 1)
    (made.folder / "vram.toml").write_text(text + '\n[[memory]]\nname = "vram"\nbytes = 20000\n')
    words = ("--placement", "exact", "--topology", "vram.toml", "--json")
    built = made.build("vram", *BOTH, *words)
    assert built.status == 0, built.err
    simple = built.json()["placement"]["simple"]
    assert simple[f"{GPU} alone"] is None
    assert f"{GPU} alone cannot" in built.err
    assert 1 in built.json()["placement"]["placement"]
    made.assert_right("vram")


def test_the_simulated_timeline_is_written(made: Made) -> None:
    words = ("--placement", "exact", "--topology", "here.toml", "--placement-trace", "trace.json", "--json")
    built = made.build("traced", *BOTH, *words)
    assert built.status == 0, built.err
    assert "wrote trace.json: the simulated timeline" in built.err
    said = built.json()["placement"]
    events = json.loads((made.folder / "trace.json").read_text())["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [e for e in events if e["ph"] == "X"]
    assert max(e["ts"] + e["dur"] for e in spans) == pytest.approx(1e6 * said["seconds"], rel=1e-6)
    computed = [lanes[e["tid"]] for e in spans if e["cat"] == "forward"]
    assert computed == [(GPU, "cpu")[d] for d in said["placement"]]
    assert {e["cat"] for e in spans} == {"forward", "transfer"}


def test_without_torch_nothing_is_learned(made: Made, tmp_path: Path) -> None:
    """Also where torch is installed: a module that fails to be imported is before it on the path."""
    (tmp_path / "torch.py").write_text("raise ImportError('not here')\n")
    before = everything_under(made.folder)
    lacking = partial(run_tune, cwd=made.folder, env={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"})
    done = lacking("build", made.model.name, "--db", "split.db", "-o", "never", *PLACED, "learned")
    assert done.status == 2
    assert "learned placement needs torch: pip install 'edgetune[rl]'" in done.error
    assert everything_under(made.folder) == before
