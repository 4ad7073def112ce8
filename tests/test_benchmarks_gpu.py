"""The benchmarks for a GPU, as far as a CPU shows it: what is kept when a part breaks, the arithmetic, small runs."""

import json
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu, gpu_checks, gpu_cifar, gpu_memory, gpu_packed, gpu_ratios, gpu_study
from benchmarks.gpu_part import Job, Measure, measures_of, run_measure
from benchmarks.gpu_sheet import Row, Sheet, as_text, is_met
from benchmarks.harness import Setting
from benchmarks.mfu import peak_of
from sweep.config.errors import InputError

CPU = torch.device("cpu")
ENVIRONMENT = {"device": "NVIDIA H200", "driver": "1"}
# What a part says: one measure that ends well with a row, and one that begins.
SAYS = """
import json, os, sys, time
row = {"question": "how fast?", "measured": 3.0, "target": 2.0, "better": "higher"}
messages = [
    {"kind": "plan", "measures": ["speed", "room", "rest"]},
    {"kind": "begin", "measure": "speed"},
    {"kind": "row", "measure": "speed", "row": row},
    {"kind": "end", "measure": "speed", "why": "", "seconds": 1.5},
    {"kind": "begin", "measure": "room"},
]
for message in messages:
    print(json.dumps(message), flush=True)
"""


def tiny_job(seconds: float = 600.0) -> Job:
    return Job(Setting(CPU, is_tiny=True), time.monotonic() + seconds)


def said_by(measure: Measure, job: Job | None = None) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    run_measure("m", measure, job or tiny_job(), said.append)
    return said


def test_rows_are_written_at_once_and_a_later_run_replaces_its_own_measures_alone(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    for measure in ("first", "second"):
        sheet.begin("ratios", measure)
        sheet.add("ratios", measure, Row("how fast?", 1.0, 2.0, "higher"))
    assert json.loads(sheet.path.read_text())["parts"]["ratios"]["second"]["rows"][0]["measured"] == 1.0
    sheet.end("ratios", "first", seconds=2.0)
    sheet.end("ratios", "second", "it broke")
    later = Sheet({**ENVIRONMENT, "driver": "2"}, tmp_path)
    later.begin("ratios", "second")
    later.add("ratios", "second", Row("how fast?", 5.0, 2.0, "higher"))
    later.end("ratios", "second")
    document = json.loads(later.path.read_text())
    assert later.path == sheet.path
    found = document["parts"]["ratios"]
    assert [found[name]["rows"][0]["measured"] for name in ("first", "second")] == [1.0, 5.0]
    digests = [found[name]["environment_digest"] for name in ("first", "second")]
    assert [document["environments"][digest]["driver"] for digest in digests] == ["1", "2"]
    assert later.path.with_suffix(".md").read_text() == as_text(document)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".md"]


def test_the_table_has_the_target_beside_what_was_measured(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("memory", "forecast")
    sheet.add("memory", "forecast", Row("error", 0.0213, 0.05, interval=(0.01, 0.03), n=26, least_n=24))
    sheet.add("memory", "forecast", Row("few", 0.0213, 0.05, n=3, least_n=24))
    sheet.add("memory", "forecast", Row("a | b", None, 0.1, note="no\nway"))
    sheet.end("memory", "forecast", "CUDA error")
    lines = as_text(sheet.document).splitlines()
    assert lines[4:] == [
        "| memory | error | 0.0213 [0.01, 0.03] n=26 | <= 0.05 | yes |",
        "| memory | few | 0.0213 n=3 | <= 0.05 | no (24 wanted) |",
        "| memory | a / b | - | <= 0.1 | no no way |",
        "| memory | forecast | - | - | failed: CUDA error |",
    ]


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (Row("q", 2.0, 2.0, "higher"), True),
        (Row("q", 1.9, 2.0, "higher"), False),
        (Row("q", 2.1, 2.0, "lower"), False),
        (Row("q", 2.0, 2.0, "lower", n=9, least_n=10), False),
        (Row("q", None, 2.0), False),
        (Row("q", 5.0), None),
    ],
)
def test_a_target_is_met_on_its_side_with_enough_of_them(tmp_path: Path, row: Row, verdict: bool | None) -> None:
    assert row.is_met is verdict
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("ratios", "some")
    sheet.add("ratios", "some", row)
    assert not is_met(sheet.document, ("ratios",))  # it has not ended
    sheet.end("ratios", "some")
    assert is_met(sheet.document, ("ratios",)) == (verdict is not False)
    assert not is_met(sheet.document, ("checks",))  # nothing was found there


@pytest.mark.parametrize(
    ("after", "limit_seconds", "why"),
    [
        ("os.abort()", 60.0, "its process ended with exit code -6"),
        ("sys.exit(3)", 60.0, "its process ended with exit code 3"),
        ("time.sleep(600)", 6.0, "cut off after 6 s"),
    ],
)
def test_a_part_that_breaks_keeps_what_it_had_found(tmp_path: Path, after: str, limit_seconds: float, why: str) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    gpu.run_part("ratios", [sys.executable, "-c", f"{SAYS}\n{after}"], limit_seconds, sheet)
    found = json.loads(sheet.path.read_text())["parts"]["ratios"]
    assert (found["speed"]["state"], found["speed"]["rows"][0]["measured"]) == ("done", 3.0)
    for name in ("room", "rest"):  # the one that it was at, and the one that it did not reach
        assert (found[name]["state"], found[name]["why"]) == ("failed", why)


def test_a_part_that_does_not_start_is_a_failure(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    gpu.run_part("memory", [sys.executable, "-c", "raise SystemExit(9)"], 60.0, sheet)
    assert "exit code 9" in sheet.document["parts"]["memory"]["start"]["why"]
    assert not is_met(sheet.document, ("memory",))


def test_measures_end_well_or_with_the_reason() -> None:
    def fails(_job: Job) -> Iterator[Row]:
        yield Row("before", 1.0)
        raise ValueError("the reason")

    def lacks(_job: Job) -> Iterator[Row]:
        import no_such_package  # type: ignore[import-not-found]

        yield Row(no_such_package)

    begin, row, end = said_by(fails)
    assert (begin["kind"], row["row"]["measured"], end["why"]) == ("begin", 1.0, "ValueError: the reason")
    assert said_by(lacks)[-1]["why"] == "the package no_such_package is not installed"
    assert said_by(fails, tiny_job(seconds=0.0))[-1]["why"] == "no time was left"


def test_all_parts_take_less_than_25_minutes_and_one_less_than_ten() -> None:
    every = gpu.part_seconds(tuple(gpu.choose(None)))
    assert list(every) == ["checks", "memory", "ratios", "cifar", "study", "packed"]
    assert sum(every.values()) < 25 * 60 - 30
    assert max(every.values()) < 600
    assert gpu.part_seconds(("study",)) == {"study": 570}


def test_parts_and_measures_are_chosen_by_name() -> None:
    assert gpu.choose("ratios.wait, memory,ratios.input") == {"memory": [], "ratios": ["wait", "input"]}
    with pytest.raises(InputError, match="ratio'"):
        gpu.choose("ratio")
    with pytest.raises(InputError, match="weight"):
        gpu.choose("ratios.weight")


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--only", "none"], ["--tiny", "--device", "cpu"]])
def test_wrong_input_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "CUDA" in capsys.readouterr().err


def test_ratios_have_the_targets_of_a_gpu() -> None:
    targets = {name: benchmark.target for name, benchmark in gpu_ratios.BENCHMARKS.items()}
    costs = {"wait": 0.02, "harness": 1.01, "noise": 1.02, "monitor": 1.01}
    assert targets == {"input": 200.0, "resnet18": 2.0, "vit_small": 1.5, **costs}
    wanted_high = {name for name, benchmark in gpu_ratios.BENCHMARKS.items() if benchmark.better == "higher"}
    assert wanted_high == {"input", "resnet18", "vit_small"}
    assert set(measures_of("ratios")) == set(targets)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["wait", "resnet18", "vit_small"])
def test_ratios_run_small_on_a_cpu(name: str) -> None:
    first, *others = gpu_ratios.MEASURES[name](tiny_job())
    assert first.measured is not None
    assert np.isfinite(first.measured)
    assert [row.target for row in others] == ([gpu_ratios.MFU_TARGETS[name]] if name != "wait" else [])
    assert all(row.measured is None and "not known" in row.note for row in others)  # a CPU has no such figure


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989e12),
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA RTX A1000", None),
    ],
)
def test_what_a_device_could_compute_goes_by_its_name(name: str, peak: float | None) -> None:
    assert peak_of(name) == peak


def test_forecasts_are_judged_by_error_edge_and_what_is_refused_in_vain() -> None:
    gibibyte = 2**30
    # errors of 0, +10 % and -20 %; the last ran out where it was admitted
    seen = [
        gpu_memory.Seen({}, 10 * gibibyte, 10 * gibibyte, 11 * gibibyte, True),
        gpu_memory.Seen({}, 11 * gibibyte, 10 * gibibyte, 11 * gibibyte, True),
        gpu_memory.Seen({}, 8 * gibibyte, 10 * gibibyte, 11 * gibibyte, False),
    ]
    middle, worst, ran_out, refused = gpu_memory.rows(seen)
    assert middle.measured == pytest.approx(0.1)
    assert worst.measured == pytest.approx(0.2)
    assert (ran_out.measured, ran_out.n) == (1, 3)
    # each fits on the cards from 12 GiB on; of these the one of 12 GiB would admit 10.8
    fitting = sum(card >= 11 for card in gpu_memory.CARDS)
    assert refused.measured == pytest.approx(1 / (3 * fitting))
    assert not any(row.is_met for row in (middle, ran_out, refused))  # three are too few


def test_enough_configurations_of_three_models_are_forecast() -> None:
    assert len(gpu_memory.CONFIGURATIONS) >= gpu_memory.LEAST
    assert {values["model.name"] for values in gpu_memory.CONFIGURATIONS} == {"resnet18", "resnet50", "vit_small"}
    assert len({str(sorted(values.items())) for values in gpu_memory.CONFIGURATIONS}) == len(gpu_memory.CONFIGURATIONS)


def test_forecasts_run_small_on_a_cpu() -> None:
    middle, _, ran_out, _ = gpu_memory.forecast(tiny_job())
    assert middle.n == 2
    assert middle.measured is not None
    assert middle.measured < 0.2
    assert ran_out.measured is None  # no edge was tried


def test_seeds_are_told_by_median_seconds_and_mean_accuracies() -> None:
    values = (0.93, 0.94, 0.95)
    seeds = [
        gpu_cifar.Trained(
            seconds,
            {"val_none": value, "val_flip": value + 0.01, "test_none": value - 0.01, "test_flip": value},
            {"compile_seconds": 7.0},
        )
        for seconds, value in zip((float("inf"), 9.0, 8.0), values, strict=True)
    ]
    compiled, plain, compiling, val, val_flip, test, test_flip = gpu_cifar.fast_rows({True: seeds, False: seeds[:1]})
    assert (compiled.measured, compiled.note) == (8.5, "reached by 2 of 3")
    assert (plain.measured, plain.note) == (None, "reached by 0 of 1")
    assert compiling.measured == 7.0
    means = [row.measured for row in (val, val_flip, test, test_flip)]
    assert means == pytest.approx([mean(values), 0.95, 0.93, 0.94])
    assert val.target == 0.94
    assert val.interval == pytest.approx((0.94 - 4.3027 * 0.01 / 3**0.5, 0.94 + 4.3027 * 0.01 / 3**0.5), abs=1e-5)
    assert not val.is_met  # of ten seeds


def test_cifar_runs_small_on_a_cpu() -> None:
    rows = list(gpu_cifar.fast(tiny_job()))
    assert [row.n for row in rows] == [2] * 7
    accuracies = [row.measured for row in rows[3:]]
    assert all(value is not None and 0.0 <= value <= 1.0 for value in accuracies)
    (row,) = gpu_cifar.vit(tiny_job())
    assert row.measured is not None
    assert row.is_met


def test_the_archive_is_unpacked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "images.tar.xz"
    with tarfile.open(archive, "w:xz") as files:
        for name in ("train/cat", "test/dog"):
            (tmp_path / name).mkdir(parents=True)
            (tmp_path / name / "0.jpg").write_text(name)
            files.add(tmp_path / name / "0.jpg", f"images/{name}/0.jpg")
    folder = gpu_cifar.images_folder(archive)
    assert (folder / "train/cat/0.jpg").read_text() == "train/cat"
    assert (folder / "test/dog/0.jpg").is_file()
    (folder / "train/cat/0.jpg").write_text("changed")
    assert gpu_cifar.images_folder(archive) == folder
    assert (folder / "train/cat/0.jpg").read_text() == "changed"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_an_archive_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="CIFAR10_ARCHIVE"):
        gpu_cifar.images_folder(tmp_path / "absent.tar.xz")


def test_failed_skipped_and_broken_tests_are_told_by_file(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 0\n@pytest.mark.parametrize('x', ['a b'])\n"
        "def test_each(x): pass\n"
    )
    (tmp_path / "test_none.py").write_text("import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n")
    (tmp_path / "test_broken.py").write_text("import no_such_package\n")
    rows = {Path(row.question.split()[-1]).name: row for row in gpu_checks.rows_of_tests([str(tmp_path)])}
    assert (rows["test_some.py"].measured, rows["test_some.py"].n) == (1, 3)
    assert rows["test_some.py"].note == "1 failed, 2 passed: test_bad"
    assert (rows["test_none.py"].measured, rows["test_none.py"].is_met) == (None, None)
    assert not rows["test_broken.py"].is_met
    with pytest.raises(RuntimeError, match="no test"):
        list(gpu_checks.rows_of_tests([str(tmp_path / "test_absent.py")]))


@pytest.mark.slow
def test_trials_in_one_process_are_compared_with_fresh_ones() -> None:
    peak, seconds = gpu_checks.after_out_of_memory(tiny_job())
    assert peak.measured == pytest.approx(1.0, abs=0.01)
    assert seconds.measured is not None
    assert (peak.n, peak.least_n) == (2, 30)


@pytest.mark.slow
def test_a_study_is_run_and_read() -> None:
    rows = {row.question.partition(": ")[2]: row for row in gpu_study.study(tiny_job())}
    assert rows["search trials"].measured == 2
    assert rows["uses with an answer"].measured
    hours, minutes = rows["hours of the device in trials"].measured, rows["minutes from command to report"].measured
    assert hours is not None
    assert minutes is not None
    assert 0.0 < 60 * hours < minutes
    assert rows["mean utilisation of the device over the whole study"].note == "the device does not say"


@pytest.mark.slow
def test_the_command_runs_a_part_and_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--tiny", "--device", "cpu", "--only", "ratios.wait,memory", "--results", str(tmp_path)]
    assert gpu.main(arguments) == 1  # of so few, nothing is met
    (path,) = tmp_path.glob("gpu-cpu_*.json")
    document = json.loads(path.read_text())
    states = {part: {name: each["state"] for name, each in found.items()} for part, found in document["parts"].items()}
    assert states == {"memory": {"forecast": "done"}, "ratios": {"wait": "done"}}
    assert capsys.readouterr().out == as_text(document)


@pytest.mark.slow
def test_ways_of_sharing_a_device_run_as_far_as_a_cpu_goes() -> None:
    said = {name: said_by(measure) for name, measure in gpu_packed.MEASURES.items()}
    rows = {name: [entry["row"] for entry in entries if entry["kind"] == "row"] for name, entries in said.items()}
    assert [entries[-1]["why"] for entries in said.values()] == ["", "", "", ""]
    assert rows["processes"][0]["measured"] > 0
    assert set(rows["processes"][0]["facts"]["trials_an_hour"]) == {1, 2}
    facts = rows["pairs"][0]["facts"]
    # fewer threads each: the order of some sums
    assert facts["packed"] == pytest.approx(facts["alone"], abs=0.02)
    assert rows["stacked"][0]["measured"] >= 1
    assert all(row["measured"] is None for row in rows["graphs"])
