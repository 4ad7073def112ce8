"""What the answer costs without a search: for one who knows the truth of a table, and by a full design."""

import numpy as np

from benchmarks.answer_table import AnswerTable
from sweep.analysis.comparable import ACCURACY, SECONDS

_NAIVE_RATES, _NAIVE_SEEDS = 6, 3


def price_oracle(table: AnswerTable) -> tuple[float, float]:
    """The seconds of what one who knows the truth would train, with every recorded seed, and with one, which is the
    search alone: the fastest right configuration, the most accurate one, and of the faster ones that lose more than the
    tolerance the most accurate. A search has to find these first; it may settle with fewer seeds of them."""
    accuracies, seconds = table.mean(ACCURACY), table.mean(SECONDS)
    limit = float(np.nanmax(accuracies)) - table.recorded.spec.answer.tolerance.accuracy
    one = min((row for row in range(len(seconds)) if accuracies[row] >= limit), key=lambda row: float(seconds[row]))
    chosen = {one, int(np.nanargmax(accuracies))}
    faster = np.flatnonzero((seconds < seconds[one]) & (accuracies < limit))
    if len(faster):
        chosen.add(int(faster[np.argmax(accuracies[faster])]))
    search = sum(table.price(row) for row in chosen)
    return search * table.num_seeds, search


def price_naive(table: AnswerTable) -> float:
    """The seconds of a full design: every model and effective batch size, six learning rates spread evenly over those
    of the table, three seeds; of several points that have these in common the cheapest."""
    configs = [table.config_of(row) for row in range(len(table.recorded.points))]
    rates = sorted({config.optimizer.lr for config in configs})
    chosen = {rates[round(place)] for place in np.linspace(0, len(rates) - 1, min(_NAIVE_RATES, len(rates)))}
    cheapest: dict[tuple[str, int, float], float] = {}
    for row, config in enumerate(configs):
        if config.optimizer.lr in chosen:
            key = (config.model.name, config.global_batch_size, config.optimizer.lr)
            cheapest[key] = min(table.price(row), cheapest.get(key, np.inf))
    return _NAIVE_SEEDS * sum(cheapest.values())
