"""From which recipe, at which batch size, the rules scale."""

from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from sweep.analysis.rules.combinations import COMBINATIONS, Combination, Recipe, scale_recipe, start_from
from sweep.analysis.rules.regrets import NOT_TRAINED, average_losses, measure_scatter, tune
from sweep.analysis.rules.settings import TrainedRecipes, TrainedSetting
from sweep.analysis.statistics import Estimate
from sweep.config.errors import InputError


class Start(NamedTuple):
    """The recipe from which a setting's rules scale, its accuracy at the reference batch, and what it loses there
    against the best recipe."""

    setting: TrainedSetting
    recipe: Recipe
    reference: int
    accuracy: float
    regret: Estimate

    def scale(self, combination: Combination, batch: int) -> Recipe:
        """The recipe that the rules give at ``batch``."""
        return scale_recipe(combination.apply(start_from(self.setting.config, self.recipe, self.reference)), batch)


def choose_starts(
    trained: TrainedRecipes, reference: int | None = None
) -> tuple[tuple[Combination, ...], tuple[Start, ...]]:
    """The combinations of rules to look at, and the start of each setting with trainings at the reference batch.

    Raises:
        InputError: no setting has any.
    """
    chosen = reference or _choose_reference(trained.settings)
    own = set().union(*(setting.combinations for setting in trained.settings))
    combinations = (*COMBINATIONS, *sorted(own.difference(COMBINATIONS)))
    with_reference = [setting for setting in trained.settings if chosen in setting.accuracies]
    return combinations, tuple(
        _choose_start(setting, chosen, combinations) for setting in with_reference or trained.settings
    )


def _choose_reference(settings: Sequence[TrainedSetting]) -> int:
    """The reference batch of most trainings with a rule; without such the middle one of the batches on record."""
    counts = sum((Counter(setting.references) for setting in settings), Counter[int]())
    if counts:
        return max(sorted(counts), key=lambda batch: counts[batch])
    batches = sorted({batch for setting in settings for batch in setting.accuracies})
    return batches[(len(batches) - 1) // 2]


def _choose_start(setting: TrainedSetting, reference: int, combinations: Sequence[Combination]) -> Start:
    """The most accurate recipe at the reference batch of those from which at least half as many scaled recipes were
    trained as from any.

    Raises:
        InputError: the setting has no training at that batch.
    """
    recipes = setting.accuracies.get(reference, {})
    if not recipes:
        batches = ", ".join(f"{batch:,}" for batch in sorted(setting.accuracies))
        raise InputError(
            f"sweep rules: {setting.name} has no training at the reference batch {reference:,}; it has trainings at "
            f"{batches}. Give one of these with --reference."
        )
    means = {recipe: fmean(by_seed.values()) for recipe, by_seed in recipes.items()}
    trained = measure_scatter(recipes)
    tuned = tune(trained)
    starts = [
        Start(setting, recipe, reference, means[recipe], average_losses([tuned], [trained.get(recipe, NOT_TRAINED)]))
        for recipe in recipes
    ]
    counts = [_count_trained(start, combinations) for start in starts]
    usable = [start for start, count in zip(starts, counts, strict=True) if 2 * count >= max(counts)]
    return max(usable, key=lambda start: start.accuracy)


def _count_trained(start: Start, combinations: Sequence[Combination]) -> int:
    others = {batch: recipes for batch, recipes in start.setting.accuracies.items() if batch != start.reference}
    return sum(
        start.scale(combination, batch) in recipes for combination in combinations for batch, recipes in others.items()
    )
