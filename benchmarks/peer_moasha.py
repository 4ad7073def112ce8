"""MO-ASHA of Syne Tune on a recorded table, one worker, on the table's clock. Runs in Syne Tune's own environment.

``python peer_moasha.py TABLE.json SEED`` prints one JSON list: after each training the seconds spent until then, and
the row of the point where it went to its end, else null. Every point is tried before any is tried again, and a
proposal that would train a finished point again is skipped at no cost.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from syne_tune.backend.trial_status import Trial
from syne_tune.config_space import choice, ordinal
from syne_tune.optimizer.scheduler import SchedulerDecision
from syne_tune.optimizer.schedulers.multiobjective.moasha import MOASHA

_MOST_ROUNDS = 3  # over all points


def main(path: str, seed: int) -> list[list[Any]]:
    """Searches until every point went to its end, or was tried often enough."""
    table = json.loads(Path(path).read_text(encoding="utf-8"))
    np.random.seed(seed)  # it samples from numpy's own generator
    num_reports = max(len(row["reports"]) for row in table["trainings"])
    scheduler = MOASHA(
        _space(table["space"]), table["objectives"], time_attr="epoch", max_t=num_reports, random_seed=seed
    )
    rows = {_key(point): row for row, point in enumerate(table["points"])}
    left, finished = set(rows.values()), set[int]()
    progress: list[list[Any]] = []
    spent, number = 0.0, 0
    while len(finished) < len(rows) and number < _MOST_ROUNDS * len(rows):
        row = _suggest(scheduler, rows, left or set(rows.values()) - finished)
        left.discard(row)
        seconds, is_whole = _train(scheduler, number, table, row, num_reports)
        spent += seconds
        number += 1
        if is_whole:
            finished.add(row)
        progress.append([spent, row if is_whole and table["trainings"][row]["is_complete"] else None])
    return progress


def _space(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        str(index): ordinal(item["values"], kind="equal") if item["is_ordered"] else choice(item["values"])
        for index, item in enumerate(parameters)
    }


def _suggest(scheduler: MOASHA, rows: dict[str, int], wanted: set[int]) -> int:
    while True:
        config = scheduler.suggest().config
        row = rows.get(_key([config[str(index)] for index in range(len(config))]))
        if row is not None and row in wanted:
            return row


def _train(scheduler: MOASHA, number: int, table: dict[str, Any], row: int, num_reports: int) -> tuple[float, bool]:
    training = table["trainings"][row]
    trial = Trial(trial_id=number, config={}, creation_time=None)
    scheduler.on_trial_add(trial)
    for epoch, (seconds, *values) in enumerate(training["reports"], 1):
        result = {"epoch": epoch, **dict(zip(table["objectives"], values, strict=True))}
        if scheduler.on_trial_result(trial, result) == SchedulerDecision.STOP and epoch < num_reports:
            return float(seconds), False
    return float(training["total"]), True


def _key(values: list[Any]) -> str:
    return json.dumps(values)


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]))))
