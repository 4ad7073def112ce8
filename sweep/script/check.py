"""Whether a script follows what it is asked: it is run for a few steps at two batch sizes, with two seeds, and with one
step split into micro batches."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sweep.config.errors import InputError
from sweep.config.study import StudySpec
from sweep.config.trial import TrialConfig
from sweep.records.messages import Ending, ScriptCommand, TrialTask
from sweep.script.runner import NO_REPORT, NOT_TAKEN, ScriptProbe, probe_script

_TIMED_SECONDS = 1.0
_EQUAL = 1e-3  # of the norm: what rounding leaves between two sums of the same gradients
_INSIDE = 0.4  # of a range, for what is not compared; the middle is often what the script does without being asked


class Followed(NamedTuple):
    """One setting: what was ``asked``, what was ``observed``, and what to do where these differ."""

    setting: str
    asked: str
    observed: str
    status: Literal["ok", "FAIL", "note"]
    remedy: str = ""


@dataclass(kw_only=True)
class ScriptCheck:
    """The result: what is followed, and by batch size the time of a step and the peak memory."""

    rows: list[Followed] = field(default_factory=list)
    costs: dict[int, dict[str, float]] = field(default_factory=dict)

    @property
    def is_followed(self) -> bool:
        return all(row.status != "FAIL" for row in self.rows)


def check_script(spec: StudySpec, device: str = "auto") -> ScriptCheck:
    """Runs the script of ``spec`` three or four times for about a second of training each. Raises ``InputError``: it
    does not train, with the end of its output."""
    assert spec.script is not None
    spec.script.check()
    small, large = _choose_sizes(spec)
    found, usual = ScriptCheck(), _probe(spec, small, device)
    twice = _probe(spec, large, device)
    other = _probe(spec, small.model_copy(update={"seed": small.seed + 1}), device)
    for config, ending in ((small, usual.ending), (large, twice.ending)):
        found.rows += _compare(spec, config, ending)
        names = ("step_seconds_median", "peak_memory_bytes", "images_per_second")
        measured = {name: float(ending.measurements[name]) for name in names if name in ending.measurements}
        found.costs[config.global_batch_size] = measured
    seeds, distance = f"{small.seed} and {small.seed + 1}", _measure_distance(usual, other)
    if math.isnan(distance):
        found.rows.append(Followed("seed", seeds, "not known", "note"))
    elif distance == 0.0:
        remedy = "give {seed} to torch.manual_seed, and to what orders the data"
        found.rows.append(Followed("seed", seeds, "equal first gradients", "FAIL", remedy))
    else:
        found.rows.append(Followed("seed", seeds, "different first gradients", "ok"))
    found.rows += _compare_split(spec, small, usual, device)
    return found


def _choose_sizes(spec: StudySpec) -> tuple[TrialConfig, TrialConfig]:
    # the two smallest batch sizes of the space, or the given one and its double; the rest inside its range
    middle = {path: parameter.at(_INSIDE) for path, parameter in spec.space.items()}
    key = "batch.global" if "batch.global" in spec.given_keys else "batch.micro"
    fixed = middle | ({"batch.accumulation": 1} if "batch.accumulation" in spec.space else {})
    if key not in spec.space:
        first = spec.config(fixed)
        batch = first.batch
        double = {"global_": 2 * batch.global_} if batch.global_ else {"micro": 2 * int(batch.micro)}
        return first, first.model_copy(update={"batch": batch.model_copy(update=double)})
    sizes = [int(str(value)) for value in spec.space[key].grid_values or spec.space[key].extremes()]
    low, high = sorted(sizes)[0], sorted(sizes)[min(1, len(sizes) - 1)]
    return spec.config(fixed | {key: low}), spec.config(fixed | {key: high})


def _probe(spec: StudySpec, config: TrialConfig, device: str) -> ScriptProbe:
    command = ScriptCommand(**spec.command(config, ""), timed_seconds=_TIMED_SECONDS)
    probe = probe_script(TrialTask(number=0, config=config, device=device, script=command))
    if "num_steps" not in probe.ending.measurements:
        reason = probe.ending.error or "no optimizer of torch took a step; call trial.step(samples) after each"
        raise InputError(f"study {spec.name}: the script took no step that was seen: {reason}")
    ending = probe.ending
    if ending.outcome != "complete" and not ending.error.startswith((NO_REPORT, NOT_TAKEN)):
        raise InputError(f"study {spec.name}: the script failed ({ending.outcome}): {ending.error}")
    return probe


def _compare(spec: StudySpec, config: TrialConfig, ending: Ending) -> Iterator[Followed]:
    measured, size = ending.measurements, config.global_batch_size
    observed = int(measured["observed_batch_size"])
    remedy = "let the data loader take {batch.micro} samples, and step after {batch.accumulation} of these"
    yield _judge("batch size", size, observed, remedy)
    for key, name, setting in (
        ("optimizer.lr", "observed_lr", "learning rate"),
        ("optimizer.weight_decay", "observed_weight_decay", "weight decay"),
    ):
        if key in spec.given_keys and name in measured:
            section, _, field_name = key.partition(".")
            asked = float(getattr(getattr(config, section), field_name))
            yield _judge(setting, asked, float(measured[name]), f"give {{{key}}} to the optimizer")
    for flag, words, remedy in (
        ("leftover_gradients", "gradients of one pass enter the next", "step, or set gradients to zero, after a pass"),
        ("evaluation_in_window", "the evaluation is timed as training", "put it into `with trial.paused():`"),
    ):
        if flag in ending.quality_flags:
            yield Followed(f"at batch size {size}", "", words, "note", remedy)


def _judge(setting: str, asked: float, observed: float, remedy: str) -> Followed:
    is_same = math.isclose(asked, observed, rel_tol=0.01)
    if not is_same and setting == "learning rate" and observed < asked:
        # a warm-up may not have reached its top in so few steps
        return Followed(setting, f"{asked:g}", f"{observed:g}", "note", "a warm-up that is longer than this check?")
    return Followed(setting, f"{asked:g}", f"{observed:g}", "ok" if is_same else "FAIL", "" if is_same else remedy)


def _compare_split(spec: StudySpec, config: TrialConfig, whole: ScriptProbe, device: str) -> Iterator[Followed]:
    size = config.global_batch_size
    assert spec.script is not None
    if "batch.accumulation" not in {*spec.given_keys, *spec.script.placeholders}:
        yield Followed("accumulation", "", "", "note", "the script is given no batch.accumulation")
        return
    own, rest = divmod(size, config.distributed.world_size)  # of each rank
    if own % 2 or rest:
        return
    halves = config.batch.model_copy(update={"micro": own // 2, "accumulation": 2, "global_": None})
    split = _probe(spec, config.model_copy(update={"batch": halves}), device)
    distance = _measure_distance(whole, split)
    asked = f"{own} = {own // 2} x 2"
    if math.isnan(distance):
        yield Followed("accumulation", asked, "not known", "note", "")
    elif distance <= _EQUAL:
        yield Followed("accumulation", asked, "equal gradients", "ok")
    elif whole.varying:
        layers = ", ".join(whole.varying)
        yield Followed(
            "accumulation", asked, f"gradients differ by {distance:.1%}", "note", f"{layers} make them differ"
        )
    else:
        remedy = (
            "divide the sum of the losses by the count of the whole step (samples, or tokens), not each micro batch by "
            "its own"
        )
        yield Followed("accumulation", asked, f"gradients differ by {distance:.1%}", "FAIL", remedy)


def _measure_distance(one: ScriptProbe, other: ScriptProbe) -> float:
    """The difference between the first gradients of two probes over their norm, by random projections; NaN where it is
    not known."""
    a, b = one.sketch, other.sketch
    if not a or len(a) != len(b):
        return math.nan
    squared = sum((x - y) ** 2 for x, y in zip(a[:-1], b[:-1], strict=True)) / (len(a) - 1)
    return math.sqrt(squared / max(a[-1], 1e-30))
