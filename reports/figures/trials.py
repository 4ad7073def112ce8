"""Figures of single trials: learning curves, fronts, hypervolume, importance of parameters, slices."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.evidence import Evidence, describe_settings, keep_finite
from reports.figure import Absent, Axis, Bars, Figure, Floats, Layer, Lines, Panel, Rule, Scale
from reports.figures import marks
from reports.figures.marks import GLOBAL_BATCH, Rows, parameter_axis, swept_parameters
from reports.labels import metric_label
from reports.layout import NUM_SERIES
from sweep.analysis.comparable import objective_signs, objective_table
from sweep.analysis.statistics import Mask, Values, non_dominated, read_numbers, read_text, reference_point
from sweep.analysis.statistics import hypervolume as volume
from sweep.config.metrics import METRICS, format_count
from sweep.config.trial import key_label

_FRONT_TITLE = "Pareto fronts"


def make_fronts(evidence: Evidence) -> list[Figure] | Absent:
    """One figure with a panel for each pair of objectives; none with a single objective or nothing complete."""
    if len(evidence.objectives) < 2:
        return Absent(_FRONT_TITLE, "requires at least two objectives; the study has one.")
    panels = [panel for pair in combinations(evidence.objectives, 2) if (panel := _front_panel(evidence, *pair))]
    if not panels:
        return Absent(_FRONT_TITLE, "requires a completed search trial.")
    return [Figure(name="fronts", title=_FRONT_TITLE, caption=_front_caption(evidence), panels=tuple(panels))]


def _front_panel(evidence: Evidence, y_name: str, x_name: str) -> Panel | None:
    frame = evidence.search
    x, y = read_numbers(frame, x_name), read_numbers(frame, y_name)
    confirmed = marks.confirmed_marks(evidence, x_name, y_name)
    all_x = np.append(x, confirmed.x if confirmed else ())
    all_y = np.append(y, confirmed.y if confirmed else ())
    if not len(keep_finite(all_x + all_y)):
        return None
    x_axis, y_axis = marks.metric_axis(x_name, all_x), marks.metric_axis(y_name, all_y)
    signs = (METRICS[x_name].sign, METRICS[y_name].sign)
    layers: list[Layer] = []
    detailed = frame["detailed"].to_numpy(dtype=bool)
    if not detailed.all():
        layers.append(marks.make_density(x, y, x_axis.scale, y_axis.scale))
    layers += marks.search_points(evidence, frame[detailed], x[detailed], y[detailed])
    layers += marks.front_line("search front of the pair", "search_front", x, y, signs, marks.SEARCH_NAMES)
    layers += _front_unfinished(evidence, x_name, y_name, (all_x, all_y), (x_axis.scale, y_axis.scale))
    if confirmed is not None:
        places = np.array(confirmed.x), np.array(confirmed.y)
        layers += marks.front_line("confirmed front of the pair", "confirmed", *places, signs, (confirmed.name,))
        layers.append(confirmed)
    title = f"{metric_label(y_name)} against {metric_label(x_name).lower()}"
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=title)


def _front_unfinished(
    evidence: Evidence, x_name: str, y_name: str, values: tuple[Values, Values], scales: tuple[Scale, Scale]
) -> list[Layer]:
    frame = evidence.unfinished
    if not len(frame):
        return []
    outcomes = frame["outcome"].unique().tolist()
    drawn, rules = [], []
    # side by side along x only: a step in both axes would make a diagonal
    for axis, name, complete, scale, step in zip(
        marks.AXES, (x_name, y_name), values, scales, (0.05, 0.0), strict=True
    ):
        spent = marks.read_used(frame, name)
        edge = marks.place_edge(np.append(complete, spent), METRICS[name].sign, scale, outcomes, step)
        drawn.append(marks.fill_with_edge(spent, frame, edge))
        rules += [marks.make_rule(axis, edge)] if np.isnan(spent).any() else []
    return [*rules, *marks.outcome_points(evidence, frame, *drawn)]


def _front_caption(evidence: Evidence) -> str:
    num_search, num_detailed = len(evidence.search), int(evidence.search["detailed"].sum())
    text = marks.describe_search(num_search)
    if num_search > num_detailed:
        text += f" ({num_detailed:,} of them as single points, all as the density behind)"
    if evidence.num_confirmed:
        text += f"; {format_count(evidence.num_confirmed, 'configuration')} trained again with fresh seeds"
    else:
        text += "; nothing is confirmed with fresh seeds"
    num_flagged = int(np.sum(read_text(evidence.search, "quality_flags") != ""))
    if num_flagged:
        text += f". {format_count(num_flagged, 'search trial')} with quality warnings, which their hover texts name"
    return (
        f"{text}. Lines are the Pareto fronts of the two objectives shown. Trials that did not complete are at the "
        "time and memory they had used, or, where nothing was measured, beyond the thin line."
    )


# Hypervolume.

_NUM_MOMENTS = 200
_VOLUME_TITLE = "Hypervolume over the search"


def make_hypervolume(evidence: Evidence) -> list[Figure] | Absent:
    """The share of the final search front's hypervolume that was reached, over time spent and over trials."""
    frame, objectives = evidence.search, evidence.objectives
    scaled = _scaled(evidence)
    rows = np.flatnonzero(np.isfinite(scaled).all(axis=1))
    if len(objectives) < 2 or len(rows) < 2:
        return Absent(_VOLUME_TITLE, "requires two objectives and two search trials with both.")
    chosen, values = frame.iloc[rows], scaled[rows]
    signs = objective_signs(objectives)
    moments, share = _growth(values, np.flatnonzero(non_dominated(values, signs)), signs)
    seconds = np.nan_to_num(read_numbers(evidence.trials, "total_seconds"))
    seconds[read_text(evidence.trials, "reused_from") != ""] = 0.0
    panels = []
    for label, unit, amounts in (("Search time", "seconds", seconds), ("Search trials", "", np.ones(len(seconds)))):
        x = _spent(evidence, amounts)[read_numbers(chosen, "number").astype(np.int64)]
        path = marks.make_steps(x[moments], share)  # the volume stays until the next trial has ended
        layers: list[Layer] = [Lines(name="share reached", role="series-0", segments=(path,))]
        front = np.flatnonzero(chosen.iloc[moments]["on_search_front"].to_numpy(dtype=bool))
        members = marks.trial_numbers(chosen.iloc[moments[front]])
        layers += marks.trial_points(
            "on the final search front", "search_front", evidence, members, x[moments[front]], share[front]
        )
        x_axis, y_axis = Axis(label=label, unit=unit), Axis(label="Hypervolume reached", unit="fraction")
        view = label.lower()
        panels.append(Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=f"By {view}", view=view))
    caption = (
        f"{format_count(len(rows), 'complete search trial')}; the time of all search trials counts, complete or not. "
        "Hypervolume: the space between the current front and a reference point 10 % beyond the worst values, with "
        "objectives scaled to their range on their axes. While the curve still rises, more trials improve the front."
    )
    return [Figure(name="hypervolume", title=_VOLUME_TITLE, caption=caption, panels=tuple(panels))]


def _scaled(evidence: Evidence) -> Values:
    """The objectives as their axes are drawn: logarithms where they span much; shape ``[n, m]``."""
    table = objective_table(evidence.search, evidence.objectives)
    for index, name in enumerate(evidence.objectives):
        if marks.metric_axis(name, table[:, index]).scale == "log":
            table[:, index] = np.log(table[:, index])
    complete = table[np.isfinite(table).all(axis=1)]
    if not len(complete):
        return table
    low, spread = complete.min(axis=0), np.ptp(complete, axis=0)
    return np.asarray((table - low) / np.where(spread > 0, spread, 1.0))


def _growth(values: Values, front: Rows, signs: list[float]) -> tuple[Rows, Values]:
    """Rows at which the volume is computed (shape ``[k]``), and its share of the final volume there (shape ``[k]``)."""
    reference = reference_point(values, signs)
    moments = np.union1d(np.linspace(0, len(values) - 1, _NUM_MOMENTS).astype(np.int64), front[:_NUM_MOMENTS])
    best, volumes, begin = values[:0], [], 0
    for moment in moments:
        best = np.concatenate([best, values[begin : moment + 1]])
        best, begin = best[non_dominated(best, signs)], moment + 1
        volumes.append(volume(best, reference, signs))
    return moments, np.array(volumes) / max(volumes[-1], np.finfo(np.float64).tiny)


def _spent(evidence: Evidence, amounts: Values) -> Values:
    # by trial number: the sum of ``amounts`` over the search until that trial had ended
    numbers = read_numbers(evidence.trials, "number").astype(np.int64)
    table = np.zeros(int(numbers.max(initial=0)) + 1)
    table[numbers] = np.cumsum(np.where(read_text(evidence.trials, "phase") == "search", amounts, 0.0))
    return table


# Importance of parameters.

_MIN_TRIALS = 12
_MAX_GROUPS = 6
_IMPORTANCE_TITLE = "Parameter importance"


def make_importance(evidence: Evidence) -> list[Figure] | Absent:
    """A bar for each parameter and objective; insignificant ones in their own color."""
    keys = swept_parameters(evidence)
    panels = [panel for name in evidence.objectives if keys and (panel := _importance_panel(evidence, name, keys))]
    if not panels:
        return Absent(
            _IMPORTANCE_TITLE, f"requires {_MIN_TRIALS} complete search trials over two values of a parameter."
        )
    caption = (
        f"{marks.describe_search(len(evidence.search))}. Length: the share of the "
        "variance of an objective's ranks that one parameter explains by itself (Kruskal-Wallis eta squared, "
        f"corrected for chance; at most {_MAX_GROUPS} groups of values). Gray: not significant at 5 %. Interactions "
        "between parameters are not included."
    )
    return [Figure(name="importances", title=_IMPORTANCE_TITLE, caption=caption, panels=tuple(panels))]


def _importance_panel(evidence: Evidence, objective: str, keys: tuple[str, ...]) -> Panel | None:
    y = read_numbers(evidence.search, objective)
    rows = np.flatnonzero(np.isfinite(y))
    if len(rows) < _MIN_TRIALS:
        return None
    ranks = np.asarray(pd.Series(y[rows]).rank(), dtype=np.float64)
    explained = [(key, *explained_variance(_groups(evidence, key)[rows], ranks)) for key in keys]
    explained.sort(key=lambda item: item[1])
    axis = Axis(label="", ticks=tuple((float(row), key_label(key)) for row, (key, *_) in enumerate(explained)))
    layers: list[Layer] = []
    for name, role, is_certain in (("more than chance", "step", True), ("no more than chance", "setup", False)):
        bars = [(row, key, share) for row, (key, share, certain) in enumerate(explained) if certain == is_certain]
        if bars:
            layers.append(
                Bars(
                    name=name, role=role, y=tuple(float(row) for row, *_ in bars), starts=(0.0,) * len(bars),
                    # a bar of no length could not be seen or pointed at
                    lengths=tuple(max(share, 0.004) for *_, share in bars),
                    texts=tuple(
                        f"{key_label(key)}: {100 * share:.0f} % of the variance of the ranks" for _, key, share in bars
                    ),
                )
            )  # fmt: skip
    x_axis = Axis(label="Share explained", unit="fraction")
    return Panel(x=x_axis, y=axis, layers=tuple(layers), title=metric_label(objective))


def explained_variance(groups: npt.NDArray[np.int64], ranks: Values) -> tuple[float, bool]:
    """Eta squared of the Kruskal-Wallis test, at least 0.0, and whether the test is significant at 5 %.

    ``groups`` and ``ranks``, of the objective, have shape ``[n]``. Eta squared = (H - k + 1) / (n - k) for k groups
    (Tomczak and Tomczak, 2014); its mean is zero where the groups do not matter.
    """
    from scipy.special import chdtri

    _, where = np.unique(groups, return_inverse=True)
    sizes = np.bincount(where)
    n, k = len(ranks), len(sizes)
    spread = float(((ranks - (n + 1) / 2) ** 2).sum())
    if k < 2 or n <= k or spread == 0.0:
        return 0.0, False
    means = np.bincount(where, ranks) / sizes
    h = (n - 1) * float((sizes * (means - (n + 1) / 2) ** 2).sum()) / spread  # with the correction for ties
    return max(0.0, (h - k + 1) / (n - k)), bool(h > chdtri(k - 1, 0.05))


def _groups(evidence: Evidence, key: str) -> npt.NDArray[np.int64]:
    """A group for each search trial: its value, or its share of the sorted values where there are many."""
    frame = evidence.search
    name = key if key == GLOBAL_BATCH else f"config.{key}"
    numeric = read_numbers(frame, name)
    if np.isfinite(numeric).all() and len(np.unique(numeric)) > _MAX_GROUPS:
        edges = np.quantile(numeric, np.linspace(0, 1, _MAX_GROUPS + 1)[1:-1])
        return np.asarray(np.searchsorted(np.unique(edges), numeric, side="right"), dtype=np.int64)
    return np.asarray(pd.factorize(frame[name].astype(str))[0], dtype=np.int64)


# Objectives by parameter.

_MAX_MARKS = 600  # of a panel; a figure has many panels, and more marks make a page slow


def make_slices(evidence: Evidence) -> list[Figure] | Absent:
    """A figure for each objective with a panel for each parameter."""
    keys = swept_parameters(evidence)
    figures = []
    for objective in evidence.objectives:
        panels = [panel for key in keys if (panel := _slice_panel(evidence, key, objective))]
        if panels:
            name, title = f"slices_{objective}", f"{metric_label(objective)} by parameter"
            figures.append(Figure(name=name, title=title, caption=_slice_caption(evidence), panels=tuple(panels)))
    return figures or Absent("Objectives by parameter", "requires a trial that measured an objective.")


def _slice_panel(evidence: Evidence, key: str, objective: str) -> Panel | None:
    x_axis, locate = parameter_axis(evidence, key)
    frame = evidence.search
    is_shown = _select_marked(frame)
    x, y = locate(frame, is_shown), read_numbers(frame, objective)
    confirmed = marks.confirmed_marks(evidence, objective, objective)
    all_y = np.append(y, confirmed.y if confirmed else ())
    ended = evidence.unfinished
    if not len(keep_finite(np.append(all_y, marks.read_used(ended, objective)))):
        return None
    y_axis = marks.metric_axis(objective, all_y)
    layers: list[Layer] = []
    if not is_shown.all() and not x_axis.ticks and np.isfinite(x + y).any():
        layers.append(marks.make_density(x, y, x_axis.scale, y_axis.scale))
    layers += marks.search_points(evidence, frame, np.where(is_shown, x, np.nan), y)
    x_ended, used = locate(ended), marks.read_used(ended, objective)
    outcomes = ended["outcome"].unique().tolist()
    edge = marks.place_edge(np.append(all_y, used), METRICS[objective].sign, y_axis.scale, outcomes, step=0.04)
    if np.isnan(used[np.isfinite(x_ended)]).any():
        layers.append(marks.make_rule("y", edge))
    layers += marks.outcome_points(evidence, ended, x_ended, marks.fill_with_edge(used, ended, edge))
    if confirmed is not None:
        at = locate(evidence.confirmed)[np.isfinite(read_numbers(evidence.confirmed, objective))]
        if np.isfinite(at).all():
            across = marks.to_floats(at)
            layers.append(replace(confirmed, x=across, x_low=across, x_high=across))
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers))


def _select_marked(frame: pd.DataFrame) -> Mask:
    """The trials nearest to the front and the latest; shape ``[len(frame)]``."""
    detailed, rank = frame["detailed"].to_numpy(dtype=bool), frame["rank"].to_numpy()
    if len(frame) <= _MAX_MARKS:
        return np.asarray(detailed, dtype=np.bool_)
    is_marked = np.zeros(len(frame), dtype=np.bool_)
    is_marked[np.argsort(np.where(rank < 0, np.inf, rank), kind="stable")[: _MAX_MARKS // 2]] = True
    is_marked[-(_MAX_MARKS // 2) :] = True
    return np.asarray(is_marked & detailed, dtype=np.bool_)


def _slice_caption(evidence: Evidence) -> str:
    text = f"{marks.describe_search(len(evidence.search))}."
    text = f"{text[:-1]}; other parameters vary too." if len(evidence.swept) > 1 else text
    if len(evidence.search) > _MAX_MARKS:
        text += f" At most {_MAX_MARKS} of them are drawn: those nearest to the front and the latest."
    return (
        f"{text} Trials that did not complete are at the time or memory they had used, or, where nothing was measured, "
        "beyond the thin line."
    )


# Learning curves and noise scale.

_CURVES = ("val_accuracy", "val_loss")
_VIEWS = (
    ("train_seconds", "training time", Axis(label="Training time", unit="seconds")),
    ("step", "steps", Axis(label="Optimizer steps")),
    ("epoch", "epochs", Axis(label="Epochs")),
)
_MAX_FAINT = 300
MAX_MOMENTS = 60  # of one curve
_CURVES_TITLE = "Learning curves"
_NOISE_TITLE = "Gradient noise scale"


def make_curves(evidence: Evidence) -> list[Figure] | Absent:
    """Validation accuracy and loss: the answer's configurations in color, others faint."""
    if not len(evidence.evaluations):
        return Absent(_CURVES_TITLE, "requires a trial with an evaluation.")
    frame = evidence.detailed_evaluations
    panels = []
    for name in _CURVES:
        for x_name, view, axis in _VIEWS:
            lines = _make_chosen_lines(evidence, frame, x_name, name)
            if lines:
                y_axis = Axis(label=metric_label(name), unit=METRICS[name].unit)
                panels.append(
                    Panel(x=axis, y=y_axis, layers=tuple(lines), title=f"{metric_label(name)} by {view}", view=view)
                )
    if not panels:
        return Absent(_CURVES_TITLE, "requires a finite accuracy or loss in the evaluations.")
    basis = "every confirming seed" if evidence.num_confirmed else "the one seed of the search"
    num_faint = len(_faint(evidence, frame))
    faint = f" Gray: {format_count(num_faint, 'other trial')}." if num_faint else ""
    caption = (
        f"In color: {format_count(len(_colored(evidence)), 'configuration')} of the front, {basis} a line.{faint} "
        "Training time excludes evaluation."
    )
    return [Figure(name="curves", title=_CURVES_TITLE, caption=caption, panels=tuple(panels))]


def make_noise(evidence: Evidence) -> list[Figure] | Absent:
    """The noise scale B_simple of each evaluation, with the median of the averages over whole trainings."""
    frame = evidence.detailed_evaluations
    rows = np.flatnonzero(read_numbers(frame, "noise_scale") > 0)
    if not len(rows):
        return Absent(_NOISE_TITLE, "requires the noise scale: set diagnostics.noise_scale = true and run the study.")
    measured = frame.iloc[rows]
    layers: list[Layer] = list(_make_chosen_lines(evidence, measured, "epoch", "noise_scale"))
    averages = read_numbers(evidence.detailed, "noise_scale_run")
    averages = averages[averages > 0]
    num_trials = len(np.unique(read_numbers(measured, "number")))
    caption = (
        f"{format_count(num_trials, 'trial')} measured it. Simple noise scale B_simple = tr(S) / |G|^2 of the last "
        "steps (McCandlish et al. 2018); it is missing where the estimate of |G|^2 is not above 0. "
    )
    if len(averages):
        middle = float(np.median(averages))
        layers.append(Rule(axis="y", value=middle, text=f"average over a training, about {middle:,.0f} samples"))
        caption += (
            f"Dotted: {middle:,.0f} samples, the median of {format_count(len(averages), 'trial')}, both moments "
            "averaged over the training before the ratio. "
        )
    caption += "B_simple is not the critical batch, which follows from steps to a target."
    panel = Panel(x=Axis(label="Epochs"), y=Axis(label="Noise scale (samples)", scale="log"), layers=tuple(layers))
    return [Figure(name="noise_scale", title=_NOISE_TITLE, caption=caption, panels=(panel,))]


def _make_chosen_lines(evidence: Evidence, frame: pd.DataFrame, x_name: str, y_name: str) -> list[Lines]:
    """The front's configurations in color and the latest other trials faint; ``frame`` is in the order of steps."""
    drawn = [("other trials", "faint", _faint(evidence, frame))]
    drawn += [(text, f"series-{index}", numbers) for index, (numbers, text) in enumerate(_colored(evidence))]
    layers = []
    for name, role, numbers in drawn:
        trials, segments = _segments(frame, numbers, x_name, y_name)
        if segments:
            texts = tuple(evidence.texts.get(number, name) for number in trials)
            layers.append(Lines(name=name, role=role, segments=segments, texts=texts, trials=trials))
    return layers


def _colored(evidence: Evidence) -> list[tuple[tuple[int, ...], str]]:
    frame = evidence.configurations
    names = ["number", "numbers", *(f"config.{key}" for key in evidence.swept)]  # rows of few columns are quick
    front = frame.loc[frame["on_front"].to_numpy(dtype=bool), names].head(NUM_SERIES)
    return [
        (row["numbers"], f"{row['number']}: {describe_settings(row, evidence.swept)}") for _, row in front.iterrows()
    ]


def _faint(evidence: Evidence, frame: pd.DataFrame) -> tuple[int, ...]:
    """The others with a curve: the latest of all trials, open and failed ones too."""
    named = {number for numbers, _ in _colored(evidence) for number in numbers}
    latest = np.setdiff1d(read_numbers(evidence.detailed, "number")[-_MAX_FAINT:], list(named))
    return tuple(int(number) for number in np.intersect1d(latest, read_numbers(frame, "number")))


def select_evenly(length: int, limit: int) -> npt.NDArray[np.int64]:
    """At most ``limit`` positions of ``length``, evenly spread, the first and the last among them."""
    return np.linspace(0, length - 1, min(length, limit)).astype(np.int64)


def _segments(
    frame: pd.DataFrame, numbers: tuple[int, ...], x_name: str, y_name: str
) -> tuple[tuple[int, ...], tuple[tuple[Floats, Floats], ...]]:
    """The trials that have a curve, and their curves."""
    part = frame[frame["number"].isin(numbers)]
    x, y, owner = read_numbers(part, x_name), read_numbers(part, y_name), read_numbers(part, "number")
    rows = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    trials, begins = np.unique(owner[rows], return_index=True)
    cuts = np.split(rows, begins[1:])
    thin = [cut[select_evenly(len(cut), MAX_MOMENTS)] for cut in cuts if len(cut)]
    segments = tuple((marks.to_floats(x[cut]), marks.to_floats(y[cut])) for cut in thin)
    return tuple(int(number) for number in trials), segments
