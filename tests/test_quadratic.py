"""Real trials of the noisy quadratic model against its closed forms: steps to a loss, noise scale, critical batch."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from benchmarks import critical_batch
from benchmarks import quadratic as theory
from sweep.config.sections import ModelSection
from sweep.config.tables import ImageShape
from sweep.config.trial import build_config
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.models.build import build_model
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


def test_the_recursion_with_momentum_is_the_mean_of_simulations() -> None:
    rates, momentum, batch, dimensions = np.linspace(0.2, 0.05, 30), 0.8, 4, 6
    generator = np.random.default_rng(0)
    place, velocity = np.tile(theory.start(dimensions), (20_000, 1)), np.zeros((20_000, dimensions))
    spread = np.sqrt(theory.noise_variances(dimensions) / batch)
    for rate in rates:
        gradient = theory.curvatures(dimensions) * place + spread * generator.normal(size=place.shape)
        velocity = momentum * velocity + gradient
        place = place - rate * velocity
    expected = theory.expected_squares(list(rates), batch, dimensions, momentum)[-1]
    assert (place**2).mean(0) == pytest.approx(expected, rel=0.03)


def test_the_step_of_a_loss_is_read_between_evaluations() -> None:
    assert theory.steps_until([0, 10, 20], [8.0, 4.0, 1.0], 2.0) == pytest.approx(15.0)
    assert theory.steps_until([5, 10], [1.0, 0.5], 2.0) == 5  # below before it was asked
    assert math.isnan(theory.steps_until([0, 10], [8.0, 4.0], 2.0))


def test_a_step_of_the_critical_batch_gains_half_as_much() -> None:
    rates = np.geomspace(1e-3, 1.9, 2000)

    def gain(batch: int) -> float:
        return max(theory.loss(START) - float(theory.expected_losses([rate], batch, DIMENSIONS)[-1]) for rate in rates)

    critical = theory.critical_batch(START)
    for batch in (1, 4, 64):
        assert gain(batch) / gain(10**9) == pytest.approx(1 / (1 + critical / batch), rel=1e-3)


def test_the_cross_entropy_is_the_loss_and_its_gradient_has_the_noise_that_is_said() -> None:
    torch.manual_seed(0)
    model = build_model(ModelSection(name="noisy_quadratic"), ImageShape(1, 3, 1))
    place = model.get_parameter("place")
    with torch.no_grad():
        place.add_(torch.linspace(-3, 3, 9))
    images, labels = torch.zeros(20_000, 3, 3, 1), torch.zeros(20_000, dtype=torch.int64)
    exact = theory.loss(place.detach().double().numpy() ** 2)
    assert float(cross_entropy(model.eval()(images[:4]), labels[:4]).detach()) == pytest.approx(exact, rel=1e-5)
    per_sample = torch.func.vmap(
        torch.func.grad(lambda place: cross_entropy(torch.func.functional_call(model, {"place": place}, images[:1]),
                                                    labels[:1])),
        randomness="different",
    )  # fmt: skip
    gradients = per_sample(model.train().get_parameter("place").detach().expand(20_000, -1)).double().numpy()
    assert gradients.mean(0) == pytest.approx(theory.curvatures(9) * place.detach().numpy(), abs=0.06)
    assert gradients.var(0) == pytest.approx(theory.noise_variances(9), rel=0.05)
    assert np.abs(np.corrcoef(gradients.T) - np.eye(9)).max() < 0.03


SETTINGS: list[dict[str, Any]] = [
    {"batch__micro": 64, "optimizer__lr": 0.5},
    {"batch__micro": 256, "optimizer__lr": 1.0},
    {"batch__micro": 32, "batch__accumulation": 4, "optimizer__lr": 0.8},
    {"batch__micro": 256, "optimizer__lr": 0.1, "optimizer__name": "momentum", "optimizer__momentum": 0.9},
    {"batch__micro": 128, "optimizer__lr": 1.2, "schedule__name": "cosine", "schedule__warmup": 0.1},
]


@pytest.mark.wide
@pytest.mark.parametrize("values", SETTINGS)
def test_steps_to_the_target_are_those_of_the_closed_form(values: dict[str, Any]) -> None:
    batch = values["batch__micro"] * values.get("batch__accumulation", 1)
    until = {"data__subset": 8 * batch, "budget__target_accuracy": 1.0, "budget__max_epochs": 50.0}
    found = []
    for seed in range(4):
        told, ending = run(**values, **until, seed=seed)
        steps, losses = [0, *(each.step for each in told)], [theory.loss(START), *(each.val_loss for each in told)]
        found.append(theory.steps_until(steps, losses))
        # what the trial calls its steps to target is the first evaluation at or behind that
        assert ending.measurements["steps_to_target"] == math.ceil(found[-1]) or told[-2].step < found[-1]
        assert [each.val_accuracy for each in told] == [*(0.0 for _ in told[1:]), 1.0]
    expected = theory.expected_losses(rates_of(values, told), batch, DIMENSIONS, values.get("optimizer__momentum", 0.0))
    wanted = theory.steps_until(range(len(expected)), list(expected))
    assert np.mean(found) == pytest.approx(wanted, rel=0.02)


def rates_of(values: dict[str, Any], told: list[Evaluation]) -> list[float]:
    total, rate = 8 * 50, values["optimizer__lr"]
    if values.get("schedule__name", "constant") == "constant":
        assert {each.learning_rate for each in told} == {rate}
        return [rate] * total
    rise = round(0.1 * total)
    rates = [rate * min((step + 1) / rise, 0.5 * (1 + math.cos(math.pi * max(step - rise, 0) / (total - rise))))
             for step in range(total)]  # fmt: skip
    assert [each.learning_rate for each in told] == pytest.approx([rates[each.step - 1] for each in told])
    return rates


def mean_losses(**values: object) -> tuple[list[int], list[float]]:
    """The steps of the evaluations, and the mean of their losses over seeds."""
    runs = [run(**values, seed=seed)[0] for seed in range(6)]
    losses = np.mean([[each.val_loss for each in told] for told in runs], axis=0)
    return [each.step for each in runs[0]], losses.tolist()


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
    steps, losses = mean_losses(**values, budget__steps=len(rates), data__subset=subset)
    expected = theory.expected_losses(rates, batch, DIMENSIONS)
    assert losses == pytest.approx([expected[step] for step in steps], rel=within)
    constant = theory.expected_losses([without] * len(rates), batch, DIMENSIONS)[-1]
    assert abs(constant / expected[-1] - 1) > apart


@pytest.mark.parametrize(
    ("values", "steps"),
    [
        pytest.param({"batch__micro": 32}, 5000, marks=pytest.mark.wide),  # two halves of every 48th step
        ({"batch__micro": 16, "batch__accumulation": 4}, 1200),
        pytest.param({"batch__micro": 24, "batch__global": 64}, 1200, marks=pytest.mark.wide),  # 24, 24, 16
    ],
)
def test_the_noise_scale_is_that_of_the_closed_form(values: dict[str, Any], steps: int) -> None:
    # so small a rate that the place stays the same
    told, ending = run(
        **values, budget__steps=steps, optimizer__lr=1e-7, diagnostics__noise_scale=True, data__subset=5120
    )
    measured = [each.noise_scale for each in told if each.noise_scale is not None]
    assert np.mean(measured) == pytest.approx(theory.noise_scale(START), rel=0.1)
    assert ending.measurements["noise_scale"] == told[-1].noise_scale
    assert ending.measurements["noise_scale"] == pytest.approx(theory.noise_scale(START), rel=0.5)


@pytest.mark.wide
def test_the_noise_scale_follows_the_training() -> None:
    steps, batch, decay = 60, 1024, 0.95
    measured, of_run = [], []
    for seed in range(6):
        _, ending = run(
            batch__micro=128, batch__accumulation=8, budget__steps=steps, optimizer__lr=0.4, seed=seed,
            diagnostics__noise_scale=True, data__subset=batch,
        )  # fmt: skip
        measured.append(ending.measurements["noise_scale"])
        of_run.append(ending.measurements["noise_scale_run"])
    squares = theory.expected_squares([0.4] * steps, batch, DIMENSIONS)[2:steps:4]  # the steps that are looked at
    weights = decay ** np.arange(len(squares))[::-1]
    averaged = weights @ squares / weights.sum()  # the noise stays, the square of the gradient is averaged
    assert theory.noise_scale(averaged) > 10 * theory.noise_scale(START)
    assert np.mean(measured) == pytest.approx(theory.noise_scale(averaged), rel=0.1)
    # of the whole training both moments are averaged, each step counting once, before the ratio is taken
    assert np.mean(of_run) == pytest.approx(theory.noise_scale(squares.mean(0)), rel=0.05)


def test_sharpness_is_that_of_the_closed_form() -> None:
    told, ending = run(batch__micro=256, budget__steps=40, optimizer__lr=0.5, diagnostics__sharpness=True)
    assert ending.measurements["sharpness_eigenvalue"] == pytest.approx(1.0, rel=1e-3)  # the largest curvature
    # the rise over the box depends on where the trial ended; it is the least where every |x| is 0, and then known
    least = 1e-6 * theory.curvatures(DIMENSIONS).sum() / 2 / (1 + told[-1].val_loss) * 100
    assert least < ending.measurements["sharpness_keskar"] < 100 * told[-1].val_loss


def test_expected_steps_are_those_of_the_recursion_and_of_trials() -> None:
    expected = theory.expected_losses([0.8] * 400, 32, DIMENSIONS)
    steps = theory.steps_until(range(401), list(expected))
    assert critical_batch.expect_steps(32, 0.8) == pytest.approx(steps, rel=1e-4)
    others = min(critical_batch.expect_steps(32, rate) for rate in (0.9, 1.07, 1.2))
    assert critical_batch.expect_fewest_steps(32) <= others
    assert math.isinf(critical_batch.expect_steps(2, 1.9))  # the noise keeps the loss above the target
    found = np.mean(critical_batch.find_steps(256, 1.7, seeds=2))
    assert found == pytest.approx(critical_batch.expect_steps(256, 1.7), rel=0.1)
    assert all(map(math.isnan, critical_batch.find_steps(512, 2.2, seeds=2)))  # it diverges
