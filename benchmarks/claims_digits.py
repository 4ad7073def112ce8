"""All claims on the digits, each tested on its own planned study: ``python -m benchmarks claims_digits --root DIR``.

The studies run by the project's own :func:`sweep.search.session.run_study`, so that the same command with the same
``--root`` continues where it ended. ``--minutes`` ends it in time: each study has a share of what is left, and one
that was cut short is tested on what it has. ``--only NAME ...`` runs the studies of these claims, but verdicts are
always those of all claims with records under the root, with p corrected for all of them together (Holm 1979).
"""

import argparse
import itertools
import json
import subprocess
import sys
import time
import tomllib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.datasets import EARLIER, LATER, PLUGIN
from benchmarks.harness import save, warn_if_busy
from sweep.analysis.answer import to_document
from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.claims import Claim
from sweep.analysis.comparable import select_comparable
from sweep.analysis.findings import Assessment, Finding, assess_claim, count_planned, find_verdicts, write_plan
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.study import StudySpec
from sweep.config.study_file import build_study
from sweep.config.trial import Scalar
from sweep.executors.table import ExecutorSettings
from sweep.records.frames import Frames
from sweep.records.loading import load_frames
from sweep.search.session import Options, run_study
from sweep.training.processes import load_plugin

_NAMES = [claim.name for claim in CLAIMS]
_PRETRAINING = {"data.name": EARLIER, "budget.epochs": 20}
# What is in a grid because its keys vary together, and in no comparison of the claim.
_NOT_COMPARED: dict[str, tuple[dict[str, Scalar], ...]] = {
    "schedule_free_matches": (
        {"optimizer.name": "schedule_free", "schedule.name": "cosine"},
        {"optimizer.name": "adamw", "schedule.name": "constant"},
    ),
    "batch_instead_of_decay": (
        {"batch.schedule": "constant", "schedule.name": "constant"},
        {"batch.schedule": "stepwise", "schedule.name": "step"},
    ),
}


@dataclass(frozen=True, kw_only=True)
class ClaimStudy:
    """A planned study and the claims that are tested on it: more than one where their plans are the same."""

    spec: StudySpec
    claims: tuple[str, ...]
    plugin: str | None = None

    @property
    def is_timed(self) -> bool:
        """Whether it measures time or memory, so that it has to run alone."""
        return any(METRICS[name].is_of_a_device for claim in self.list_claims() for name in claim.metrics)

    def list_claims(self) -> list[Claim]:
        return [claim for claim in CLAIMS if claim.name in self.claims]


def plan_studies(
    names: Collection[str], weights: Path, changes: dict[str, Any] | None = None, most: int | None = None
) -> list[ClaimStudy]:
    """The studies of the claims ``names``, those with few trainings first. ``weights`` are what fine-tuning begins
    with, ``changes`` further keys of the base configuration, ``most`` the trainings of a study at most."""
    found: dict[str, ClaimStudy] = {}
    for claim in (each for each in CLAIMS if each.name in names):
        spec, plugin = _plan(claim, weights, changes or {})
        spec = spec.model_copy(update={"trials": min(spec.trials, most or spec.trials)})
        same = spec.model_dump_json(exclude={"name", "question"})
        earlier = found.get(same, ClaimStudy(spec=spec, claims=(), plugin=plugin))
        found[same] = ClaimStudy(spec=earlier.spec, claims=(*earlier.claims, claim.name), plugin=plugin)
    return sorted(found.values(), key=lambda study: study.spec.trials)


def _plan(claim: Claim, weights: Path, changes: dict[str, Any]) -> tuple[StudySpec, str | None]:
    is_tuned_further = "model.weights" in claim.sets
    own = {"data.name": LATER, "model.weights": str(weights), "data.validation_share": 0.33, "budget.epochs": 5}
    text = write_plan(claim, own | changes if is_tuned_further else changes)
    points = order_points(claim)
    table = tomllib.loads(text) | {"first": points, "trials": len(points)}
    return build_study(table, f"the plan of {claim.name}"), PLUGIN if is_tuned_further else None


def order_points(claim: Claim) -> list[dict[str, Scalar]]:
    """The points of the planned grid that the claim compares, one whole repetition after another, so that a study that
    is cut short has pairs to compare. The repetitions are in van der Corput's order, in which the first ones are spread
    over all of them."""
    space = claim.design.list_space(count_planned(claim))
    repeated = space.pop(claim.design.repeated)
    places = sorted(range(len(repeated)), key=lambda place: f"{place:016b}"[::-1])
    combinations = [dict(zip(space, values, strict=True)) for values in itertools.product(*space.values())]
    unused = [each.items() for each in _NOT_COMPARED.get(claim.name, ())]
    combinations = [point for point in combinations if not any(each <= point.items() for each in unused)]
    return [{**point, claim.design.repeated: repeated[place]} for place in places for point in combinations]


def _train_weights(weights: Path) -> None:
    """Trains what fine-tuning begins with by ``sweep train``, where the file is not there yet."""
    if weights.is_file():
        return
    weights.parent.mkdir(parents=True, exist_ok=True)
    sets = [word for key, value in _PRETRAINING.items() for word in ("--set", f"{key}={json.dumps(value)}")]
    command = [sys.executable, "-m", "sweep.cli", "train", "--plugin", PLUGIN, *sets, "--save", str(weights)]
    subprocess.run([*command, "--on", "cpu"], check=True, stdout=subprocess.DEVNULL)


def run_studies(studies: Sequence[ClaimStudy], root: Path, seconds: float) -> None:
    """Runs or resumes what is left of the studies, one after another. Each may take an equal share of the time that is
    left when it begins; what it leaves is for those after it. Trainings of other studies are reused, but where time or
    memory is measured."""
    load_plugin(PLUGIN)  # whose names the configurations have
    end, left = time.monotonic() + seconds, [study for study in studies if not is_finished(study, root)]
    for place, study in enumerate(left):
        limit = max(end - time.monotonic(), 1.0) / (len(left) - place)
        print(f"{study.spec.name}: {study.spec.trials} trainings, at most {limit:.0f} s", file=sys.stderr)
        options = Options(
            root=root, reuse=not study.is_timed, plugin=study.plugin, timeout_seconds=limit,
            executor=ExecutorSettings(device="cpu"),
        )  # fmt: skip
        run_study(study.spec, options)


def is_finished(study: ClaimStudy, root: Path) -> bool:
    frames = read_records(study, root)
    return frames is not None and int((frames.trials["outcome"].fillna("") != "").sum()) >= study.spec.trials


def read_records(study: ClaimStudy, root: Path) -> Frames | None:
    """The records of the study with its learning curves; None where it did not begin."""
    folder = root / study.spec.name
    return load_frames(folder, evaluations=True) if (folder / "study.sqlite").is_file() else None


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
        "study": study.spec.name, "trainings_run": len(done), "trainings_reused": int((~is_own).sum()),
        "trainings_planned": study.spec.trials,
        "trainings_with_busy_host": int(done["quality_flags"].fillna("").str.contains("busy_host").sum()),
        "seconds": float(done.loc[is_own, "total_seconds"].sum()), "is_timed": study.is_timed,
    }  # fmt: skip


def _describe(finding: Finding, trainings: dict[str, Any]) -> dict[str, Any]:
    kept = ("name", "statement", "published", "unit", "effect", "low", "high", "n", "p", "verdict", "detail", "reason")
    row = {key: getattr(finding, key) for key in kept}
    row |= {"claimed": list(finding.claimed), "matters": finding.matters, **trainings}
    is_open = finding.verdict not in ("supported", "contradicted")
    row["trainings_needed"] = finding.trainings if is_open else None
    row["settle"] = f"sweep claims {finding.name} --plan && sweep run claim_{finding.name}.toml" if is_open else ""
    document: dict[str, Any] = to_document(row)
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 where a claim has no records."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks claims_digits", description=__doc__)
    parser.add_argument("--root", type=Path, required=True, help="folder of the studies' records, to begin or continue")
    parser.add_argument("--minutes", type=float, default=60.0, help="for all studies that run (60)")
    parser.add_argument("--only", nargs="+", default=_NAMES, choices=_NAMES, metavar="NAME", help="run these claims")
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    if not options.minutes > 0:
        raise InputError(f"--minutes {options.minutes:g}: give more than 0.")
    warn_if_busy()
    weights = options.root.resolve() / "weights.safetensors"
    studies = plan_studies(_NAMES, weights)
    _train_weights(weights)
    chosen = [study for study in studies if set(study.claims) & set(options.only)]
    run_studies(chosen, options.root, 60 * options.minutes)
    result = assess_studies(studies, options.root)
    print(json.dumps(result, indent=1))
    if options.save:
        save("claims_digits", {"data": "digits", **result})
    return 1 if result["without_records"] else 0
