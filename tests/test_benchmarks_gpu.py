"""The day with a GPU, as far as a CPU shows it: what is kept when a piece breaks, what is continued, the arithmetic."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import measures, piece
from benchmarks.gpu.measures import Job, Measure, find_peak_of
from benchmarks.gpu.piece import Day, run_measure, run_pieces
from benchmarks.gpu.plan import PIECE_SECONDS, PIECES, QUESTIONS, TOTAL_SECONDS, Question, choose_pieces, order_pieces
from benchmarks.gpu.recipe import choose_next, compute_whitening, orthogonalize
from benchmarks.gpu.sheet import Sample, Sheet, format_sheet, is_met, list_missing
from benchmarks.gpu.trainings import MEASURES
from benchmarks.harness import RESULTS, Setting
from sweep.config.errors import InputError

pytestmark = pytest.mark.wide
ENVIRONMENT = {"device": "NVIDIA H200", "driver": "1"}
PAIR = {"ours": 1.0, "theirs": 2.0}
EVEN = [{"ours": 1.0, "theirs": 1.0}] * 9
# What a piece sends: a sample, and then no ending.
SENDS = """
import json, os, sys, time
print(json.dumps({"kind": "sample", "sample": {"ours": 3.0, "theirs": 2.0}}), flush=True)
"""


def tiny_job(seconds: float = 600.0) -> Job:
    return Job(setting=Setting(torch.device("cpu"), is_tiny=True), until=time.monotonic() + seconds)


def add(sheet: Sheet, *samples: Sample) -> None:
    for sample in samples:
        kept = sheet.document["pieces"]["harness"]["samples"]
        sheet.add("harness", sample, MEASURES["harness"].answer([*kept, sample]))


def reread(sheet: Sheet) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(sheet.path.read_text())
    return document


def test_the_plan_fits_and_every_question_has_a_piece_and_an_answer_without_a_sample() -> None:
    assert sum(each.seconds for each in PIECES.values()) <= TOTAL_SECONDS == 40 * 60
    assert all(each.seconds < each.limit_seconds <= PIECE_SECONDS == 8 * 60 for each in PIECES.values())
    assert {question.piece for question in QUESTIONS.values()} == PIECES.keys() == MEASURES.keys()
    for name, each in PIECES.items():
        answers = MEASURES[name].answer([])
        assert answers.keys() == each.questions.keys() != set()
        assert all(found.measured is None for found in answers.values()), name
    goals = {name: QUESTIONS[name].goal for name in ("input", "memory_median", "recipe_ratio", "recipe_ours")}
    assert goals == {"input": "≥ 200", "memory_median": "≤ 0.05", "recipe_ratio": "≤ 1.2", "recipe_ours": ""}


def test_pieces_are_chosen_by_name_and_what_failed_comes_last() -> None:
    chosen = choose_pieces("tests,wait, memory,input")
    assert [each.name for each in chosen] == ["tests", "input", "memory", "wait"]
    with pytest.raises(InputError, match="memoria"):
        choose_pieces("memoria")
    left = order_pieces(chosen, {"tests": "failed", "input": "done", "wait": "cut short"})
    assert [each.name for each in left] == ["memory", "wait", "tests"]


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
    assert question.is_met(measured, n) is verdict
    assert [question.judge(each) for each in (None, 0.5, 1.0, 2.5)] == ["", "below", "as predicted", "above"]


def test_a_piece_that_was_cut_short_continues_and_one_that_failed_begins_anew(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    assert sheet.begin("harness") == []
    add(sheet, PAIR, {**PAIR, "ours": 3.0})
    assert reread(sheet)["pieces"]["harness"]["rows"]["harness"]["measured"] == 1.0
    continued = Sheet(ENVIRONMENT | {"driver": "2"}, tmp_path)  # the command was killed
    assert (continued.path, continued.states()) == (sheet.path, {"harness": "cut short"})
    assert len(continued.begin("harness")) == 2
    assert len(reread(continued)["environments"]) == 2
    for state, is_again in (("failed", False), ("done", True)):
        continued.end("harness", state, "", 1.0)  # type: ignore[arg-type]
        assert continued.begin("harness", is_again=is_again) == []


def test_a_piece_has_met_its_goals_when_it_is_done_with_enough_samples(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("harness")
    for samples, state, verdict in ((EVEN[:3], "done", False), (EVEN[3:], "done", True), ([], "failed", False)):
        add(sheet, *samples)
        sheet.end("harness", state, "", 1.0)  # type: ignore[arg-type]
        assert is_met(sheet.document, choose_pieces("harness")) is verdict
        assert "| no" in format_sheet(sheet.document) or verdict
    assert format_sheet(sheet.document).count("not measured") == len(QUESTIONS) - 1


@pytest.mark.parametrize(
    ("after", "limit_seconds", "ending"),
    [
        ("os.abort()", 60.0, ("failed", "its process ended with exit code -6")),
        ("time.sleep(600)", 6.0, ("cut short", "ended after 6 s")),
    ],
)
def test_a_piece_that_breaks_keeps_what_it_had_found(
    tmp_path: Path, after: str, limit_seconds: float, ending: tuple[str, str]
) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("harness")
    command = [sys.executable, "-c", f"{SENDS}\nprint(os.getcwd(), 'why', file=sys.stderr, flush=True)\n{after}"]
    assert piece.run_piece(PIECES["harness"], command, limit_seconds, sheet) == ending
    assert reread(sheet)["pieces"]["harness"]["rows"]["harness"]["measured"] == 1.5
    assert sheet.path.with_suffix(".log").read_text() == ". why\n"  # a log names no folder of the machine


def test_pieces_that_do_not_fit_into_the_time_are_left_for_another_run(tmp_path: Path) -> None:
    day = Day(sheet=Sheet(ENVIRONMENT, tmp_path), device="cpu", until=time.monotonic() + 20.0)
    assert [each.name for each in run_pieces(choose_pieces("input,memory"), day)] == ["input", "memory"]
    assert day.sheet.states() == {}


def test_a_measure_that_fails_or_runs_out_of_time_keeps_its_samples() -> None:
    def breaks(job: Job) -> Iterator[Sample]:
        yield PAIR
        job.require(1000.0)
        raise ValueError("the reason")

    for seconds, state in ((600.0, "cut short"), (2000.0, "failed")):
        messages: list[dict[str, Any]] = []
        run_measure(Measure(breaks, lambda _samples: {}), tiny_job(seconds), messages.append)
        assert messages[0] == {"kind": "sample", "sample": PAIR}
        assert messages[-1]["state"] == state
    assert messages[-1]["why"] == "ValueError: the reason"


@pytest.mark.parametrize(
    "arguments", [["--device", "cpu"], ["--only", "none"], ["--rehearse", "--again"], ["--compare"]]
)
def test_wrong_input_is_refused(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([*arguments, "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_the_command_rehearses_a_piece_and_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--rehearse", "--only", "wait,recipe", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("gpu_rehearsal-cpu_*.json")
    document = json.loads(path.read_text())
    assert {name: each["state"] for name, each in document["pieces"].items()} == {"wait": "done", "recipe": "done"}
    assert capsys.readouterr().out == format_sheet(document)


def test_the_committed_rehearsal_covers_every_question() -> None:
    newest = max(RESULTS.glob("gpu_rehearsal-*.json"), key=lambda path: str(json.loads(path.read_text())["date"]))
    assert list_missing(json.loads(newest.read_text())) == []


def test_what_a_device_could_compute_goes_by_its_name() -> None:
    names = ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H100 PCIe", "NVIDIA L4", "NVIDIA RTX A1000")
    assert list(map(find_peak_of, names)) == [989e12, 989e12, 756e12, 121e12, None]


def test_steps_are_compared_with_both_plain_loops_and_with_the_peak() -> None:
    rounds: list[Sample] = [{"ours": 6.0, "fp32": 2.0, "bf16": 3.0}, {"ours": 8.0, "fp32": 2.0, "bf16": 4.0}]
    rows = MEASURES["step_resnet18"].answer([*rounds, {"facts": {"flops_per_image": 5.0, "peak_flops": 100.0}}])
    assert [rows[name].measured for name in ("step_resnet18", "step_resnet18_bf16")] == [3.5, 2.0]
    assert rows["mfu_resnet18"].measured == pytest.approx(0.35)


def test_forecasts_are_judged_by_error_edge_and_what_is_refused_in_vain() -> None:
    gibibyte = 2**30
    # errors of 0, +10 % and -20 %; the last ran out where it was admitted; one more did not train at all
    seen: list[Sample] = [
        {"values": {}, "forecast_bytes": forecast * gibibyte, "recorded_bytes": 10 * gibibyte}
        | {"reserved_bytes": 11 * gibibyte, "is_edge_passed": is_passed}
        for forecast, is_passed in ((10, True), (11, True), (8, False))
    ]
    rows = measures.answer_memory([*seen, {"values": {"a": 1}, "outcome": "crashed", "error": "why"}])
    assert [rows[f"memory_{name}"].measured for name in ("median", "worst", "admitted")] == pytest.approx([0.1, 0.2, 1])
    # each fits on the cards from 12 GiB on; of these the one of 12 GiB would admit 10.8
    fitting = sum(card >= 11 for card in measures.CARDS)
    assert rows["memory_refused"].measured == pytest.approx(1 / (3 * fitting))


def test_packed_trials_are_compared_with_one_at_a_time() -> None:
    rates = [{"model": "resnet8", "at_once": n, "rate": rate} for n, rate in ((1, 100.0), (2, 180.0))]
    assert MEASURES["packed"].answer(rates)["packed_resnet8"].measured == 1.8


def test_the_shortest_length_of_the_recipe_is_found_and_its_mathematics_is_that_of_its_sources() -> None:
    tried = [{"epochs": 8, "accuracy": 0.93}] * 3  # clearly too short
    assert choose_next(tried, (8, 9), 10, 0.94) == (9, 1)
    assert choose_next([{"epochs": 8, "accuracy": 0.941}] * 10, (8, 9), 10, 0.94) is None
    torch.manual_seed(0)
    images = torch.randn(64, 3, 8, 8) @ torch.randn(8, 8)
    filters = compute_whitening(images)
    patches = images.unfold(2, 2, 1).unfold(3, 2, 1).permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
    white = patches @ filters[:12].reshape(12, 12).T
    assert torch.allclose(white.T @ white / len(white), torch.eye(12), atol=0.02)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(32, 16)))
    assert 0.3 < float(values.min()) <= float(values.max()) < 1.4
