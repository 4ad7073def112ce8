"""One trial from configuration to ending: every outcome, the rules of a recipe, and what resumes from a checkpoint."""

import ast
import math
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from training_factory import ScriptedClock, make_config, train_whole

from sweep.config.errors import InputError
from sweep.config.metrics import METRICS, list_objectives
from sweep.config.sections import ModelSection
from sweep.config.tables import MODELS, ImageShape
from sweep.measurement.clock import Ledger, StepWindow
from sweep.records.messages import Ending, Evaluation, Message, Progress, TrialTask, decode_message, encode_message
from sweep.training.checkpoints import CheckpointFolder, RandomState
from sweep.training.data.feeders import Batch
from sweep.training.models.build import build_model
from sweep.training.models.resnets import find_batch_norms
from sweep.training.outcomes import DivergedError, classify_error
from sweep.training.processes import load_plugin
from sweep.training.setup import TrainingSetup
from sweep.training.step import Step
from sweep.training.trial import run_trial
from sweep.training.warmup import WarmupResult, warm_up_trial


def task(**values: object) -> TrialTask:
    budget = {} if any(key.startswith("budget__") for key in values) else {"budget.epochs": 2.0}
    return TrialTask(number=0, config=make_config({"data.subset": 300, "seed": 3, **budget}, **values), device="cpu")


def run(trial: TrialTask) -> tuple[list[Message], Ending]:
    *messages, ending = run_trial(trial)
    assert isinstance(ending, Ending)
    assert not any(isinstance(message, Ending) for message in messages)
    return messages, ending


def tell_curve(messages: list[Message]) -> list[tuple[float, ...]]:
    told = [message for message in messages if isinstance(message, Evaluation)]
    return [(each.step, each.samples, each.train_loss, each.val_loss, each.learning_rate) for each in told]


def curve(trial: TrialTask) -> list[tuple[float, ...]]:
    return tell_curve(run(trial)[0])


ON_REQUEST = {  # the last of recipes that have it
    "steps_to_target", "seconds_to_target", "noise_scale", "noise_scale_run", "num_noise_steps",
    "sharpness_eigenvalue", "sharpness_keskar", "scaled_beta2",
}  # fmt: skip
OF_A_SCRIPT = {
    "quality", "num_val_samples", "observed_batch_size", "observed_lr", "observed_weight_decay", "tokens_per_second",
}  # fmt: skip
OF_A_MONITOR = {"reserved_memory_bytes", "gpu_utilization", "energy_joules", "power_watts", "temperature_celsius"}


def test_objectives_that_not_every_trial_measures_declare_what_they_require() -> None:
    required = {name for name, metric in METRICS.items() if metric.requires}
    assert required == (ON_REQUEST | OF_A_MONITOR | OF_A_SCRIPT) & {*list_objectives()}


def test_a_trial_learns_and_measures_everything() -> None:
    messages, ending = run(replace(task(budget__epochs=6.0), read_test=True))
    measured = ending.measurements
    assert (ending.outcome, ending.error) == ("complete", "")
    require_more_steps = {"slowdown_by_others"}
    expected = set(METRICS) - ON_REQUEST - OF_A_MONITOR - OF_A_SCRIPT - require_more_steps
    assert set(measured) - require_more_steps == expected, (
        f"assign {expected - set(measured)} where it is measured (TrialState.measurements in "
        f"sweep/training/setup.py), or list it in ON_REQUEST or OF_A_MONITOR in tests/test_run_trial.py; "
        f"declare {set(measured) - expected} in sweep/config/metrics.py"
    )
    counted = {"micro_batch_size": 64, "num_steps": 30, "num_epochs": 6.0, "num_parameters": 75_002}
    assert measured | counted == measured
    assert min(measured["val_accuracy"], measured["test_accuracy"]) > 0.8
    assert measured["generalization_gap"] == pytest.approx(measured["train_accuracy"] - measured["val_accuracy"])
    assert measured["images_per_second"] == pytest.approx(1800 / measured["train_seconds"])
    assert measured["step_seconds_median"] > 0
    last = [message for message in messages if isinstance(message, Evaluation)][-1]
    assert (last.step, last.epoch, last.samples) == (30, 6.0, 1800)
    assert (last.val_loss, last.val_accuracy) == (measured["val_loss"], measured["val_accuracy"])
    # some builds name the kind of build in one of both alone, as 2.15.0+cu132
    recorded = ending.environment["versions"]["torch"]
    assert recorded.partition("+")[0] == torch.__version__.partition("+")[0]
    assert ending.device.startswith("CPU ")
    assert [decode_message(encode_message(message)) for message in (*messages, ending)] == [*messages, ending]


@pytest.mark.parametrize("model", ["resnet8", "vit_micro"])
def test_same_task_same_losses(model: str) -> None:
    settings = {"model__name": model, "model__dropout": 0.1, "data__augment": "crop_flip", "optimizer__lr": 0.02}
    first = curve(task(**settings))
    assert first == curve(task(**settings))
    assert first != curve(task(**settings, seed=4))


def test_warm_up_and_memory_pass_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"model__dropout": 0.2, "optimizer__name": "adamw", "optimizer__lr": 0.01}
    settings |= {"regularization__ema_decay": 0.9}
    sizes = []

    def note_eval_batch(setup: TrainingSetup, ledger: Ledger) -> WarmupResult:
        found = warm_up_trial(setup, ledger)
        sizes.append(setup.eval_batch.size)
        return found

    def set_eval_batch(setup: TrainingSetup, _ledger: object) -> WarmupResult:
        setup.eval_batch.size = sizes[0]  # other sizes round otherwise
        return WarmupResult(peak_memory_bytes=1, eval_peak_memory_bytes=1, step_seconds=0.001)

    monkeypatch.setattr("sweep.training.trial.warm_up_trial", note_eval_batch)
    with_warm_up = curve(task(**settings))
    monkeypatch.setattr("sweep.training.trial.warm_up_trial", set_eval_batch)
    assert curve(task(**settings)) == with_warm_up


def test_progress_comes_at_most_twice_a_second() -> None:
    messages, ending = run(task(data__subset=1300, budget__epochs=5.0))
    progress = [message for message in messages if isinstance(message, Progress)]
    assert progress[0].step == 0  # what its steps need is told before the first of them
    assert progress[0].peak_memory_bytes == ending.measurements["peak_memory_bytes"] > 0
    assert 2 <= len(progress) <= 2 + 2 * ending.measurements["total_seconds"]
    assert all(0 <= message.step <= message.num_steps == 105 for message in progress)


def test_larger_batch_than_data_runs_and_says_so() -> None:
    _, ending = run(task(batch__micro=512, budget__epochs=2.0))
    assert ending.measurements["num_steps"] == 2
    assert "micro_batch_larger_than_train_split" in ending.quality_flags


def test_divergence_is_an_outcome_without_wrong_numbers() -> None:
    _, ending = run(task(optimizer__name="momentum", optimizer__lr=1e4, schedule__warmup=0.0, model__name="vit_micro"))
    assert ending.outcome == "diverged"
    assert "loss" in ending.error
    assert "Traceback" not in ending.error
    assert ending.measurements["num_parameters"] > 0
    assert all(map(math.isfinite, ending.measurements.values()))


@pytest.mark.parametrize(("error", "outcome"), [
    (torch.OutOfMemoryError("x"), "out_of_memory"), (MemoryError(), "out_of_memory"),
    (RuntimeError("CUDA out of memory. Tried to allocate"), "out_of_memory"),
    (RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"), "out_of_memory"),
    (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"), "out_of_memory"),
    (RuntimeError("shapes do not match"), "crashed"), (ValueError("out of memory lane"), "crashed"),
    (DivergedError("nan"), "diverged"), (InputError("no such thing"), "crashed"),
])  # fmt: skip
def test_outcomes_by_type_first_and_text_second(error: Exception, outcome: str) -> None:
    assert classify_error(error) == outcome


PLUGIN = """
import torch
from sweep.config.tables import MODELS, ModelEntry

class Greedy(torch.nn.Linear):
    def forward(self, images):
        if self.training:
            torch.empty(2**52)
        return super().forward(images)

def build(section, shape):
    if section.dropout > 0.5:
        raise KeyError("a mistake of mine")
    return torch.nn.Sequential(torch.nn.Flatten(), Greedy(shape.channels * shape.side ** 2, shape.num_classes))

MODELS["greedy"] = build  # a function alone will do
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "my_models.py"
    path.write_text(PLUGIN)
    yield str(path)
    MODELS.pop("greedy", None)
    sys.modules.pop("sweep_plugin_my_models", None)


def test_plugin_model_is_known_and_its_failures_are_outcomes(plugin: str) -> None:
    load_plugin(plugin)
    load_plugin(plugin)
    assert "greedy" in MODELS
    _, full = run(replace(task(model__name="greedy"), plugin=plugin))
    assert full.outcome == "out_of_memory"
    assert full.measurements["num_parameters"] == 650
    _, broken = run(replace(task(model__name="greedy", model__dropout=0.9), plugin=plugin))
    assert broken.outcome == "crashed"
    assert "a mistake of mine" in broken.error
    assert "my_models.py" in broken.error


def test_broken_plugin_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    texts = {"1 +": "1: SyntaxError", "x = 1\ny = nothing": "2: NameError", "\nraise SystemExit(0)": "2: SystemExit: 0"}
    for text, words in texts.items():
        path.write_text(text)
        with pytest.raises(InputError, match=f"line {words}"):
            load_plugin(str(path))
    with pytest.raises(InputError, match="not a Python file"):
        load_plugin(str(tmp_path / "absent.py"))


def test_input_errors_are_clean() -> None:
    _, ending = run(replace(task(), device="cuda:99"))
    assert (ending.outcome, ending.error[:16]) == ("crashed", "device 'cuda:99'")
    assert "Traceback" not in ending.error


def test_interruption_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("sweep.training.finish.evaluate_model", interrupt)
    with pytest.raises(KeyboardInterrupt):
        list(run_trial(task(budget__steps=1)))


def test_threads_are_set_and_given_back_at_its_end_or_when_it_is_closed() -> None:
    before, trial = torch.get_num_threads(), replace(task(budget__steps=1), threads=1)
    assert run(trial)[1].device.endswith("x1 threads")
    assert torch.get_num_threads() == before
    messages = run_trial(trial)
    next(messages)
    assert torch.get_num_threads() == 1
    messages.close()  # type: ignore[attr-defined]
    assert torch.get_num_threads() == before


def test_importing_training_runs_no_tensor_operation() -> None:
    # one operation in the forkserver's preload would hang every child at its first parallel region
    code = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
seen = []
class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        seen.append(str(function))
        return function(*args, **(kwargs or {}))
with Watch():
    torch.zeros(1)
    import sweep.training.ranks, sweep.training.trial, sweep.training.vision, sweep.training.data.sources
print(seen)
"""
    # the zeros above, which show that the watch sees
    seen = ast.literal_eval(subprocess.check_output([sys.executable, "-c", code], text=True))
    # which builds of torchvision for CUDA call, and which computes nothing
    assert [name for name in seen if name != "torchvision._cuda_version.default"] == ["aten.zeros.default"]


def test_a_broken_loss_of_one_window_ends_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = Step.accumulate, []

    def poisoned(self: Step, micro_batches: Iterable[Batch], samples: int) -> torch.Tensor:
        calls.append(samples)
        loss = real(self, micro_batches, samples)
        return loss * float("nan") if len(calls) == 9 else loss

    monkeypatch.setattr(Step, "accumulate", poisoned)
    messages, ending = run(task())
    assert ending.outcome == "diverged"
    assert [each.step for each in messages if isinstance(each, Evaluation)] in ([], [5])
    assert ending.measurements["num_steps"] < 10


# eight times the reference batch
TINY: dict[str, Any] = {
    "data.subset": 64, "batch.micro": 32, "rules.reference_batch": 4, "budget.epochs": 2.0, "optimizer.lr": 0.02,
}  # fmt: skip


def train_by(values: dict[str, Any]) -> tuple[list[Evaluation], Ending]:
    """The evaluations without their times, and the ending."""
    told, ending = train_whole(make_config(TINY | values))
    return [replace(each, train_seconds=0.0) for each in told], ending


RULES: list[Any] = [
    ({"model.dropout": 0.1}, {"rules.dropout": "sqrt"}, {"model.dropout": 0.1 * 8**0.5}),
    ({"model.dropout": 0.1}, {"rules.dropout": "linear"}, {"model.dropout": 0.5}),
    ({"regularization.label_smoothing": 0.05}, {"rules.label_smoothing": "sqrt"},
     {"regularization.label_smoothing": 0.05 * 8**0.5}),
    ({"schedule.warmup": "6 steps"}, {"rules.warmup": "graded"}, {"schedule.warmup": "4 steps"}),
    ({"budget.epochs": 1.0}, {"rules.epochs": 0.5}, {"budget.epochs": 8**0.5}),
]  # fmt: skip


@pytest.mark.parametrize(("written", "rule", "given"), RULES)
def test_a_rule_trains_as_the_value_that_it_gives(
    written: dict[str, Any], rule: dict[str, Any], given: dict[str, Any]
) -> None:
    by_rule, ending = train_by(written | rule)
    by_value, expected = train_by(written | given)
    assert by_rule == by_value
    assert by_rule != train_by(written)[0]
    assert ending.measurements["num_epochs"] == pytest.approx(expected.measurements["num_epochs"])


@pytest.mark.parametrize("norm", ["batch", "ghost", "sync"])
def test_the_momentum_of_running_statistics(norm: str) -> None:
    def norms_with(momentum: float) -> list[torch.nn.Module]:
        torch.manual_seed(0)
        model = build_model(ModelSection(name="resnet8", norm=norm, norm_momentum=momentum), ImageShape(1, 8, 10))
        model.train()(torch.randn(16, 1, 8, 8))
        return list(find_batch_norms(model))

    slow, fast = norms_with(0.1)[0], norms_with(1.0)[0]
    # from 0 towards the mean of the one batch that was seen
    assert torch.allclose(slow.running_mean, 0.1 * fast.running_mean)
    assert fast.running_mean.abs().max() > 0.01


@final
class Part:
    """The simplest thing with a state."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def come_back(state: Any, folder: Path) -> Any:
    """``state`` as it is read from a checkpoint of it."""
    CheckpointFolder(folder, "mine").save({"part": Part(state)})
    found = CheckpointFolder(folder, "mine").load()
    return found and found["part"]


def test_any_nested_state_comes_back_as_it_was_and_code_does_not(tmp_path: Path) -> None:
    channels_last = torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last)
    state = {
        "a": [1, 2.5, None, True, "text", float("inf")], 0: {"t": (torch.arange(3.0), (1, 2)), 2.0: {}},
        "bits": torch.tensor([1, 255], dtype=torch.uint8), "half": torch.tensor(3.0, dtype=torch.bfloat16),
        "nothing": torch.zeros(0), "images": channels_last,
    }  # fmt: skip
    again = come_back(state, tmp_path)
    assert str(again) == str(state)
    assert again["images"].stride() == channels_last.stride()
    assert torch.equal(again["images"], channels_last)
    assert come_back({"a": [1, Part(3)]}, tmp_path / "other") is None  # an object, whose loading could run code


def test_randomness_goes_on_where_it_was(tmp_path: Path) -> None:
    randomness = RandomState(torch.device("cpu"))
    random.gauss(0, 1)  # leaves half of a pair behind
    np.random.standard_normal()
    state = come_back(randomness.state_dict(), tmp_path)

    def draw() -> list[float]:
        numbers = [random.gauss(0, 1), random.random(), np.random.standard_normal(), np.random.rand()]
        return [*numbers, *torch.randn(3).tolist(), *torch.nn.functional.dropout(torch.ones(9)).tolist()]

    first = draw()
    assert draw() != first
    randomness.load_state_dict(state)
    assert draw() == first


def test_the_last_two_are_kept_and_a_torn_one_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = CheckpointFolder(tmp_path / "deep" / "folder", "mine")
    assert folder.load() is None
    for number in range(5):
        folder.save({"part": Part({"number": number, "tensor": torch.full((1000,), float(number))})})
    files = sorted((tmp_path / "deep" / "folder").iterdir())
    assert [file.name[:8] for file in files] == ["00000004", "00000005"]
    assert not caplog.records
    content = files[1].read_bytes()
    for torn in (content[:-1], content[:100], b"", content[:3000] + b"\1" + content[3001:]):
        files[1].write_bytes(torn)
        assert folder.load()["part"]["number"] == 3
        assert "torn" in caplog.records[-1].message
    (tmp_path / "deep" / "folder" / ".00000006.part").write_bytes(b"half of one")
    folder.save({"part": Part({"number": 9})})
    assert folder.load()["part"]["number"] == 9
    assert [file.name[:8] for file in sorted((tmp_path / "deep" / "folder").iterdir())] == ["00000005", "00000006"]


def broken_task(tmp_path: Path | None, **values: object) -> TrialTask:
    settings = {"data.subset": 300, "budget.epochs": 3.0, "seed": 3, "optimizer.lr": 0.02, "model.dropout": 0.1}
    folder = str(tmp_path / "checkpoints") if tmp_path else None
    given = {"config": make_config(settings, **values), "checkpoint_dir": folder, "checkpoint_seconds": 0.0}
    return TrialTask(number=0, device="cpu", **given)


def until(messages: Iterator[Message], step: int) -> list[Message]:
    """What is said until that step; then the attempt is cut off."""
    heard = []
    for message in messages:
        heard.append(message)
        if isinstance(message, Evaluation | Progress) and message.step >= step:
            break
    messages.close()  # type: ignore[attr-defined]
    return heard


@pytest.fixture
def every_step_is_an_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sweep.training.trial.WINDOW_SECONDS", 0.0)
    monkeypatch.setattr("sweep.training.trial.PROGRESS_SECONDS", 0.0)


RECIPES: dict[str, dict[str, object]] = {
    "momentum": {"data__augment": "crop_flip"},
    "adamw_vit": {"optimizer__name": "adamw", "optimizer__lr": 0.003, "model__name": "vit_micro"},
    "channels_last": {"precision__channels_last": True},
    "streamed": {"data__placement": "host", "batch__accumulation": 2, "data__augment": "random_resized_crop"},
    "growing": {"batch__schedule": "linear", "batch__micro": 16, "batch__schedule_lr": "rule"},
    "plateau": {"batch__schedule": "plateau", "batch__micro": 16, "batch__plateau_patience": 1, "optimizer__lr": 1e-4,
        "batch__schedule_lr": "seesaw"},
    "averaged": {"regularization__ema_decay": 0.9, "regularization__mixup": 0.2, "regularization__cutmix": 1.0,
        "data__augment": "randaugment", "model__stochastic_depth": 0.2},
    "schedule_free": {"optimizer__name": "schedule_free", "optimizer__lr": 0.003},
    "muon": {"optimizer__name": "muon", "optimizer__lr": 0.003, "model__norm": "ghost", "model__ghost_batch": 16},
    "lamb": {"optimizer__name": "lamb", "precision__checkpointing": True, "model__dropout": 0.2},
    "lars": {"optimizer__name": "lars", "optimizer__lr": 2.0, "data__augment": "alternating_flip"},
}  # fmt: skip


@pytest.mark.usefixtures("every_step_is_an_edge")
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_continued_trial_is_the_unbroken_one_bit_for_bit(tmp_path: Path, recipe: str) -> None:
    settings = RECIPES[recipe]
    unbroken = replace(broken_task(None, **settings), weights_path=str(tmp_path / "unbroken.safetensors"))
    expected = list(run_trial(unbroken))
    broken = replace(broken_task(tmp_path, **settings), weights_path=str(tmp_path / "broken.safetensors"))
    for step in (2, 7, 11):  # within an epoch, of 5 steps where the batch is constant
        until(run_trial(broken), step)
        random.seed(step)
        torch.manual_seed(step)  # another process draws other numbers
    found = list(run_trial(broken))
    assert tell_curve(found) == tell_curve(expected)  # the evaluations before the checkpoint are told again
    wanted, got = (load_file(tmp_path / f"{name}.safetensors") for name in ("unbroken", "broken"))
    assert all(torch.equal(got[name], tensor) for name, tensor in wanted.items())
    ending, other = found[-1], expected[-1]
    for name in ("num_steps", "num_epochs", "val_accuracy", "train_accuracy", "val_loss"):
        assert ending.measurements[name] == other.measurements[name]


def test_the_time_between_two_attempts_is_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ScriptedClock(monkeypatch)
    first = Ledger()
    with first.phase("step"):
        clock.pass_seconds(20.0)
    first.windows.append(StepWindow(0.02, 3, 96, True))
    state = come_back(first.state_dict(), tmp_path)
    clock.pass_seconds(500.0)
    second = Ledger()
    with second.phase("setup"):
        clock.pass_seconds(3.0)
    second.load_state_dict(state)
    assert second.seconds["step"] == first.seconds["step"]
    assert second.seconds["setup"] == 3.0
    assert second.windows == first.windows
    assert second.total_seconds == 23.0


@pytest.mark.usefixtures("every_step_is_an_edge")
def test_a_checkpoint_of_another_configuration_is_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    until(run_trial(broken_task(tmp_path)), 6)
    assert "another configuration" not in caplog.text
    changed = broken_task(tmp_path, optimizer__lr=0.01)
    assert tell_curve(list(run_trial(changed))) == tell_curve(list(run_trial(broken_task(None, optimizer__lr=0.01))))
    assert "another configuration" in caplog.text


def test_a_checkpoint_that_cannot_be_written_costs_no_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("sweep.training.checkpoints.write_atomically", full)
    *_, ending = run_trial(broken_task(tmp_path))
    assert ending.outcome == "complete"
    assert "No space left" in caplog.text
