"""Where the time of a real trial went: phases that add up, and spans of training."""

import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from sweep.config.trial import build_config
from sweep.measurement.clock import PHASES, Ledger
from sweep.measurement.device import describe_environment
from sweep.records.inputs import environment_digest
from sweep.records.messages import Ending, TrialTask
from sweep.training.trial import run_trial


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts the processor time of this thread: other processes cannot interrupt it between two phases, and the threads
    of native libraries, which wait busily for the next operation, do not count."""
    monkeypatch.setattr(time, "perf_counter", time.thread_time)


def train(folder: Path | None = None, **settings: Any) -> Ending:
    values = {"data.name": "digits", "budget.epochs": 2.0, "batch.micro": 64}
    values |= {name.replace("__", "."): value for name, value in settings.items()}
    task = TrialTask(number=0, config=build_config(values, "test"), checkpoint_dir=str(folder) if folder else None)
    *_, ending = run_trial(task)
    assert isinstance(ending, Ending)
    assert ending.outcome == "complete", ending.error
    return ending


def parts_of(measured: dict[str, float | int]) -> float:
    named = [name for name in PHASES if name not in ("data_wait", "step")]
    return measured["train_seconds"] + sum(measured[f"{name}_seconds"] for name in named)


@pytest.mark.usefixtures("own_time")
@pytest.mark.parametrize("settings", [{}, {"regularization__ema_decay": 0.9}], ids=str)
def test_the_phases_of_a_trial_are_its_wall_clock_within_one_percent(settings: dict[str, Any], tmp_path: Path) -> None:
    measured = train(tmp_path, budget__epochs=4.0, **settings).measurements
    assert 0.99 <= parts_of(measured) / measured["total_seconds"] <= 1.000001


@pytest.mark.usefixtures("own_time")
def test_the_wall_clock_is_that_of_the_caller() -> None:
    began = time.perf_counter()
    total = train().measurements["total_seconds"]
    around = time.perf_counter() - began
    assert 0.9 * around <= total <= around


def test_compiling_is_told_from_warming_up() -> None:
    calls: list[int] = []

    def compiled(model: torch.nn.Module, **_options: object) -> Any:
        def first_call_is_slow(images: torch.Tensor) -> torch.Tensor:
            if not calls:
                time.sleep(0.5)
            calls.append(1)
            out: torch.Tensor = model(images)
            return out

        return first_call_is_slow

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", compiled)
        measured = train(precision__compile=True, budget__epochs=1.0).measurements
    assert measured["compile_seconds"] >= 0.5
    assert measured["warmup_seconds"] > 0
    assert train(budget__epochs=1.0).measurements["compile_seconds"] == 0.0


def test_spans_are_the_training_without_its_evaluations() -> None:
    ending = train(budget__epochs=3.0)
    spans = ending.training_spans
    assert all(begin < end for begin, end in spans)
    assert all(one[1] < two[0] for one, two in pairwise(spans))
    trained = ending.measurements["train_seconds"]
    inside = sum(end - begin for begin, end in spans)
    assert trained <= inside * 1.000001
    assert inside - trained <= ending.measurements["total_seconds"] - trained


def test_the_usual_steps_of_a_growing_batch_are_those_of_one_size() -> None:
    ledger = Ledger()
    for samples, steps in ((64, 1), (128, 2), (512, 1), (64, 1)):
        ledger.open_window()
        ledger.close_window(steps, samples, is_full=True)
    assert ledger.usual_samples == 64
    assert len(ledger.even_step_seconds()) == 3


# ---------------------------------------------------------------------- the environment


def commit_in(folder: Path, commit: str) -> None:
    (folder / ".git" / "refs" / "heads").mkdir(parents=True)
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / ".git" / "refs" / "heads" / "main").write_text(f"{commit}\n")


def test_the_commit_of_the_users_project_is_on_record_and_no_matter_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_in(tmp_path / "one", "a" * 40)
    commit_in(tmp_path / "two", "b" * 40)
    (tmp_path / "one" / "studies").mkdir()
    found = []
    for folder in ("one/studies", "two"):
        monkeypatch.chdir(tmp_path / folder)
        found.append(describe_environment(torch.device("cpu")))
    assert [environment["project_commit"] for environment in found] == ["a" * 40, "b" * 40]
    assert found[0]["device"] == found[1]["device"]
    assert found[0]["git_commit"] == found[1]["git_commit"]
    assert environment_digest(found[0]) != environment_digest(found[1])


def test_a_worktrees_commit_is_found_and_no_project_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_in(tmp_path / "main", "c" * 40)
    inner = tmp_path / "main" / ".git" / "worktrees" / "side"
    inner.mkdir(parents=True)
    (inner / "HEAD").write_text("ref: refs/heads/main\n")
    (inner / "commondir").write_text("../..\n")
    (tmp_path / "side").mkdir()
    (tmp_path / "side" / ".git").write_text(f"gitdir: {inner}\n")
    (tmp_path / "none").mkdir()
    monkeypatch.chdir(tmp_path / "side")
    assert describe_environment(torch.device("cpu"))["project_commit"] == "c" * 40
    monkeypatch.chdir(tmp_path / "none")
    assert describe_environment(torch.device("cpu"))["project_commit"] == ""
