"""Searches the hyperparameters for each batch size separately, so that each is compared at its own best settings.

The combinations of the ``batch.*`` parameters are proposed in turn; each has a sampler that varies the parameters in
the study's ``retune`` and learns from the trials of that combination alone.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, final

from sweep.config.space import count_grid_points, pick_grid_point
from sweep.config.study import StudySpec, is_batch_key
from sweep.config.trial_config import replace_keys
from sweep.records.trial_record import TrialRecord
from sweep.search.samplers.base import Sampler
from sweep.search.samplers.candidate_points import make_point_key

Maker = Callable[[StudySpec, Sequence[TrialRecord]], Sampler]


@final
class RetuningSampler(Sampler):
    """See the module. ``make`` gives the sampler of one combination for a study that varies the other parameters."""

    def __init__(self, spec: StudySpec, records: Sequence[TrialRecord], make: Maker) -> None:
        self._spec, self._make = spec, make
        self._outer = {path: item for path, item in spec.space.items() if is_batch_key(path)}
        self._inner = {path: item for path, item in spec.space.items() if not is_batch_key(path)}
        self._num_combinations = count_grid_points(self._outer) or 1
        self._samplers: dict[str, Sampler] = {}
        self._records: dict[str, list[TrialRecord]] = defaultdict(list)
        for record in records:
            self._records[self._key(record.values)].append(record)

    def propose(self, index: int) -> dict[str, Any] | None:
        for turn in range(self._num_combinations):
            combination = pick_grid_point(self._outer, (index + turn) % self._num_combinations)
            point = self._sampler(combination).propose(index // self._num_combinations)
            if point is not None:
                return combination | point
        return None

    def learn(self, record: TrialRecord) -> None:
        key = self._key(record.values)
        if key in self._samplers:
            self._samplers[key].learn(record)
        else:
            self._records[key].append(record)

    def _sampler(self, combination: dict[str, Any]) -> Sampler:
        key = self._key(combination)
        if key not in self._samplers:
            trials = max(1, self._spec.trials // self._num_combinations)
            base = replace_keys(self._spec.base, combination)
            inner = self._spec.model_copy(update={"base": base, "space": self._inner, "trials": trials, "retune": ()})
            self._samplers[key] = self._make(inner, self._records.pop(key, []))
        return self._samplers[key]

    def _key(self, values: Any) -> str:
        return make_point_key({path: values[path] for path in self._outer})
