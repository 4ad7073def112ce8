"""What breaks a trial on a GPU is that trial's own: those after it are what they would have been."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from training_factory import make_config

from sweep.config.trial import TrialConfig
from sweep.executors.process import ProcessExecutor
from sweep.records.messages import Ending, TrialTask
from sweep.search.single import train_trial
from sweep.training.processes import load_plugin

pytestmark = pytest.mark.gpu
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
