"""The day with a GPU, as far as a CPU shows it: what is kept when a piece breaks, what is continued, the arithmetic."""

import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu import run
from benchmarks.gpu.found import Found, Job, Measure, Sample, TimeIsOverError
from benchmarks.gpu.measures import checks, cifar, memory
from benchmarks.gpu.piece import find_measure, run_measure
from benchmarks.gpu.plan import PIECE_SECONDS, PIECES, TOTAL_SECONDS, choose_pieces, order_pieces
from benchmarks.gpu.predictions import Prediction, judge_prediction, load_predictions
from benchmarks.gpu.questions import QUESTIONS, Question
from benchmarks.gpu.run import Day
from benchmarks.gpu.sheet import Sheet
from benchmarks.gpu.tables import count_covered, format_plan, format_sheet, is_met
from benchmarks.harness import Setting
from benchmarks.images import cifar_splits
from benchmarks.mfu import peak_of
from sweep.config.errors import InputError

RESULTS = Path(gpu.__file__).parents[1] / "results"
CPU = torch.device("cpu")
ENVIRONMENT = {"device": "NVIDIA H200", "driver": "1"}
PAIR = {"ours": 1.0, "theirs": 2.0}
# What a piece sends: a sample, and then no ending.
SENDS = """
import json, os, sys, time
print(json.dumps({"kind": "sample", "sample": {"ours": 3.0, "theirs": 2.0}}), flush=True)
"""


def tiny_job(seconds: float = 600.0) -> Job:
    return Job(setting=Setting(CPU, is_tiny=True), until=time.monotonic() + seconds)


def rows_of(piece: str, samples: list[Sample]) -> dict[str, Found]:
    return find_measure(piece).answer(samples)


def reread(sheet: Sheet) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(sheet.path.read_text())
    return document


def add(sheet: Sheet, piece: str, *samples: Sample) -> None:
    kept = list(sheet.document["pieces"][piece]["samples"])
    for number, sample in enumerate(samples, start=1):
        sheet.add(piece, sample, rows_of(piece, [*kept, *samples[:number]]))


# ---------------------------------------------------------------------- the plan


def test_the_plan_takes_at_most_forty_minutes_and_a_piece_at_most_eight() -> None:
    assert sum(piece.seconds for piece in PIECES.values()) <= TOTAL_SECONDS == 40 * 60
    assert all(piece.seconds < piece.limit_seconds <= PIECE_SECONDS == 8 * 60 for piece in PIECES.values())
    plan = format_plan({"tests": "done", "input": "cut short"})
    assert [line.split(" | ")[-1].removesuffix(" |") for line in plan.splitlines()[2:5]] == [
        "done",
        "cut short",
        "to do",
    ]


def test_every_question_has_a_piece_a_prediction_and_an_answer_even_without_a_sample() -> None:
    assert load_predictions().keys() == QUESTIONS.keys()
    for piece in PIECES.values():
        answers = rows_of(piece.name, [])
        assert answers.keys() == piece.questions.keys() != set()
        assert all(found.measured is None for found in answers.values()), piece.name
    assert {question.piece for question in QUESTIONS.values()} == PIECES.keys()


def test_pieces_are_chosen_by_name_and_what_failed_comes_last() -> None:
    assert [piece.name for piece in choose_pieces("memory, input")] == ["input", "memory"]
    with pytest.raises(InputError, match="memoria"):
        choose_pieces("memoria")
    left = order_pieces(
        choose_pieces("tests,input,memory,wait"), {"tests": "failed", "input": "done", "wait": "cut short"}
    )
    assert [piece.name for piece in left] == ["memory", "wait", "tests"]


def test_the_goals_of_a_gpu() -> None:
    goals = {name: question.goal for name, question in QUESTIONS.items() if question.goal}
    wanted = {"tests": "≤ 0", "memory_median": "≤ 0.05", "memory_admitted": "≤ 0", "input": "≥ 200"}
    wanted |= {"step_resnet18": "≥ 2", "step_vit_small": "≥ 1.5", "mfu_resnet18": "≥ 0.35", "mfu_vit_small": "≥ 0.45"}
    wanted |= {"harness": "≤ 1.01", "monitor": "≤ 1.01", "recipe_ratio": "≤ 1.2", "vit_minutes": "≤ 5"}
    wanted |= {"packed_resnet8": "≥ 10", "packed_vit_tiny": "≥ 3", "packed_resnet18": "≥ 1.5"}
    wanted |= {"study_answer": "≥ 1", "study_page": "≥ 1"}
    assert wanted.items() <= goals.items()
    assert QUESTIONS["recipe_ratio"].least_n == 10


@pytest.mark.parametrize(
    ("question", "measured", "n", "verdict"),
    [
        (Question(piece="p", text="q", target=2.0, better="higher"), 2.0, 1, True),
        (Question(piece="p", text="q", target=2.0, better="higher"), 1.9, 1, False),
        (Question(piece="p", text="q", target=2.0), 2.1, 1, False),
        (Question(piece="p", text="q", target=2.0, least_n=10), 2.0, 9, False),
        (Question(piece="p", text="q", target=2.0), None, 1, False),
        (Question(piece="p", text="q"), 5.0, 1, None),
    ],
)
def test_a_goal_is_met_on_its_side_with_enough_measurements(
    question: Question, measured: float | None, n: int, verdict: bool | None
) -> None:
    assert question.is_met(measured, n) is verdict


def test_predictions_are_compared_with_outcomes(tmp_path: Path) -> None:
    prediction = Prediction(1.0, 2.0, "arithmetic")
    outcomes = [judge_prediction(prediction, value) for value in (None, 0.5, 1.0, 2.5)]
    assert outcomes == ["", "below", "as predicted", "above"]
    (tmp_path / "few.toml").write_text('[input]\nlow = 1\nhigh = 2\nbecause = "so"\n')
    with pytest.raises(ValueError, match="monitor"):
        load_predictions(tmp_path / "few.toml")


# ---------------------------------------------------------------------- the sheet


def test_samples_are_kept_at_once_and_a_piece_that_was_cut_short_continues(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    assert sheet.begin("harness") == []
    add(sheet, "harness", PAIR, {**PAIR, "ours": 3.0})
    assert reread(sheet)["pieces"]["harness"]["rows"]["harness"]["measured"] == 1.0
    sheet.end("harness", "cut short", "ended after 5 s", 5.0)
    later = Sheet({**ENVIRONMENT, "driver": "2"}, tmp_path)
    assert later.path == sheet.path
    assert later.begin("harness") == [PAIR, {**PAIR, "ours": 3.0}]
    add(later, "harness", {**PAIR, "ours": 9.0})
    later.end("harness", "done", "", 7.0)
    found = reread(later)["pieces"]["harness"]
    assert (found["state"], found["seconds"], found["rows"]["harness"]["measured"]) == ("done", 12.0, 1.5)
    drivers = [later.document["environments"][digest]["driver"] for digest in found["environment_digests"]]
    assert drivers == ["1", "2"]
    assert later.path.with_suffix(".md").read_text() == format_sheet(later.document)


@pytest.mark.parametrize(("state", "is_again"), [("failed", False), ("done", False), ("cut short", True)])
def test_what_failed_or_is_asked_for_again_begins_anew(tmp_path: Path, state: Any, is_again: bool) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("harness")
    add(sheet, "harness", PAIR)
    sheet.end("harness", state, "", 1.0)
    assert sheet.begin("harness", is_again=is_again) == []


def test_a_piece_that_ran_when_the_command_was_killed_continues(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("harness")
    add(sheet, "harness", PAIR)
    later = Sheet(ENVIRONMENT, tmp_path)
    assert later.states() == {"harness": "cut short"}
    assert later.begin("harness") == [PAIR]


def test_a_file_in_which_all_is_done_is_never_written_over(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    for name in PIECES:
        sheet.begin(name)
        sheet.end(name, "done", "", 1.0)
    before = sheet.path.read_bytes()
    later, new = Sheet(ENVIRONMENT, tmp_path), Sheet(ENVIRONMENT, tmp_path, is_new=True)
    later.begin("harness")
    assert later.path.stem == new.path.stem == f"{sheet.path.stem}-2"
    assert sheet.path.read_bytes() == before
    assert Sheet({"device": "another"}, tmp_path).path != later.path


def test_the_table_has_goal_prediction_and_outcome_and_says_what_was_not_measured(tmp_path: Path) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("harness")
    add(sheet, "harness", *([{"ours": 1.0, "theirs": 1.0}] * 3))
    sheet.end("harness", "cut short", "no\ntime | left", 1.0)
    text = format_sheet(sheet.document)
    (line,) = [line for line in text.splitlines() if "hand-written" in line]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[3:9] == [
        "1 [1, 1] n=3",
        "≤ 1.01",
        "no (9 measurements are required)",
        "0.97 to 1.03",
        "as predicted",
        "no time / left",
    ]
    assert text.count("not measured") == len(QUESTIONS) - 1
    assert not is_met(sheet.document, choose_pieces("harness"))
    sheet.begin("harness")
    add(sheet, "harness", *([{"ours": 1.0, "theirs": 1.0}] * 6))
    sheet.end("harness", "done", "", 1.0)
    assert is_met(sheet.document, choose_pieces("harness"))
    sheet.end("harness", "failed", "the arms differ", 1.0)
    assert "| no |" in format_sheet(sheet.document)
    assert not is_met(sheet.document, choose_pieces("harness,monitor"))


# ---------------------------------------------------------------------- running


@pytest.mark.parametrize(
    ("after", "limit_seconds", "ending"),
    [
        ("os.abort()", 60.0, ("failed", "its process ended with exit code -6")),
        ("sys.exit(3)", 60.0, ("failed", "its process ended with exit code 3")),
        ("time.sleep(600)", 6.0, ("cut short", "ended after 6 s")),
    ],
)
def test_a_piece_that_breaks_keeps_what_it_had_found(
    tmp_path: Path, after: str, limit_seconds: float, ending: tuple[str, str]
) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("harness")
    command = [sys.executable, "-c", f"{SENDS}\nprint('why', file=sys.stderr, flush=True)\n{after}"]
    assert run.run_piece(PIECES["harness"], command, limit_seconds, sheet) == ending
    assert reread(sheet)["pieces"]["harness"]["rows"]["harness"]["measured"] == 1.5
    assert "why\n" in sheet.path.with_suffix(".log").read_text()


def test_a_piece_ends_with_the_command_that_started_it() -> None:
    # the command starts a process as a piece starts its own, names it, and is killed
    code = (
        "import subprocess, time; from benchmarks.gpu.found import bind_to_this_process;"
        "child = subprocess.Popen(bind_to_this_process('import time; print(1, flush=True); time.sleep(600)'),"
        " stdout=subprocess.PIPE, start_new_session=True);"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=run.ROOT, stdout=subprocess.PIPE, text=True) as command:
        assert command.stdout is not None
        child = int(command.stdout.readline())
        assert psutil.pid_exists(child)
        command.kill()
    psutil.wait_procs([psutil.Process(child)] if psutil.pid_exists(child) else [], timeout=60)
    assert not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE


def test_a_log_names_no_folder_of_the_machine() -> None:
    line = f"{run.ROOT}/benchmarks/x.py {sys.prefix}/bin/python"
    assert run.hide_folders(line) == "./benchmarks/x.py PYTHON/bin/python"


def test_pieces_that_do_not_fit_into_the_time_are_left_for_another_run(tmp_path: Path) -> None:
    day = Day(sheet=Sheet(ENVIRONMENT, tmp_path), device="cpu", until=time.monotonic() + 20.0)
    assert [piece.name for piece in run.run_pieces(choose_pieces("input,memory"), day)] == ["input", "memory"]
    assert day.sheet.states() == {}


def test_a_measure_ends_well_or_short_or_with_the_reason() -> None:
    def fails(_job: Job) -> Iterator[Sample]:
        yield PAIR
        raise ValueError("the reason")

    def lacks(_job: Job) -> Iterator[Sample]:
        import no_such_package  # type: ignore[import-not-found]

        yield no_such_package

    def waits(job: Job) -> Iterator[Sample]:
        yield PAIR
        job.require(1000.0)

    def sent(collect: Any) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        run_measure(Measure(collect, lambda _samples: {}), tiny_job(), messages.append)
        return messages

    assert sent(fails)[0] == {"kind": "sample", "sample": PAIR}
    endings = [(ending["state"], ending["why"]) for ending in (sent(each)[-1] for each in (fails, lacks, waits))]
    assert endings[:2] == [
        ("failed", "ValueError: the reason"),
        ("failed", "the package no_such_package is not installed"),
    ]
    assert endings[2][0] == "cut short"
    assert sent(lambda _job: iter([PAIR]))[-1]["state"] == "done"
    with pytest.raises(TimeIsOverError):
        tiny_job(seconds=-1.0).require()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--device", "cpu"],
        ["--only", "none"],
        ["--rehearse", "--again"],
        ["--rehearse", "--minutes", "0"],
        ["--compare"],
    ],
)
def test_wrong_input_is_refused(arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([*arguments, "--results", str(tmp_path)]) == 2
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    assert "CUDA" in capsys.readouterr().err


def test_the_newest_result_is_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sheet = Sheet(ENVIRONMENT, tmp_path)
    sheet.begin("harness")
    add(sheet, "harness", *([{"ours": 1.0, "theirs": 1.0}] * 9))
    sheet.end("harness", "done", "", 1.0)
    assert gpu.main(["--compare", "--only", "harness", "--results", str(tmp_path)]) == 0
    assert capsys.readouterr().out == format_sheet(sheet.document)
    assert gpu.main(["--compare", "--results", str(tmp_path)]) == 1
    assert gpu.main(["--plan", "--results", str(tmp_path)]) == 0


@pytest.mark.slow
def test_the_command_rehearses_a_piece_and_prints_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--rehearse", "--only", "wait,recipe", "--results", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("gpu_rehearsal-cpu_*.json")
    document = json.loads(path.read_text())
    assert {name: piece["state"] for name, piece in document["pieces"].items()} == {"wait": "done", "recipe": "done"}
    assert capsys.readouterr().out == format_sheet(document)


def test_the_committed_rehearsal_covers_every_question() -> None:
    newest = max(RESULTS.glob("gpu_rehearsal-*.json"), key=lambda path: json.loads(path.read_text())["date"])
    measured, only_gpu, missing = count_covered(json.loads(newest.read_text()))
    assert missing == []
    assert len(measured) + len(only_gpu) == len(QUESTIONS)
    assert not (set(only_gpu) & {"input", "harness", "recipe_ratio", "packed_resnet8", "study_answer", "vit_minutes"})


def test_the_page_shows_results_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(RESULTS.parents[1] / "docs")
    from generators.gpu import gpu as make_table
    from generators.gpu import gpu_state

    assert make_table(tmp_path).count("| not measured |") == len(QUESTIONS)
    assert "No GPU path has been timed yet" in gpu_state(tmp_path)
    for is_rehearsal in (True, False):
        sheet = Sheet(ENVIRONMENT, tmp_path, is_rehearsal=is_rehearsal)
        sheet.begin("harness")
        add(sheet, "harness", *([{"ours": 5.0, "theirs": 4.0}] * 9))
        sheet.end("harness", "done", "", 1.0)
        assert ("1.25 [1.25, 1.25] n=9" in make_table(tmp_path)) is not is_rehearsal
    table = make_table(tmp_path)
    assert table.count("| not measured |") == len(QUESTIONS) - 1
    assert f"| no | 0.97 to 1.03 | above |  | NVIDIA H200, {sheet.document['date']} |" in table
    assert f"on NVIDIA H200 ({sheet.document['date']})" in gpu_state(tmp_path)


# ---------------------------------------------------------------------- what the pieces compute


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


def test_steps_are_compared_with_both_plain_loops_and_with_the_peak() -> None:
    rounds: list[Sample] = [{"ours": 6.0, "fp32": 2.0, "bf16": 3.0}, {"ours": 8.0, "fp32": 2.0, "bf16": 4.0}]
    facts = {"facts": {"flops_per_image": 5.0, "peak_flops": 100.0}}
    rows = rows_of("step_resnet18", [*rounds, facts])
    assert [rows[name].measured for name in ("step_resnet18", "step_resnet18_bf16")] == [3.5, 2.0]
    assert rows["mfu_resnet18"].measured == pytest.approx(0.35)
    assert rows_of("step_resnet18", rounds)["mfu_resnet18"].measured is None


def test_forecasts_are_judged_by_error_edge_and_what_is_refused_in_vain() -> None:
    gibibyte = 2**30
    # errors of 0, +10 % and -20 %; the last ran out where it was admitted; one more did not train at all
    sizes = ((10, True), (11, True), (8, False))
    seen: list[Sample] = [
        {
            "values": {},
            "forecast_bytes": forecast * gibibyte,
            "recorded_bytes": 10 * gibibyte,
            "reserved_bytes": 11 * gibibyte,
            "is_edge_passed": is_passed,
        }
        for forecast, is_passed in sizes
    ]
    rows = memory.answer([*seen, {"values": {"a": 1}, "outcome": "crashed", "error": "why"}])
    assert rows["memory_median"].measured == pytest.approx(0.1)
    assert "crashed" in rows["memory_median"].note
    assert rows["memory_worst"].measured == pytest.approx(0.2)
    assert (rows["memory_admitted"].measured, rows["memory_admitted"].n) == (1, 3)
    # each fits on the cards from 12 GiB on; of these the one of 12 GiB would admit 10.8
    fitting = sum(card >= 11 for card in memory.CARDS)
    assert rows["memory_refused"].measured == pytest.approx(1 / (3 * fitting))


def test_enough_configurations_of_three_models_are_forecast() -> None:
    assert len(memory.CONFIGURATIONS) >= QUESTIONS["memory_median"].least_n
    assert {values["model.name"] for values in memory.CONFIGURATIONS} == {"resnet18", "resnet50", "vit_small"}
    assert len({str(sorted(values.items())) for values in memory.CONFIGURATIONS}) == len(memory.CONFIGURATIONS)


def test_seeds_are_described_by_median_seconds_and_mean_accuracies() -> None:
    values = ((0.93, None, 7.0), (0.94, 9.0, 0.0), (0.95, 8.0, 6.0))
    samples: list[Sample] = [
        {"seed": 1, "seconds_to_target": seconds, "compile_seconds": compiling, "val_accuracy": accuracy}
        | {"test_accuracy": accuracy - 0.01}
        for accuracy, seconds, compiling in values
    ]
    rows = cifar.answer_resnet18(samples)
    assert (rows["resnet18_seconds"].measured, rows["resnet18_seconds"].note) == (8.5, "reached by 2 of 3")
    assert rows["resnet18_compile"].measured == 6.5
    assert rows["resnet18_test"].measured == pytest.approx(0.93)
    half = 4.3027 * 0.01 / 3**0.5
    assert rows["resnet18_validation"].interval == pytest.approx((0.94 - half, 0.94 + half), abs=1e-5)


def test_a_vit_counts_from_the_last_attempt() -> None:
    samples: list[Sample] = [
        {"attempt": attempt, "target": 0.9, "accuracy": accuracy, "seconds": seconds, "epoch": 1.0}
        for attempt, accuracy, seconds in ((1, 0.91, 30.0), (2, 0.8, 60.0), (2, 0.9, 120.0), (2, 0.92, 180.0))
    ]
    row = cifar.answer_vit(samples)["vit_minutes"]
    assert (row.measured, row.note) == (2.0, "best of 3 evaluations: 92.0 %")


def test_figures_after_an_out_of_memory_are_compared_with_fresh_ones() -> None:
    peaks = ((False, 100, 1.0), (False, 100, 3.0), (True, 98, 1.0), (True, 101, 4.0), (True, 100, 1.5))
    rows = rows_of(
        "out_of_memory",
        [{"is_after": after, "peak_memory_bytes": peak, "step_seconds_median": step} for after, peak, step in peaks],
    )
    assert rows["oom_peak"].measured == pytest.approx(100 / 98)
    assert rows["oom_step"].measured == pytest.approx(2.0 / 1.5)  # the median, turned round


def test_packed_rates_are_over_one_at_a_time() -> None:
    samples: list[Sample] = [
        {"model": "resnet8", "at_once": count, "rate": rate, "has_mps": True}
        for count, rate in ((1, 100.0), (2, 180.0), (4, 150.0))
    ]
    row = rows_of("packed", samples)["packed_resnet8"]
    assert (row.measured, row.note) == (1.8, "2 at once, MPS")


def test_the_archive_is_unpacked_once_and_read_by_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    monkeypatch.setenv("SWEEP_CACHE", str(tmp_path / "cache"))
    archive = tmp_path / "images.tar.xz"
    with tarfile.open(archive, "w:xz") as files:
        for level, name in ((10, "train/cat"), (200, "train/dog"), (90, "test/dog")):
            (tmp_path / name).mkdir(parents=True)
            Image.new("RGB", (32, 32), (level, level, level)).save(tmp_path / name / "0.jpg")
            files.add(tmp_path / name / "0.jpg", f"images/{name}/0.jpg")
    folder = cifar.images_folder(archive)
    assert (folder / "test/dog/0.jpg").is_file()
    (folder / "train/cat/0.jpg").write_text("changed")
    assert cifar.images_folder(archive) == folder
    assert (folder / "train/cat/0.jpg").read_text() == "changed"
    train, test = cifar_splits(Setting(CPU), archive)
    assert (train.labels.tolist(), train.pixels[:, 0, 0, 0].tolist()) == ([0, 1], [10, 200])
    assert test.pixels.shape == (1, 32, 32, 3)


def test_an_archive_that_is_missing_is_named(tmp_path: Path) -> None:
    for read in (cifar.images_folder, lambda archive: cifar_splits(Setting(CPU), archive)):
        with pytest.raises(InputError, match="CIFAR10_ARCHIVE"):
            read(tmp_path / "absent.tar.xz")


def test_failed_skipped_and_broken_tests_are_counted_by_file(tmp_path: Path) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_good(): pass\ndef test_bad(): assert 0\n@pytest.mark.parametrize('x', ['a b'])\n"
        "def test_each(x): pass\n"
    )
    (tmp_path / "test_none.py").write_text("import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n")
    (tmp_path / "test_broken.py").write_text("import no_such_package\n")
    samples = {Path(sample["file"]).name: sample for sample in checks.run_files([str(tmp_path)])}
    row = checks.count_failed(list(samples.values()))["tests"]
    assert (row.measured, row.n) == (2, 5)
    assert row.note == "2 failed, 2 passed, 1 skipped: test_some.py::test_bad test_broken.py::(the whole file)" or (
        row.note == "2 failed, 2 passed, 1 skipped: test_broken.py::(the whole file) test_some.py::test_bad"
    )
    skipped = checks.count_failed([samples["test_none.py"]])["tests"]
    assert (skipped.measured, skipped.note) == (None, "1 skipped")
    with pytest.raises(RuntimeError, match="no test"):
        list(checks.run_files([str(tmp_path / "test_absent.py")]))
