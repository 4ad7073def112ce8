"""The samplers by name.

Grid, random and quasi-random points are functions of their index. Every proposal
is seeded by the study's seed and the trial's number, so a resumed study proposes what an uninterrupted one would.
"""

from collections.abc import Callable, Sequence
from functools import partial

from optuna.samplers import GPSampler, NSGAIISampler, TPESampler

from sweep.config.space import count_grid_points, draw_point, pick_grid_point
from sweep.config.study import StudySpec
from sweep.records.trial_record import TrialRecord
from sweep.search.samplers.base import PointSampler, PredictCost, Sampler
from sweep.search.samplers.candidate_points import SobolPoints
from sweep.search.samplers.cost_aware import CostAwareSampler
from sweep.search.samplers.optuna_sampler import OptunaSampler
from sweep.search.samplers.retuning import RetuningSampler


def make_sampler(spec: StudySpec, records: Sequence[TrialRecord], predict: PredictCost | None = None) -> Sampler:
    """The sampler that the study names, which learns from the ended search trials in ``records``; a cost-aware one also
    uses predictions from probes (``predict``)."""
    make = _SAMPLERS[spec.sampler]
    if predict and spec.sampler == "cost_aware":
        make = partial(CostAwareSampler, predict=predict)
    if spec.retune:
        return RetuningSampler(spec, records, make)
    return make(spec, records)


def _grid(spec: StudySpec, _records: Sequence[TrialRecord]) -> Sampler:
    size = count_grid_points(spec.space) or 0
    return PointSampler(lambda index: pick_grid_point(spec.space, index) if index < size else None)


def _nsga2(spec: StudySpec, records: Sequence[TrialRecord]) -> Sampler:
    size = min(50, max(8, spec.trials // 5))
    return OptunaSampler(spec, records, lambda seed: NSGAIISampler(seed=seed, population_size=size), size)


_SAMPLERS: dict[str, Callable[[StudySpec, Sequence[TrialRecord]], Sampler]] = {
    "tpe": lambda spec, records: OptunaSampler(spec, records, lambda seed: TPESampler(seed=seed)),
    "nsga2": _nsga2,
    "gp": lambda spec, records: OptunaSampler(spec, records, lambda seed: GPSampler(seed=seed)),
    "cost_aware": CostAwareSampler,
    "qmc": lambda spec, _records: PointSampler(SobolPoints(spec.space, spec.seed)),
    "random": lambda spec, _records: PointSampler(lambda index: draw_point(spec.space, spec.seed, index)),
    "grid": _grid,
}
