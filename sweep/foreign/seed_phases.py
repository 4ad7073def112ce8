"""Which runs of another program count as the search and which as fresh seeds, and which runs cannot be told apart."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd

from sweep.config.errors import InputError
from sweep.config.units import format_count

Groups = npt.NDArray[np.int64]
_MAX_NAMED = 5


def group_runs(settings: Mapping[str, Sequence[object]], num_runs: int) -> Groups:
    """The same number for runs of equal settings; shape ``[num_runs]``."""
    varying = {name: cells for name, cells in settings.items() if len(set(map(str, cells))) > 1}
    if not varying:
        return np.zeros(num_runs, dtype=np.int64)
    # as texts, so that 1 and True are two values and NaN is one
    rows = zip(*(map(repr, cells) for cells in varying.values()), strict=True)
    return np.asarray(pd.factorize(pd.Series(list(rows), dtype=object))[0], dtype=np.int64)


def refuse_equal_runs(groups: Groups, seeds: Sequence[int | None] | None, numbers: Sequence[int], where: str) -> None:
    """Raises ``InputError`` where two runs have equal settings and equal seeds, or no seed that tells them apart."""
    seen: dict[tuple[int, int | None], int] = {}
    for place, group in enumerate(groups.tolist()):
        key = (group, None if seeds is None else seeds[place])
        if key in seen:
            raise InputError(_describe_equal(where, numbers[seen[key]], numbers[place], seeds is not None))
        seen[key] = place


def _describe_equal(where: str, first: int, second: int, has_seeds: bool) -> str:
    what = "settings and seed" if has_seeds else "settings, and no column is mapped as the seed"
    remedy = (
        "" if has_seeds else "map the column of the seed, or write own_seeds = true if each run had a seed of its own"
    )
    tell = "name a further column that tells them apart in settings"
    return (
        f"{where}: runs {first} and {second} have equal {what}: {f'{remedy}; or ' if remedy else ''}{tell}, or remove "
        "one of the two runs."
    )


def choose_phases(groups: Groups, seeds: Sequence[int | None] | None, search_seed: int | None) -> tuple[list[str], str]:
    """The phase of each run, and the rule as a sentence.

    Where all configurations were trained with the same seeds, none was chosen by its result, and every seed is a fresh
    one. Otherwise one run of each configuration is what it was chosen by: that of the search's seed, where it has none,
    its first; the others are fresh seeds.
    """
    if seeds is None:
        return ["search"] * len(groups), "No seeds are on record: no interval between seeds, and no fresh seeds."
    members: dict[int, list[int]] = {}
    for place, group in enumerate(groups.tolist()):
        members.setdefault(group, []).append(place)
    sets = {tuple(sorted(str(seeds[place]) for place in places)) for places in members.values()}
    if len(sets) == 1 and len(next(iter(sets))) > 1 and search_seed is None:
        text = format_count(len(next(iter(sets))), "seed")
        return ["confirm"] * len(groups), f"All configurations have the same {text}, which count as fresh ones."
    usual = search_seed if search_seed is not None else _most_frequent(seeds)
    phases = ["confirm"] * len(groups)
    for places in members.values():
        chosen = next((place for place in places if seeds[place] == usual), places[0])
        phases[chosen] = "search"
    return phases, (
        f"Of each configuration the run with seed {usual}, otherwise its first run, counts as the search, by which it "
        "was chosen; runs with other seeds count as fresh ones. Write search_seed in the map where it was another seed."
    )


def _most_frequent(seeds: Sequence[int | None]) -> int | None:
    counts = Counter(seed for seed in seeds if seed is not None)
    return min(counts, key=lambda seed: (-counts[seed], seed), default=None)
