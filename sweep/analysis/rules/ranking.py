"""The rules in the order of what they lose against tuning at each batch, and how many trainings decide the order."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from sweep.analysis.rules.combinations import Combination, Recipe
from sweep.analysis.rules.regrets import NOT_TRAINED, Trained, average_losses, measure_scatter, tune
from sweep.analysis.rules.settings import TrainedRecipes
from sweep.analysis.rules.starts import Start, choose_starts
from sweep.analysis.statistics import (
    POWER,
    SIGNIFICANT,
    Estimate,
    Region,
    assess_region,
    confidence_interval,
    count_repetitions,
)
from sweep.config.errors import InputError

Standing = Literal["best", "not told apart", "worse"]
TOLERANCE = 0.005  # of accuracy


class Place(NamedTuple):
    """An effective batch size of a setting, other than the reference batch."""

    setting: str
    batch: int


@dataclass(frozen=True, kw_only=True)
class RankedRule:
    """Rules that give the same recipes at every place. ``regret`` is the accuracy that they lose against tuning, mean
    over the places, with its 95 % interval; ``regrets`` are those of each place. ``loss`` is what they lose against the
    best rules, ``p`` that of the test that it is more than 0, corrected for all pairs of rules (Bonferroni)."""

    combinations: tuple[Combination, ...]
    regret: float
    low: float
    high: float
    n: int
    regrets: tuple[float, ...]
    loss: float
    p: float
    standing: Standing


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """``rules`` from the least regret to the most; ``untrained`` those of which a recipe was not trained with two seeds
    at some place; ``num_needed`` the further trainings that tell the best rules from those which lose ``tolerance``."""

    reference: int
    starts: tuple[Start, ...]
    places: tuple[Place, ...]
    rules: tuple[RankedRule, ...]
    untrained: tuple[Combination, ...]
    tolerance: float
    num_trainings: int
    num_needed: int
    notes: tuple[str, ...]


class _Group(NamedTuple):
    combinations: tuple[Combination, ...]
    by_place: list[Trained]
    regret: Estimate


class _PlaceTrainings(NamedTuple):
    # what was trained at a place, the tuned run there, and from where the rules scale
    place: Place
    start: Start
    trained: Mapping[Recipe, Trained]
    tuned: Trained


def rank_rules(trained: TrainedRecipes, reference: int | None = None, tolerance: float = TOLERANCE) -> Ranking:
    """Ranks all :data:`sweep.analysis.rules.combinations.COMBINATIONS`, and what else the trainings have for rules, by
    their mean regret.

    Whatever was trained counts for every rule that gives the same recipe, also where it was trained without a rule. The
    tuned accuracy at a place is that of the best of all recipes trained there.

    Raises:
        InputError: there is no training at the reference batch, or none of a scaled recipe at another.
    """
    combinations, starts = choose_starts(trained, reference)
    chosen = starts[0].reference
    places = _choose_places(starts, combinations)
    groups, untrained = _collect_groups(places, combinations)
    if not groups:
        raise InputError(
            f"sweep rules: no rule can be ranked: away from the reference batch {chosen:,} no rule was trained with "
            "two seeds at each batch size. `sweep rules STUDY --plan` writes the study that does."
        )
    return Ranking(
        reference=chosen,
        starts=starts,
        places=tuple(each.place for each in places),
        rules=_order(groups, [each.tuned for each in places]),
        untrained=tuple(untrained),
        tolerance=tolerance,
        num_trainings=sum(start.setting.num_trainings for start in starts),
        num_needed=_count_needed(groups, tolerance),
        notes=(*trained.notes, *_note_left_out(trained, starts, [each.place for each in places])),
    )


def _note_left_out(trained: TrainedRecipes, starts: Sequence[Start], places: Sequence[Place]) -> Iterator[str]:
    reference, used = starts[0].reference, {start.setting.name for start in starts}
    if others := [setting.name for setting in trained.settings if setting.name not in used]:
        yield f"Left out, without a training at the reference batch {reference:,}: {'; '.join(others)}."
    known = [Place(start.setting.name, batch) for start in starts for batch in sorted(start.setting.accuracies)]
    few = [f"{place.setting} {place.batch:,}" for place in known if place.batch != reference and place not in places]
    if few:
        yield f"Left out, because few or no rules were trained there with two seeds: {'; '.join(few)}."


def _choose_places(starts: Sequence[Start], combinations: Sequence[Combination]) -> list[_PlaceTrainings]:
    # those at which at least half as many of the rules were trained as at any, each with two seeds
    found: list[tuple[int, _PlaceTrainings]] = []
    for start in starts:
        for batch in sorted(start.setting.accuracies.keys() - {start.reference}):
            trained = measure_scatter(start.setting.accuracies[batch])
            count = sum(start.scale(each, batch) in trained for each in combinations)
            found.append((count, _PlaceTrainings(Place(start.setting.name, batch), start, trained, tune(trained))))
    most = max((count for count, _ in found), default=0)
    return [place for count, place in found if count and 2 * count >= most]


def _collect_groups(
    places: Sequence[_PlaceTrainings], combinations: Sequence[Combination]
) -> tuple[list[_Group], list[Combination]]:
    alike: dict[tuple[Recipe, ...], list[Combination]] = defaultdict(list)
    for combination in combinations:
        alike[tuple(each.start.scale(combination, each.place.batch) for each in places)].append(combination)
    groups, untrained, tuned = [], [], [each.tuned for each in places]
    for recipes, members in alike.items():
        by_place = [each.trained.get(recipe, NOT_TRAINED) for each, recipe in zip(places, recipes, strict=True)]
        regret = average_losses(tuned, by_place)
        if regret.degrees > 0:
            groups.append(_Group(tuple(members), by_place, regret))
        else:
            untrained += members
    return sorted(groups, key=lambda group: group.regret.value), untrained


def _order(groups: Sequence[_Group], tuned: Sequence[Trained]) -> tuple[RankedRule, ...]:
    losses = [average_losses(groups[0].by_place, group.by_place) for group in groups]
    p_values = [min(1.0, _count_pairs(groups) * _test_loss(loss)) for loss in losses]
    standings: list[Standing] = ["worse" if p <= SIGNIFICANT else "not told apart" for p in p_values]
    standings[0] = "best"
    rows = zip(groups, losses, p_values, standings, strict=True)
    return tuple(_rank(group, loss, p, standing, tuned) for group, loss, p, standing in rows)


def _count_pairs(groups: Sequence[_Group]) -> int:
    # the first is the best by chance too, so that the test is one of all pairs, in the direction that they have
    return len(groups) * (len(groups) - 1)


def _test_loss(loss: Estimate) -> float:
    verdict, p = assess_region(loss, Region(-math.inf, 0.0))
    return p if verdict == "contradicted" else 1.0


def _rank(group: _Group, loss: Estimate, p: float, standing: Standing, tuned: Sequence[Trained]) -> RankedRule:
    value, low, high = confidence_interval(group.regret)
    return RankedRule(
        combinations=group.combinations,
        regret=value,
        low=low,
        high=high,
        n=group.regret.n,
        regrets=tuple(average_losses([best], [own]).value for best, own in zip(tuned, group.by_place, strict=True)),
        loss=loss.value,
        p=p,
        standing=standing,
    )


def _count_needed(groups: Sequence[_Group], tolerance: float) -> int:
    # each rule that is not told apart, and the best one, gets as many seeds at every place as the test requires
    num_places, num_pairs, needed = len(groups[0].by_place), _count_pairs(groups), []
    for group in groups[1:]:
        loss = average_losses(groups[0].by_place, group.by_place)
        if num_pairs * _test_loss(loss) <= SIGNIFICANT or not loss.error:
            continue
        spread, alpha = loss.error * math.sqrt(loss.n), SIGNIFICANT / num_pairs
        count = count_repetitions([(tolerance, POWER)], spread, num_places, alpha, 2 * num_places)
        needed.append(max(0, math.ceil((count - loss.n) / num_places) * num_places))
    return sum(needed) + max(needed, default=0)
