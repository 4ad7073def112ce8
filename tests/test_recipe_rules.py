"""Rules of a recipe in whole trials: they train as the values do that the rule gives, and record these."""

from dataclasses import asdict
from typing import Any

import pytest
import torch

from reports.labels import format_metric
from sweep.config.errors import InputError
from sweep.config.sections import ModelSection
from sweep.config.tables import ImageShape
from sweep.config.trial import TrialConfig, build_config
from sweep.records.messages import Ending, Evaluation, TrialTask
from sweep.training.models.build import build_model
from sweep.training.models.resnets import find_batch_norms
from sweep.training.trial import run_trial

# eight times the reference batch
TINY: dict[str, Any] = {
    "data.subset": 64, "batch.micro": 32, "rules.reference_batch": 4, "budget.epochs": 2.0, "optimizer.lr": 0.02,
}  # fmt: skip


def make_config(values: dict[str, Any]) -> TrialConfig:
    return build_config(TINY | values, "test")


def train(values: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """The evaluations without their times, and the measurements."""
    *messages, ending = run_trial(TrialTask(number=0, config=make_config(values), device="cpu"))
    assert isinstance(ending, Ending)
    assert ending.outcome == "complete", ending.error
    told = [asdict(message) for message in messages if isinstance(message, Evaluation)]
    return [each | {"train_seconds": 0.0} for each in told], dict(ending.measurements)


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
    by_rule, measured = train(written | rule)
    by_value, expected = train(written | given)
    assert by_rule == by_value
    assert by_rule != train(written)[0]
    assert measured["num_epochs"] == pytest.approx(expected["num_epochs"])


def test_a_value_above_its_cap_is_refused_with_a_rule() -> None:
    with pytest.raises(InputError, match=r"model.dropout = 0.6 is above 0.5, which rules.dropout = 'sqrt'"):
        make_config({"model.dropout": 0.6, "rules.dropout": "sqrt"})
    with pytest.raises(InputError, match=r"label_smoothing = 0.3 is above 0.2, which rules.label_smoothing"):
        make_config({"regularization.label_smoothing": 0.3, "rules.label_smoothing": "linear"})
    assert make_config({"model.dropout": 0.6}).apply_rules().model.dropout == 0.6


def test_what_a_rule_gave_is_shown_with_the_digits_that_tell_it_apart() -> None:
    assert format_metric("scaled_beta2", 0.999**0.125) == "0.999875"
    assert format_metric("scaled_weight_decay", 3e-5) == "3e-05"


def test_without_rules_nothing_changes() -> None:
    config = make_config({"model.dropout": 0.1, "schedule.warmup": "3 epochs"})
    assert config.apply_rules() == config


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


def test_the_momentum_of_running_statistics_changes_evaluations_alone() -> None:
    (slow, _), (fast, _) = train({}), train({"model.norm_momentum": 0.5})
    assert [each["train_loss"] for each in slow] == [each["train_loss"] for each in fast]
    assert slow[-1]["val_loss"] != fast[-1]["val_loss"]
