"""`tune pack`: what one machine has tuned goes to another one, and what does not hold there is dropped by name."""

from __future__ import annotations

import lzma
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from templates.template import search_space, template_named
from templates.workloads import Dense
from tests.tuner.cli.conftest import Done, run_tune
from tests.tuner.measure.misbehaving import NAME, WORKLOAD
from tuner.devices import open_device
from tuner.packs.keys import Keys, public_key
from tuner.packs.pack import write_pack
from tuning_db.record import Config, DeviceKey, Trial
from tuning_db.store import open_db

PULL = ("pack", "pull", "place", "--threads", 1, "--db", "t.db")
ROOT = {"PYTHONPATH": str(Path(__file__).parents[3])}  # for the plugin, which is a test's
PLUGIN = ("--plugin", "tests.tuner.measure.misbehaving")


class Machine:
    """A user with a folder and a configuration of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.config = folder, folder / "config"
        folder.mkdir()
        self.keys = Keys(self.config / "edgetune" / "packs")

    def tune(self, *words: object) -> Done:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("XDG_CONFIG_HOME", str(self.config))
            return run_tune(*words, cwd=self.folder, env=ROOT if PLUGIN[0] in words else None)


@pytest.fixture
def lab(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "lab")


@pytest.fixture
def home(tmp_path: Path) -> Machine:
    made = Machine(tmp_path / "home")
    (made.folder / "place").symlink_to(tmp_path / "lab")
    return made


@pytest.fixture
def here() -> DeviceKey:
    return open_device("cpu", 1).key


def misbehaving(does: str, device: DeviceKey, **changes: object) -> Trial:
    trial = Trial(WORKLOAD, device, Config(NAME, {"does": does, "tile": 1}), 3, (1e-6,), error=1e-7)
    return replace(trial, **changes)


def untuned(device: DeviceKey) -> Trial:
    """A trial of the config that a layer has without tuning, which is as fast as that everywhere."""
    workload = Dense(4, 64, 32).workload()
    space = search_space(workload, open_device("cpu", 1).target)
    assert space is not None
    config = space.seed_configs()[0]
    return Trial(workload, device, config, template_named(config.template).version, (1e-6,), error=1e-7)


def neighbour(device: DeviceKey) -> DeviceKey:
    """Another machine of the same family."""
    return replace(device, model="of a neighbour")


def key_of(made: Done) -> str:
    return made.json()["key"]


def test_one_machines_configs_serve_another(lab: Machine, home: Machine, here: DeviceKey) -> None:
    with open_db(lab.folder / "t.db") as store:
        store.add(untuned(here))
    made = lab.tune("pack", "make", "laptop.pack", "--db", "t.db", "--note", "one layer", "--json")
    assert made.status == 0, made.err
    assert f"1 config for cpu {here.family} ({here.model}), signed with key {key_of(made)}" in made.err
    refused = home.tune(*PULL)
    assert refused.status == 4
    assert (
        f"a key that you do not trust: if it is its maker's, `tune pack trust {key_of(made)} --name N`" in refused.err
    )
    assert home.tune("pack", "trust", key_of(made), "--name", "lab").status == 0
    pulled = home.tune(*PULL, "--json")
    assert pulled.status == 0, pulled.err
    (pack,) = pulled.json()["pulled"]
    assert (pack["added"], pack["measured"], pack["dropped"]) == (1, 1, [])
    with open_db(lab.folder / "t.db") as theirs, open_db(home.folder / "t.db") as ours:
        (best,) = [theirs.best(workload, here) for workload in theirs.workloads(here)]
        assert best in list(ours.trials())
        assert {trial.searcher for trial in ours.trials() if trial != best} == {"pack"}
    again = home.tune(*PULL, "--measure", 0, "--json").json()["pulled"][0]
    assert (again["added"], again["known"], again["measured"]) == (0, 1, 0)


def test_packs_of_a_place_are_listed_with_who_signed_them(lab: Machine, home: Machine, here: DeviceKey) -> None:
    write_pack(lab.folder / "a.pack", "a", [untuned(here)], lab.keys.own(), "one layer")
    write_pack(lab.folder / "b.pack", "b", [untuned(here)], home.keys.own())
    (lab.folder / "c.pack").write_text("nothing")
    home.keys.trust(public_key(lab.keys.own()), "lab")
    shown = home.tune("pack", "list", "place")
    assert all(text in shown.out for text in ("a ", here.family, "lab", "one layer", "me"))
    assert "place/c.pack: is no pack" in shown.err
    assert home.tune("pack", "distrust", "lab").status == 0
    packs = home.tune("pack", "list", "place", "--json").json()["packs"]
    assert [pack.get("trusted") for pack in packs] == [None, "me", None]


def test_configs_that_do_not_hold_here_are_dropped_by_name(lab: Machine, home: Machine, here: DeviceKey) -> None:
    """A trusted maker's pack that is right in part: one config is wrong, one is older, and one was never checked."""
    given = [
        misbehaving("wrong", neighbour(here)),
        untuned(neighbour(here)),
        misbehaving("good", replace(here, model="older"), template_version=2),
        misbehaving("good", replace(here, model="unchecked"), error=None),
    ]
    pack = write_pack(lab.folder / "some.pack", "some", given, lab.keys.own())
    assert home.tune("pack", "trust", "place/some.pack", "--name", "lab", "--json").json()["trusted"] == {
        pack.key: "lab"
    }
    checked = home.tune("pack", "check", "place/some.pack", "--json")
    assert checked.status == 0, checked.err
    assert checked.json()["packs"][0]["taken"] == 1  # without the plugin the template of the others is not known
    done = home.tune(*PULL, "--measure", 2, *PLUGIN, "--json")
    assert done.status == 0, done.err
    (pulled,) = done.json()["pulled"]
    reasons = [dropped["reason"] for dropped in pulled["dropped"]]
    assert any(reason.startswith(f"{NAME} is of version 3 here, and was of version 2") for reason in reasons)
    assert "its result was not checked" in reasons
    assert any(reason.startswith("it fails here: wrong_answer") for reason in reasons)
    assert pulled["added"] == 1
    assert all(f"({WORKLOAD.op} by {NAME})" in dropped["config"] for dropped in pulled["dropped"])
    with open_db(home.folder / "t.db") as store:
        assert [trial for trial in store.trials() if trial.device != here] == given[1:2]


def test_packs_that_were_changed_or_are_for_others_are_refused(lab: Machine, home: Machine, here: DeviceKey) -> None:
    path, elsewhere = lab.folder / "a.pack", DeviceKey("cpu", "sparc", "t5", {"threads": 1})
    write_pack(path, "a", [misbehaving("good", elsewhere)], home.keys.own())
    foreign = home.tune(*PULL)
    assert foreign.status == 2
    assert f"place: has no pack for cpu, which is cpu {here.family}; place/a.pack: is for cpu sparc" in foreign.err
    write_pack(path, "a", [misbehaving("good", here)], home.keys.own())
    write_pack(lab.folder / "b.pack", "b", [misbehaving("good", here)], home.keys.own())
    path.write_bytes(lzma.compress(lzma.decompress(path.read_bytes()).replace(b"1e-07", b"1e-09")))
    changed = home.tune(*PULL, "--measure", 0, "--json")
    assert changed.status == 4
    assert changed.json()["refused"] == [
        "place/a.pack: its trials are not those that were signed: the file is damaged or was changed"
    ]
    assert [pack["name"] for pack in changed.json()["pulled"]] == ["b"]
    assert home.tune("pack", "check", "place/a.pack", "place/b.pack").status == 4
    pushed = home.tune("pack", "push", "place/a.pack", "elsewhere")
    assert pushed.status == 2
    assert not (home.folder / "elsewhere").exists()


def test_a_pack_is_for_one_family(tune: Callable[..., Done], here: DeviceKey, tmp_path: Path) -> None:
    with open_db(tmp_path / "t.db") as store:
        store.add_many([misbehaving("good", here), misbehaving("good", replace(here, family="sparc"))])
    both = tune("pack", "make", "x.pack", "--db", "t.db")
    assert both.status == 2
    assert f"choose with --family: cpu/sparc, cpu/{here.family}" in both.error
    none = tune("pack", "make", "x.pack", "--db", "t.db", "--family", "cpu/sparc")
    assert "has no config for cpu/sparc that could be a best" in none.error  # its template is not known here
    assert "ends in .pack" in tune("pack", "make", "x", "--db", "t.db").error
    assert not list(tmp_path.glob("*.pack"))


def test_ones_own_key_is_shown(home: Machine) -> None:
    shown = home.tune("pack", "keys", "--json").json()
    assert shown["trusted"] == {shown["own"]: "me"}
