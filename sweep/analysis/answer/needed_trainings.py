"""How many further trainings would settle a statement."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.comparable_trials import ACCURACY
from sweep.config.units import format_count

_MOST = 1000


@dataclass(frozen=True)
class Needed:
    """``trainings`` with fresh seeds of the named configuration and of its closest rival together, a rough number; None
    where no number of at most a thousand is enough, and then ``by_images`` where the reason is that the validation set
    is too small."""

    trainings: int | None
    by_images: bool = False

    def describe(self) -> str:
        """As a clause."""
        if self.trainings is not None:
            return f"about {format_count(self.trainings, 'more training')} would settle it"
        if self.by_images:
            return (
                "no number of seeds would settle it on these validation images; more images (data.validation_share) or "
                "a wider answer.tolerance.accuracy would"
            )
        return f"more than {_MOST:,} trainings would be required"


def estimate_needed(candidates: Candidates, place: int, rival: int, probability: float) -> Needed:
    """What would raise ``probability``, that of the candidate at ``place`` against the one at ``rival``, to the study's
    confidence.

    As if the difference were normal: with z(p) standard deviations between it and the limit, its variance must shrink
    by (z(p) / z(confidence))^2. Only the seeds' part of the variance shrinks with the number of seeds.
    """
    confidence = candidates.rules.confidence
    if probability >= confidence:
        return Needed(0)
    if probability <= 0.5:
        return Needed(None)
    posterior, rows = candidates.records.posterior(ACCURACY), candidates.rows
    error, _ = posterior.compare(int(rows[place]), rows[[rival]])
    of_seeds = posterior.spread.sd**2 * float(np.sum(posterior.errors[rows[[place, rival]]] ** 2))
    share_of_images = 1.0 - min(of_seeds / max(float(error[0]) ** 2, 1e-300), 1.0)
    shrunk = float(ndtri(probability) / ndtri(confidence)) ** 2
    if shrunk <= share_of_images:
        return Needed(None, by_images=True)
    factor = (1.0 - share_of_images) / (shrunk - share_of_images)
    num_seeds = int(candidates.num_seeds[place] + max(candidates.num_seeds[rival], 1))
    more = math.ceil(num_seeds * (factor - 1.0))
    return Needed(more) if more <= _MOST else Needed(None)
