"""Memory that runs out on a GPU and what prevents that; and what breaks a trial there is that trial's own."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from training_factory import make_config, train_whole
from training_factory import train as train_here

from sweep.config.study_file import build_study
from sweep.config.trial import TrialConfig
from sweep.executors.process import ProcessExecutor
from sweep.executors.table import ExecutorSettings
from sweep.measurement.memory import read_memory
from sweep.probing.memory import estimate_memory
from sweep.probing.micro_batch_search import search_micro_batch
from sweep.probing.shape import replace_micro_batch
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.search.session import Options, open_session
from sweep.search.single import open_prober, train_trial
from sweep.training.processes import load_plugin
from sweep.training.trial import run_trial

pytestmark = pytest.mark.gpu
_GIVEN_BYTES = 4 * 2**30


@pytest.fixture
def small_device() -> Iterator[None]:
    torch.cuda.empty_cache()
    _, installed = torch.cuda.mem_get_info()
    torch.cuda.set_per_process_memory_fraction(_GIVEN_BYTES / installed)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def configure(**values: object) -> TrialConfig:
    settings = {"data.name": "synthetic", "data.subset": 8192, "budget.epochs": 3.0, "optimizer.lr": 0.02}
    settings |= {"model.name": "resnet18", "model.norm": "group", "batch.global": 4096, "batch.accumulation": None}
    return make_config(settings, **values)


train = partial(train_here, device="cuda")


@pytest.mark.usefixtures("small_device")
def test_what_fits_is_found_and_the_update_is_the_one_asked_for() -> None:
    use = read_memory(torch.device("cuda", 0))
    assert use is not None
    assert use.total_bytes == pytest.approx(_GIVEN_BYTES, rel=0.01)
    told, ending = train(configure(batch__micro="auto"))
    assert ending.outcome == "complete", ending.error
    micro = int(ending.measurements["micro_batch_size"])
    assert 8 <= micro < 4096
    assert ending.measurements["num_steps"] == 6
    assert ending.measurements["peak_memory_bytes"] < 0.85 * _GIVEN_BYTES
    given, _ = train(configure(batch__micro=micro))
    for one, other in zip(told, given, strict=True):
        assert one.val_loss == pytest.approx(other.val_loss, rel=0.02)
    _, full = train(configure(batch__micro=4096))
    assert full.outcome == "out_of_memory"
    assert train(configure(batch__micro=micro))[1].outcome == "complete"  # nothing of it is left behind


def test_a_continued_trial_is_the_unbroken_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.training.trial.WINDOW_SECONDS", 0.0)
    settings = {"batch__global": 512, "batch__micro": 256, "precision__dtype": "fp16", "model__dropout": 0.1}
    expected, _ = train(configure(**settings))
    where: dict[str, Any] = {"checkpoint_dir": str(tmp_path / "checkpoints"), "checkpoint_seconds": 0.0}
    messages = run_trial(TrialTask(number=0, config=configure(**settings), device="cuda", **where))
    for message in messages:
        if isinstance(message, Evaluation):
            break
    messages.close()  # type: ignore[attr-defined]
    found, ending = train(configure(**settings), **where)
    assert ending.outcome == "complete", ending.error
    assert [each.step for each in found] == [each.step for each in expected]
    for one, other in zip(found, expected, strict=True):  # a GPU may add in another order
        assert one.val_loss == pytest.approx(other.val_loss, rel=0.02)


# ---------------------------------------------------------------------- probes, the gate, the forecast

VALUES: dict[str, Any] = {"model.name": "resnet18", "data.name": "synthetic", "optimizer.name": "adamw"}
LIMIT = 2 << 30


def test_the_largest_that_fits_was_run_within_the_limit_and_the_next_was_not(tmp_path: Path) -> None:
    config = make_config(VALUES)
    with open_prober(Options(root=tmp_path, executor=ExecutorSettings(device="cuda")), LIMIT) as (prober, limit):
        found = search_micro_batch(lambda size: prober.probe(replace_micro_batch(config, size), 0.1), most=8192)
    assert limit == LIMIT
    assert found.largest is not None
    assert found.is_limited_by_memory
    assert all((found.tried[size].peak_memory_bytes or 0) <= LIMIT for size in found.fitting)
    refused = min(size for size, probe in found.tried.items() if not probe.is_complete)
    assert refused - found.largest <= max(1, 0.05 * found.largest)
    assert {probe.outcome for probe in found.tried.values()} <= {"complete", "out_of_memory", "not_fitting"}
    assert found.knee in found.fitting


def test_the_limit_of_a_device_is_nine_tenths_of_what_is_free(tmp_path: Path) -> None:
    with open_prober(Options(root=tmp_path, executor=ExecutorSettings(device="cuda")), None) as (_, limit):
        free, installed = torch.cuda.mem_get_info()  # beside this process, whose context the probe's did not need
        assert 0.8 * free < limit <= 0.9 * installed


def test_what_the_gate_lets_through_does_not_run_out_of_memory(tmp_path: Path) -> None:
    base = {**VALUES, "budget.steps": 3, "data.image_size": 224}
    table = {"name": "gated", "trials": 6, "sampler": "qmc", "confirm": {"seeds": 0}, "base": base}
    spec = build_study(table | {"space": {"batch.micro": {"log2": [4, 14]}}}, "test")
    with open_session(spec, Options(root=tmp_path, executor=ExecutorSettings(device="cuda"))) as session:
        forecast = session.forecast()
        for _ in session.run():
            pass
        records = session.store.trial_records("gated")
    outcomes = {record.config.batch.micro: record.outcome for record in records if record.number % 20 != 19}
    assert "out_of_memory" not in outcomes.values()
    assert forecast.expected_total_seconds is not None
    assert max(size for size, outcome in outcomes.items() if outcome == "complete") >= 64


@pytest.mark.parametrize("values", [
    {"model.name": "vit_tiny", "optimizer.name": "adamw"},
    {"model.name": "vit_tiny", "precision.dtype": "bf16", "precision.checkpointing": True},
    {"model.name": "resnet18", "precision.dtype": "bf16", "precision.channels_last": True},
    {"model.name": "resnet20", "batch.accumulation": 2},
])  # fmt: skip
def test_the_forecast_is_of_the_size_of_the_record(values: dict[str, object]) -> None:
    settings = {"data.name": "synthetic", "data.subset": 2048, "budget.steps": 1, "optimizer.lr": 0.01}
    config = make_config(settings | {"batch.micro": 512} | values)
    ending = train_whole(config, device="cuda")[1]
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    forecast = estimate_memory(config, device_type="cuda").peak_memory_bytes
    assert torch.cuda.max_memory_allocated() == before  # nothing is computed on the device
    assert 0.5 < forecast / ending.measurements["peak_memory_bytes"] < 1.5


PLUGIN = Path(__file__).parent / "faulty_plugin.py"


def config(**values: object) -> TrialConfig:
    settings = {"data.name": "synthetic", "data.subset": 2048, "budget.epochs": 2.0, "optimizer.lr": 0.02}
    return make_config(settings, **values)


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[ProcessExecutor]:
    load_plugin(str(PLUGIN))
    with ProcessExecutor(["cuda:0"], log_dir=tmp_path) as made:
        yield made


def ending_of(executor: ProcessExecutor, number: int, chosen: TrialConfig) -> Ending:
    executor.start(TrialTask(number=number, config=chosen, device="cuda", plugin=str(PLUGIN)))
    while True:
        for _, message in executor.poll(1.0):
            if isinstance(message, Ending):
                return message


@pytest.mark.parametrize(("fault", "words"), [
    ({"data__name": "wrong_labels", "data__subset": None}, "device-side assert"),
    ({"model__name": "stray"}, "illegal memory access"),
])  # fmt: skip
def test_the_trial_after_a_fault_of_the_device_is_fine(
    executor: ProcessExecutor, fault: dict[str, object], words: str
) -> None:
    before = ending_of(executor, 0, config())
    faulty = ending_of(executor, 1, config(**fault))
    assert faulty.outcome == "crashed"
    assert words in faulty.error
    after = ending_of(executor, 2, config())
    assert (before.outcome, after.outcome) == ("complete", "complete"), after.error
    assert after.measurements["peak_memory_bytes"] == before.measurements["peak_memory_bytes"]
    assert after.measurements["val_loss"] == pytest.approx(before.measurements["val_loss"], rel=0.02)


def test_what_the_whole_device_cannot_hold_is_an_outcome_and_leaves_nothing_behind() -> None:
    before = train_trial(config(), device="cuda")
    taken = torch.cuda.memory_allocated()
    too_much = {"model__name": "vit_base", "data__subset": 65_536, "batch__micro": 65_536}
    refused = train_trial(config(**too_much), device="cuda")
    assert refused.outcome == "out_of_memory"
    assert refused.measurements["num_parameters"] > 8e7
    assert torch.cuda.memory_allocated() == taken
    for _ in range(3):
        after = train_trial(config(), device="cuda")
        assert after.outcome == "complete", after.error
        peaks = [ending.measurements["peak_memory_bytes"] for ending in (after, before)]
        assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
