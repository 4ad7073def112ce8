"""How often the findings are right: records of each claim's own planned study, whose truth is made up.

``python -m benchmarks.claims_truth --studies N``: N studies where the claim is true by the smallest margin that
matters, and N where it is false by as much, with the planned number of trainings and the scatter that the plan assumes.
A verdict that contradicts the truth is wrong; "undecided" and the verdicts without a test settle nothing. Each study's
verdict is written when it is known, under ``runs/claims_truth``, so that an interrupted measurement continues; they are
computed again when the code has changed. ``--seconds`` ends the measurement in time: claims take turns, so that all of
them have equally many studies but for one.
"""

import argparse
import hashlib
import itertools
import json
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.claim_truths import TRUTHS, find_effect, make_records
from benchmarks.results import FOLDER, share_of
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.findings import UNSETTLED, count_planned, evaluate_claims
from sweep.measurement.environment import describe_environment

_ROOT = Path("runs/claims_truth")
_REPOSITORY = Path(__file__).resolve().parent.parent
MOST_WRONG, MOST_OPEN = 0.05, 0.20


class Judged(NamedTuple):
    """The verdict of one study about its own claim."""

    claim: str
    is_true: bool
    verdict: str

    @property
    def is_open(self) -> bool:
        """Whether the study has settled nothing."""
        return self.verdict in UNSETTLED

    @property
    def is_wrong(self) -> bool:
        """Whether the verdict contradicts the truth."""
        return not self.is_open and (self.verdict == "supported") != self.is_true


def judge_study(name: str, number: int, *, is_true: bool) -> Judged:
    """Makes the records of one study of the claim ``name`` and reads its verdict from the findings on all claims."""
    claim = next(each for each in CLAIMS if each.name == name)
    rng = np.random.default_rng([number, int(is_true), *name.encode()])
    records = make_records(claim, find_effect(claim, is_true=is_true), rng)
    found = evaluate_claims(records)  # type: ignore[arg-type]
    return Judged(name, is_true, next(each.verdict for each in found if each.name == name))


def summarize(judged: Sequence[Judged]) -> dict[str, Any]:
    """Shares of the studies, with exact 95 % intervals."""
    wrong, unsettled = [each.is_wrong for each in judged], [each.is_open for each in judged]
    return {"num_studies": len(judged), "wrong": share_of(wrong), "undecided": share_of(unsettled)}


def _judge_all(num_studies: int, names: Sequence[str], seconds: float) -> Iterator[Judged]:
    folder, until = _ROOT / _digest_code(), time.monotonic() + seconds
    folder.mkdir(parents=True, exist_ok=True)
    for number, name, is_true in itertools.product(range(num_studies), names, (True, False)):
        path = folder / f"{name}_{number}_{is_true}.txt"
        if not path.is_file():
            if time.monotonic() > until:
                return
            written = path.with_suffix(".part")
            written.write_text(judge_study(name, number, is_true=is_true).verdict, encoding="utf-8")
            written.replace(path)
        yield Judged(name, is_true, path.read_text(encoding="utf-8"))


def _digest_code() -> str:
    paths = sorted((_REPOSITORY / "sweep/analysis").rglob("*.py"))
    paths += [Path(__file__).parent / name for name in ("claim_truths.py", "claims_truth.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _summarize_claim(name: str, judged: Sequence[Judged]) -> dict[str, Any]:
    claim = next(each for each in CLAIMS if each.name == name)
    own = [each for each in judged if each.claim == name]
    return {
        "trainings": claim.design.count_trainings(count_planned(claim)),
        "true": summarize([each for each in own if each.is_true]),
        "false": summarize([each for each in own if not each.is_true]),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 where the shares over all claims are within their limits, otherwise 1."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.claims_truth", description=__doc__)
    parser.add_argument("--studies", type=int, default=100, help="of each claim and truth (100)")
    parser.add_argument("--claims", nargs="*", default=list(TRUTHS), choices=list(TRUTHS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=600.0, help="no study begins later (600)")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    judged = list(_judge_all(options.studies, options.claims, options.seconds))
    whole = summarize(judged)
    by_claim = {name: _summarize_claim(name, judged) for name in options.claims}
    print(json.dumps({"all": whole, "claims": by_claim}, indent=1))
    if options.save:
        environment = describe_environment(torch.device("cpu"))
        path = FOLDER / f"claims_truth-{datetime.now(UTC).date()}.json"
        result = {"all": whole, "claims": by_claim, "environment": environment}
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"saved {path}", file=sys.stderr)
    is_met = judged and whole["wrong"]["share"] <= MOST_WRONG and whole["undecided"]["share"] <= MOST_OPEN
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
