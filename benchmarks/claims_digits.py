"""All claims on the digits, each tested on its own planned study: ``python -m benchmarks.claims_digits --root DIR``.

The studies run by the project's own :func:`sweep.search.loop.session.run_study`, so that the same command with the same
``--root`` continues where it ended. ``--minutes`` ends it in time: each study has a share of what is left, and one
that was cut short is tested on what it has. ``--only NAME ...`` runs the studies of these claims, but verdicts are
always those of all claims with records under the root, with p corrected for all of them together (Holm 1979).
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.claim_studies import ClaimStudy, plan_studies, read_records, run_studies, train_weights
from benchmarks.harness import warn_if_busy
from benchmarks.results import FOLDER
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.comparable import select_comparable
from sweep.analysis.documents import to_document
from sweep.analysis.findings import Assessment, Finding, assess_claim, find_verdicts
from sweep.config.errors import InputError
from sweep.measurement.environment import describe_environment

_NAMES = [claim.name for claim in CLAIMS]
_BUSY = "busy_host"


def assess_studies(studies: Sequence[ClaimStudy], root: Path) -> dict[str, Any]:
    """The verdicts on the claims of the studies, and how much was trained for each."""
    assessments: list[Assessment] = []
    ran: dict[str, dict[str, Any]] = {}
    for study in studies:
        frames = read_records(study, root)
        if frames is None or not (frames.trials["outcome"] == "complete").any():
            continue
        records = select_comparable(frames)
        ran |= {claim.name: _count_trainings(study, records.trials) for claim in study.list_claims()}
        assessments += [assess_claim(claim, records) for claim in study.list_claims()]
    found = {finding.name: finding for finding in find_verdicts(assessments)}
    asked = [claim for claim in CLAIMS if any(claim.name in study.claims for study in studies)]
    rows = [_describe(found[claim.name], ran[claim.name]) for claim in asked if claim.name in found]
    return {
        "claims": rows,
        "without_records": [claim.name for claim in asked if claim.name not in found],
        "num_tested": sum(row["effect"] is not None for row in rows),
    }


def _count_trainings(study: ClaimStudy, trials: pd.DataFrame) -> dict[str, Any]:
    done = trials[~trials["outcome"].fillna("").isin(["", "cancelled"])]  # diverged ones have ended too
    is_own = done["reused_from"].fillna("") == ""
    return {
        "study": study.spec.name,
        "trainings_run": len(done),
        "trainings_reused": int((~is_own).sum()),
        "trainings_planned": study.spec.trials,
        "trainings_with_busy_host": int(done["quality_flags"].fillna("").str.contains(_BUSY).sum()),
        "seconds": float(done.loc[is_own, "total_seconds"].sum()),
        "is_timed": study.is_timed,
    }


def _describe(finding: Finding, trainings: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "statement", "published", "unit", "effect", "low", "high", "n", "p", "verdict", "detail", "reason")
    row = {key: getattr(finding, key) for key in kept}
    row |= {"claimed": list(finding.claimed), "matters": finding.matters, **trainings}
    is_open = finding.verdict not in ("supported", "contradicted")
    row["trainings_needed"] = finding.trainings if is_open else None
    row["settle"] = f"sweep claims {finding.name} --plan && sweep run claim_{finding.name}.toml" if is_open else ""
    document: dict[str, Any] = to_document(row)
    return document


def save(result: dict[str, Any], folder: Path = FOLDER) -> Path:
    """Writes ``claims_digits-<date>.json`` with the environment."""
    now = datetime.now(UTC).date().isoformat()
    path = folder / f"claims_digits-{now}.json"
    document = {"date": now, "data": "digits", **result, "environment": describe_environment(torch.device("cpu"))}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 where a claim has no records; 2 for input that is refused."""
    options = _parser().parse_args(arguments)
    if not options.minutes > 0:
        print(f"--minutes {options.minutes:g}: give more than 0.", file=sys.stderr)
        return 2
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each training; inherited by their processes
    warn_if_busy(os.getloadavg()[0])
    weights = options.root.resolve() / "weights.safetensors"
    studies = plan_studies(_NAMES, weights)
    try:
        train_weights(weights)
        chosen = [study for study in studies if set(study.claims) & set(options.only)]
        run_studies(chosen, options.root, 60 * options.minutes)
        result = assess_studies(studies, options.root)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps(result, indent=1))
    if options.save:
        print(f"saved {save(result)}", file=sys.stderr)
    return 1 if result["without_records"] else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims_digits", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the studies' records, to begin or continue")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all studies that run (60)")
    parser.add_argument("--only", nargs="+", default=_NAMES, choices=_NAMES, metavar="NAME", help="run these claims")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    return parser


if __name__ == "__main__":
    sys.exit(main())
