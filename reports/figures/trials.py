"""Figures of single trials: fronts, objectives by parameter, learning curves, noise scale."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.evidence import Evidence, describe_settings, keep_finite
from reports.figure import Absent, Axis, Figure, Floats, Layer, Lines, Panel, Rule
from reports.figures import marks
from reports.figures.marks import parameter_axis, swept_parameters
from reports.layout import NUM_SERIES
from sweep.analysis.statistics import read_numbers, read_text
from sweep.config.metrics import format_count

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
    x_metric, y_metric = evidence.metric(x_name), evidence.metric(y_name)
    confirmed = marks.confirmed_marks(evidence, x_name, y_name)
    all_x = np.append(x, confirmed.x if confirmed else ())
    all_y = np.append(y, confirmed.y if confirmed else ())
    if not len(keep_finite(all_x + all_y)):
        return None
    x_axis, y_axis = marks.metric_axis(x_metric, all_x), marks.metric_axis(y_metric, all_y)
    signs = (x_metric.sign, y_metric.sign)
    layers: list[Layer] = []
    detailed = frame["detailed"].to_numpy(dtype=bool)
    if not detailed.all():
        layers.append(marks.make_density(x, y, x_axis.scale, y_axis.scale))
    layers += marks.search_points(evidence, frame[detailed], x[detailed], y[detailed])
    layers += marks.front_line("search front of the pair", "search_front", x, y, signs, marks.SEARCH_NAMES)
    if confirmed is not None:
        places = np.array(confirmed.x), np.array(confirmed.y)
        layers += marks.front_line("confirmed front of the pair", "confirmed", *places, signs, (confirmed.name,))
        layers.append(confirmed)
    title = f"{y_metric.label} against {x_metric.label.lower()}"
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers), title=title)


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
    return f"{text}. Lines are the Pareto fronts of the two objectives shown."


# Objectives by parameter.


def make_slices(evidence: Evidence) -> list[Figure] | Absent:
    """A figure for each objective with a panel for each parameter."""
    keys = swept_parameters(evidence)
    figures = []
    for objective in evidence.objectives:
        panels = [panel for key in keys if (panel := _slice_panel(evidence, key, objective))]
        if panels:
            name, title = f"slices_{objective}", f"{evidence.metric(objective).label} by parameter"
            figures.append(Figure(name=name, title=title, caption=_slice_caption(evidence), panels=tuple(panels)))
    return figures or Absent("Objectives by parameter", "requires a trial that measured an objective.")


def _slice_panel(evidence: Evidence, key: str, objective: str) -> Panel | None:
    x_axis, locate = parameter_axis(evidence, key)
    frame = evidence.search
    is_shown = frame["detailed"].to_numpy(dtype=bool)
    x, y = locate(frame), read_numbers(frame, objective)
    confirmed = marks.confirmed_marks(evidence, objective, objective)
    all_y = np.append(y, confirmed.y if confirmed else ())
    ended = evidence.unfinished
    if not len(keep_finite(np.append(all_y, marks.read_used(ended, objective)))):
        return None
    y_axis = marks.metric_axis(evidence.metric(objective), all_y)
    layers: list[Layer] = []
    if not is_shown.all() and not x_axis.ticks and np.isfinite(x + y).any():
        layers.append(marks.make_density(x, y, x_axis.scale, y_axis.scale))
    layers += marks.search_points(evidence, frame, np.where(is_shown, x, np.nan), y)
    x_ended, used = locate(ended), marks.read_used(ended, objective)
    outcomes = ended["outcome"].unique().tolist()
    edge = marks.place_edge(np.append(all_y, used), evidence.metric(objective).sign, y_axis.scale, outcomes)
    if np.isnan(used[np.isfinite(x_ended)]).any():
        layers.append(Rule(axis="y", value=edge.rule, text="no value"))
    layers += marks.outcome_points(evidence, ended, x_ended, edge.fill(used, ended))
    if confirmed is not None:
        at = locate(evidence.confirmed)[np.isfinite(read_numbers(evidence.confirmed, objective))]
        if np.isfinite(at).all():
            across = marks.to_floats(at)
            layers.append(replace(confirmed, x=across, x_low=across, x_high=across))
    return Panel(x=x_axis, y=y_axis, layers=tuple(layers))


def _slice_caption(evidence: Evidence) -> str:
    text = f"{marks.describe_search(len(evidence.search))}."
    text = f"{text[:-1]}; other parameters vary too." if len(evidence.swept) > 1 else text
    num_detailed = int(evidence.search["detailed"].sum())
    if len(evidence.search) > num_detailed:
        text += f" {num_detailed:,} of them are drawn: those nearest to the front and the latest."
    if not len(evidence.unfinished):
        return text
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
    """Validation accuracy and loss, or what a script reports: the answer's configurations in color, others faint."""
    if not len(evidence.evaluations):
        return Absent(_CURVES_TITLE, "requires a trial with an evaluation.")
    frame = evidence.detailed_evaluations
    panels = []
    for name in dict.fromkeys((*_CURVES, evidence.answer.quality.column)):
        for x_name, view, axis in _VIEWS:
            if not (read_numbers(frame, x_name) > 0).any():  # a script that counts no epochs
                continue
            lines = _make_chosen_lines(evidence, frame, x_name, name)
            if lines:
                metric = evidence.metric(name)
                y_axis, title = Axis(label=metric.label, unit=metric.unit), f"{metric.label} by {view}"
                panels.append(Panel(x=axis, y=y_axis, layers=tuple(lines), title=title, view=view))
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
