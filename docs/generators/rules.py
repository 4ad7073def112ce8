"""The ranking of scaling rules by the recorded experiment on digits.

It is stored as JSON beside this file, because its last digits differ between processors; ``write_ranking`` computes it
again from the records.
"""

import json
from pathlib import Path

from generators.markdown import table

from reports.rule_texts import describe_rows, describe_starts, name_columns, summarize
from sweep.analysis.rules.ranking import rank_rules
from sweep.analysis.rules.settings import collect_settings
from sweep.records.frames.frames import load_frames

ROOT = Path(__file__).resolve().parents[2]
RECORDS = tuple(f"benchmarks/tables/digits_{name}" for name in ("rates", "rules_resnet8", "rules_vit_micro"))
_FILE = Path(__file__).with_suffix(".json")
_REFERENCE = 128


def write_ranking() -> None:
    """Ranks the rules again by the records."""
    ranking = rank_rules(collect_settings([load_frames(ROOT / place) for place in RECORDS]), _REFERENCE)
    found = {
        "starts": list(describe_starts(ranking)),
        "columns": name_columns(ranking),
        "rows": list(describe_rows(ranking, ranking.rules)),
        "summary": list(summarize(ranking)),
    }
    _FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def ranked() -> str:
    """What was trained, what the ranking decides, and every combination with its regret."""
    found = json.loads(_FILE.read_text(encoding="utf-8"))
    commands = f"    sweep rules {' '.join(RECORDS)} --reference {_REFERENCE}"
    lines = [f"- {text}" for text in (*found["starts"], *found["summary"])]
    return "\n\n".join([commands, "\n".join(lines), table(found["columns"], found["rows"])])
