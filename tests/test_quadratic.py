"""Real trials of the noisy quadratic model against its closed forms: steps to a loss, noise scale, critical batch."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import critical_batch
from benchmarks import quadratic as theory
from sweep.config.trial import build_config
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.trial import run_trial

DIMENSIONS = 256
START = theory.start(DIMENSIONS) ** 2


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run(**values: object) -> tuple[list[Evaluation], Ending]:
    settings: dict[str, object] = {
        "model.name": "noisy_quadratic", "data.name": "noisy_quadratic", "optimizer.name": "sgd",
        "schedule.name": "constant", "schedule.warmup": 0.0,
    }  # fmt: skip
    settings |= {key.replace("__", "."): value for key, value in values.items()}
    *messages, ending = run_trial(TrialTask(number=0, config=build_config(settings, "test"), device="cpu"))
    assert isinstance(ending, Ending)
    assert ending.outcome == "complete", ending.error
    return [message for message in messages if isinstance(message, Evaluation)], ending


def test_the_recursion_is_the_papers_closed_form() -> None:
    rate, batch, steps = 0.3, 32, 200
    factor = (1 - rate * theory.curvatures(50)) ** (2 * steps)
    floor = rate * theory.noise_variances(50) / (batch * theory.curvatures(50) * (2 - rate * theory.curvatures(50)))
    expected = factor * theory.start(50) ** 2 + (1 - factor) * floor
    assert theory.expected_squares([rate] * steps, batch, 50)[-1] == pytest.approx(expected, rel=1e-9)
    assert theory.loss(theory.start(50) ** 2) == theory.expected_losses([], batch, 50)[0]


_RULE = {"batch__micro": 64, "optimizer__lr": 0.1, "rules__lr": 0.75, "rules__reference_batch": 16}
_WSD = {
    "batch__micro": 2, "optimizer__lr": 1.0, "schedule__name": "wsd", "schedule__warmup": "10 steps",
    "schedule__decay_share": 0.25,
}  # fmt: skip
_SEESAW = {
    "batch__micro": 2, "optimizer__lr": 1.0, "batch__schedule": "stepwise", "batch__schedule_milestones": "0.5",
    "batch__schedule_factor": 16.0, "batch__schedule_lr": "seesaw",
}  # fmt: skip
_WSD_RATES = [0.1 * (step + 1) for step in range(10)] + [1.0] * 50 + [1 - math.sqrt(step / 20) for step in range(20)]
_GROWN = [2] * 40 + [32] * 40  # one epoch, so that no step is cut short


@pytest.mark.parametrize(
    ("values", "subset", "rates", "batch", "without", "within", "apart"),
    [
        pytest.param(_RULE, 640, [0.1 * 4**0.75] * 60, 64, 0.1, 0.02, 0.2, id="a power of the batch"),
        pytest.param(_WSD, 160, _WSD_RATES, 2, 1.0, 0.1, 1 / 0.7 - 1, id="the decay of wsd"),
        pytest.param(_SEESAW, 40 * 34, [1.0] * 40 + [0.25] * 40, _GROWN, 1.0, 0.05, 0.2, id="a seesaw"),
    ],
)
def test_losses_are_those_of_the_closed_form_and_not_those_of_a_constant_rate(
    values: dict[str, Any], subset: int, rates: list[float], batch: Any, without: float, within: float, apart: float
) -> None:  # fmt: skip
    runs = [run(**values, budget__steps=len(rates), data__subset=subset, seed=seed)[0] for seed in range(6)]
    losses = np.mean([[each.val_loss for each in told] for told in runs], axis=0)
    expected = theory.expected_losses(rates, batch, DIMENSIONS)
    assert losses == pytest.approx([expected[each.step] for each in runs[0]], rel=within)
    assert [each.learning_rate for each in runs[0]] == pytest.approx([rates[each.step - 1] for each in runs[0]])
    constant = theory.expected_losses([without] * len(rates), batch, DIMENSIONS)[-1]
    assert abs(constant / expected[-1] - 1) > apart


def test_the_noise_scale_is_that_of_the_closed_form() -> None:
    # so small a rate that the place stays the same
    told, ending = run(
        batch__micro=16, batch__accumulation=4, budget__steps=1200, optimizer__lr=1e-7, diagnostics__noise_scale=True,
        data__subset=5120,
    )  # fmt: skip
    measured = [each.noise_scale for each in told if each.noise_scale is not None]
    assert np.mean(measured) == pytest.approx(theory.noise_scale(START), rel=0.1)
    assert ending.measurements["noise_scale"] == told[-1].noise_scale


def test_expected_steps_are_those_of_the_recursion_and_of_trials() -> None:
    expected = theory.expected_losses([0.8] * 400, 32, DIMENSIONS)
    steps = theory.steps_until(range(401), list(expected))
    assert critical_batch.expect_steps(32, 0.8) == pytest.approx(steps, rel=1e-4)
    found = np.mean(critical_batch.find_steps(256, 1.7, seeds=2))
    assert found == pytest.approx(critical_batch.expect_steps(256, 1.7), rel=0.1)
