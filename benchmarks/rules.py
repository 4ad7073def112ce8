"""``python -m benchmarks.rules``: which scaling rules keep a recipe good at other batch sizes, by recorded trainings.

60 combinations of rules for the learning rate, the weight decay and the betas start from the best recipe at a reference
batch. Each gives a recipe at every other batch on record, and every training with that recipe counts, also where it was
trained without a rule. The regret of a combination is what it loses against the best recipe trained at the same batch,
in pairs of equal seed; the ranking is by its mean. The records are those of ``digits_rates`` and ``digits_rules_*``.
"""

import itertools
import json
import math
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.optimize import brentq
from scipy.special import digamma, polygamma

from sweep.analysis.comparable import find_common_data
from sweep.analysis.statistics import (
    NOTHING,
    SIGNIFICANT,
    Estimate,
    Region,
    Values,
    assess_region,
    confidence_interval,
    read_text,
)
from sweep.config.errors import InputError
from sweep.config.scaling import RULE_POWERS, scale_adam_constants, scale_lr, scale_weight_decay
from sweep.config.tables import OPTIMIZERS
from sweep.config.trial import TrialConfig
from sweep.records.frames import Frames
from sweep.records.loading import load_frames, records_of_frame

_TABLES = Path(__file__).resolve().parent / "tables"
RECORDS = tuple(_TABLES / f"digits_{name}" for name in ("rates", "rules_resnet8", "rules_vit_micro"))
REFERENCE = 128


class Recipe(NamedTuple):
    """What a training at one batch size is done with, after all rules; None where the optimizer has no such value."""

    lr: float
    weight_decay: float
    beta1: float
    beta2: float | None
    eps: float | None


class Combination(NamedTuple):
    """A rule for each value, in the words of the section ``rules``; "power 0.25" is the number 0.25 there. Each leaves
    its value as it is at the reference batch."""

    lr: str = "none"
    weight_decay: str = "none"
    betas: str = "none"

    def apply(self, config: TrialConfig) -> TrialConfig:
        rules = {
            name: float(rule.removeprefix("power ")) if rule.startswith("power ") else rule
            for name, rule in self._asdict().items()
        }
        return config.model_copy(update={"rules": config.rules.model_copy(update=rules)})


_NAMED_POWERS = {power: rule for rule, power in RULE_POWERS.items()}
COMBINATIONS = tuple(
    Combination(_NAMED_POWERS.get(power, f"power {power:g}"), decay, betas)
    for power, decay, betas in itertools.product(
        (0.0, 0.25, 0.5, 0.75, 1.0), ("none", "sqrt", "linear", "timescale"), ("none", "sqrt", "half_life")
    )
)


def scale_recipe(config: TrialConfig, batch: int) -> Recipe:
    """The recipe of ``config`` at the effective batch size ``batch``, to 6 digits: equal recipes are equal objects."""
    section, rules = config.optimizer, config.rules
    adam = scale_adam_constants(section, rules, batch)
    own = (section.momentum, section.beta2, section.eps)
    constants = (adam.beta1, adam.beta2, adam.eps) if OPTIMIZERS[section.name].has_betas else own
    values = (scale_lr(section, rules, batch), scale_weight_decay(section, rules, batch), *constants)
    return Recipe._make(None if value is None else float(f"{value:.6g}") for value in values)


def start_from(config: TrialConfig, recipe: Recipe, reference: int) -> TrialConfig:
    """``config`` with ``recipe`` at the batch ``reference``, from which rules scale it, and no rule yet."""
    names = ("lr", "weight_decay", "momentum", "beta2", "eps")
    optimizer = config.optimizer.model_copy(update=dict(zip(names, recipe, strict=True)))
    rules = config.rules.model_copy(update={"reference_batch": reference})
    return Combination().apply(config.model_copy(update={"optimizer": optimizer, "rules": rules}))


@dataclass(frozen=True)
class TrainedSetting:
    """Trainings of one model that differ in batch, recipe and seed alone. ``accuracies`` are by effective batch size,
    recipe and seed."""

    config: TrialConfig
    accuracies: Mapping[int, Mapping[Recipe, Mapping[int, float]]]

    @property
    def num_trainings(self) -> int:
        return sum(len(seeds) for recipes in self.accuracies.values() for seeds in recipes.values())


def collect_settings(studies: Sequence[Frames]) -> tuple[TrainedSetting, ...]:
    """The trainings of all ``studies`` by model. One that diverged counts with the accuracy of chance: a rule that
    diverges is a bad rule, not one that was not tried."""
    data = next((each for frames in studies if (each := find_common_data(frames))), None)
    chance = 1 / len(data.classes) if data and data.classes else 0.0
    trials = pd.concat([frames.trials for frames in studies], ignore_index=True)
    by_model: dict[str, list[tuple[TrialConfig, float]]] = defaultdict(list)
    for record in records_of_frame(trials[np.isin(read_text(trials, "outcome"), ["complete", "diverged"])]):
        accuracy = chance if record.outcome == "diverged" else float(record.measurements["val_accuracy"])
        by_model[record.config.model.name].append((record.config, accuracy))
    return tuple(map(build_setting, by_model.values()))


def build_setting(rows: Sequence[tuple[TrialConfig, float]]) -> TrainedSetting:
    """The setting of the configurations in ``rows``, each with its accuracy; of equal recipes and seeds their mean."""
    found: dict[int, dict[Recipe, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    for config, accuracy in rows:
        found[config.global_batch_size][scale_recipe(config, config.global_batch_size)][config.seed].append(accuracy)
    accuracies = {
        batch: {recipe: {seed: fmean(each) for seed, each in seeds.items()} for recipe, seeds in recipes.items()}
        for batch, recipes in found.items()
    }
    return TrainedSetting(rows[0][0], accuracies)


class Trained(NamedTuple):
    """The accuracies of a choice at one batch by seed, and the variance of a single one with its degrees of freedom."""

    by_seed: Mapping[int, float]
    variance: float = 0.0
    degrees: float = 0.0


def measure_scatter(recipes: Mapping[Recipe, Mapping[int, float]]) -> dict[Recipe, Trained]:
    """The recipes of one batch that were trained with two seeds or more, with their variances over seeds.

    What a seed does to all recipes alike, here the median over them, cancels in every comparison and does not count.
    The variance over few seeds is drawn toward the other recipes', see :func:`moderate_variances`.
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


def moderate_variances(variances: Values, degrees: Values) -> tuple[Values, Values]:
    """Each of the ``variances`` drawn to a common one, and the degrees of freedom that it then has; both, and the
    ``degrees`` of the variances as they are, of shape ``[n]``.

    Smyth 2004 (Stat. Appl. Genet. Mol. Biol. 3, article 3), sections 3 and 6.2: the variances are taken to scatter
    about the common one by a scaled inverse chi-squared distribution, whose degrees follow from the scatter of their
    logarithms. Fewer than 3 variances, or none above 0, stay as they are.
    """
    positive = variances[variances > 0]
    if len(variances) < 3 or not len(positive):
        return variances, degrees
    # equal values by chance have a variance of 0
    floored = np.maximum(variances, 1e-5 * np.median(positive))
    half = degrees / 2
    logs = np.log(floored) - digamma(half) + np.log(half)
    excess = float(np.var(logs, ddof=1) - np.mean(polygamma(1, half)))
    # where the variances differ no more than by chance, they are taken to be equal
    prior = 1000.0
    if excess > 0:
        prior = min(2 * brentq(lambda x: float(polygamma(1, x)) - excess, 1e-9, 1e9, xtol=1e-10), prior)
    common = np.exp(np.mean(logs) + digamma(prior / 2) - np.log(prior / 2))
    return (prior * common + degrees * floored) / (prior + degrees), degrees + prior


def tune(trained: Mapping[Recipe, Trained]) -> Trained:
    """The best recipe at one batch, by seed. It is chosen by its mean over the other seeds, so that a seed by which it
    was chosen does not flatter it. The variance is the mean over the chosen recipes."""
    chosen: dict[int, Trained] = {}
    for seed in sorted(set().union(*(each.by_seed for each in trained.values()))):
        among = [each for each in trained.values() if seed in each.by_seed]
        chosen[seed] = max(
            among, key=lambda each: fmean(value for other, value in each.by_seed.items() if other != seed)
        )
    if not chosen:
        return Trained({})
    variances = [each.variance for each in chosen.values()]
    accuracies = {seed: each.by_seed[seed] for seed, each in chosen.items()}
    return Trained(accuracies, float(np.mean(variances)), min(each.degrees for each in chosen.values()))


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


class Start(NamedTuple):
    """The recipe from which the rules of a setting scale."""

    setting: TrainedSetting
    recipe: Recipe
    reference: int

    def scale(self, combination: Combination, batch: int) -> Recipe:
        return scale_recipe(combination.apply(start_from(self.setting.config, self.recipe, self.reference)), batch)


class Place(NamedTuple):
    """One effective batch size of a setting, at which the rules are compared, and what was trained there."""

    start: Start
    batch: int
    trained: Mapping[Recipe, Trained]


class RankedRule(NamedTuple):
    """Rules that give the same recipes at every place. ``regret`` is the accuracy that they lose against tuning, mean
    over the places, with its 95 % interval; ``regrets`` are those of each place; ``standing`` is "best", "not told
    apart" or "worse" than the best."""

    combinations: tuple[Combination, ...]
    regret: float
    low: float
    high: float
    regrets: tuple[float, ...]
    standing: str


class Ranking(NamedTuple):
    """``rules`` from the least regret to the most; rules without two seeds at every place are ``untrained``."""

    starts: tuple[Start, ...]
    places: tuple[Place, ...]
    rules: tuple[RankedRule, ...]
    untrained: tuple[Combination, ...]


def rank_rules(settings: Sequence[TrainedSetting], reference: int = REFERENCE) -> Ranking:
    starts = tuple(_choose_start(each, reference) for each in settings if reference in each.accuracies)
    if not starts:
        raise InputError(f"no training has the reference batch {reference:,}.")
    places = _choose_places(starts)
    tuned = [tune(each.trained) for each in places]
    alike: dict[tuple[Recipe, ...], list[Combination]] = defaultdict(list)
    for combination in COMBINATIONS:
        alike[tuple(each.start.scale(combination, each.batch) for each in places)].append(combination)
    groups: list[tuple[Estimate, list[Trained], list[Combination]]] = []
    untrained: list[Combination] = []
    for recipes, members in alike.items():
        found = [each.trained.get(recipe, Trained({})) for each, recipe in zip(places, recipes, strict=True)]
        regret = average_losses(tuned, found)
        if regret.degrees > 0:
            groups.append((regret, found, members))
        else:
            untrained += members
    if not groups:
        raise InputError(f"away from the reference batch {reference:,} no rule was trained with two seeds.")
    groups.sort(key=lambda group: group[0].value)
    rules: list[RankedRule] = []
    num_pairs = len(groups) * (len(groups) - 1)  # of Bonferroni's correction: the first is the best by chance too
    for regret, found, members in groups:
        verdict, p = assess_region(average_losses(groups[0][1], found), Region(-math.inf, 0.0))
        is_worse = verdict == "contradicted" and num_pairs * p <= SIGNIFICANT
        standing = "worse" if is_worse else "not told apart" if rules else "best"
        regrets = tuple(average_losses([best], [own]).value for best, own in zip(tuned, found, strict=True))
        rules.append(RankedRule(tuple(members), *confidence_interval(regret), regrets, standing))
    return Ranking(starts, tuple(places), tuple(rules), tuple(untrained))


def _choose_start(setting: TrainedSetting, reference: int) -> Start:
    # the most accurate recipe of those from which at least half as many scaled recipes were trained as from any
    recipes = setting.accuracies[reference]
    counts = {}
    for start in (Start(setting, recipe, reference) for recipe in recipes):
        others = ((batch, found) for batch, found in setting.accuracies.items() if batch != reference)
        counts[start.recipe] = sum(
            start.scale(each, batch) in found for batch, found in others for each in COMBINATIONS
        )
    usable = [recipe for recipe, count in counts.items() if 2 * count >= max(counts.values())]
    return Start(setting, max(usable, key=lambda recipe: fmean(recipes[recipe].values())), reference)


def _choose_places(starts: Sequence[Start]) -> list[Place]:
    # those at which at least half as many of the rules were trained as at any, each with two seeds
    found: list[tuple[int, Place]] = []
    for start in starts:
        for batch in sorted(start.setting.accuracies.keys() - {start.reference}):
            trained = measure_scatter(start.setting.accuracies[batch])
            count = sum(start.scale(each, batch) in trained for each in COMBINATIONS)
            found.append((count, Place(start, batch, trained)))
    most = max((count for count, _ in found), default=0)
    return [place for count, place in found if count and 2 * count >= most]


def main() -> int:
    """Prints the ranking as JSON; accuracies in points."""
    ranking = rank_rules(collect_settings([load_frames(folder) for folder in RECORDS]))
    rules = [
        {
            "combinations": [each._asdict() for each in rule.combinations],
            "regret": [round(100 * value, 2) for value in (rule.regret, rule.low, rule.high)],
            "regrets": [round(100 * value, 2) for value in rule.regrets],
            "standing": rule.standing,
        }
        for rule in ranking.rules
    ]
    starts = {start.setting.config.model.name: start.recipe.lr for start in ranking.starts}
    places = [f"{place.start.setting.config.model.name} {place.batch}" for place in ranking.places]
    print(json.dumps({"starts": starts, "places": places, "rules": rules}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
