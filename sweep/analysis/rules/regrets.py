"""What a choice of recipes loses against tuning at each batch, with its error over seeds."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from sweep.analysis.rules.combinations import Recipe
from sweep.analysis.rules.moderated_variances import moderate_variances
from sweep.analysis.statistics import NOTHING, Estimate

BySeed = Mapping[int, float]


class Trained(NamedTuple):
    """The accuracies of a choice at one place by seed, and the variance of a single one with its degrees of freedom."""

    by_seed: BySeed
    variance: float = 0.0
    degrees: float = 0.0


NOT_TRAINED = Trained({})


def measure_scatter(recipes: Mapping[Recipe, BySeed]) -> dict[Recipe, Trained]:
    """The recipes of one place that were trained with two seeds or more, with their variances over seeds.

    What a seed does to all recipes alike, here the median over them, cancels in every comparison and does not count.
    The variance over few seeds is drawn to those of the other recipes, see :func:`moderate_variances`.
    """
    repeated = {recipe: by_seed for recipe, by_seed in recipes.items() if len(by_seed) > 1}
    if not repeated:
        return {}
    seeds = sorted(set().union(*repeated.values()))
    table = np.array([[by_seed.get(seed, math.nan) for seed in seeds] for by_seed in repeated.values()])
    centered = table - np.nanmean(table, axis=1, keepdims=True)
    centered -= np.nanmedian(centered, axis=0, keepdims=True)
    own = np.nanvar(centered, axis=1, ddof=1)
    variances, degrees = moderate_variances(own, np.isfinite(table).sum(axis=1) - 1.0)
    rows = zip(repeated.items(), variances.tolist(), degrees.tolist(), strict=True)
    return {recipe: Trained(by_seed, variance, spare) for (recipe, by_seed), variance, spare in rows}


def tune(trained: Mapping[Recipe, Trained]) -> Trained:
    """The best recipe at one place, by seed. It is chosen by its mean over the other seeds, so that a seed by which it
    was chosen does not flatter it. The variance is the mean of those of the recipes that were chosen."""
    chosen: dict[int, Trained] = {}
    for seed in sorted(set().union(*(each.by_seed for each in trained.values()))):
        among = [each for each in trained.values() if seed in each.by_seed]
        chosen[seed] = max(among, key=lambda each: _average_others(each.by_seed, seed))
    if not chosen:
        return NOT_TRAINED
    variances = [each.variance for each in chosen.values()]
    accuracies = {seed: each.by_seed[seed] for seed, each in chosen.items()}
    return Trained(accuracies, float(np.mean(variances)), min(each.degrees for each in chosen.values()))


def _average_others(by_seed: BySeed, seed: int) -> float:
    others = [accuracy for other, accuracy in by_seed.items() if other != seed]
    return sum(others) / len(others)


def average_losses(better: Sequence[Trained], worse: Sequence[Trained]) -> Estimate:
    """The mean over places of the accuracy in ``better`` less that in ``worse``, in pairs of equal seed; both by place.

    Each place counts once. Seeds scatter differently from place to place and from recipe to recipe, so the error is
    that of Welch (1947), with the degrees of freedom of Satterthwaite (1946). No estimate without a place, or
    where a place has no pair.
    """
    losses, parts, spare = [], 0.0, 0.0
    for first, second in zip(better, worse, strict=True):
        seeds = sorted(first.by_seed.keys() & second.by_seed.keys())
        if not seeds:
            return NOTHING
        losses.append([first.by_seed[seed] - second.by_seed[seed] for seed in seeds])
        if first.by_seed == second.by_seed:
            continue  # the same recipe, whose difference is 0 for certain
        for each in (first, second):
            part = each.variance / len(seeds) / len(better) ** 2
            parts, spare = parts + part, spare + (part**2 / each.degrees if part else 0.0)
    if not losses:
        return NOTHING
    n = sum(map(len, losses))
    value = float(np.mean([np.mean(each) for each in losses]))
    return Estimate(value, math.sqrt(parts), parts**2 / spare if spare > 0 else n - len(losses), n)
