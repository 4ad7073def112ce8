"""How much sooner our search has the front than Syne Tune's MO-ASHA, which runs in an environment of its own.

``make bench-peers`` makes that environment: Syne Tune requires packages that do not fit beside the project.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.replay import RecordedTable, schedule_messages
from benchmarks.search_arms import TARGET, against, is_ordered
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.records.messages import Evaluation

PYTHON = Path(__file__).parents[1] / ".venv-peers" / "bin" / "python"
_SCRIPT = Path(__file__).parent / "peer_moasha.py"


def moasha_seconds(table: RecordedTable, seed: int) -> float:
    """Until a search by MO-ASHA has the share ``TARGET``, or what it spent without.

    Raises:
        InputError: Syne Tune's environment is missing.
    """
    if not PYTHON.exists():
        raise InputError(f"{PYTHON} is missing; make bench-peers sets up the environment of Syne Tune.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.json"
        path.write_text(json.dumps(plain_table(table, seed)), encoding="utf-8")
        command = [str(PYTHON), str(_SCRIPT), str(path), str(seed)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    progress = json.loads(said.splitlines()[-1])
    found: list[int] = []
    for seconds, row in progress:
        if row is not None:
            found.append(row)
        if table.share(found) >= TARGET:
            return float(seconds)
    return float(progress[-1][0])


def plain_table(table: RecordedTable, seed: int) -> dict[str, Any]:
    """The table as JSON for a process that knows nothing of this project: for each point the seconds after its start at
    which it reports, and its objectives then, smaller is better."""
    objectives = table.spec.objectives
    rows = []
    for point in table.points:
        values = dict(zip(table.space, point, strict=True))
        trial = table.training(table.spec.config(values, seed))
        measured = trial.ending.measurements
        reports = [
            [
                seconds,
                *(METRICS[name].sign * float(getattr(said, name, measured.get(name, 0.0))) for name in objectives),
            ]
            for seconds, said in schedule_messages(trial)
            if isinstance(said, Evaluation)
        ]
        is_complete = trial.ending.outcome == "complete"
        rows.append({"reports": reports, "total": measured["total_seconds"], "is_complete": is_complete})
    return {
        "objectives": list(objectives),
        "space": [
            {"values": list(item.grid_values or ()), "is_ordered": is_ordered(item)} for item in table.space.values()
        ],
        "points": [list(point) for point in table.points],
        "trainings": rows,
    }


BENCHMARK = against(
    "search_moasha",
    "how many times the seconds of training does Syne Tune's MO-ASHA need until 99 % of the hypervolume?",
    1.5,
    moasha_seconds,
)
