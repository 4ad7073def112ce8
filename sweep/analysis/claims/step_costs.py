"""Claims about what a step costs: the micro batch, mixed precision, checkpointing."""

import numpy as np
import pandas as pd

from sweep.analysis.answer.commands import sweep_both
from sweep.analysis.claims.claim import Claim
from sweep.analysis.claims.curve_fitting import fit_curve
from sweep.analysis.claims.pairs import cost_pairs
from sweep.analysis.comparable_trials import ComparableTrials
from sweep.analysis.statistics.estimates import NOTHING, Estimate, Region, log_ratio, mean_estimate, slope_estimate
from sweep.analysis.statistics.frame_columns import format_count, read_numbers, read_text
from sweep.analysis.statistics.pareto import Mask, Values
from sweep.analysis.statistics.posterior import equal_cost_groups

_MICRO_KEYS = ("batch.micro", "batch.accumulation", "batch.global")


def claims(ground: ComparableTrials) -> list[Claim]:
    """Memory linear in the micro batch, larger is faster, mixed precision twice, checkpointing."""
    trials = ground.done
    half = np.isin(read_text(trials, "config.precision.dtype"), ["bf16", "fp16"])
    full = read_text(trials, "config.precision.dtype") == "fp32"
    precision = trials[half | full]
    is_half = np.asarray(half[half | full], dtype=np.bool_)
    checkpointed = np.asarray(read_text(trials, "config.precision.checkpointing") == True, dtype=np.bool_)  # noqa: E712
    return [
        memory_is_linear(ground),
        larger_is_faster(ground),
        _ratio_claim(
            precision, is_half, ("precision.dtype",), "train_seconds", name="mixed_precision_time",
            statement="Mixed precision trains 1.3 to 2 times as fast: its time is 0.5 to 0.77 of full precision's.",
            region=Region(0.5, 1 / 1.3), published="No table; 1.3 to 2 times is the usual claim.",
            settle=_other_precision(ground),
        ),
        _ratio_claim(
            precision, is_half, ("precision.dtype",), "peak_memory_bytes", name="mixed_precision_memory",
            statement="Mixed precision halves memory: 0.4 to 0.6 of full precision's.",
            region=Region(0.4, 0.6),
            published="Weights, gradients and optimizer state stay in full precision under autocast; only activations "
            "shrink.",
            settle=_other_precision(ground),
        ),
        _ratio_claim(
            trials, checkpointed, ("precision.checkpointing",), "train_seconds", name="checkpointing_time",
            statement="Activation checkpointing costs about 30 % time: 1.2 to 1.4 times.",
            region=Region(1.2, 1.4), published="Chen et al. 2016: one more forward pass, about 30 %.",
            settle=_checkpointed(ground),
        ),
        _ratio_claim(
            trials, checkpointed, ("precision.checkpointing",), "peak_memory_bytes",
            name="checkpointing_memory",
            statement="Activation checkpointing saves memory.",
            region=Region(0.0, 1.0), published="Chen et al. 2016: activations of n layers in the space of sqrt(n).",
            settle=_checkpointed(ground),
        ),
    ]  # fmt: skip


def memory_is_linear(ground: ComparableTrials) -> Claim:
    """The power p of memory = constant + slope * micro^p, fitted where one cost setting has four sizes or more."""
    trials = ground.done
    sizes, memory = read_numbers(trials, "config.batch.micro"), read_numbers(trials, "peak_memory_bytes")
    groups = equal_cost_groups(trials, _MICRO_KEYS)
    accumulates = (read_numbers(trials, "config.batch.accumulation") > 1).astype(np.int64)
    powers = []
    for name in np.unique(cells := 2 * groups + accumulates):
        fitted = _power(*_levels(sizes, memory, cells == name))
        powers += [fitted] if fitted is not None else []
    estimate = _joined(powers)
    return Claim(
        "memory_linear",
        "Memory grows linearly with the micro batch: by its power 0.9 to 1.1, beside a constant.",
        Region(0.9, 1.1),
        "exponent",
        "Activations grow with the micro batch; parameters, gradients and optimizer state do not; allocator rounding "
        "and workspaces bend the line.",
        sweep_both(ground.called, "batch.micro", "log2 = [4, 10]"),
        estimate,
        f"{len(powers)} fits over the micro batches of one setting" if powers else "",
    )


def _levels(sizes: Values, memory: Values, chosen: Mask) -> tuple[Values, Values]:
    known = chosen & np.isfinite(sizes) & np.isfinite(memory)
    levels = np.unique(sizes[known])
    return levels, np.array([np.median(memory[known & (sizes == level)]) for level in levels])


def _power(sizes: Values, memory: Values) -> Estimate | None:
    if len(sizes) < 4 or np.ptp(memory) <= 0:
        return None
    x, y = sizes / sizes.max(), memory / memory.max()

    def law(size: Values, constant: float, slope: float, power: float) -> Values:
        return constant + slope * size**power

    fitted = fit_curve(law, x, y, (y[0], 1 - y[0], 1.0), ([-1, 0, 0.1], [1, 10, 5]))
    if fitted is None:
        return None
    found, errors = fitted
    return Estimate(float(found[2]), float(errors[2]), len(x) - 3, len(x))


def _joined(estimates: list[Estimate]) -> Estimate:
    # one fit keeps its own error; several tell theirs by how they differ
    if not estimates:
        return NOTHING
    if len(estimates) == 1:
        return estimates[0]
    return mean_estimate([estimate.value for estimate in estimates])


def larger_is_faster(ground: ComparableTrials) -> Claim:
    """The throughput at the largest micro batch over that at half of it, pair by pair of equal cost otherwise."""
    trials = ground.done
    sizes, rates = read_numbers(trials, "config.batch.micro"), read_numbers(trials, "images_per_second")
    groups = equal_cost_groups(trials, _MICRO_KEYS)
    gains = []
    for name in np.unique(groups):
        levels, medians = _levels(sizes, rates, groups == name)
        if len(levels) > 1:
            doublings = np.log2(levels[-1] / levels[-2])
            gains.append(float(log_ratio(medians[-1:], medians[-2:-1])[0] / doublings))
    slope = _top_slope(sizes, rates)
    estimate = mean_estimate(gains, is_ratio=True) if len(gains) > 1 else slope
    return Claim(
        "larger_is_faster",
        "A larger micro batch is faster: the last doubling that was tried still gives 5 % throughput or more.",
        Region(1.05, np.inf),
        "ratio",
        "Throughput saturates, and epochs to a target grow: MLPerf ResNet-50 reference points 35.0 at batch 1,632, "
        "42.0 at 8,192, 56.0 at 32,768, 84.5 at 65,536.",
        sweep_both(ground.called, "batch.micro", "log2 = [4, 12]"),
        estimate,
        "throughput at the largest micro batch over that at half of it",
    )


def _top_slope(sizes: Values, rates: Values) -> Estimate:
    # trials of the two largest sizes: their difference per doubling by a t test
    known = np.isfinite(sizes) & (rates > 0)
    levels = np.unique(sizes[known])
    if len(levels) < 2:
        return NOTHING
    top = known & (sizes >= levels[-2])
    return slope_estimate(np.log2(sizes[top]), np.log(rates[top]))._replace(is_ratio=True)


def _ratio_claim(
    trials: pd.DataFrame,
    side: Mask,
    tested: tuple[str, ...],
    metric: str,
    *,
    name: str,
    statement: str,
    region: Region,
    published: str,
    settle: str,
) -> Claim:
    pairs = cost_pairs(trials, tested, side)
    values = read_numbers(trials, metric)
    ratios = log_ratio(values[pairs.first], values[pairs.second])
    estimate = mean_estimate(ratios, is_ratio=True)
    return Claim(name, statement, region, "ratio", published, settle, estimate, _pairs_text(estimate.n, tested))


def _pairs_text(n: int, tested: tuple[str, ...]) -> str:
    return f"{format_count(n, 'pair')} of equal cost but for {', '.join(tested)}" if n else ""


def _other_precision(ground: ComparableTrials) -> str:
    return sweep_both(ground.called, "precision.dtype", 'choice = ["fp32", "bf16"]')


def _checkpointed(ground: ComparableTrials) -> str:
    return sweep_both(ground.called, "precision.checkpointing", "choice = [false, true]")
