"""Earlier results as a sampler can learn from them: which fit a study, and what of them holds on this device."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sweep.config.errors import InputError
from sweep.config.space import Parameter
from sweep.config.study import StudySpec
from sweep.config.trial_config import flatten, rivals
from sweep.records.messages import Ending
from sweep.records.trial_record import TrialRecord
from sweep.search.earlier.reuse_index import keep_portable
from sweep.search.mirror.optuna_conversion import from_optuna_params, to_optuna_params

# Keys that change no figure of a training, or only by chance.
_NO_MATTER = frozenset({"seed", "data.root", "data.workers", "data.placement"})
_JUDGED = frozenset({"complete", "pruned", "diverged"})  # outcomes that say something on any device
_JUDGED_HERE = _JUDGED | {"out_of_memory", "not_fitting", "timed_out"}


@dataclass(frozen=True)
class EarlierResult:
    """One earlier result: values by dotted path (those that are known), how it ended, what was measured.

    ``device`` is the class it was measured on; None where nothing says so, and then it is taken for this one.
    """

    values: Mapping[str, Any]
    outcome: str
    measurements: Mapping[str, float | int]
    device: str | None = None
    quality_flags: tuple[str, ...] = ()


def select_fitting(found: Iterable[EarlierResult], spec: StudySpec, place: str) -> list[EarlierResult]:
    """Those that lie in the study's space and were made with its base, their values brought into its form.

    Raises:
        InputError: none does, with the most frequent reason.
    """
    base = {
        path: value for path, value in flatten(spec.config(next(spec.corners()))).items() if _must_agree(path, spec)
    }
    kept: list[EarlierResult] = []
    reasons: Counter[str] = Counter()
    for earlier in found:
        try:
            kept.append(replace(earlier, values=base | _brought_in(earlier.values, spec)))
        except ValueError as error:
            reasons[str(error)] += 1
            continue
        for path, value in base.items():
            if path in earlier.values and earlier.values[path] != value:
                reasons[f"{path} = {earlier.values[path]!r}, in this study {value!r}"] += 1
                kept.pop()
                break
    if not kept:
        why = ", ".join(f"{reason} ({count} trials)" for reason, count in reasons.most_common(3)) or "it has no trials"
        raise InputError(f"--warm-start {place}: nothing there that this study can learn from: {why}. Leave it out.")
    return kept


def _must_agree(path: str, spec: StudySpec) -> bool:
    is_swept = path in spec.space or any(rival in spec.space for rival in rivals(path))
    return not (is_swept or path in _NO_MATTER or path.startswith("diagnostics."))


def _brought_in(values: Mapping[str, Any], spec: StudySpec) -> dict[str, Any]:
    if missing := [path for path in spec.space if values.get(path) is None]:
        raise ValueError(f"{missing[0]} is missing")
    cleaned = {path: _whole(parameter, values[path]) for path, parameter in spec.space.items()}
    return from_optuna_params(spec.space, to_optuna_params(spec.space, cleaned))


def _whole(parameter: Parameter, value: Any) -> Any:
    # a column with missing cells holds whole numbers as floats
    wants_whole = parameter.log2 is not None or parameter.int_ is not None
    return int(value) if wants_whole and isinstance(value, float) and value.is_integer() else value


def make_prior_records(found: Iterable[EarlierResult], spec: StudySpec, device: str) -> list[TrialRecord]:
    """As search trials that a sampler can be told, numbered below 0.

    Times and memory are taken over from ``device`` alone and where nothing disturbed them; so is what did not fit.
    """
    records: list[TrialRecord] = []
    for earlier in found:
        is_here = earlier.device in (None, device)
        if earlier.outcome not in (_JUDGED_HERE if is_here else _JUDGED):
            continue
        ending = Ending(
            outcome=earlier.outcome,  # type: ignore[arg-type]  # one of them, as was just looked at
            measurements=dict(earlier.measurements),
            device=device if is_here else str(earlier.device),
            quality_flags=earlier.quality_flags,
        )
        held = keep_portable(ending, device)
        values = {**earlier.values, "seed": spec.seed}
        number = -1 - len(records)
        records.append(TrialRecord(number, "search", values, held.outcome, held.measurements, device=held.device))
    return records
