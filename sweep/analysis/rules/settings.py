"""The trainings that rules are ranked by: their accuracies by settings, effective batch size, recipe and seed."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import pandas as pd

from sweep.analysis.comparable_trials import find_common_data
from sweep.analysis.rules.combinations import Combination, Recipe, scale_recipe
from sweep.analysis.statistics.column_reading import read_numbers, read_text
from sweep.config.errors import InputError
from sweep.config.scaling import scale_epochs
from sweep.config.trial_config import Scalar, TrialConfig, flatten_config
from sweep.config.units import format_count
from sweep.records.data_summary import DataSummary
from sweep.records.frames.frames import records_of_frame
from sweep.records.frames.study_frames import Frames

# What differs between the trainings of equal settings: the batch, the seed, what is measured beside, and the recipe
# with its rules.
_FREE_SECTIONS = ("batch.", "diagnostics.", "rules.")
_FREE_KEYS = frozenset(
    f"{section}.{key}"
    for section, keys in {
        "optimizer": ("lr", "weight_decay", "momentum", "beta2", "eps"),
        "schedule": ("warmup",),
        "model": ("dropout",),
        "regularization": ("label_smoothing", "ema_decay"),
    }.items()
    for key in keys
) | {"seed"}
Accuracies = Mapping[int, Mapping[Recipe, Mapping[int, float]]]


@dataclass(frozen=True, kw_only=True)
class TrainedSetting:
    """Trainings that differ in batch, recipe and seed alone. ``accuracies`` are by effective batch size, recipe and
    seed; ``combinations`` are the rules that they were trained with; ``name`` tells them from other settings."""

    name: str
    config: TrialConfig
    accuracies: Accuracies
    combinations: frozenset[Combination]
    references: Mapping[int, int]  # how many trainings with a rule count from a reference batch

    @property
    def num_trainings(self) -> int:
        return sum(len(seeds) for recipes in self.accuracies.values() for seeds in recipes.values())


@dataclass(frozen=True, kw_only=True)
class TrainedRecipes:
    """The ``settings``, and in ``notes`` what of the records does not count."""

    settings: tuple[TrainedSetting, ...]
    notes: tuple[str, ...]


def collect_settings(studies: Sequence[Frames]) -> TrainedRecipes:
    """The trainings of a fixed length at a constant batch, of all ``studies``. One that diverged counts with the
    accuracy of chance: a rule that diverges is a bad rule, not one that was not tried.

    Raises:
        InputError: studies are known to have read different images, or nothing counts.
    """
    data = _find_data(studies)
    chance = 1 / len(data.classes) if data and data.classes else 0.0
    trials = pd.concat([frames.trials for frames in studies], ignore_index=True)
    outcomes = read_text(trials, "outcome")
    ended = trials[(outcomes == "complete") | (outcomes == "diverged")]
    is_fixed = np.isnan(read_numbers(ended, "config.budget.target_accuracy"))
    chosen = ended[is_fixed & (read_text(ended, "config.batch.schedule") == "constant")]
    groups: dict[tuple[tuple[str, Scalar], ...], list[tuple[TrialConfig, float]]] = defaultdict(list)
    for record in records_of_frame(chosen):
        accuracy = chance if record.outcome == "diverged" else record.measurements.get("val_accuracy", math.nan)
        if math.isfinite(accuracy):
            groups[fix_settings(record.config)].append((record.config, float(accuracy)))
    if not groups:
        raise InputError("sweep rules: no complete training of a fixed length at a constant batch size is on record.")
    names = _name_groups(list(groups))
    settings = tuple(build_setting(name, rows) for name, rows in zip(names, groups.values(), strict=True))
    return TrainedRecipes(settings=settings, notes=tuple(_note_rest(trials, chosen, chance)))


def _find_data(studies: Sequence[Frames]) -> DataSummary | None:
    found = [data for frames in studies if (data := find_common_data(frames))]
    for data in found:
        if data.is_other_than(found[0]):
            raise InputError(
                f"the studies read different data: {found[0].describe()} and {data.describe()}. Results on different "
                "data are never compared; name studies on the same data."
            )
    return found[0] if found else None


def fix_settings(config: TrialConfig) -> tuple[tuple[str, Scalar], ...]:
    """The keys of a configuration with their values, but for batch, recipe, rules, seed and diagnostics. The epochs are
    those that their rule gives."""
    epochs = scale_epochs(config.budget.epochs, config.rules, config.global_batch_size)
    flat = flatten_config(config) | {"budget.epochs": None if epochs is None else float(f"{epochs:.6g}")}
    return tuple(
        (key, value) for key, value in flat.items() if key not in _FREE_KEYS and not key.startswith(_FREE_SECTIONS)
    )


def _name_groups(groups: Sequence[tuple[tuple[str, Scalar], ...]]) -> Iterator[str]:
    # the model, and what else differs between the groups
    flats = [dict(group) for group in groups]
    varying = [key for key in flats[0] if len({flat[key] for flat in flats}) > 1 and key != "model.name"]
    for flat in flats:
        yield ", ".join([str(flat["model.name"]), *(f"{key} {flat[key]}" for key in varying)])


def build_setting(name: str, rows: Sequence[tuple[TrialConfig, float]]) -> TrainedSetting:
    """The setting of the configurations in ``rows``, each with its accuracy; of equal recipes and seeds their mean."""
    found: dict[int, dict[Recipe, dict[int, list[float]]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    references: dict[int, int] = defaultdict(int)
    combinations = set()
    for config, accuracy in rows:
        found[config.global_batch_size][scale_recipe(config, config.global_batch_size)][config.seed].append(accuracy)
        if (combination := Combination.of(config)) != Combination():
            combinations.add(combination)
            references[config.rules.reference_batch] += 1
    accuracies = {
        batch: {recipe: {seed: fmean(each) for seed, each in seeds.items()} for recipe, seeds in recipes.items()}
        for batch, recipes in found.items()
    }
    return TrainedSetting(
        name=name,
        config=rows[0][0],
        accuracies=accuracies,
        combinations=frozenset(combinations),
        references=dict(references),
    )


def _note_rest(trials: pd.DataFrame, chosen: pd.DataFrame, chance: float) -> Iterator[str]:
    outcomes = read_text(trials, "outcome")
    if rest := int((outcomes != "").sum()) - len(chosen):
        yield (
            f"Not counted: {format_count(rest, 'trial')}, not complete, until a target accuracy, or with a batch size "
            "that changes while it trains."
        )
    if diverged := int((read_text(chosen, "outcome") == "diverged").sum()):
        yield f"Counted with the accuracy of chance, {100 * chance:g} %: {format_count(diverged, 'diverged training')}."
    is_single = read_numbers(chosen, "num_steps") <= read_numbers(chosen, "num_epochs")
    if batches := sorted(set(read_numbers(chosen, "global_batch_size")[is_single].astype(int).tolist())):
        yield (
            f"An epoch has a single step at {', '.join(f'{batch:,}' for batch in batches)}: that step has all training "
            "images, which may be fewer than the batch size that the rules count with."
        )
