"""The forecast of a study: trials, time with its interval, memory, how many trials will not fit.

:class:`RemainingWork` holds what is still to be trained. Probes give the seconds of each of its configurations
(:mod:`sweep.probing.cost_model`), and the time of the study is an interval drawn from these
(:func:`draw_study_seconds`). :class:`Forecaster` does all of it for one study on one machine.
"""

import math
import time
from collections import Counter, deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt

from sweep.config.metrics import METRICS
from sweep.config.space import count_grid_points
from sweep.config.study import FIXED_DESIGNS, StudySpec
from sweep.config.trial import TrialConfig
from sweep.executors.base import QueryableExecutor
from sweep.probing.cost_model import CostModel, ScriptCosts
from sweep.probing.gate import MemoryGate, find_largest_micro, measure_room
from sweep.probing.prober import Prober
from sweep.probing.shape import Shape, count_resident_bytes, derive_shape
from sweep.records.inputs import DataSummary
from sweep.records.messages import NOT_COUNTED
from sweep.records.records import ProbeRecord, TrialRecord
from sweep.records.store import ProbeBook, Store
from sweep.search.pruner import NUM_NEAREST
from sweep.search.samplers import make_sampler
from sweep.search.seeds import measure_confirm_time

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
_Find = Callable[[TrialConfig], ProbeRecord | None]
_Probe = Callable[[TrialConfig, float], ProbeRecord]

# Mean and deviation of the share of its time that the confirming uses; the rest is left when the answer is settled, or
# is shorter than a training. From 24 replays.
_USED, _DEVIATION = 0.71, 0.24
_NUM_DRAWS = 4000
_SEED = 20_260_101
_LEVELS = (0.05, 0.5, 0.95)  # a 90 % interval and its median
# Mean and deviation of the degree t to which a sampler prefers slow configurations (see :func:`draw_sums`),
# without and with speed as an objective; from the replays. Fixed sequences prefer none.
_LEANS = {
    "cost_aware": ((-1.9, 1.0), (-3.9, 0.7)),
    "gp": ((-1.3, 1.2), (-2.3, 0.7)),
    "nsga2": ((-1.2, 1.0), (-1.7, 0.8)),
    "tpe": ((-1.4, 0.4), (-1.6, 0.3)),
}
_NO_LEAN = ((0.0, 0.3), (0.0, 0.3))
# Mean of the share of the search's time that pruning saves once it can judge, roughly exponentially distributed; from
# 32 replays of 25 to 110 trials. None saved more than 0.55.
_PRUNED, _MOST_PRUNED = 0.22, 0.6
_MIN_TO_TARGET = 0.05  # the shortest training until a target accuracy, as a share of its cap
# How far predictions may be off for all trials alike, as the standard deviation of the logarithm: by the speed of the
# machine and between the probed sizes; where another model was probed, by nearly a factor of two.
_SPREAD, _GUESS_SPREAD = 0.1, 0.6
# Set on the development studies of benchmarks/forecast.py, so that half of their totals are above the median and 90 %
# in the interval.
FACTOR, WIDTH = 1.21, 1.26
_NUM_LATEST = 5  # ended trials: the rest is expected to have their pace

_MAX_EXACT = 512  # proposals of a fixed sequence that are listed one by one
_NUM_SAMPLED = 128  # points that represent an adaptive sampler's

_ESTIMATING_SECONDS = 10.0  # for estimates of memory, which take about half a second each
_MAX_PROBES = 16
_PROBING_SHARE = 0.08  # of the forecast time of the study
_MAX_PROBING_SECONDS = 60.0  # before a study starts
_USUAL_PROBING_SECONDS = 4.0  # that a short study may take for it too
_TIMED_SECONDS = 0.3
# Limits of the memory estimates that are made for the report after the last trial.
_REPORT_SHARE = 0.02  # of the time that the trials took
_MAX_REPORT_SECONDS = 10.0
_ESTIMATE_SECONDS = 0.5  # of one estimate, usually
_MAX_REPORT_SHAPES = 16


@dataclass(frozen=True, kw_only=True)
class RemainingWork:
    """What a study still has to train: a sample of the search's configurations, how many trials of each phase there
    will be, and what limits or shortens them. Trials of the search are drawn from the sample."""

    sample: Sequence[TrialConfig]
    is_exact: bool  # the sample is the very list of proposals
    reused: frozenset[int] = frozenset()  # positions in the sample that need no training
    num_trials: int
    least_confirm: int = 0
    most_confirm: int
    confirm_share: float = 0.0  # of the seconds of the search
    confirm_left_seconds: float = 0.0  # of the share of the search trials on record; negative if more was used
    slots: int = 1
    limit_seconds: float = math.inf
    search_limit_seconds: float = math.inf
    trial_limit_seconds: float = math.inf
    sampler: str = ""
    is_pruned: bool = False
    favors_speed: bool = False  # speed is an objective


def list_remaining(
    spec: StudySpec,
    slots: int,
    records: Sequence[TrialRecord] = (),
    *,
    is_reusable: Callable[[TrialConfig], bool] = lambda _config: False,
    limit_seconds: float = math.inf,
    elapsed_seconds: float = 0.0,
) -> RemainingWork:
    """The rest of ``spec`` after ``records`` on so many ``slots``, within ``limit_seconds`` of a run that began
    ``elapsed_seconds`` ago; configurations that are ``is_reusable`` need no training."""
    # An open trial is still to be trained. Open trials are the latest, so they are the first of the sample.
    searched = [record for record in records if record.phase == "search" and record.outcome is not None]
    num_trials = max(spec.trials - sum(record.outcome not in NOT_COUNTED for record in searched), 0)
    points = spec.list_points()
    size = count_grid_points(spec.space) if points is None else len(points)
    if size is not None:
        num_trials = min(num_trials, max(size - len(searched), 0))
    confirm_left = measure_confirm_time(records, spec).left
    num_confirmed = sum(record.phase == "confirm" and record.outcome is not None for record in records)
    least_confirm = spec.confirm.least_trials
    most_confirm = spec.confirm.count_expected(num_trials + sum(record.phase == "search" for record in records))
    if num_trials == 0 and confirm_left <= 0:
        most_confirm = max(num_confirmed, least_confirm)  # one configuration gets the fewest seeds in any case
    most_confirm = max(most_confirm - num_confirmed, 0)
    sample, is_exact = _draw_sample(spec, len(searched), num_trials) if num_trials + most_confirm else ([], True)
    return RemainingWork(
        sample=sample,
        is_exact=is_exact,
        reused=frozenset(index for index, config in enumerate(sample) if is_exact and is_reusable(config)),
        num_trials=num_trials,
        least_confirm=max(least_confirm - num_confirmed, 0),
        most_confirm=most_confirm,
        confirm_share=spec.confirm.share,
        confirm_left_seconds=confirm_left,
        slots=slots,
        limit_seconds=max(limit_seconds - elapsed_seconds, 0.0),
        search_limit_seconds=max((spec.search_timeout or math.inf) - elapsed_seconds, 0.0),
        trial_limit_seconds=spec.trial_timeout or math.inf,
        sampler=spec.sampler,
        is_pruned=spec.pruner != "none",
        favors_speed=any(METRICS[name].is_speed for name in spec.objectives),
    )


def _draw_sample(spec: StudySpec, first: int, count: int) -> tuple[list[TrialConfig], bool]:
    """The next proposals if they are known; Sobol points instead of the proposals of an adaptive sampler."""
    is_exact = spec.sampler in FIXED_DESIGNS and 0 < count <= _MAX_EXACT
    sequence = spec if is_exact else spec.model_copy(update={"sampler": "qmc"})
    sampler, start = make_sampler(sequence, []), first if is_exact else 0
    points = (sampler.propose(start + index) for index in range(count if is_exact else _NUM_SAMPLED))
    return [spec.config(values) for values in points if values is not None], is_exact


@dataclass(frozen=True, kw_only=True)
class SampleCosts:
    """The predicted seconds of each configuration of a sample that will be trained, as a search trial and as a
    confirming one, both of shape ``[sample]``; and how many search trials are drawn from it."""

    search_seconds: Floats
    confirm_seconds: Floats
    num_trials: int
    share_guessed: float = 0.0  # share of the sample whose seconds are unknown, or by another kind or a far size
    is_cap: bool = False  # the trainings may reach their target sooner


def predict_costs(work: RemainingWork, cost_model: CostModel | ScriptCosts, fits: Mask) -> SampleCosts | None:
    """The costs of the trials to come; None if some are to come and nothing is known of any. ``fits`` tells of each
    configuration of the sample whether it fits into memory, shape ``[sample]``."""
    trained = [work.sample[int(index)] for index in np.flatnonzero(fits) if int(index) not in work.reused]
    costs = [cost for config in trained if (cost := cost_model.predict(config)) is not None]
    if trained and not costs:
        return None
    confirming = [cost for config in trained if (cost := cost_model.predict(config, read_test=True)) is not None]
    search_seconds, confirm_seconds = (
        np.minimum(np.array([cost.seconds for cost in each], dtype=np.float64), work.trial_limit_seconds)
        for each in (costs, confirming)
    )
    return SampleCosts(
        search_seconds=search_seconds,
        confirm_seconds=confirm_seconds,
        num_trials=round(work.num_trials * len(trained) / max(int(fits.sum()), 1)),
        share_guessed=1 - sum(not cost.is_guess for cost in costs) / max(len(trained), 1) if trained else 0.0,
        is_cap=any(cost.is_cap for cost in costs),
    )


def draw_study_seconds(work: RemainingWork, costs: SampleCosts, paces: Sequence[float] = ()) -> Floats:
    """Seconds of the rest of the study in many random cases, as forecast or at one of ``paces``; shape ``[draws]``."""
    rng = np.random.default_rng(_SEED)
    search_seconds = _draw_search_seconds(work, costs, rng)
    seconds = search_seconds + _draw_confirm_seconds(work, costs, search_seconds, rng)
    spread = _SPREAD + (_GUESS_SPREAD - _SPREAD) * costs.share_guessed
    totals = seconds * np.exp(rng.normal(0.0, spread, _NUM_DRAWS)) / work.slots
    if costs.is_cap:
        totals *= rng.uniform(_MIN_TO_TARGET, 1.0, _NUM_DRAWS)
    median = float(np.median(totals))
    if median > 0:  # as the development studies came out: the median by a factor, the logarithms about it by another
        totals = FACTOR * median * (totals / median) ** WIDTH
    if paces:
        totals *= rng.choice([1.0, *paces], _NUM_DRAWS)
    limits = np.full(_NUM_DRAWS, work.search_limit_seconds)
    if np.isfinite(work.search_limit_seconds):  # after such a search the confirming alone is left to draw
        searching = limits * work.slots
        limits = (searching + _draw_confirm_seconds(work, costs, searching, rng)) / work.slots
    return np.asarray(np.minimum(totals, np.minimum(limits, work.limit_seconds)), dtype=np.float64)


def _draw_search_seconds(work: RemainingWork, costs: SampleCosts, rng: np.random.Generator) -> Floats:
    num_trials = costs.num_trials
    if work.is_exact:
        mean = costs.search_seconds.sum() / max(len(costs.search_seconds), 1)
        seconds = np.full(_NUM_DRAWS, num_trials * mean)
    else:
        leans = rng.normal(*_LEANS.get(work.sampler, _NO_LEAN)[work.favors_speed], _NUM_DRAWS)
        seconds = draw_sums(costs.search_seconds, np.full(_NUM_DRAWS, num_trials), leans, rng)
    if work.is_pruned and num_trials > NUM_NEAREST:
        saved = np.minimum(rng.exponential(_PRUNED, _NUM_DRAWS), _MOST_PRUNED)
        seconds = seconds * (1 - saved * (1 - NUM_NEAREST / num_trials))
    return seconds


def _draw_confirm_seconds(
    work: RemainingWork, costs: SampleCosts, search_seconds: Floats, rng: np.random.Generator
) -> Floats:
    """Seconds of all confirming trials if the search trials to come take ``search_seconds``; both of shape
    ``[draws]``."""
    if work.most_confirm == 0 or len(costs.confirm_seconds) == 0:
        return np.zeros(len(search_seconds))
    budget = work.confirm_left_seconds + work.confirm_share * search_seconds
    used = np.clip(rng.normal(_USED, _DEVIATION, len(search_seconds)), 0.0, 1.0) * np.maximum(budget, 0.0)
    cheap, usual = float(costs.confirm_seconds.min()), float(costs.confirm_seconds.mean())
    return np.asarray(np.clip(used, work.least_confirm * cheap, work.most_confirm * usual), dtype=np.float64)


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
    return np.asarray(np.maximum(sums, counts * ordered[0]), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Times are None if nothing could be probed, bytes if nothing could be predicted."""

    num_trials: int  # search trials still to be trained or reused
    num_reused: int  # of these, as far as is known
    num_confirm: int  # confirming trials at most, by their numbers or, roughly, by the time for them
    num_not_fitting: int  # proposals of the search that will not be launched
    expected_total_seconds: float | None
    expected_total_seconds_low: float | None
    expected_total_seconds_high: float | None
    peak_memory_bytes_low: int | None
    peak_memory_bytes_high: int | None
    memory_limit_bytes: int
    num_probes: int  # made for this forecast
    probing_seconds: float
    is_cut_by_timeout: bool = False
    share_guessed: float = 0.0  # of the trainings: no probe is of their kind and near their size

    def document(self) -> dict[str, Any]:
        """As ``sweep run --dry-run --json`` prints it."""
        return dict(vars(self))


def make_forecast(
    work: RemainingWork,
    cost_model: CostModel | ScriptCosts,
    find: _Find,
    probe: _Probe | None,
    memory_gate: MemoryGate,
) -> Forecast:
    """Probes a few shapes of the sample for ``cost_model``, none without ``probe``; predicts the rest of the study."""
    began = time.monotonic()
    trained = [config for index, config in enumerate(work.sample) if index not in work.reused]
    num_probes = 0
    if probe and isinstance(cost_model, CostModel):
        num_probes = _probe_sample(trained, work, cost_model, find, probe)
    # What there is no time to predict is taken to fit. The gate predicts it before it is launched.
    until = time.monotonic() + _ESTIMATING_SECONDS
    fitting = [memory_gate.check(config, may_predict=time.monotonic() < until) is None for config in work.sample]
    fits = np.array(fitting, dtype=np.bool_)
    probing_seconds = time.monotonic() - began
    predictions = [cost_model.predict_peak_memory_bytes(each) or memory_gate.predicted(each) for each in trained]
    peaks = [peak for peak in predictions if peak is not None]
    costs = predict_costs(work, cost_model, fits)
    totals = None if costs is None else draw_study_seconds(work, costs)
    low, median, high = (None, None, None) if totals is None else map(float, np.quantile(totals, _LEVELS))
    return Forecast(
        num_trials=work.num_trials,
        num_reused=_scale_to_study(len(work.reused), len(work.sample), work),
        num_confirm=work.most_confirm,
        # A refused proposal is not a trial, so another one is made in its place.
        num_not_fitting=_scale_to_study(int((~fits).sum()), int(fits.sum()), work),
        expected_total_seconds=median,
        expected_total_seconds_low=low,
        expected_total_seconds_high=high,
        peak_memory_bytes_low=min(peaks, default=None),
        peak_memory_bytes_high=max(peaks, default=None),
        memory_limit_bytes=memory_gate.limit_bytes,
        num_probes=num_probes,
        probing_seconds=probing_seconds,
        is_cut_by_timeout=totals is not None and bool((totals >= work.limit_seconds).any()),
        share_guessed=costs.share_guessed if costs else 0.0,
    )


def _scale_to_study(count: int, num_sampled: int, work: RemainingWork) -> int:
    return count if work.is_exact else round(work.num_trials * count / max(num_sampled, 1))


def _probe_sample(
    sample: Sequence[TrialConfig], work: RemainingWork, cost_model: CostModel, find: _Find, probe: _Probe
) -> int:
    """Adds the known probes of the sample's shapes to ``cost_model``, then probes others as long as that costs less
    than a share of the forecast time, or a few seconds. Returns the number of probes made."""
    queue = select_shapes(sample)
    for config in queue:
        if earlier := find(config):
            cost_model.add(earlier)
    num_probes, began = 0, time.monotonic()
    for config in queue:
        if find(config) or num_probes >= _MAX_PROBES:
            continue
        probe_seconds = cost_model.predict_probe_seconds(config, _TIMED_SECONDS) or 0.0
        if num_probes and time.monotonic() - began + probe_seconds > _allowed_seconds(sample, work, cost_model):
            continue  # a smaller micro batch later in the queue may be cheap enough
        cost_model.add(probe(config, _TIMED_SECONDS))
        num_probes += 1
    return num_probes


def _allowed_seconds(sample: Sequence[TrialConfig], work: RemainingWork, cost_model: CostModel) -> float:
    predicted = [cost.seconds for config in sample if (cost := cost_model.predict(config)) is not None]
    if not predicted:
        return 0.0
    total = float(np.mean(predicted)) * (work.num_trials + work.most_confirm) / work.slots
    allowed = max(_PROBING_SHARE * total, _USUAL_PROBING_SECONDS)
    return min(allowed, _PROBING_SHARE * work.limit_seconds, _MAX_PROBING_SECONDS)


def select_shapes(sample: Sequence[TrialConfig]) -> list[TrialConfig]:
    """One configuration per shape, in the order in which they should be probed.

    First the smallest micro batch of a group of shapes of each model, then the largest of it, because models differ
    most. Then the smallest of every other group, the largest, and those between, middle first; groups with more
    configurations in the sample come first.
    """
    groups: dict[Shape, dict[int, TrialConfig]] = {}
    weights: Counter[Shape] = Counter()
    for config in sample:
        if config.distributed.world_size > 1:
            continue  # a probe is of one rank
        group = derive_shape(config).group
        groups.setdefault(group, {}).setdefault(config.micro_batch, config)
        weights[group] += 1
    ordered = [(group, _spread_out(sorted(groups[group]))) for group, _ in weights.most_common()]
    leaders = {group.of("model.name"): (group, sizes) for group, sizes in reversed(ordered)}
    first = [(turn, entry) for turn in (0, 1) for entry in ordered if entry in leaders.values()]
    turns = range(max((len(sizes) for _, sizes in ordered), default=0))
    queue = [*first, *((turn, entry) for turn in turns for entry in ordered)]
    chosen = [(group, sizes[turn]) for turn, (group, sizes) in queue if turn < len(sizes)]
    return [groups[group][size] for group, size in dict.fromkeys(chosen)]


def _spread_out(sizes: list[int]) -> list[int]:
    """The first, the last, then the middle of each gap, and so on."""
    order = list(dict.fromkeys((0, len(sizes) - 1)))
    gaps = deque([(0, len(sizes) - 1)])
    while gaps:
        left, right = gaps.popleft()
        middle = (left + right) // 2
        if middle > left:
            order.append(middle)
            gaps += [(left, middle), (middle, right)]
    return [sizes[index] for index in order]


class TimeLeft(NamedTuple):
    """Seconds until a running study ends; ``pace`` is the measured over the forecast time of its latest trials."""

    low: float
    median: float
    high: float
    pace: float


def predict_left(
    work: RemainingWork, cost_model: CostModel | ScriptCosts, records: Sequence[TrialRecord]
) -> TimeLeft | None:
    """The time of ``work`` after ``records`` in the order of their ends; None while nothing is known. The load of the
    machine may have changed since it was probed, which the latest trials show."""
    own = [each for each in records if each.outcome == "complete" and not each.reused_from]
    latest = [each for each in own if "total_seconds" in each.measurements][-_NUM_LATEST:]
    took = np.array([each.measurements["total_seconds"] for each in latest], dtype=np.float64)
    known = [cost_model.predict(each.config, read_test=each.phase == "confirm") for each in latest]
    paces = [spent / each.seconds for spent, each in zip(took, known, strict=True) if each and not each.is_cap]
    costs = predict_costs(work, cost_model, np.ones(len(work.sample), dtype=np.bool_))
    if costs is None and latest:
        costs = SampleCosts(search_seconds=took, confirm_seconds=took, num_trials=work.num_trials)
    if costs is None:
        return None
    low, median, high = map(float, np.quantile(draw_study_seconds(work, costs, paces), _LEVELS))
    return TimeLeft(low, median, high, float(np.median(paces or [1.0])))


@final
class Forecaster:
    """Predicts what a study and its configurations cost on the machine of the executor; made once for a run.
    ``data`` counts the images of the study."""

    def __init__(
        self,
        spec: StudySpec,
        executor: QueryableExecutor,
        book: ProbeBook | None,
        *,
        device: str = "auto",
        plugin: str | None = None,
        data: DataSummary | None = None,
    ) -> None:
        self._spec, self._data = spec, data
        self.slots = executor.slots
        self.machine = executor.describe()
        self.device_class = str(self.machine["device"])
        self.memory_room = measure_room(self.machine)
        limit_bytes = self.memory_room.limit_bytes
        self.prober = Prober(
            executor.run_query,
            book,
            device=device,
            device_class=self.device_class,
            plugin=plugin,
            memory_limit_bytes=limit_bytes,
        )
        # a script is not probed: neither its model nor its data is known here
        self._may_probe = spec.script is None
        self.cost_model = CostModel(self.prober.list_valid()) if self._may_probe else ScriptCosts()
        if isinstance(self.cost_model, CostModel) and data and data.num_train and data.num_val:
            self.cost_model.set_num_images(spec.corners.first, data.num_train, data.num_val)
        resident = self._count_resident_bytes if self.machine.get("device_memory_bytes") else lambda _config: 0
        self.memory_gate = MemoryGate(limit_bytes, self._predict_bytes, find_largest_micro(spec), resident)

    def forecast(
        self, records: Sequence[TrialRecord], is_reusable: Callable[[TrialConfig], bool], limit_seconds: float
    ) -> Forecast:
        """The forecast of the rest of the study; probes a few shapes if that is worth its time."""
        self.learn(records)
        work = list_remaining(self._spec, self.slots, records, is_reusable=is_reusable, limit_seconds=limit_seconds)
        probe = self.prober.probe if self._may_probe else None
        return make_forecast(work, self.cost_model, self.prober.find, probe, self.memory_gate)

    def learn(self, records: Iterable[TrialRecord]) -> None:
        """Takes the trials of a script into account, which tell what further ones cost."""
        if isinstance(self.cost_model, ScriptCosts):
            for record in records:
                self.cost_model.learn(record)

    def forecast_other(self, spec: StudySpec, *, may_probe: bool = False) -> Forecast:
        """The forecast of a study of another size, which has no records; without new probes unless ``may_probe``."""
        work = list_remaining(spec, self.slots, limit_seconds=spec.timeout or math.inf)
        probe = self.prober.probe if may_probe else None
        return make_forecast(work, self.cost_model, self.prober.find, probe, self.memory_gate)

    def estimate_seconds(self, spec: StudySpec, num_train: int, num_validation: int) -> float | None:
        """The median seconds of a study that has no records and has so many images, from the probes that are known,
        also with more or fewer of the same images; None without one."""
        if isinstance(self.cost_model, CostModel):
            self.cost_model.set_num_images(spec.corners.first, num_train, num_validation)
        work = list_remaining(spec, self.slots)
        costs = predict_costs(work, self.cost_model, np.ones(len(work.sample), dtype=np.bool_))
        return None if costs is None else float(np.median(draw_study_seconds(work, costs)))

    def save_probes(self, store: Store) -> None:
        """Records the probes that were used, and the estimates, with the study."""
        book = ProbeBook(store, self._spec.name)
        earlier = {probe.shape_key: probe for probe in book.of_device(self.device_class)}
        used, estimates = self.prober.used, self.prober.estimates
        for key in dict.fromkeys((*used, *estimates)):
            # A probe has more facts than an estimate, which does not replace it.
            best = used.get(key) or earlier.get(key) or estimates[key]
            book.keep(best.with_forecast_of(estimates.get(key) or earlier.get(key) or best))

    def estimate_breakdowns(self, store: Store) -> None:
        """Estimates what the memory of the trained shapes consists of, for the report. No trial may be running."""
        if not self._may_probe:
            return
        book = ProbeBook(store, self._spec.name)
        estimated = {Shape.from_text(probe.shape) for probe in book.of_device(self.device_class) if probe.forecast}
        records = store.trial_records(self._spec.name)
        estimate_trained(records, estimated, self.prober.estimate_peak_memory_bytes)
        self.save_probes(store)

    def _count_resident_bytes(self, config: TrialConfig) -> int:
        facts = self.prober.find_data_facts(config)
        room = self.memory_room.free_bytes
        num_held_out = (self._data.num_val or 0) + (self._data.num_test or 0) if self._data else 0
        return 0 if facts is None else count_resident_bytes(config, facts, num_held_out, room)

    def _predict_bytes(self, config: TrialConfig) -> int | None:
        measured = self.cost_model.predict_peak_memory_bytes(config)
        if measured is not None or not self._may_probe:
            return measured
        return self.prober.estimate_peak_memory_bytes(config)


def estimate_trained(
    records: Sequence[TrialRecord], estimated: Container[Shape], estimate: Callable[[TrialConfig], object]
) -> None:
    """Calls ``estimate`` with a configuration of each shape that completed and is not ``estimated`` yet, within a
    fiftieth of the time that the trials took."""
    spent = sum(float(each.measurements.get("total_seconds", 0.0)) for each in records if not each.reused_from)
    until = time.monotonic() + min(_REPORT_SHARE * spent, _MAX_REPORT_SECONDS)
    # If the micro batch was found while training, the configuration does not tell the shape.
    trained = [each.config for each in records if each.outcome == "complete" and not each.config.batch.is_auto]
    for config in select_shapes(trained)[:_MAX_REPORT_SHAPES]:
        if time.monotonic() + _ESTIMATE_SECONDS > until:
            return
        if derive_shape(config) not in estimated:
            estimate(config)
