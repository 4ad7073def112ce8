"""The findings: every claim tested on a study's own records, and the study that settles one."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from sweep.analysis.claim_table import CLAIMS
from sweep.analysis.claims import EFFECTIVE, SEED, Claim, Design
from sweep.analysis.comparable import ComparableTrials, select_comparable
from sweep.analysis.statistics import (
    NOTHING,
    SIGNIFICANT,
    Estimate,
    Measurement,
    Region,
    Verdict,
    assess_region,
    confidence_interval,
    correct_holm,
    count_repetitions,
    plain_value,
)
from sweep.config.advice import find_pitfalls
from sweep.config.errors import InputError
from sweep.config.metrics import METRICS
from sweep.config.study_file import build_study
from sweep.config.trial import Scalar, build_config, config_keys, default_settings, replace_keys
from sweep.records.frames import Frames

_ACCURACY_UNIT = "fraction difference"
UNTESTED: tuple[Verdict, ...] = ("not tested", "not measured")
UNSETTLED: tuple[Verdict, ...] = ("undecided", *UNTESTED)
_BASE: dict[str, Scalar] = {"budget.epochs": 10, "model.patch_size": 4}
# The keys that choose the images.
_DATA_KEYS = ("data.name", "data.root", "data.subset", "data.image_size", "data.resize", "data.on_bad_image")
# For the digits: 504 images for validation, each 0.2 points of accuracy, and half as many epochs, so that the plans are
# shorter.
_DIGITS: dict[str, Scalar] = {"data.validation_share": 0.33, "budget.epochs": 5}


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim and what the records show of it.

    ``effect`` with its 95 % interval is in ``unit`` (a metric's unit, "ratio", "exponent", "fraction/doubling"); NaN
    where there is too little; ``claimed`` is the range that the statement allows, open where a bound is infinite.
    ``n`` counts what the interval rests on, as ``detail`` describes: pairs, batch sizes or
    configurations. ``p`` belongs to the test behind the verdict, corrected for the number of tests (Holm 1979); the
    verdict is undecided unless it is at most 0.05. It is "not measured" where the study did not vary or measure what
    the claim is about, and "not tested" where it did and the records cannot test the claim: there is no effect then,
    for the ``reason``. ``settle`` plans and runs the study that settles the claim, or says what one of the user's
    script varies ("" where it is settled), ``trainings`` is how many a study would require for that with a power of 0.8
    at the effect that ``matters``: by the spread of these records, without an effect by an assumed one.
    ``published`` is what others measured, with the source.
    """

    name: str
    statement: str
    effect: float
    low: float
    high: float
    unit: str
    claimed: Region
    n: int
    verdict: Verdict
    settle: str
    published: str
    detail: str
    p: float
    reason: str = ""
    matters: float = np.nan
    trainings: int = 0


class Assessment(NamedTuple):
    """A claim measured on the records of one study, before p is corrected; ``lack`` is why it could not be."""

    claim: Claim
    records: ComparableTrials
    measurement: Measurement
    lack: str

    @property
    def region(self) -> Region:
        return self.measurement.region or self.claim.region

    @property
    def is_tested(self) -> bool:
        return self.measurement.estimate.degrees > 0


def evaluate_claims(frames: Frames) -> list[Finding]:
    """Every claim in a fixed order; what the records do not show is undecided or not tested, with what would settle
    it."""
    records = select_comparable(frames)
    return find_verdicts([assess_claim(claim, records) for claim in CLAIMS])


def assess_claim(claim: Claim, records: ComparableTrials) -> Assessment:
    """The claim measured on the records, without a verdict."""
    lack = claim.find_lack(records)
    measurement, num_images = Measurement(reason=lack) if lack else claim.measure(records), records.images.num_images
    estimate = measurement.estimate
    if claim.unit == _ACCURACY_UNIT and num_images and estimate.degrees > 0:
        # An accuracy is rounded to one of the images, so that a few equal differences do not show that there is no
        # scatter: the error of their mean is at least that of roundings, 1 / (12 images^2) for each of two accuracies.
        error = max(estimate.error, 1 / (num_images * math.sqrt(6 * estimate.n)))
        measurement = measurement._replace(estimate=estimate._replace(error=error))
    return Assessment(claim, records, measurement, lack)


def find_verdicts(assessments: Sequence[Assessment]) -> list[Finding]:
    """The verdicts on claims whose records may be of several studies, corrected for all that are tested."""
    judged = [assess_region(claim.measurement.estimate, claim.region) for claim in assessments]
    tested = np.array([claim.is_tested for claim in assessments], dtype=np.bool_)
    corrected = np.ones(len(assessments))
    corrected[tested] = correct_holm(np.array([p for _, p in judged])[tested])
    return [
        _make_finding(claim, leaning if p <= SIGNIFICANT else "undecided", p, int(tested.sum()))
        for claim, (leaning, _), p in zip(assessments, judged, corrected.tolist(), strict=True)
    ]


def _make_finding(assessment: Assessment, verdict: Verdict, p: float, num_tested: int) -> Finding:
    claim, records, measurement, lack = assessment
    if not assessment.is_tested:
        verdict = "not measured" if lack else "not tested"
    effect, low, high = confidence_interval(measurement.estimate if assessment.is_tested else NOTHING)
    doubtful = records.has_doubtful_time & any(METRICS[name].is_speed for name in claim.metrics)
    doubt = f"{doubtful.sum()} of {len(doubtful)} configurations have no reliable training time"
    return Finding(
        name=claim.name,
        statement=claim.statement,
        effect=effect,
        low=low,
        high=high,
        unit=claim.unit,
        claimed=assessment.region,
        n=measurement.estimate.n,
        verdict=verdict,
        settle=_command_plan(records, claim) if verdict in UNSETTLED else "",
        published=claim.published,
        detail="; ".join(filter(None, (measurement.detail, doubt if doubtful.any() else ""))),
        p=p,
        reason="" if assessment.is_tested else measurement.reason,
        matters=claim.matters,
        trainings=count_needed(claim, measurement.estimate, assessment.region, len(records.done), num_tested),
    )


def _command_plan(records: ComparableTrials, claim: Claim) -> str:
    # plans and runs the claim's own study, on the data of the records; a comment where that settles nothing
    if records.frames.source is not None:
        columns = {meaning.partition(" ")[0]: column for column, meaning in records.frames.source.columns}
        return records.commands.state_elsewhere(f"further runs with {_describe_space(records, claim, columns)}")
    if records.is_script:  # the claim's own study trains on images
        return _describe_script_runs(records, claim)
    data, design, num_images = records.frames.data, claim.design, records.images.num_images
    sizes = [build_config(replace_keys({}, point), "plan").global_batch_size for point in design.list_points(2)]
    if data is not None and data.num_train is not None and max(sizes) > data.num_train:
        return f"# more images: its study has steps of {max(sizes):,} images, and {data.num_train:,} are trained on"
    rows = records.trials.head(1)
    settings = {key: plain_value(value) for key in _DATA_KEYS for value in rows.get(f"config.{key}", ())}
    name = settings.get("data.name")
    if name != "digits" and claim.unit == _ACCURACY_UNIT and num_images and claim.matters * num_images < 1:
        return f"# more validation images than {num_images:,}: one of them is more than the difference that matters"
    usual = {**default_settings(), "data.name": None}
    return records.commands.plan_claim(claim.name, {key: each for key, each in settings.items() if each != usual[key]})


def _describe_script_runs(records: ComparableTrials, claim: Claim) -> str:
    if not claim.is_measured(records):
        return f"# not by this script: it has no {METRICS[claim.metrics[0]].label.lower()} on record"
    columns = {key: claim.name_of(key, records) for key in (*config_keys(), *claim.metrics)}
    if records.spec is not None and "batch.global" in records.spec.space:
        del columns["batch.micro"]  # it follows
    fixed = "".join(f"{columns[key]} at {claim.design.base[key]}; " for key in claim.sets)
    return f"# a study of this script with {fixed}{_describe_space(records, claim, columns)}"


def _describe_space(records: ComparableTrials, claim: Claim, columns: Mapping[str, str]) -> str:
    # what the design varies, by the user's columns or keys, at their own values where there are as many
    design = claim.design
    space: dict[str, Sequence[Any]] = {**design.list_space(design.fewest)}
    if "batch.micro" in space and "batch.micro" not in columns:
        is_split = "batch.accumulation" in claim.varies
        space["batch.accumulation" if is_split else "batch.global"] = (1, 4) if is_split else space.pop("batch.micro")
        space.pop("batch.micro", None)
    parts, is_new = [], False
    for key, values in space.items():
        name = SEED if key == SEED else f"config.{claim.name_of(key, records)}"
        own = sorted(set(records.trials[name].dropna().tolist())) if name in records.trials else []
        if key == SEED:
            values = range(int(max(own, default=-1)) + 1, int(max(own, default=-1)) + 1 + len(values))
        elif len(own) >= len(values):
            values = own
        is_new |= not set(values) <= set(own)
        shown = ", ".join(f"{value:g}" if isinstance(value, float) else str(value) for value in values)
        shown = f"{len(values)} values" if name != f"config.{key}" and values is not own and key != SEED else shown
        parts.append(f"{columns.get(key) or f'a column for {key}'} at {shown}")
    needed = [*claim.sets, *({claim.metrics[0]} if columns.keys().isdisjoint(claim.metrics) else ())]
    parts += [f"a column for {key}" for key in needed if key not in columns]
    parts += [] if is_new else [f"{columns.get(SEED) or 'a column for seed'} at further values"]
    return f"{'; '.join(parts)}, in every combination and otherwise equal"


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
    settle the claim with the power: by the spread of its ``estimate``, without one by the assumed spread of its
    design."""
    if not (estimate.degrees > 0 and math.isfinite(estimate.error) and estimate.error > 0):
        return claim.design.count_trainings(count_planned(claim))
    spread, lost = estimate.error * math.sqrt(estimate.n), math.ceil(estimate.n - estimate.degrees)
    alpha = SIGNIFICANT / max(num_tested, 1)
    needed = count_repetitions(claim.list_distances(region), spread, lost, alpha, 2)
    return math.ceil(num_trials * needed / estimate.n)


def write_plan(claim: Claim, changes: Mapping[str, Any] | None = None) -> str:
    """The TOML text of the smallest study that settles the claim, on the digits, with the keys ``changes`` in its base
    configuration. Raises ``InputError``: a key of ``changes`` is one that the study varies."""
    changes = dict(changes or {})
    data = str(changes.pop("data.name", "digits"))
    if varied := sorted(changes.keys() & claim.design.list_space(count_planned(claim)).keys()):
        raise InputError(f"--set {varied[0]}: the study of {claim.name} varies it; leave it out.")
    spec = build_study(tomllib.loads(_write(claim, data, {})), f"the study of {claim.name}")
    # what the design itself does, and not what is changed
    deliberate = list(dict.fromkeys(item.key for item in find_pitfalls(spec) if item.key not in changes))
    return _write(claim, data, changes, deliberate)


def _write(claim: Claim, data: str, changes: Mapping[str, Any], deliberate: Sequence[str] = ()) -> str:
    design, repetitions = claim.design, count_planned(claim)
    base = replace_keys({"data.name": data, **_BASE, **(_DIGITS if data == "digits" else {})}, {**design.base})
    repeated = "seeds" if design.repeated == SEED else f"values of {design.repeated}"
    weights = ["# a file of weights of this model that was trained on other images: sweep train --save FILE"]
    lines = [
        f"name = {json.dumps(f'claim_{claim.name}')}",
        f"question = {json.dumps(f'Is it so? {claim.statement}')}",
        f"trials = {design.count_trainings(repetitions)}  # {repetitions} {repeated}, with which the claim is settled",
        'sampler = "grid"',
        "confirm = { max_configurations = 0, seeds = 0 }",
        *([f"deliberate = {json.dumps(deliberate)}  # by design, so that no advice is due"] if deliberate else []),
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
    varied = {*design.space, design.repeated} - {"batch.accumulation"}
    varied |= {EFFECTIVE} if len({config.global_batch_size for config in configs}) > 1 else set()
    return varied | ({"batch.accumulation"} if len({config.num_accumulation for config in configs}) > 1 else set())
