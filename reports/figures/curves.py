"""Learning curves by seconds of training, by optimizer steps and by passes over the data."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.describe import describe_settings
from reports.evidence import Evidence
from reports.figure import Absent, Axis, Figure, Floats, Layer, Lines, Panel, Rule
from reports.figures import marks
from reports.labels import metric_label
from reports.palette import NUM_SERIES
from sweep.analysis.statistics import read_numbers
from sweep.config.metrics import METRICS
from sweep.config.units import format_count

_CURVES = ("val_accuracy", "val_loss")
_VIEWS = (
    ("train_seconds", "training time", Axis(label="Training time", unit="seconds")),
    ("step", "steps", Axis(label="Optimizer steps")),
    ("epoch", "epochs", Axis(label="Epochs")),
)
MAX_FAINT = 300
MAX_MOMENTS = 60  # of one curve
TITLE = "Learning curves"
NOISE_TITLE = "Gradient noise scale"


def make_curves(evidence: Evidence) -> list[Figure] | Absent:
    """Validation accuracy and loss: the answer's configurations in color, others faint."""
    if not len(evidence.evaluations):
        return Absent(TITLE, "requires a trial with an evaluation.")
    frame = evidence.detailed_evaluations
    panels = []
    for name in _CURVES:
        for x_name, view, axis in _VIEWS:
            lines = make_chosen_lines(evidence, frame, x_name, name)
            if lines:
                y_axis = Axis(label=metric_label(name), unit=METRICS[name].unit)
                panels.append(
                    Panel(x=axis, y=y_axis, layers=tuple(lines), title=f"{metric_label(name)} by {view}", view=view)
                )
    if not panels:
        return Absent(TITLE, "requires a finite accuracy or loss in the evaluations.")
    basis = "every confirming seed" if evidence.num_confirmed else "the one seed of the search"
    num_faint = len(_faint(evidence, frame))
    faint = f" Gray: {format_count(num_faint, 'other trial')}." if num_faint else ""
    caption = (
        f"In color: {format_count(len(_colored(evidence)), 'configuration')} of the front, {basis} a line.{faint} "
        "Training time excludes evaluation."
    )
    return [Figure(name="curves", title=TITLE, caption=caption, panels=tuple(panels))]


def make_noise(evidence: Evidence) -> list[Figure] | Absent:
    """The noise scale B_simple of each evaluation, with the median of the averages over whole trainings."""
    frame = evidence.detailed_evaluations
    rows = np.flatnonzero(read_numbers(frame, "noise_scale") > 0)
    if not len(rows):
        return Absent(NOISE_TITLE, "requires the noise scale: set diagnostics.noise_scale = true and run the study.")
    measured = frame.iloc[rows]
    layers: list[Layer] = list(make_chosen_lines(evidence, measured, "epoch", "noise_scale"))
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
    return [Figure(name="noise_scale", title=NOISE_TITLE, caption=caption, panels=(panel,))]


def make_chosen_lines(evidence: Evidence, frame: pd.DataFrame, x_name: str, y_name: str) -> list[Lines]:
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
    latest = np.setdiff1d(read_numbers(evidence.detailed, "number")[-MAX_FAINT:], list(named))
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
