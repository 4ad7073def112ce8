"""All claims, how many trainings settle each, and the study that consists of them."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any

from sweep.analysis.claims import (
    accumulation,
    accuracy,
    batch_growth,
    learning,
    learning_rates,
    step_costs,
    tuned_recipes,
)
from sweep.analysis.claims.claim import Claim
from sweep.analysis.claims.design import SEED, Design
from sweep.analysis.statistics import SIGNIFICANT, Estimate, Region, count_repetitions
from sweep.config.advice.pitfalls import find_pitfalls
from sweep.config.errors import InputError
from sweep.config.study_file import build_study
from sweep.config.trial_config import Scalar, build_config, default_settings, replace_keys

CLAIMS: tuple[Claim, ...] = (
    *learning_rates.CLAIMS, *accuracy.CLAIMS, *tuned_recipes.CLAIMS, *accumulation.CLAIMS, *batch_growth.CLAIMS,
    *step_costs.CLAIMS, *learning.CLAIMS,
)  # fmt: skip
_BASE: dict[str, Scalar] = {"budget.epochs": 10, "model.patch_size": 4}
# Of the digits: 504 images for validation, one of which is 0.2 points of accuracy, and half as many epochs, so that the
# plans are shorter.
_DIGITS: dict[str, Scalar] = {"data.validation_share": 0.33, "budget.epochs": 5}


def find_claim(name: str) -> Claim | None:
    """The claim called ``name``; None where there is none."""
    return next((claim for claim in CLAIMS if claim.name == name), None)


def count_tested(claim: Claim) -> int:
    """How many claims the planned study of ``claim`` may test beside it and with it, by the keys that they require: the
    verdicts are corrected for as many."""
    varied, settings = _find_varied(claim.design), claim.design.base.items()
    given = varied | {key for key, value in settings if value != default_settings()[key]}
    others = (each for each in CLAIMS if each is not claim)
    return 1 + sum(given.issuperset(each.sets) and varied.issuperset(each.varies) for each in others)


def count_planned(claim: Claim) -> int:
    """The repetitions of the design with which the claim is settled with the power, by the assumed spread."""
    design, alpha = claim.design, SIGNIFICANT / count_tested(claim)
    return count_repetitions(claim.list_distances(), design.spread, design.lost, alpha, design.fewest)


def count_needed(claim: Claim, estimate: Estimate, region: Region, num_trials: int, num_tested: int) -> int:
    """The trainings with which records like these, of ``num_trials`` complete trainings and ``num_tested`` claims,
    settle the claim with the power: by the spread of its ``estimate``, without one those of its design by the assumed
    spread."""
    if not (estimate.degrees > 0 and math.isfinite(estimate.error) and estimate.error > 0):
        return claim.design.count_trainings(count_planned(claim))
    spread, lost = estimate.error * math.sqrt(estimate.n), math.ceil(estimate.n - estimate.degrees)
    alpha = SIGNIFICANT / max(num_tested, 1)
    needed = count_repetitions(claim.list_distances(region), spread, lost, alpha, 2)
    return math.ceil(num_trials * needed / estimate.n)


def write_plan(claim: Claim, data: str = "digits", changes: Mapping[str, Any] | None = None) -> str:
    """The TOML text of the smallest study that settles the claim, on the data set ``data``, with the keys ``changes``
    in its base configuration.

    Raises:
        InputError: a key of ``changes`` is one that the study varies, or is not valid.
    """
    changes = dict(changes or {})
    if varied := sorted(changes.keys() & claim.design.list_space(count_planned(claim)).keys()):
        raise InputError(f"--set {varied[0]}: the study of {claim.name} varies it; leave it out.")
    spec = build_study(tomllib.loads(_write(claim, data, {})), f"the study of {claim.name}")
    # what the design itself does, and not what is changed
    deliberate = list(dict.fromkeys(item.key for item in find_pitfalls(spec) if item.key not in changes))
    return _write(claim, data, changes, deliberate)


def _write(claim: Claim, data: str, changes: Mapping[str, Any], deliberate: Sequence[str] = ()) -> str:
    design, repetitions = claim.design, count_planned(claim)
    own = _DIGITS if data == "digits" else {}
    base = replace_keys({"data.name": data, **_BASE, **own}, {**design.base})
    repeated = "seeds" if design.repeated.key == SEED else f"values of {design.repeated.key}"
    weights = ["# a file of weights of this model that was trained on other images: sweep train --save FILE"]
    lines = [
        f"name = {json.dumps(f'claim_{claim.name}')}",
        f"question = {json.dumps(f'Is it so? {claim.statement}')}",
        f"trials = {design.count_trainings(repetitions)}  # {repetitions} {repeated}, with which the claim is settled",
        'sampler = "grid"',
        "confirm = { max_configurations = 0, seeds = 0 }",
        *(
            [f"deliberate = {json.dumps(deliberate)}  # the design of the claim, so that no advice is due"]
            * bool(deliberate)
        ),
        "",
        "[base]",
        *(weights * ("model.weights" in base)),
        *(f"{key} = {json.dumps(value)}" for key, value in replace_keys(base, dict(changes)).items()),
        "",
        "[space]",
        *(
            f"{json.dumps(key)} = {{ choice = {json.dumps(values)} }}"
            for key, values in design.list_space(repetitions).items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _find_varied(design: Design) -> set[str]:
    # the effective batch size and the number of micro batches follow from several keys
    configs = [build_config(replace_keys({}, point), "plan") for point in design.list_points(2)]
    varied = {*design.keys} - {"batch.accumulation"}
    varied |= {"global_batch_size"} if len({config.global_batch_size for config in configs}) > 1 else set()
    return varied | ({"batch.accumulation"} if len({config.num_accumulation for config in configs}) > 1 else set())
