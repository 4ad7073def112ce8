"""The answer's estimates in the places of the configurations' raw medians, so that one number is shown everywhere."""

import numpy as np
import pandas as pd

from sweep.analysis.answer import Answer
from sweep.analysis.comparable import objective_signs, objective_table
from sweep.analysis.statistics import Values, non_dominated, read_numbers


def add_estimates(
    frame: pd.DataFrame, trials: pd.DataFrame, answer: Answer, objectives: tuple[str, ...]
) -> pd.DataFrame:
    """The configurations ``frame`` of :func:`sweep.analysis.comparable.summarize_configurations` with the estimates of
    ``answer`` in ``<metric>``, ``<metric>_low`` and ``<metric>_high`` wherever there is one, and columns more:
    ``<metric>_n``, the number of trials behind it (NaN for a value as it was measured), and ``p_front``, the
    probability of being on the Pareto front. ``on_front``, among confirmed configurations, is by the estimates.

    ``trials`` are those of the evidence, with the column ``family``.
    """
    families = dict(zip(trials["number"].tolist(), trials["family"].tolist(), strict=True))
    places = {families[number]: place for place, number in enumerate(frame["number"].tolist())}
    columns: dict[str, Values] = {"p_front": np.full(len(frame), np.nan)}
    for item in answer.configurations:
        place = places.get(families[item.number])
        if place is None:
            continue
        if len(answer.configurations) > 1:  # one alone has no rival
            columns["p_front"][place] = item.front_probability
        for name, value in item.values.items():
            for column, number in zip((name, f"{name}_low", f"{name}_high", f"{name}_n"), value, strict=True):
                if column not in columns:
                    columns[column] = read_numbers(frame, column).copy()
                columns[column][place] = number
    found = frame.assign(**columns)
    confirmed = found["confirmed"].to_numpy(dtype=bool)
    if not confirmed.any():
        return found
    table = np.where(confirmed[:, None], objective_table(found, objectives), np.nan)
    return found.assign(on_front=non_dominated(table, objective_signs(objectives)))
