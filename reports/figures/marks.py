"""Axes, positions and layers that several figures share: trials, confirmed configurations, outcomes, front lines,
densities, and the edge of a panel, where trials without a value are drawn."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.evidence import Evidence, keep_finite
from reports.figure import Axis, Bars, Density, Floats, Intervals, Lines, Points, Rule, Scale
from reports.labels import OUTCOME_NAMES, format_setting, format_value
from sweep.analysis.statistics import Values, non_dominated, plain_value, read_numbers
from sweep.config.metrics import METRICS, Metric, format_count
from sweep.config.trial import key_label

Rows = npt.NDArray[np.int64]
_NUM_CELLS = 60
_NEAR = 20  # times what is drawn
SEARCH_NAMES = ("search trial (one seed)", "on the search front (one seed)")
_CONFIRMED_NAME = "confirmed: estimate and 95 % interval"


def describe_search(num_trials: int) -> str:
    """How many trials of the search a figure shows, as a clause."""
    return f"{format_count(num_trials, 'complete search trial')}, one seed{'' if num_trials == 1 else ' each'}"


def to_floats(values: npt.ArrayLike) -> Floats:
    """``values``, of shape ``[n]``, as a tuple of ``n`` Python floats."""
    return tuple(np.asarray(values, dtype=np.float64).tolist())


def metric_axis(metric: Metric, values: Values) -> Axis:
    """The axis of a metric; logarithmic where ``values``, of shape ``[n]`` with NaN for missing ones, are positive and
    span more than a factor of twenty."""
    finite = keep_finite(values)
    wide = len(finite) > 0 and not metric.unit_facts.is_share and finite.min() > 0
    scale: Scale = "log" if wide and finite.max() > 20 * finite.min() else "linear"
    return Axis(label=metric.label, unit=metric.unit, scale=scale)


def make_batch_axis(label: str, sizes: Values) -> Axis:
    """The axis of a batch size: logarithmic with powers of two as ticks, at most seven or so; linear where ``sizes``,
    of shape ``[n]``, span less than a factor of four."""
    if not len(sizes) or sizes.min() <= 0 or sizes.max() < 4 * sizes.min():
        return Axis(label=label)
    low, high = math.floor(math.log2(sizes.min())), math.ceil(math.log2(sizes.max()))
    powers = range(max(low, 0), high + 1, max(1, (high - low) // 6))
    return Axis(label=label, scale="log", ticks=tuple((2.0**power, f"{2**power}") for power in powers))


def make_staircase(x: Values, y: Values, x_sign: float, y_sign: float) -> tuple[Floats, Floats] | None:
    """The corners of the Pareto front of points with the coordinates ``x`` and ``y`` (shape ``[n]`` each), from its
    best x to its best y; None without a finite point. A sign is -1 where larger is better, else 1."""
    both = np.stack([x, y], axis=1)
    front = both[non_dominated(both, [x_sign, y_sign])]
    if not len(front):
        return None
    front = np.unique(front, axis=0)
    front = front[np.argsort(front[:, 0] * x_sign, kind="stable")]
    return make_steps(front[:, 0], front[:, 1])


def make_steps(x: Values, y: Values) -> tuple[Floats, Floats]:
    """The corners of a line that keeps each ``y`` until the next ``x``; both of shape ``[n]``."""
    return to_floats(np.repeat(x, 2)[1:]), to_floats(np.repeat(y, 2)[:-1])


def trial_numbers(frame: pd.DataFrame) -> tuple[int, ...]:
    """The number of each trial of ``frame``."""
    return tuple(frame["number"].to_numpy(dtype=np.int64).tolist())


def trial_points(name: str, role: str, evidence: Evidence, owners: Sequence[int], x: Values, y: Values) -> list[Points]:
    """A layer with a mark for each trial that has both values; none without one. ``owners`` are the ``n`` numbers of
    the trials, ``x`` and ``y`` have shape ``[n]`` with NaN for missing values."""
    rows = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(rows):
        return []
    shown = tuple(owners[int(row)] for row in rows)
    texts = tuple(evidence.texts.get(number, "") for number in shown)
    return [Points(name=name, role=role, x=to_floats(x[rows]), y=to_floats(y[rows]), texts=texts, trials=shown)]


def search_points(evidence: Evidence, frame: pd.DataFrame, x: Values, y: Values) -> list[Points]:
    """Layers of complete search trials, those on the Pareto front of all objectives apart; ``x`` and ``y`` have shape
    ``[len(frame)]``."""
    front, owners = frame["on_search_front"].to_numpy(dtype=bool), trial_numbers(frame)
    layers = []
    for name, role, is_in in zip(SEARCH_NAMES, ("search", "search_front"), (~front, front), strict=True):
        layers += trial_points(name, role, evidence, owners, np.where(is_in, x, np.nan), y)
    return layers


def make_density(x: Values, y: Values, x_scale: Scale, y_scale: Scale) -> Density:
    """Counts of points ``x``, ``y`` (shape ``[n]`` each) in a grid of ``_NUM_CELLS`` cells a side, even on the scales
    of the axes."""
    finite = np.isfinite(x) & np.isfinite(y)
    moved = [np.log(v[finite]) if scale == "log" else v[finite] for v, scale in ((x, x_scale), (y, y_scale))]
    counts, x_edges, y_edges = np.histogram2d(moved[0], moved[1], bins=_NUM_CELLS)
    edges = [np.exp(e) if scale == "log" else e for e, scale in ((x_edges, x_scale), (y_edges, y_scale))]
    cells = tuple(tuple(int(count) for count in row) for row in counts.T)
    return Density(
        name="all search trials, darker is more", role="density", counts=cells,
        x_edges=to_floats(edges[0]), y_edges=to_floats(edges[1]),
    )  # fmt: skip


def confirmed_marks(evidence: Evidence, x_name: str, y_name: str) -> Intervals | None:
    """Two metrics with their intervals for every confirmed configuration; None without one."""
    frame = evidence.confirmed
    x, y = read_numbers(frame, x_name), read_numbers(frame, y_name)
    rows = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    if not len(rows):
        return None
    shown = frame.iloc[rows]

    def bound(name: str, end: str) -> Floats:
        bounds = read_numbers(shown, f"{name}_{end}")
        return to_floats(np.where(np.isfinite(bounds), bounds, read_numbers(shown, name)))

    return Intervals(
        name=_CONFIRMED_NAME, role="confirmed", x=to_floats(x[rows]), y=to_floats(y[rows]),
        x_low=bound(x_name, "low"), x_high=bound(x_name, "high"),
        y_low=bound(y_name, "low"), y_high=bound(y_name, "high"),
        texts=tuple(evidence.confirmed_texts[number] for number in trial_numbers(shown)),
        trials=tuple(numbers[0] for numbers in shown["numbers"]),
    )  # fmt: skip


def outcome_points(evidence: Evidence, frame: pd.DataFrame, x: Values, y: Values) -> list[Points]:
    """A layer for each outcome of ``frame``, named with its count, in the order of ``OUTCOME_NAMES``; ``x`` and ``y``
    have shape ``[len(frame)]``."""
    layers = []
    outcome, counts, owners = frame["outcome"].to_numpy(), evidence.count_outcomes(), trial_numbers(frame)
    for role, name in OUTCOME_NAMES.items():
        is_one = outcome == role
        if is_one.any():
            drawn = "" if is_one.sum() == counts[role] else f"{is_one.sum():,} of "
            label = f"{name} ({drawn}{counts[role]:,})"
            layers += trial_points(label, role, evidence, owners, np.where(is_one, x, np.nan), y)
    return layers


def stack_bars(parts: Iterable[tuple[str, str, Values, Sequence[str]]]) -> list[Bars]:
    """A layer for each of ``parts``, (name, role, lengths, hover texts), every bar from the end of the one before;
    lengths have shape ``[n]``, and bar i is at height i."""
    layers: list[Bars] = []
    ends: Values = np.zeros(1)
    for name, role, lengths, texts in parts:
        starts = np.broadcast_to(ends, lengths.shape)
        ends = starts + lengths
        at, begin, size = (to_floats(values) for values in (np.arange(len(lengths)), starts, lengths))
        layers.append(Bars(name=name, role=role, y=at, starts=begin, lengths=size, texts=tuple(texts)))
    return layers


def read_limits(evidence: Evidence) -> Values:
    """The memory in bytes of each device that has its own."""
    limits = read_numbers(evidence.frames.environments, "device_memory_bytes")
    return np.unique(limits[limits > 0])


def device_limits(axis: Literal["x", "y"], limits: Values, reach: float) -> list[Rule]:
    """A line at each of ``limits``, but for those so far beyond ``reach`` that they would press everything together."""
    near = to_floats(limits[limits < _NEAR * reach])
    return [Rule(axis=axis, value=each, text=f"memory of the device: {format_value('bytes', each)}") for each in near]


def front_line(
    name: str, role: str, x: Values, y: Values, signs: tuple[float, float], of: Sequence[str]
) -> list[Lines]:
    """The Pareto front of ``x`` and ``y``, of shape ``[n]`` each, as a layer; none where it has a single corner. The
    layers ``of`` have its marks. The line is dashed where they are not confirmed."""
    stairs = make_staircase(x, y, *signs)
    if stairs is None or len(stairs[0]) < 2:
        return []
    return [
        Lines(name=name, role=role, segments=(stairs,), dashed=role != "confirmed", front_of=tuple(of), signs=signs)
    ]


class Edge(NamedTuple):
    """Positions of marks without a value on one axis, by outcome, and of the line that separates them."""

    positions: dict[str, float]
    rule: float

    def fill(self, values: Values, frame: pd.DataFrame) -> Values:
        """``values`` of the rows of ``frame``, with the positions of their outcomes where they are missing."""
        own = [self.positions.get(outcome, self.rule) for outcome in frame["outcome"]]
        return np.where(np.isfinite(values), values, np.array(own, dtype=np.float64))


def place_edge(values: Values, sign: float, scale: Scale, outcomes: Sequence[str]) -> Edge:
    """Positions beyond the worst of ``values``, those of two outcomes apart, so that they do not hide each other;
    ``sign`` is -1 where larger is better. Raises ``ValueError``: no value is finite."""
    finite = keep_finite(values[values > 0] if scale == "log" else values)
    if not len(finite):
        raise ValueError("an edge requires a finite value; none was given")
    moved = np.log(finite) if scale == "log" else finite
    worst = float((moved * sign).max())
    spread = float(np.ptp(moved)) or abs(worst) or 1.0
    present = [name for name in OUTCOME_NAMES if name in outcomes]
    positions = [sign * (worst + share * spread) for share in (0.06, *(0.12 + 0.04 * k for k in range(len(present))))]
    rule, *positions = map(math.exp, positions) if scale == "log" else positions
    return Edge(dict(zip(present, positions, strict=True)), rule)


def read_used(frame: pd.DataFrame, name: str) -> Values:
    """What an unfinished trial had used of time or memory; NaN for quality and for what was not measured."""
    return read_numbers(frame, name) if METRICS[name].is_cost else np.full(len(frame), np.nan)


GLOBAL_BATCH = "global_batch_size"
_JITTER = 0.18  # at most, of the distance between two choices


def swept_parameters(evidence: Evidence) -> tuple[str, ...]:
    """The swept keys, after the effective batch size where only several ``batch.*`` keys together determine it."""
    batch = [key for key in evidence.swept if key.startswith("batch.")]
    return (GLOBAL_BATCH, *evidence.swept) if len(batch) > 1 and "batch.global" not in batch else evidence.swept


def _category_key(value: object) -> object:
    """A cell as a key of a dictionary: None where it is missing; 1 and True are two categories."""
    value = plain_value(value)
    return (type(value).__name__, value) if isinstance(value, bool) else value


def parameter_axis(evidence: Evidence, key: str) -> tuple[Axis, Callable[[pd.DataFrame], Values]]:
    """The axis of a key as its parameter was written in the study: choices side by side, powers of two as ticks; and
    what maps a frame to positions on it, of shape ``[len(frame)]``, NaN where the key has no value."""
    name = key if key == GLOBAL_BATCH else f"config.{key}"
    label = key_label(key)
    parameter = evidence.frames.spec.space.get(key) if evidence.frames.spec else None
    form = parameter.form if parameter else "log2" if key == GLOBAL_BATCH else _guess_form(evidence.trials, name)
    if form != "choice":
        is_power = form == "log2"
        used = keep_finite(read_numbers(evidence.trials, name))
        axis = (
            make_batch_axis(label, used) if is_power else Axis(label=label, scale="log" if form == "log" else "linear")
        )
        return axis, lambda frame: read_numbers(frame, name)
    values = list(parameter.choice or ()) if parameter else _list_values(evidence.trials, name)
    positions = {_category_key(value): index for index, value in enumerate(values)}

    def locate(frame: pd.DataFrame) -> Values:
        at = [positions.get(_category_key(value), math.nan) for value in frame[name]]
        # a fixed spread by trial number, so that equal settings do not hide each other
        spread = (read_numbers(frame, "number") * 0.618034 % 1.0 - 0.5) * 2 * _JITTER
        return np.asarray(np.array(at, dtype=np.float64) + spread)

    return Axis(label=label, ticks=tuple((float(at), format_setting(value)) for at, value in enumerate(values))), locate


def _list_values(trials: pd.DataFrame, name: str) -> list[object]:
    values = {_category_key(value): plain_value(value) for value in trials[name]}
    return sorted(values.values(), key=lambda value: (str(type(value)), value if _is_number(value) else str(value)))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _guess_form(trials: pd.DataFrame, name: str) -> str:
    values: Sequence[object] = _list_values(trials, name)
    if len(values) <= 6 or not all(_is_number(value) for value in values if value is not None):
        return "choice"
    finite = keep_finite(read_numbers(trials, name))
    return "log" if finite.min() > 0 and finite.max() > 50 * finite.min() else "float"
