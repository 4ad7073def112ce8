"""Whether a search may end before its last trial, because nothing that it could still find is expected to matter."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import final

import numpy as np

from sweep.analysis.answer.answer import Limits
from sweep.analysis.answer.candidates import Candidates, select_candidates
from sweep.analysis.answer.tuned_batches import draw_batches, list_models
from sweep.analysis.answer.use_cases import BATCH_SIZE, USE_TABLE
from sweep.analysis.comparable_trials import select_comparable
from sweep.config.study import FEWEST_SEEDS, StudySpec
from sweep.records.frames.study_frames import Frames
from sweep.records.trial_record import TrialRecord
from sweep.search.seed_allocation.seed_worth import list_decisions

_LEAST_SHARE = 0.5  # of the planned search trials
_STEPS = 10  # between them and all how often it is looked at
_LEAST_GAIN = 0.25  # of the tolerance of accuracy: what one more trial must be expected to gain


@final
class SearchEnd:
    """Decides it from the records, so that a resumed study decides the same. ``reason`` tells why the search of a study
    has ended early; empty while it has not."""

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._looked_at: tuple[int, int] | None = None
        self.reason = ""

    def is_due(self, records: Sequence[TrialRecord]) -> bool:
        """Whether it is to be decided anew (:meth:`decide`): with each confirming trial, and with each tenth of the
        search from its half on, because reading the frames after each trial would take time from short ones."""
        phases = Counter(record.phase for record in records if record.outcome)
        step = max(self._spec.trials // _STEPS, 1)
        state = (phases["search"] // step, phases["confirm"])
        if phases["search"] < _LEAST_SHARE * self._spec.trials or state == self._looked_at:
            return False
        self._looked_at = state
        return True

    def decide(self, frames: Frames, expected_gain: float) -> None:
        """Sets :attr:`reason`; ``expected_gain`` is that of the sampler (:meth:`Sampler.estimate_gain`)."""
        self.reason = ""
        if expected_gain > _LEAST_GAIN * self._spec.answer.tolerance.accuracy:
            return
        candidates = select_candidates(select_comparable(frames), Limits())
        if candidates is not None and _is_settled(candidates):
            self.reason = (
                "every statement about the configurations that were tried is settled, and one more trial is expected "
                f"to raise a tuned accuracy by at most {100 * max(expected_gain, 0.0):.2f} points"
            )


def _is_settled(candidates: Candidates) -> bool:
    # as if all had enough fresh seeds, which the confirming sees to
    enough = replace(candidates, num_seeds=np.full(len(candidates.rows), FEWEST_SEEDS))
    batches = draw_batches(enough, list_models(enough)[0])
    return not list_decisions(enough, (BATCH_SIZE, *USE_TABLE.values()), batches)
