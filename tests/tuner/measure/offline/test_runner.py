"""OfflineRunner with real processes and compilers, on candidates that go wrong in every way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import pytest

from templates.template import template_named
from templates.workloads import Conv2d
from tests.tuner.measure.offline.faulty import KINDS, candidate
from tests.tuner.measure.offline.support import compilers_or_skip
from tuner.devices.profiles import profile_named
from tuner.errors import BadInput
from tuner.measure import Candidate
from tuner.measure.offline import CandidateReport, OfflineOptions, OfflineRunner, Verdict

OPTIONS = OfflineOptions(compile_seconds=60, builders=2, plugins=("tests.tuner.measure.offline.faulty",))
EXPECTED = {
    "good": (Verdict.OK, ""),
    "group": (Verdict.LIMIT, "main_kernel: work-group of "),
    "local": (Verdict.LIMIT, "bytes of local memory, the device allows"),
    "host": (Verdict.LIMIT, "nothing runs on the device"),
    "undefined": (Verdict.COMPILE, "frobnicate"),
    "raises": (Verdict.COMPILE, "ValueError: the last line"),
    "refuses": (Verdict.INVALID, "no such tile"),
    "aborts": (Verdict.COMPILE, "SIGABRT"),
}
Reports = Mapping[str, CandidateReport]


@pytest.fixture(scope="module", params=["mali-t860", "intel-hd505", "jetson-nano"])
def profile(request: pytest.FixtureRequest) -> str:
    compilers_or_skip(profile_named(request.param))
    return request.param


@pytest.fixture(scope="module")
def runner(profile: str) -> Iterator[OfflineRunner]:
    with OfflineRunner(profile_named(profile), OPTIONS) as made:
        yield made


@pytest.fixture(scope="module")
def reports(runner: OfflineRunner) -> Reports:
    kinds = [kind for kind in KINDS if kind != "hangs"]
    found = runner.check([candidate(kind) for kind in kinds])
    return dict(zip(kinds, found, strict=True))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", EXPECTED)
def test_every_fault_has_its_verdict_and_a_line(reports, kind):
    verdict, says = EXPECTED[kind]
    assert (reports[kind].verdict, says in reports[kind].message) == (verdict, True), reports[kind].message
    assert "\n" not in reports[kind].message


def test_a_good_candidate_has_all_figures_that_its_compiler_gives(reports, profile):
    (kernel,) = reports["good"].kernels
    assert kernel.kernel.items == 32
    assert kernel.local_bytes == 0
    if profile == "mali-t860":  # clang knows no registers
        assert kernel.resources is None
        assert "registers" not in reports["good"].features
    else:
        assert reports["good"].features["registers"] > 0
        assert reports["good"].features["spill_bytes"] == 0


def test_spills_reject_a_candidate_where_the_compiler_tells(reports, profile):
    if profile == "mali-t860":
        assert reports["spills"].verdict is Verdict.OK
        return
    assert reports["spills"].verdict is Verdict.SPILL, reports["spills"].message
    assert "spilled by each work-item" in reports["spills"].message
    assert reports["spills"].features["spill_bytes"] > 64


def test_what_is_over_a_limit_never_reaches_a_compiler(reports):
    for kind in ("group", "local"):
        (kernel,) = reports[kind].kernels
        assert kernel.resources is None


def test_a_config_outside_of_its_space_is_invalid(runner):
    (found,) = runner.check([candidate("good", items=4096)])
    assert (found.verdict, found.kernels) == (Verdict.INVALID, ())
    assert "more than" in found.message


def test_a_hanging_candidate_is_stopped_at_its_deadline(profile):
    with OfflineRunner(profile_named(profile), replace(OPTIONS, compile_seconds=3)) as impatient:
        (found,) = impatient.check([candidate("hangs")])
    assert (found.verdict, found.message) == (Verdict.TIMEOUT, "compile deadline of 3 s exceeded")


def test_a_plugin_that_is_not_there_is_one_line(profile):
    with pytest.raises(BadInput, match=r"plugin 'no\.such\.module' cannot be imported"):
        OfflineRunner(profile_named(profile), OfflineOptions(plugins=("no.such.module",)))


def test_a_report_is_plain_data(reports):
    found = reports["good"].as_dict()
    assert found["config"]["template"] == "test.faulty"
    assert found["verdict"] == "ok"
    assert found["kernels"][0]["group"] == (32, 1, 1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "dtype", "template"),
    [
        ("jetson-xavier", "float16", "gpu.conv2d_tensor_core"),
        ("jetson-orin", "float32", "gpu.conv2d_tensor_core_tf32"),
        ("h100", "float16", "gpu.conv2d_tensor_core"),
    ],
)
def test_tensor_cores_are_compiled_for(name, dtype, template):
    """The memory that the launch adds to what the compiler counts is in the report."""
    profile = profile_named(name)
    compilers_or_skip(profile)
    workload = Conv2d(1, 64, 14, 14, 64, (3, 3), padding=(1, 1, 1, 1)).workload(("bias", "relu"), dtype)
    space = template_named(template).space(workload, profile.target())
    with OfflineRunner(profile, replace(OPTIONS, builders=1, plugins=())) as runner:
        found = runner.check([Candidate(workload, config) for config in space.seed_configs()[:2]])
    for report in found:
        assert report.verdict is Verdict.OK, report.message
        (kernel,) = report.kernels
        assert kernel.local_bytes == kernel.kernel.local_bytes > kernel.resources.local_bytes
