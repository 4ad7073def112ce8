"""The gradient noise scale through training."""

import numpy as np

from reports.evidence import Evidence
from reports.figure import Absent, Axis, Figure, Layer, Panel, Rule
from reports.figures.curves import chosen_lines
from reports.labels import plural
from sweep.analysis.statistics.frame_columns import read_numbers

TITLE = "Gradient noise through training"


def noise(evidence: Evidence) -> list[Figure] | Absent:
    """The noise scale of each evaluation, with the median of the last ones: an estimate of the critical batch."""
    frame = evidence.detailed_evaluations
    rows = np.flatnonzero(read_numbers(frame, "noise_scale") > 0)
    if not len(rows):
        return Absent(TITLE, "wants the noise scale: set diagnostics.noise_scale = true and run the study.")
    measured = frame.iloc[rows]
    last = read_numbers(measured.groupby("number").tail(1), "noise_scale")
    critical = float(np.median(last))
    layers: list[Layer] = list(chosen_lines(evidence, measured, "epoch", "noise_scale"))
    layers.append(Rule("y", critical, f"critical batch, about {critical:,.0f} samples"))
    caption = (
        f"{plural(len(last), 'trial')} that measured it. Simple noise scale tr(S) / |G|^2 (McCandlish et al., 2018). "
        f"Dotted: the median at the end of training, {critical:,.0f} samples, an estimate of the critical batch: below "
        "it a larger batch saves nearly as many steps as it costs samples, above it it saves few."
    )
    panel = Panel(Axis("Epochs"), Axis("Noise scale (samples)", scale="log"), tuple(layers))
    return [Figure("noise_scale", TITLE, caption, (panel,))]
