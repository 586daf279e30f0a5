from __future__ import annotations

import pytest
from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

from templates.gpu.limits import gpu_limits
from templates.gpu.lowered import lower
from tuner.devices.keys import device_key, flush_every, model_of
from tuner.devices.profiles import all_profiles, profile_named
from tuner.errors import BadInput
from tuning_db.lookup import best, relatives
from tuning_db.record import Config, DeviceKey, Trial, Workload
from tuning_db.store import open_db

profiles = pytest.mark.parametrize("profile", all_profiles(), ids=lambda profile: profile.name)


def test_the_boards_of_the_literature_and_the_large_gpus_are_known():
    named = {"deeplens", "aisage", "mali-g52", "mali-g610", "jetson-nano", "jetson-xavier", "jetson-orin", "h100"}
    assert {profile_named(name).architecture for name in named} >= {"gen9", "midgard", "sm_53", "sm_72", "sm_87"}
    names = [name for profile in all_profiles() for name in (profile.name, *profile.aliases)]
    assert len(names) == len(set(names))
    assert profile_named("Mali-T860") is profile_named("aisage")


def test_an_unknown_profile_is_one_line_with_the_known_ones():
    with pytest.raises(BadInput, match=r"unknown profile 'mali-t999': give one of .*mali-t860.*jetson-nano"):
        profile_named("mali-t999")


@profiles
def test_the_target_carries_the_limits_and_the_host(profile):
    target = Target(str(profile.target()))
    assert gpu_limits(target) == profile.limits
    assert target.host.attrs["mtriple"] == profile.host[0]
    assert target.attrs.get("arch") == (profile.architecture if profile.limits.kind == "cuda" else None)


@profiles
def test_code_is_generated_for_it(profile):
    data = te.placeholder((64,), name="data")
    schedule = Schedule(te.create_prim_func([data, te.compute((64,), lambda i: data[i] + 1.0, name="out")]))
    schedule.bind(schedule.get_loops(schedule.get_sblock("out"))[0], "threadIdx.x")
    assert "main_kernel" in lower(schedule.mod["main"], profile.target()).source()


@pytest.mark.parametrize(
    ("reported", "model"),
    [
        ("Intel(R) HD Graphics 505 [0x5A84]", "hd-505"),
        ("Intel(R) Iris(R) Xe Graphics [0x9a49]", "iris-xe"),
        ("Mali-T860", "mali-t860"),
        ("Mali-G52 r1p0", "mali-g52"),
        ("Mali-LODX r0p0", "mali-g610"),
        ("NVIDIA Tegra X1", "tegra-x1"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H100 PCIe", "h100"),
        ("NVIDIA GeForce RTX 3090", "geforce-rtx-3090"),
    ],
)
def test_a_model_is_what_is_left_of_the_reported_name(reported, model):
    assert model_of(reported) == model


@profiles
def test_a_board_finds_its_profiles_trials_by_family_and_model(profile, tmp_path):
    """A real board reports more than a profile knows, so their keys differ; all that look-ups by family need agrees."""
    board = device_key(profile.limits, profile.reported, 7, driver="1.2.3")
    assert board != profile.key()
    workload, config = Workload("dense", {"rows": 1}), Config("gpu.dense", {"tile": 4})
    elsewhere = DeviceKey(board.kind, board.family, "another", board.attrs)
    with open_db(str(tmp_path / "t.db")) as store:
        for key in (elsewhere, profile.key()):
            store.add(Trial(workload, key, config, 1, times=(1e-3,), error=0.0))
        assert relatives(store, board) == [profile.key(), elsewhere]
        found = best(store, workload, board)
    assert found is not None
    assert (found.source, found.trial.device) == ("family", profile.key())


def test_only_mali_is_spared_long_queues():
    assert {p.limits.family for p in all_profiles() if p.flush_every} == {"mali"}
    assert flush_every("cpu") == 0
