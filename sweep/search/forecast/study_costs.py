"""What the total of a study is drawn from, and the sum of the trials that a search chooses from a sample."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class StudyCosts:
    """What is known before a study: the seconds of each configuration of a sample as a search trial and as a confirming
    one, both of shape ``[sample]``, and how many trials of each kind there will be."""

    search_seconds: Floats
    confirm_seconds: Floats
    num_trials: int
    least_confirm: int
    most_confirm: int
    is_exact: bool  # the sample is the very list of search trials
    share_guessed: float  # of the sample, whose seconds are those of another kind or a far size
    confirm_share: float = 0.0  # of the seconds of the search, for the confirming trials
    confirm_left_seconds: float = 0.0  # of that share of the search trials on record; negative where more was used
    num_objectives: int = 3
    sampler: str = ""
    slots: int = 1
    limit_seconds: float = np.inf
    search_limit_seconds: float = np.inf  # of the search alone
    is_pruned: bool = False
    favors_speed: bool = False  # speed is an objective
    is_cap: bool = False  # the seconds are those of trainings that may reach their target sooner


def draw_sums(seconds: Floats, counts: npt.NDArray[np.int64], leans: Floats, rng: np.random.Generator) -> Floats:
    """Sums of the seconds of ``counts`` trials whose configurations were chosen from a sample; ``seconds`` of each
    configuration of the sample, shape ``[sample]``, all else of shape ``[draws]``.

    Slow ones are preferred to the degree t of ``leans``: the configuration at rank u in [0, 1] of slowness has the
    weight exp(t u), so that at t = -2 more than half of the trials are of the fastest third.
    """
    if len(seconds) == 0:
        return np.zeros(len(counts))
    ordered = np.sort(seconds)
    ranks = np.linspace(0.0, 1.0, len(ordered)) if len(ordered) > 1 else np.zeros(1)
    weights = np.exp(leans[:, None] * ranks)
    weights /= weights.sum(axis=1, keepdims=True)
    mean = weights @ ordered
    variance = np.maximum(weights @ ordered**2 - mean**2, 0.0)
    sums = counts * mean + np.sqrt(counts * variance) * rng.normal(size=len(counts))
    clipped: Floats = np.maximum(sums, counts * ordered[0])
    return clipped
