"""A ranking of scaling rules in words and as rows of a table."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from reports.labels import format_value
from sweep.config.units import format_count

if TYPE_CHECKING:
    from sweep.analysis.rules.combinations import Combination
    from sweep.analysis.rules.ranking import RankedRule, Ranking

_WORDS = {"none": "as it is", "half_life": "half-life", "label_smoothing": "label smoothing", "lr": "learning rate"}


def describe_starts(ranking: "Ranking") -> Iterator[str]:
    """From which recipes the rules scale, and what was trained."""
    trainings, places = format_count(ranking.num_trainings, "training"), format_count(len(ranking.places), "place")
    yield (
        f"{trainings}; the rules scale from an effective batch size of {ranking.reference:,} and are judged at "
        f"{places}: {'; '.join(_list_places(ranking))}"
    )
    for start in ranking.starts:
        recipe = start.recipe
        betas = "" if recipe.beta2 is None else f", betas {recipe.beta1:g} and {recipe.beta2:g}"
        yield (
            f"{start.setting.name} at {ranking.reference:,}: learning rate {recipe.lr:g}, weight decay "
            f"{recipe.weight_decay:g}{betas}: {format_value('fraction', start.accuracy)}, "
            f"{_points(start.regret.value)} less than tuning there"
        )


def _list_places(ranking: "Ranking") -> Iterator[str]:
    for start in ranking.starts:
        batches = [f"{place.batch:,}" for place in ranking.places if place.setting == start.setting.name]
        yield f"{start.setting.name} {', '.join(batches)}"


def name_columns(ranking: "Ranking") -> tuple[str, ...]:
    """The heads of the columns of :func:`describe_rows`."""
    places = (f"{place.setting} {place.batch:,}" for place in ranking.places)
    return ("", "learning rate", "weight decay", "betas", "others", "regret (95 %)", "", *places)


def describe_rows(ranking: "Ranking", rules: Sequence["RankedRule"]) -> Iterator[tuple[str, ...]]:
    """A row for each combination, with its regret in points of accuracy, overall and at each place. Combinations with
    the same recipes follow one another with the same rank."""
    for rule in rules:
        rank = str(ranking.rules.index(rule) + 1)
        regrets = tuple(_points(regret, "") for regret in rule.regrets)
        interval = f"{_points(rule.regret, '')} ({_points(rule.low, '')} to {_points(rule.high, '')})"
        for combination in rule.combinations:
            yield (rank, *_describe_rules(combination), interval, rule.standing, *regrets)


def _describe_rules(combination: "Combination") -> tuple[str, str, str, str]:
    lr, decay, betas = (_name(rule) for rule in (combination.lr, combination.weight_decay, combination.betas))
    others = {"dropout": combination.dropout, "label_smoothing": combination.label_smoothing, "ema": combination.ema}
    rest = ", ".join(f"{_WORDS.get(key, key)} {_name(rule)}" for key, rule in others.items() if rule != "none")
    return lr, decay, betas, rest


def _name(rule: str) -> str:
    return _WORDS.get(rule, rule)


def _points(value: float, unit: str = " points") -> str:
    return f"{100 * value:.2f}{unit}"


def summarize(ranking: "Ranking") -> Iterator[str]:
    """What the ranking decides, what it does not, and what would."""
    level = [rule for rule in ranking.rules if rule.standing == "not told apart"]
    worse = sum(len(rule.combinations) for rule in ranking.rules if rule.standing == "worse")
    total = sum(len(rule.combinations) for rule in ranking.rules)
    best = ranking.rules[0].combinations[0]
    lr, decay, betas, rest = _describe_rules(best)
    yield (
        f"Least regret: learning rate {lr}, weight decay {decay}, betas {betas}{', ' + rest if rest else ''}. "
        f"{worse} of {total} combinations are worse (95 %, corrected for all pairs); "
        f"{sum(len(rule.combinations) for rule in level)} are not told apart from it."
    )
    if ranking.num_needed:
        yield (
            f"About {ranking.num_needed:,} further trainings tell these apart where they lose "
            f"{_points(ranking.tolerance)}, with a power of 0.8."
        )
    if ranking.untrained:
        yield (
            f"{format_count(len(ranking.untrained), 'combination')} without two seeds at every place: not ranked. "
            "`sweep rules STUDY --plan` writes the study that trains them."
        )
    yield from ranking.notes
