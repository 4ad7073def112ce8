"""The effective batch sizes of a study's space about which its records hold little or nothing."""

from itertools import islice, product

from sweep.analysis.answer.candidates import Candidates
from sweep.analysis.answer.tuned_batches import FEWEST_CONFIGURATIONS, BatchDraws, count_configurations
from sweep.config.errors import InputError
from sweep.config.study import StudySpec, is_batch_key
from sweep.config.units import format_count

_MODEL = "model.name"
_MOST_POINTS = 1024  # of the space that are looked at


def describe_thin_batches(candidates: Candidates, draws: BatchDraws) -> str:
    """A sentence that names the batch sizes of the space at which ``draws.model`` was not tried, or was with too few
    configurations to call the batch size tuned; empty where there is none."""
    counts = {int(batch): count_configurations(candidates, draws.model, int(batch)) for batch in draws.batches}
    spec = candidates.records.spec
    planned = list_batches(spec, draws.model) if spec else []
    parts = [
        f"{_join(batches)} with only {format_count(count, 'configuration')}"
        for count in range(1, FEWEST_CONFIGURATIONS)
        if (batches := [batch for batch, found in counts.items() if found == count])
    ]
    if absent := [batch for batch in planned if batch not in counts]:
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


def _join(batches: list[int]) -> str:
    return ", ".join(str(batch) for batch in batches)
