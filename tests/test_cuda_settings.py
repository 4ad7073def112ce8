"""What a GPU trial sets in torch, and what it does before its clock starts, as far as a processor shows it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from training_factory import make_config, train_whole

from sweep.measurement.device import wait_until_settled
from sweep.training import trial
from sweep.training.precision import set_tf32
from sweep.training.step import Step

BACKENDS: Any = torch.backends  # torch leaves these attributes untyped


@pytest.fixture
def switches() -> Iterator[None]:
    """torch's switches, which are left as they are in a new process."""
    yield
    torch.set_float32_matmul_precision("highest")
    BACKENDS.cudnn.allow_tf32 = True


def read_switches() -> dict[str, object]:
    """Every getter, older and newer, of the switches for TF32; the older ones raise where the newer ones differ."""
    with BACKENDS.cudnn.flags(enabled=True, allow_tf32=BACKENDS.cudnn.allow_tf32, fp32_precision="none"):
        pass
    return {
        "matmul": torch.get_float32_matmul_precision(),
        "cublas": BACKENDS.cuda.matmul.allow_tf32,
        "cudnn": BACKENDS.cudnn.allow_tf32,
        "new matmul": BACKENDS.cuda.matmul.fp32_precision,
    }


@pytest.mark.usefixtures("switches")
@pytest.mark.parametrize("order", [(True, False), (False, True, False)])
def test_no_getter_of_torch_raises_and_all_agree(order: tuple[bool, ...]) -> None:
    for is_allowed in order:
        set_tf32(is_allowed=is_allowed)
        name = "tf32" if is_allowed else "ieee"
        assert {BACKENDS.cudnn.conv.fp32_precision, BACKENDS.cudnn.rnn.fp32_precision} == {name}
        level = "high" if is_allowed else "highest"
        expected = {"matmul": level, "cublas": is_allowed, "cudnn": is_allowed, "new matmul": name}
        assert read_switches() == expected


@pytest.mark.usefixtures("switches")
def test_a_plugin_that_allows_tf32_everywhere_does_not_change_fp32() -> None:
    set_tf32(is_allowed=False)
    BACKENDS.fp32_precision = "tf32"
    try:
        assert BACKENDS.cudnn.conv.fp32_precision == BACKENDS.cuda.matmul.fp32_precision == "ieee"
    finally:
        BACKENDS.fp32_precision = "none"


@pytest.mark.parametrize(("values", "num_measured"), [
    ([5.0, 3.0, 2.0, 1.5, 1.0, 1.01, 1.0, 0.5], 7),  # a clock that rises
    ([1.0, 1.0, 1.0, 9.0], 3),  # one that has risen
    ([1.0, 2.0] * 10, 12),  # one that never settles
])  # fmt: skip
def test_work_goes_on_until_the_clock_has_settled(values: list[float], num_measured: int) -> None:
    left = iter(values)
    wait_until_settled(lambda: next(left), 12)
    assert len(values) - len(list(left)) == num_measured


@pytest.mark.parametrize("values", [
    {"batch.micro": 48, "data.subset": 97},  # a single sample is left, and joins the batch before
    {"batch.micro": 24, "batch.global": 50, "batch.schedule": "exponential", "batch.schedule_factor": 4.0},
    {"batch.micro": 48, "batch.global": 100, "batch.schedule": "linear", "data.subset": 150},
    {"batch.micro": 16, "batch.accumulation": 2, "batch.schedule": "stepwise", "batch.schedule_factor": 4.0},
], ids=str)  # fmt: skip
def test_every_shape_is_met_before_the_clock_starts(values: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, set[int]] = defaultdict(set)
    phase = ["warm-up"]
    take, warm_up, finish = Step.micro_step, trial.warm_up_trial, trial.finish_trial

    def take_note(self: Step, images: Tensor, labels: Tensor, share: Tensor | float) -> Tensor:
        sizes[phase[-1]].add(len(labels))
        return take(self, images, labels, share)

    monkeypatch.setattr(Step, "micro_step", take_note)
    monkeypatch.setattr(trial, "warm_up_trial", lambda *given: (warm_up(*given), phase.append("training"))[0])
    monkeypatch.setattr(trial, "finish_trial", lambda *given: phase.append("end") or finish(*given))
    settings = {"data.name": "digits", "data.subset": 200, "budget.epochs": 6.0, "optimizer.lr": 0.01} | values
    train_whole(make_config(settings))
    assert sizes["training"]
    assert sizes["training"] <= sizes["warm-up"]
