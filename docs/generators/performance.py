"""The committed results of the benchmarks."""

import json
from pathlib import Path
from typing import Any

from generators.markdown import table
from generators.measured import MEASURED

Json = dict[str, Any]
_RESULTS = Path(__file__).resolve().parents[2] / "benchmarks/results"


def performance() -> str:
    """The newest committed result of each benchmark on each device."""
    newest: dict[tuple[str, str], Json] = {}
    for path in sorted(_RESULTS.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        # no ratio, or of a benchmark that is gone
        if "interval" not in result or result["name"] not in MEASURED:
            continue
        key = (result["name"], result["environment"]["device"])
        if key not in newest or result["date"] >= newest[key]["date"]:
            newest[key] = result
    rows = [
        (
            MEASURED[name].ours + _details(result),
            MEASURED[name].against,
            MEASURED[name].unit,
            _ratio(result),
            _target(result),
            str(result["interval"]["n"]),
            device,
            result["date"],
        )
        for (name, device), result in newest.items()
    ]
    heads = ("ours", "compared with", "ratio of", "ratio: median [95 % interval]", "goal", "n", "device", "date")
    return table(heads, rows)


def _ratio(result: Json) -> str:
    interval = result["interval"]
    return f"{interval['median']:.3g} [{interval['low']:.3g}, {interval['high']:.3g}]"


def _details(result: Json) -> str:
    coverage = result["facts"].get("coverage", "")  # of a forecast's interval
    return f"; {coverage}" if coverage else ""


def _target(result: Json) -> str:
    sign = "≥" if result["better"] == "higher" else "≤"
    return f"{sign} {result['target']:g}" + ("" if result["is_met"] else ", missed")
