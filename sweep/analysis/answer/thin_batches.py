"""The effective batch sizes of a study's space about which its records hold little or nothing."""

from collections.abc import Mapping
from itertools import islice, product

import numpy as np

from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.answer.tuned_batches import FEWEST_CONFIGURATIONS, BatchDraws, count_configurations
from sweep.analysis.statistics.column_reading import read_numbers
from sweep.config.errors import InputError
from sweep.config.study import StudySpec, is_batch_key

_MODEL = "model.name"
_MOST_POINTS = 1024  # of the space that are looked at


def find_thin_batches(candidates: Candidates, draws: BatchDraws) -> dict[int, int]:
    """The batch sizes of the space at which ``draws.model`` was not tried, or was with too few configurations to call
    the batch size tuned, each with the number of those that have learned something; in ascending order."""
    counts = {int(batch): count_configurations(candidates, draws.model, int(batch))[1] for batch in draws.batches}
    spec = candidates.records.spec
    planned = list_batches(spec, draws.model) if spec else []
    known = dict.fromkeys(planned, 0) | counts
    return {batch: known[batch] for batch in sorted(known) if known[batch] < FEWEST_CONFIGURATIONS}


def describe_thin_batches(thin: Mapping[int, int]) -> str:
    """A sentence that names ``thin`` batch sizes; empty where there is none."""
    by_count = {count: [batch for batch, found in thin.items() if found == count] for count in set(thin.values())}
    parts = [
        f"{_join(by_count[count])} with {count} of at least {FEWEST_CONFIGURATIONS} configurations"
        for count in sorted(by_count.keys() - {0})
    ]
    if absent := by_count.get(0):
        parts.append(f"{_join(absent)} with no complete training")
    return f"Not tuned enough to tell: {'; '.join(parts)}." if parts else ""


def list_batches(spec: StudySpec, model: str) -> list[int]:
    """The effective batch sizes of the space of ``spec`` with ``model``, in ascending order; empty where they cannot be
    listed, because a key is continuous or chosen by the machine."""
    swept = {path: each for path, each in spec.space.items() if is_batch_key(path) or path == "distributed.world_size"}
    ranges = [parameter.grid_values for parameter in swept.values()]
    if not ranges or any(values is None for values in ranges):
        return []
    fixed = {path: parameter.at(0.0) for path, parameter in spec.space.items() if path not in swept}
    if _MODEL in spec.space:
        fixed[_MODEL] = model
    found: set[int] = set()
    for values in islice(product(*(values or () for values in ranges)), _MOST_POINTS):
        try:
            found.add(spec.config(fixed | dict(zip(swept, values, strict=True))).global_batch_size)
        except InputError:  # a combination that the study refuses is not one of its batch sizes
            continue
    return sorted(found)


def fix_batch(candidates: Candidates, given: int) -> dict[str, object]:
    """The keys with which the study has the effective batch size ``given`` alone, whichever of them it varies."""
    frame, spec = candidates.records.frame, candidates.records.spec
    is_swept = spec is not None and "batch.micro" in spec.space
    if np.isfinite(read_numbers(frame, "config.batch.global")).any():
        too_large = bool((read_numbers(frame, "config.batch.micro") > given).any())
        return dict.fromkeys(("batch.global", "batch.micro") if is_swept or too_large else ("batch.global",), given)
    accumulates = bool((read_numbers(frame, "config.batch.accumulation") > 1).any())
    return {"batch.micro": given, "batch.accumulation": 1} if accumulates else {"batch.micro": given}


def _join(batches: list[int]) -> str:
    return ", ".join(str(batch) for batch in batches)
