"""Earlier results that a sampler can learn from: those that fit a study, and what of them holds on its device."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import find_rivals, flatten_config
from sweep.records.messages import Ending, Outcome
from sweep.records.trial_record import TrialRecord
from sweep.search.earlier.reuse_index import keep_portable
from sweep.search.mirror.optuna_conversion import from_optuna_params, to_optuna_params

# Keys that change no measurement of a training, or only by chance.
_IRRELEVANT = frozenset({"seed", "data.root", "data.workers", "data.prefetch", "data.placement"})
# due to the configuration on every device
_PORTABLE_OUTCOMES = frozenset({"complete", "pruned", "diverged", "target_missed"})
_OWN_OUTCOMES = _PORTABLE_OUTCOMES | {"out_of_memory", "not_fitting", "timed_out"}


@dataclass(frozen=True, kw_only=True)
class EarlierResult:
    """One earlier result: its values by dotted path (those that are known), its outcome and its measurements."""

    values: Mapping[str, Any]
    outcome: str
    measurements: Mapping[str, float | int]
    device: str | None = None  # where it was measured; None: unknown, and taken to be that of the study
    quality_flags: tuple[str, ...] = ()


def select_fitting(results: Iterable[EarlierResult], spec: StudySpec, place: str) -> list[EarlierResult]:
    """The results in the study's space that were made with its base, their values converted to those of the study.

    Raises:
        InputError: there is none; the message has the most frequent reasons.
    """
    first = flatten_config(spec.corners.first)
    base = {path: value for path, value in first.items() if _must_agree(path, spec)}
    fitting: list[EarlierResult] = []
    reasons: Counter[str] = Counter()
    for result in results:
        try:
            fitting.append(_fit(result, base, spec))
        except ValueError as error:
            reasons[str(error)] += 1
    if not fitting:
        why = ", ".join(f"{reason} ({count} trials)" for reason, count in reasons.most_common(3)) or "it has no trials"
        raise InputError(f"--warm-start {place}: nothing there that this study can learn from: {why}. Leave it out.")
    return fitting


def _must_agree(path: str, spec: StudySpec) -> bool:
    is_swept = path in spec.space or any(rival in spec.space for rival in find_rivals(path))
    return not (is_swept or path in _IRRELEVANT or path.startswith("diagnostics."))


def _fit(result: EarlierResult, base: Mapping[str, Any], spec: StudySpec) -> EarlierResult:
    """Raises ``ValueError`` with the reason where the result is not of this study's space or base."""
    if missing := [path for path in spec.space if result.values.get(path) is None]:
        raise ValueError(f"{missing[0]} is missing")
    values = {path: _restore_int(parameter, result.values[path]) for path, parameter in spec.space.items()}
    converted = from_optuna_params(spec.space, to_optuna_params(spec.space, values))
    for path, value in base.items():
        if path in result.values and result.values[path] != value:
            raise ValueError(f"{path} = {result.values[path]!r}, in this study {value!r}")
    return replace(result, values={**base, **converted})


def _restore_int(parameter: Parameter, value: Any) -> Any:
    # a column with missing cells holds integers as floats
    is_integer = parameter.log2 is not None or parameter.int_ is not None
    return int(value) if is_integer and isinstance(value, float) and value.is_integer() else value


def make_prior_records(results: Iterable[EarlierResult], spec: StudySpec, device: str) -> list[TrialRecord]:
    """The results as search trials with negative numbers, for a sampler to learn from.

    Time, memory and what did not fit are taken over from the same ``device`` only, and time only as
    :func:`~sweep.search.earlier.reuse_index.keep_portable` states.
    """
    records: list[TrialRecord] = []
    for result in results:
        is_same = result.device in (None, device)
        if result.outcome not in (_OWN_OUTCOMES if is_same else _PORTABLE_OUTCOMES):
            continue
        ending = Ending(
            outcome=cast(Outcome, result.outcome),
            measurements=dict(result.measurements),
            device=device if is_same else str(result.device),
            quality_flags=result.quality_flags,
        )
        is_timed = {**spec.base, **result.values}.get("budget.seconds") is not None
        kept = keep_portable(ending, {"device": device}, is_timed=is_timed)
        record = TrialRecord(
            number=-1 - len(records),
            phase="search",
            values={**result.values, "seed": spec.seed},
            outcome=kept.outcome,
            measurements=kept.measurements,
            device=kept.device,
            quality_flags=kept.quality_flags,
        )
        records.append(record)
    return records
