"""Claims about schedules: growing batches, decaying rates, and moving averages that follow the batch."""

import numpy as np

from sweep.analysis.claims.claim import Claim, Measurement, plan_study
from sweep.analysis.claims.design import PAIRED_ACCURACY, Design
from sweep.analysis.claims.pairs import compare_accuracies
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.analysis.statistics.estimates import Region
from sweep.analysis.statistics.pareto import Mask

_GROWTH_KEYS = ("batch.schedule", "batch.schedule_factor", "batch.schedule_milestones", "batch.schedule_lr")
_DECAY_KEYS = ("schedule.name", "schedule.milestones", "schedule.gamma", "schedule.final", "schedule.peak")
_EMA_FROM = 4  # times the reference batch


def _grows(records: ComparableTrials) -> Mask:
    return ~np.isin(read_text(records.done, "config.batch.schedule"), ["", "constant"])


def _measure_growth_for_decay(records: ComparableTrials) -> Measurement:
    # either the batch grows at a constant rate, or the rate falls at a constant batch
    decays, grows = read_text(records.done, "config.schedule.name") != "constant", _grows(records)
    rows = np.asarray(decays != grows, dtype=np.bool_)
    return compare_accuracies(records.done[rows], (*_GROWTH_KEYS, *_DECAY_KEYS), grows[rows])


def _measure_batch_warmup(records: ComparableTrials) -> Measurement:
    return compare_accuracies(records.done, _GROWTH_KEYS, _grows(records))


def _measure_linear_decay(records: ComparableTrials) -> Measurement:
    names = read_text(records.done, "config.schedule.name")
    rows = np.isin(names, ["linear", "cosine"])
    return compare_accuracies(records.done[rows], ("schedule.name",), np.isin(names[rows], ["linear"]))


def _measure_average_rule(records: ComparableTrials) -> Measurement:
    trials = records.done
    times = read_numbers(trials, "global_batch_size") / read_numbers(trials, "config.rules.reference_batch")
    has_average = np.isfinite(read_numbers(trials, "config.regularization.ema_decay"))
    large = trials[has_average & (times >= _EMA_FROM)]
    follows = np.isin(read_text(large, "config.rules.ema"), ["power"])
    return compare_accuracies(large, ("rules.ema",), follows)


CLAIMS = (
    Claim(
        name="batch_instead_of_decay", unit="fraction difference", region=Region(-0.005, 0.005), matters=0.005,
        statement="A growing batch replaces a falling learning rate: both reach the same accuracy within half a point "
        "at an equal length of training.",
        published="Smith et al. 2017 (arXiv:1711.00489), Wide ResNet-16-4 on CIFAR-10: the same learning curves "
        "against epochs in far fewer updates.",
        measure=_measure_growth_for_decay, settle=plan_study,
        varies=("batch.schedule", "schedule.name"),
        design=Design(
            base={"batch.micro": 32, "batch.schedule_milestones": "0.5, 0.75", "schedule.gamma": 0.35},
            space={"batch.schedule": ("constant", "stepwise"), "schedule.name": ("constant", "step")},
            spread=PAIRED_ACCURACY,
        ),
    ),
    Claim(
        name="batch_warmup", unit="fraction difference", region=Region(-0.005, np.inf), matters=0.005,
        statement="A batch that grows during training saves steps without a loss: its accuracy is that of the batch it "
        "began with within half a point, or more.",
        published="Merrill et al. 2025 (arXiv:2505.23971): the critical batch grows during training; slightly better "
        "loss with 43 % fewer steps.",
        measure=_measure_batch_warmup, settle=plan_study, varies=("batch.schedule",),
        design=Design(
            base={"batch.micro": 32, "batch.schedule_factor": 4.0},
            space={"batch.schedule": ("constant", "exponential")}, spread=PAIRED_ACCURACY,
        ),
    ),
    Claim(
        name="linear_decay_best", unit="fraction difference", region=Region(0.0, np.inf), matters=0.005,
        statement="A learning rate that falls linearly to zero reaches a higher accuracy than cosine.",
        published="Defazio et al. 2023 (arXiv:2310.07831): linear decay is optimal for the last iterate and matches or "
        "outperforms cosine. Bergsma et al. 2025 (arXiv:2502.15938): best when it falls to zero.",
        measure=_measure_linear_decay, settle=plan_study, varies=("schedule.name",),
        design=Design(space={"schedule.name": ("linear", "cosine")}, spread=PAIRED_ACCURACY),
    ),
    Claim(
        name="ema_follows_batch", unit="fraction difference", region=Region(0.005, np.inf), matters=0.005,
        statement="From 4 times the reference batch on, a moving average of the weights whose decay follows the batch "
        "gains half a point of accuracy or more over one that does not.",
        published="Busbridge et al. 2023 (arXiv:2307.13813): the decay is to be raised to the power of the growth of "
        "the batch; otherwise training changes with the batch.",
        measure=_measure_average_rule, settle=plan_study, varies=("rules.ema",),
        sets=("regularization.ema_decay",),
        # the decay rises to its value over a training's steps: in short ones it is the same with the rule and without
        design=Design(
            base={
                "batch.micro": 64, "rules.reference_batch": 16, "regularization.ema_decay": 0.98,
                "budget.epochs": 20,
            },
            space={"rules.ema": ("none", "power")}, spread=PAIRED_ACCURACY,
        ),
    ),
)  # fmt: skip
