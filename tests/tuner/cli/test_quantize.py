"""`tune quantize`, and what the other commands make of the file that it writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from templates.cpu.dot_products import products_of
from tests.browser import needs_chromium, opened
from tests.templates.support import host_target
from tests.tuner.cli.conftest import TUNE, Done, everything_under, run_tune
from tests.tuner.graph.networks import Net
from tests.tuner.quantization.networks import classifier, samples
from tuner.cli.mixtures import chosen_variants
from tuner.quantization import Choice, Quality, Variant
from tuner.report.page import render_quantised
from tuner.report.text import milliseconds

BOUND = 20  # decibels, which the network keeps with one operator in float


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with a network whose last convolution is sensitive, and with samples for it."""
    made = tmp_path_factory.mktemp("quantize")
    classifier(made / "net.onnx", outlier=True)
    np.savez(made / "x.npz", x=samples())
    return made


@pytest.fixture(scope="module")
def quantized(folder: Path) -> Done:
    """Writes q.onnx and page.html."""
    words = ("--min-sqnr", BOUND, "--report", "page.html", "-o", "q.onnx", "--json")
    done = run_tune("quantize", "net.onnx", "-c", "x.npz", *words, cwd=folder)
    assert done.status == 0, done.err
    return done


def test_the_table_says_what_stayed_in_float_and_why(quantized: Done) -> None:
    found = quantized.json()
    in_float = {row["name"]: row["why"] for row in found["operators"] if row["computed_in"] == "float32"}
    assert in_float == {"/conv_12/Conv": "kept by the bound: in integers it costs most"}
    assert found["variants"][0]["quality"]["sqnr"] < BOUND <= found["chosen"]["quality"]["sqnr"]
    assert found["samples"] == {"calibrated": 24, "judged": 8}
    assert found["top1_is"] == "agreement"
    told = [line for line in quantized.err.splitlines() if "/conv_12/Conv" in line]
    assert len(told) == 1
    assert "float32" in told[0]
    assert "5 of 6 convolutions and dense layers are in int8" in quantized.err


@pytest.mark.usefixtures("quantized")
def test_other_commands_take_the_file(folder: Path) -> None:
    done = run_tune("build", "q.onnx", "-o", "q.tuned", "--threads", 1, cwd=folder)
    assert done.status == 0, done.err
    if products_of(host_target()) is not None:
        assert "5 of 6 convolutions and dense layers multiply integers of 8 bits" in done.err
    np.savez(folder / "one.npz", x=samples()[3:4])
    done = run_tune("run", "q.tuned", "--input", "one.npz", "--output", "y.npz", cwd=folder)
    assert done.status == 0, done.err
    (expected,) = onnx.reference.ReferenceEvaluator(onnx.load(folder / "net.onnx")).run(None, {"x": samples()[3:4]})
    with np.load(folder / "y.npz") as outputs:
        (found,) = outputs.values()
    assert found.argmax() == expected.argmax()
    np.testing.assert_allclose(found, expected, atol=0.1 * np.abs(expected).max())


def test_labels_make_it_accuracy(folder: Path) -> None:
    evaluator = onnx.reference.ReferenceEvaluator(onnx.load(folder / "net.onnx"))
    right = [int(evaluator.run(None, {"x": sample[np.newaxis]})[0].argmax()) for sample in samples()]
    (folder / "labels.txt").write_text("\n".join(map(str, right)))
    words = ("--labels", "labels.txt", "--max-drop", 0, "--method", "percentile", "--percentile", 99.99)
    done = run_tune("quantize", "net.onnx", "-c", "x.npz", *words, "-o", "labelled.onnx", cwd=folder)
    assert done.status == 0, done.err
    rows = [line.split() for line in done.out.splitlines()]
    (written,) = (row for row in rows if "written" in row)
    assert "100.00" in written
    assert "right top-1" in done.out


def test_latency_is_measured_of_float_and_of_integers(folder: Path) -> None:
    """The network has one convolution: there is no mixture between the two."""
    net = Net(seed=2)
    net.save(folder / "one_conv.onnx", net.op("Relu", net.conv(net.input(1, 3, 16, 16), (3, 16), 3)))
    words = ("--measure", "--minutes", 0.005, "--threads", 1, "--report", "timed.html", "-o", "timed.onnx", "--json")
    done = run_tune("quantize", "one_conv.onnx", "-c", "x.npz", *words, cwd=folder)
    assert done.status == 0, done.err
    found = done.json()
    (variant,) = found["variants"]
    assert variant == found["chosen"]
    assert variant["seconds"] > 0
    assert found["float"]["seconds"] > 0
    assert "1 thread" in found["timed_on"]
    assert "0 of the 2 operators of these networks have a config that was measured there" in " ".join(done.err.split())
    (row,) = (line for line in done.err.splitlines() if "0 (written)" in line)
    assert milliseconds(variant["seconds"]) in row
    assert f"{found['float']['seconds'] / variant['seconds']:.2f}" in row
    assert (folder / "timed.html").read_text().count('"timed_on"') == 1


def test_first_and_chosen_variants_are_timed() -> None:
    quality = Quality(30.0)
    variants = tuple(Variant(count, max(39 - count, 0), 0.5, quality) for count in range(41))
    choice = Choice((), variants, variants[7], quality, onnx.ModelProto(), lambda _: onnx.ModelProto())
    assert [variant.in_float for variant in chosen_variants(choice)] == [0, 7, 10, 19, 28, 38]
    assert chosen_variants(replace(choice, variants=variants[:1], chosen=variants[0])) == [variants[0]]


def test_images_are_samples(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (folder / "images").mkdir()
    for index, sample in enumerate(samples(4)):
        pixels = (40 * sample + 128).clip(0, 255).astype(np.uint8).transpose(1, 2, 0)
        image.fromarray(pixels).save(folder / "images" / f"{index}.png")
    words = ("--scale", 1, "--mean", "128", "--std", "40,40,40", "--json")
    done = run_tune("quantize", "net.onnx", "-c", "images", *words, "-o", "i.onnx", cwd=folder)
    assert done.status == 0, done.err
    assert done.json()["samples"] == {"calibrated": 3, "judged": 1}


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("-c", "missing"), "missing: no such file or folder; give a folder of"),
        (("-c", "net.onnx"), "net.onnx: no samples; give a folder of"),
        (("-c", "x.npz", "-o", "nowhere/q.onnx"), "does not exist; create it first"),
        (("-c", "x.npz", "-o", "net.onnx"), "net.onnx: is the model itself; name another file"),
        (("-c", "x.npz", "--min-sqnr", 99), "the bound is missed with"),
        (("-c", "x.npz", "--mean", "a"), "--mean a: give one number, or one for each channel"),
        (("-c", "x.npz", "--std", "0"), "--scale and --std divide: give numbers above 0"),
        (("-c", "x.npz", "--percentile", "0"), "--percentile 0: give one above 0"),
        (("-c", "x.npz", "--labels", "few.txt"), "few.txt: holds 2 labels for 32 samples"),
        (("-c", "x.npz", "--method", "guess"), "'minmax', 'percentile', 'entropy'"),
        (("-c", "x.npz", "--max-drop", "-1"), "--max-drop"),
        (("-c", "x.npz", "--threads", 1), "say how latency is measured: give --measure, too"),
        (("-c", "x.npz", "--measure", "--device", "board:pi"), "--device board:pi: networks are timed on devices of"),
        (("-c", "x.npz", "--measure", "--minutes", 0), "--minutes must be a positive number"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_writes_nothing(folder: Path, words: tuple, says: str) -> None:
    (folder / "few.txt").write_text("1 2")
    before = everything_under(folder)
    words = words if "-o" in words else (*words, "-o", "refused.onnx")
    done = run_tune("quantize", "net.onnx", *words, cwd=folder)
    assert done.status == 2
    assert says in done.err.splitlines()[-1]
    assert everything_under(folder) == before


def test_an_interrupt_leaves_nothing(folder: Path) -> None:
    scratch = folder / "scratch"
    scratch.mkdir()
    words = [TUNE, "quantize", "net.onnx", "-c", "x.npz", "--method", "entropy", "-o", "late.onnx"]
    with subprocess.Popen(
        list(map(str, words)), cwd=folder, env={**os.environ, "TMPDIR": str(scratch)}, stderr=subprocess.PIPE
    ) as started:
        while not list(scratch.glob("edgetune-quantize-*/augmented.onnx")):
            assert started.poll() is None
            time.sleep(0.01)
        started.send_signal(signal.SIGINT)
        error = started.communicate(timeout=60)[1].decode()
    assert started.returncode == 130
    assert "Traceback" not in error
    assert not (folder / "late.onnx").exists()
    assert not list(scratch.iterdir())


@needs_chromium
@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_the_page_plots_quality_against_integers(folder: Path, quantized: Done, size: str) -> None:
    found = quantized.json()
    with opened((folder / "page.html").as_uri(), size) as page:
        assert page.complaints == []
        assert len(page.requests) == 1
        shown = [v for v in (*found["variants"], found["chosen"]) if v["in_integers"]]
        for chart in ("sqnr", "top1"):
            wanted = [(100 * v["share"], v["quality"][chart]) for v in shown]
            np.testing.assert_allclose(page.marks(chart), wanted)
        assert page.texts("operators", "operator")[0] == "/conv_12/Conv"
        alone = [row["sqnr_alone"] for row in found["operators"] if row["sqnr_alone"] is not None]
        assert page.numbers("operators", "SQNR alone, dB")[: len(alone)] == sorted(alone)
        assert page.serious_faults() == []
        assert "Latency was not measured" in page.page.locator("#noise").inner_text()
        assert page.page.locator('[data-chart="sqnr-latency"]').count() == 0
        page.keep_screenshot(f"quantised-{size}")


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_plots_quality_against_latency(folder: Path, quantized: Done, scheme: str) -> None:
    data = quantized.json()
    data["timed_on"], data["float"]["seconds"] = "a device", 4e-3
    for variant in (*data["variants"], data["chosen"]):
        if variant["in_integers"]:
            variant["seconds"] = 2e-3 + 1e-4 * variant["in_float"]
    (folder / "latency.html").write_text(render_quantised(data))
    with opened((folder / "latency.html").as_uri(), color_scheme=scheme) as page:
        chosen = data["chosen"]
        others = [v for v in data["variants"] if v["seconds"] and v["in_float"] != chosen["in_float"]]
        for chart in ("sqnr", "top1"):
            wanted = [(1e3 * v["seconds"], v["quality"][chart]) for v in (*others, chosen)]
            np.testing.assert_allclose(page.marks(f"{chart}-latency"), wanted)
            labels = page.page.locator(f'[data-chart="{chart}-latency"] [data-label]').all_text_contents()
            assert labels == ["float32", *(str(v["in_float"]) for v in (*others, chosen))]
        assert "a device" in page.page.locator("#summary").inner_text()
        assert page.serious_faults() == page.complaints == []
        page.keep_screenshot(f"quantised-latency-{scheme}")


@needs_chromium
def test_names_of_a_model_are_shown_as_text(folder: Path, quantized: Done) -> None:
    harm = "<img src=x onerror=window.harmed=1></script><script>window.harmed=1</script>@script@@data@"
    data = quantized.json()
    data["model"] = harm
    for row in data["operators"]:
        row["name"] = row["why"] = harm
    (folder / "harm.html").write_text(render_quantised(json.loads(json.dumps(data))))
    with opened((folder / "harm.html").as_uri()) as page:
        assert page.page.evaluate("window.harmed") is None
        assert page.texts("operators", "operator")[0] == harm
