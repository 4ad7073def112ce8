"""How often the answer's statements are right: studies on made-up truths, searched, confirmed and answered by the
product's own code.

``python -m benchmarks.answer_truth``: each study's figures are written when it ends, under ``runs/answer_truth``, so
that an interrupted measurement continues; they are computed again when the code has changed. ``--fresh-subset``
computes 20 other studies of each family and reads nothing.
"""

import argparse
import hashlib
import itertools
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import ndtri

from benchmarks.made_study import MadeStudy, make_spec
from benchmarks.results import share_of
from benchmarks.truths import BATCHES, FAMILIES, HELD_BACK, Truth, seconds_of
from sweep.analysis.recommendation import recommend
from sweep.config.study import StudySpec
from sweep.config.study_sections import FEWEST_SEEDS
from sweep.measurement.environment import describe_environment

_ALL = FAMILIES | HELD_BACK
ROOT, RESULTS = Path("runs/answer_truth"), Path(__file__).parent / "results"
_NOISES, _IMAGES, _TRIALS = (0.002, 0.004, 0.007, 0.01), (200, 1000, 3000, 10_000), (30, 60)
_REPOSITORY = Path(__file__).parent.parent
_FIRST = 20_000  # number of the first study: those with lower numbers were looked at before
_FRESH, _SUBSET = 1_000_000, 20
_OWN_SHARE = (
    0.7  # of the variance of a misclassified image: what a configuration has in common with another is not in it
)


@dataclass(frozen=True, kw_only=True)
class StudyFigures:
    """One study. ``is_right`` and ``is_near`` are about the headline where it is settled: whether it is right among the
    configurations that were tried, and whether its accuracy is within the tolerance of the best there could be."""

    family: str
    number: int
    noise: float
    num_images: int
    seconds: float
    budget: float
    is_settled: bool
    is_feasible: bool
    is_named: bool
    is_right: bool
    is_near: bool
    is_covered: bool
    width: float
    num_seeds: int
    largest_settled: bool
    largest_right: bool


def run_study(family: str, number: int) -> StudyFigures:
    """Searches, confirms and answers one study, and judges the answer by the truth."""
    rng = np.random.default_rng([number, *family.encode()])
    noise, num_images = float(rng.choice(_NOISES)), int(rng.choice(_IMAGES))
    truth = _ALL[family](rng, noise)
    spec = make_spec(truth, int(rng.choice(_TRIALS)), number, answer={"tolerance": {"accuracy": 0.01}})
    study = MadeStudy(truth, spec, num_images, int(rng.integers(2**31)))
    frames = study.run()
    answer = recommend(frames)  # type: ignore[arg-type]
    assert answer.batch_size is not None
    named = answer.batch_size.named
    search = sum(each.measurements["total_seconds"] for each in study.records if each.phase == "search")
    whole = sum(each.measurements["total_seconds"] for each in study.records)
    tried = _list_tried(study, truth)
    budget = spec.confirm.share * search
    largest = next((each for each in answer.batch_size.statements if each.name == "largest_without_loss"), None)
    judged = _judge_named(named, tried, truth, spec)
    return StudyFigures(
        family=family,
        number=number,
        noise=noise,
        num_images=num_images,
        seconds=float(whole),
        budget=float(budget),
        is_settled=named.is_settled,
        is_feasible=_is_feasible(tried, spec, num_images, budget),
        largest_settled=bool(largest and largest.is_settled),
        largest_right=bool(largest and largest.batches and _is_without_loss(largest.batches[0], tried, spec)),
        **judged,
    )


@dataclass(frozen=True)
class _Tried:
    number: int
    model: str
    batch: int
    accuracy: float
    seconds: float
    noise: float


def _list_tried(study: MadeStudy, truth: Truth) -> list[_Tried]:
    return [
        _Tried(
            record.number,
            (config := record.config).model.name,
            config.global_batch_size,
            truth.accuracy(config.model.name, config.global_batch_size, config.optimizer.lr),
            seconds_of(config.model.name, config.global_batch_size),
            truth.noise(config.model.name, config.global_batch_size),
        )
        for record in study.records
        if record.phase == "search"
    ]


def _judge_named(named: Any, tried: list[_Tried], truth: Truth, spec: StudySpec) -> dict[str, Any]:
    if named.number is None:
        return {
            "is_named": False, "is_right": False, "is_near": False, "is_covered": True, "width": 0.0, "num_seeds": 0,
        }  # fmt: skip
    tolerance = spec.answer.tolerance.accuracy
    one = next(each for each in tried if each.number == named.number)
    accuracy = named.values["val_accuracy"]
    optimum = max(truth.tuned(model, batch) for model in truth.models for batch in BATCHES)
    return {
        "is_named": True,
        "is_right": _find_margin(one, tried, spec) >= 0,
        "is_near": one.accuracy >= optimum - tolerance,
        "is_covered": accuracy.low <= one.accuracy <= accuracy.high,
        "width": accuracy.high - accuracy.low,
        "num_seeds": accuracy.n,
    }


def _find_margin(one: _Tried, tried: list[_Tried], spec: StudySpec) -> float:
    # accuracy by which the statement "use this one" is right; negative where it is wrong
    tolerance, best = spec.answer.tolerance, max(each.accuracy for each in tried)
    margins = [one.accuracy - (best - tolerance.accuracy)]
    limit = best - tolerance.accuracy / 2
    slower = one.seconds / (1 + tolerance.time)
    margins += [limit - each.accuracy for each in tried if each.seconds < slower]
    return min(margins)


def _is_feasible(tried: list[_Tried], spec: StudySpec, num_images: int, budget: float) -> bool:
    """Whether half of ``budget`` suffices for one who knows the truth and trains the best named one and its closest
    rival alone."""
    margins = [_find_margin(each, tried, spec) for each in tried]
    one = tried[int(np.argmax(margins))]
    margin = max(margins)
    if margin <= 0:
        return False
    best = max(tried, key=lambda each: each.accuracy)
    # two configurations on the same images: what each gets right of its own leaves an error
    image_variance = 2 * (1 - _OWN_SHARE) * best.accuracy * (1 - best.accuracy) / num_images
    allowed = (margin / ndtri(spec.answer.confidence)) ** 2 - image_variance
    if allowed <= 0:
        return False
    seeds = max((one.noise**2 + best.noise**2) / allowed, FEWEST_SEEDS)
    return bool(seeds * (one.seconds + best.seconds + 2.0) <= budget / 2)


def _is_without_loss(batch: int, tried: list[_Tried], spec: StudySpec) -> bool:
    best_here = max(each.accuracy for each in tried if each.batch == batch)
    return best_here >= max(each.accuracy for each in tried) - spec.answer.tolerance.accuracy


def summarize(found: Sequence[StudyFigures]) -> dict[str, Any]:
    """The figures over some studies, with exact 95 % intervals (Clopper and Pearson 1934) of shares."""
    settled = [each for each in found if each.is_settled]
    feasible = [each for each in found if each.is_feasible]
    largest = [each for each in found if each.largest_settled]
    named = [each for each in found if each.is_named]
    return {
        "num_studies": len(found),
        "settled_right": share_of([each.is_right for each in settled]),
        "settled_near_optimum": share_of([each.is_near for each in settled]),
        "largest_right": share_of([each.largest_right for each in largest]),
        "named_covered": share_of([each.is_covered for each in named]),
        "median_width_points": 100 * float(np.median([each.width for each in named])) if named else None,
        "named_with_enough_seeds": share_of([each.num_seeds >= FEWEST_SEEDS for each in named]),
        "settled_where_feasible": share_of([each.is_settled for each in feasible]),
        "settled": share_of([each.is_settled for each in found]),
    }


def _digest_code() -> str:
    folders = ("sweep/analysis", "sweep/search")
    paths = [*itertools.chain.from_iterable(sorted((_REPOSITORY / each).rglob("*.py")) for each in folders)]
    paths += [Path(__file__).parent / name for name in ("truths.py", "made_study.py", "answer_truth.py")]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:12]


def _measure(task: tuple[str, int, str]) -> StudyFigures:
    family, number, folder = task
    path = Path(folder) / f"{family}_{number}.json" if folder else None
    if path and path.is_file():
        return StudyFigures(**json.loads(path.read_text(encoding="utf-8")))
    figures = run_study(family, number)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part")
        written.write_text(json.dumps(asdict(figures)), encoding="utf-8")
        written.replace(path)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.answer_truth", description=__doc__)
    parser.add_argument("--studies", type=int, default=200, help="of each family (200)")
    parser.add_argument("--families", nargs="*", default=list(_ALL), choices=list(_ALL))
    parser.add_argument("--fresh-subset", action="store_true", help="other studies, without results on record")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--save", action="store_true", help="keep the result under benchmarks/results")
    options = parser.parse_args(arguments)
    count, first = (_SUBSET, _FRESH) if options.fresh_subset else (options.studies, _FIRST)
    folder = "" if options.fresh_subset else str(ROOT / _digest_code())
    tasks = [(family, first + number, folder) for number in range(count) for family in options.families]
    with ProcessPoolExecutor(options.workers) as pool:
        found = list(pool.map(_measure, tasks))
    by_family = {name: summarize([each for each in found if each.family == name]) for name in options.families}
    held_back = [each for each in found if each.family in HELD_BACK]
    result = {
        "all": summarize(found),
        "held_back": summarize(held_back),
        "families": by_family,
        "environment": describe_environment(torch.device("cpu")),
    }
    print(json.dumps({"all": result["all"], "families": by_family}, indent=1))
    if options.save:
        path = RESULTS / f"answer_truth-{datetime.now(UTC).date()}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"saved {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
