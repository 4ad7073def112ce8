"""The day with a GPU, as far as a CPU shows it: what is kept when a piece breaks, and the arithmetic."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import measures
from benchmarks.gpu.measures import Job, find_peak_of
from benchmarks.gpu.recipe import LengthSearch, compute_whitening, orthogonalize
from benchmarks.gpu.sheet import (
    PIECE_SECONDS,
    PIECES,
    QUESTIONS,
    TOTAL_SECONDS,
    Found,
    Question,
    Rows,
    Sheet,
    choose_pieces,
    format_sheet,
    is_complete,
)
from benchmarks.gpu.trainings import MEASURES, compare_rates, count_failed
from benchmarks.harness import RESULTS, Setting

pytestmark = pytest.mark.wide
ENVIRONMENT = {"device": "NVIDIA H200", "driver": "1"}
HALF = {"harness": Found(measured=0.5, n=9)}


def test_the_plan_fits_and_every_question_has_a_piece() -> None:
    assert sum(each.seconds for each in PIECES.values()) <= TOTAL_SECONDS == 40 * 60
    assert all(each.seconds < each.limit_seconds <= PIECE_SECONDS == 8 * 60 for each in PIECES.values())
    assert {question.piece for question in QUESTIONS.values()} == PIECES.keys() == MEASURES.keys()
    goals = {name: QUESTIONS[name].goal for name in ("input", "memory_median", "recipe_ratio", "recipe_ours")}
    assert goals == {"input": "≥ 200", "memory_median": "≤ 0.05", "recipe_ratio": "≤ 1.2", "recipe_ours": ""}
    assert [each.name for each in choose_pieces("wait, memory,input")] == ["input", "memory", "wait"]


@pytest.mark.parametrize(
    ("goal", "measured", "n", "verdict"),
    [
        ({"at_least": 2.0}, 2.0, 1, True), ({"at_least": 2.0}, 1.9, 1, False), ({"at_most": 0.0}, 0.1, 1, False),
        ({"at_most": 2.0, "least_n": 10}, 2.0, 9, False), ({"at_most": 2.0}, None, 1, False), ({}, 5.0, 1, None),
    ],
)  # fmt: skip
def test_a_goal_is_met_on_its_side_with_enough_measurements(
    goal: dict[str, Any], measured: float | None, n: int, verdict: bool | None
) -> None:
    question = Question(piece="p", text="q", low=1.0, high=2.0, because="so", **goal)
    assert question.is_met({"measured": measured, "n": n}) is verdict


def test_a_later_run_adds_to_the_file_of_its_device(tmp_path: Path) -> None:
    sheet = Sheet.begin(ENVIRONMENT, tmp_path)
    for n, state, is_met in ((3, "done", False), (9, "done", True), (9, "failed", False)):
        sheet.add("harness", {"harness": Found(measured=0.99, n=n)}, state=state, why="", seconds=1.0)
        assert is_complete(sheet.document, choose_pieces("harness")) is is_met
    assert format_sheet(sheet.document).count("not measured") == len(QUESTIONS) - 1
    again = Sheet.begin(ENVIRONMENT | {"driver": "2"}, tmp_path)
    assert (again.path, again.state("harness"), again.state("input")) == (sheet.path, "failed", "not run")
    assert len(again.document["environments"]) == 2


SENDS = """
import os, sys, time
from pathlib import Path
from benchmarks.gpu.sheet import Found, Sheet
Sheet(Path(sys.argv[1])).add("harness", {"harness": Found(measured=1.5)})
print("why", flush=True)
"""


@pytest.mark.parametrize(
    ("after", "limit_seconds", "ending"),
    [
        ("os.abort()", 60.0, ("failed", "its process ended with exit code -6")),
        ("time.sleep(600)", 12.0, ("cut short", "ended after 12 s")),
    ],
)
def test_a_piece_that_breaks_keeps_what_it_had_found(
    tmp_path: Path, after: str, limit_seconds: float, ending: tuple[str, str]
) -> None:
    sheet = Sheet.begin(ENVIRONMENT, tmp_path)
    command = [sys.executable, "-c", SENDS + after, str(sheet.path)]
    gpu.run_piece(PIECES["harness"], command, limit_seconds, sheet)
    piece = Sheet(sheet.path).document["pieces"]["harness"]
    assert (piece["state"], piece["why"]) == ending
    assert piece["rows"]["harness"]["measured"] == 1.5
    assert sheet.path.with_suffix(".log").read_text() == "why\n"


def test_a_measure_that_fails_or_runs_out_of_time_keeps_its_rows(tmp_path: Path) -> None:
    def breaks(job: Job) -> Iterator[Rows]:
        yield HALF
        job.require(1000.0)
        raise ValueError("the reason")

    sheet = Sheet.begin(ENVIRONMENT, tmp_path)
    for seconds, state in ((600.0, "cut short"), (2000.0, "failed")):
        job = Job(setting=Setting(torch.device("cpu"), is_tiny=True), until=time.monotonic() + seconds)
        gpu.run_measure("harness", breaks, job, sheet)
        piece = Sheet(sheet.path).document["pieces"]["harness"]
        assert (piece["state"], piece["rows"]["harness"]["measured"]) == (state, 0.5)
    assert piece["why"] == "ValueError: the reason"


@pytest.mark.parametrize("arguments", [["--device", "cpu"], ["--only", "none"]])
def test_wrong_input_is_refused(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([*arguments, "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_rehearses_pieces_and_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--rehearse", "--only", "wait,recipe", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("gpu_rehearsal-cpu_*.json")
    document = json.loads(path.read_text())
    assert {name: each["state"] for name, each in document["pieces"].items()} == {"wait": "done", "recipe": "done"}
    assert capsys.readouterr().out == format_sheet(document)


def test_the_committed_rehearsal_covers_every_question() -> None:
    (path,) = RESULTS.glob("gpu_rehearsal-*.json")
    assert is_complete(json.loads(path.read_text()), choose_pieces(None))


def test_what_a_device_could_compute_goes_by_its_name() -> None:
    names = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA L4", "NVIDIA RTX A1000")
    assert list(map(find_peak_of, names)) == [989e12, 989e12, 756e12, 121e12, None]


def test_steps_and_rates_are_compared_and_failures_counted() -> None:
    rounds = [{"ours": 6.0, "fp32": 2.0, "bf16": 3.0}, {"ours": 8.0, "fp32": 2.0, "bf16": 4.0}]
    rows = measures.compare_steps("resnet18", rounds, 0.05)
    assert [rows[name].measured for name in ("step_resnet18", "step_resnet18_bf16")] == [3.5, 2.0]
    assert rows["mfu_resnet18"].measured == pytest.approx(0.35)
    assert (compare_rates({1: 100.0, 2: 180.0}).measured, compare_rates({1: 100.0}).measured) == (1.8, None)
    assert count_failed({"a": "SKIPPED"})["tests"].measured is None
    assert count_failed({"a": "PASSED", "b": "ERROR"})["tests"].note == "1 error, 1 passed: b"


def test_forecasts_are_judged_by_error_edge_and_what_is_refused_in_vain() -> None:
    gibibyte = 2**30
    # errors of 0, +10 % and -20 %; the last ran out where it was admitted; one more did not train at all
    seen: list[dict[str, Any]] = [
        {"values": {}, "forecast_bytes": forecast * gibibyte, "recorded_bytes": 10 * gibibyte}
        | {"reserved_bytes": 11 * gibibyte, "is_edge_passed": is_passed}
        for forecast, is_passed in ((10, True), (11, True), (8, False))
    ]
    rows = measures.judge_forecasts([*seen, {"values": {"a": 1}, "outcome": "crashed", "error": "why"}])
    assert [rows[f"memory_{name}"].measured for name in ("median", "worst", "admitted")] == pytest.approx([0.1, 0.2, 1])
    # each fits on the cards from 12 GiB on; of these the one of 12 GiB would admit 10.8
    fitting = sum(card >= 11 for card in measures.CARDS)
    assert rows["memory_refused"].measured == pytest.approx(1 / (3 * fitting))


def test_the_shortest_length_of_the_recipe_is_found_and_its_mathematics_is_that_of_its_sources() -> None:
    clearly_too_short, reached = [(1.0, 0.93)] * 3, [(1.2, 0.941)] * 10
    search = LengthSearch((8, 9), found={8: clearly_too_short})
    assert (search.choose_next(), search.shortest) == ((9, 1), [])
    search = LengthSearch((8, 9, 10), found={8: clearly_too_short, 9: reached})
    assert (search.choose_next(), search.shortest) == (None, reached)
    torch.manual_seed(0)
    images = torch.randn(64, 3, 8, 8) @ torch.randn(8, 8)
    filters = compute_whitening(images)
    patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    white = patches @ filters[:12].reshape(12, 12).T
    assert torch.allclose(white.T @ white / len(white), torch.eye(12), atol=0.02)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(32, 16)))
    assert 0.3 < float(values.min()) <= float(values.max()) < 1.4
