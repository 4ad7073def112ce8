"""Parameter importance: how much of the variance of each objective a parameter explains."""

import numpy as np
import numpy.typing as npt
import pandas as pd

from reports.evidence import Evidence
from reports.figure import Absent, Axis, Bars, Figure, Layer, Panel
from reports.figures import marks
from reports.figures.positions import GLOBAL_BATCH, swept_parameters
from reports.labels import key_label, metric_label
from sweep.analysis.statistics import read_numbers

MIN_TRIALS = 12
MAX_GROUPS = 6
TITLE = "Parameter importance"


def make_importance(evidence: Evidence) -> list[Figure] | Absent:
    """A bar for each parameter and objective; insignificant ones in their own color."""
    keys = swept_parameters(evidence)
    panels = [panel for name in evidence.objectives if keys and (panel := _panel(evidence, name, keys))]
    if not panels:
        return Absent(TITLE, f"requires {MIN_TRIALS} complete search trials over two values of a parameter.")
    caption = (
        f"{marks.describe_search(len(evidence.search))}. Length: the share of the "
        "variance of an objective's ranks that one parameter explains by itself (Kruskal-Wallis eta squared, "
        f"corrected for chance; at most {MAX_GROUPS} groups of values). Gray: not significant at 5 %. Interactions "
        "between parameters are not included."
    )
    return [Figure(name="importances", title=TITLE, caption=caption, panels=tuple(panels))]


def _panel(evidence: Evidence, objective: str, keys: tuple[str, ...]) -> Panel | None:
    y = read_numbers(evidence.search, objective)
    rows = np.flatnonzero(np.isfinite(y))
    if len(rows) < MIN_TRIALS:
        return None
    ranks = np.asarray(pd.Series(y[rows]).rank(), dtype=np.float64)
    found = [(key, *explained_variance(_groups(evidence, key)[rows], ranks)) for key in keys]
    found = sorted(found, key=lambda item: item[1])
    axis = Axis(label="", ticks=tuple((float(row), key_label(key)) for row, (key, *_) in enumerate(found)))
    layers: list[Layer] = []
    for name, role, is_certain in (("more than chance", "step", True), ("no more than chance", "setup", False)):
        at = [row for row, (_, _, certain) in enumerate(found) if certain == is_certain]
        lengths = tuple(max(found[row][1], 0.004) for row in at)  # a bar of no length could not be seen or pointed at
        texts = tuple(
            f"{key_label(found[row][0])}: {100 * found[row][1]:.0f} % of the variance of the ranks" for row in at
        )
        if at:
            layers.append(
                Bars(name=name, role=role, y=marks.to_floats(at), starts=(0.0,) * len(at), lengths=lengths, texts=texts)
            )
    title = metric_label(objective)
    return Panel(x=Axis(label="Share explained", unit="fraction"), y=axis, layers=tuple(layers), title=title)


def explained_variance(groups: npt.NDArray[np.int64], ranks: marks.Values) -> tuple[float, bool]:
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
    if np.isfinite(numeric).all() and len(np.unique(numeric)) > MAX_GROUPS:
        edges = np.quantile(numeric, np.linspace(0, 1, MAX_GROUPS + 1)[1:-1])
        return np.asarray(np.searchsorted(np.unique(edges), numeric, side="right"), dtype=np.int64)
    return np.asarray(pd.factorize(frame[name].astype(str))[0], dtype=np.int64)
