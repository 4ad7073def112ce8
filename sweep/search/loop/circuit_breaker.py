"""The circuit breaker stops a study in which trial after trial fails in the same way: more of them teach nothing."""

from typing import NamedTuple, final

from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar, TrialConfig, flatten_config
from sweep.records.attempt_causes import FAULTS_OF_THE_MACHINE
from sweep.records.messages import Ending

_SAME_FAILURES = 5
# This many of one infeasible outcome stop the study anywhere in the space. Fewer do so only if the lower half of the
# range has failed too: the first points of a wide range may all be too large by chance.
_MANY_FAILURES = 15
_MIN_REFUSED = 50
_REFUSED_SHARE = 3  # times the number of trials of the study


class _Infeasible(NamedTuple):
    """Why configurations end with one outcome: smaller values of ``key`` are less likely to."""

    key: str
    verb: str
    remedy: str


_INFEASIBLE = {
    "out_of_memory": _Infeasible(
        "batch.micro",
        "ran out of memory",
        "lower batch.micro in the space, add precision.checkpointing = true, or see what fits with `sweep probe`",
    ),
    "diverged": _Infeasible(
        "optimizer.lr",
        "diverged",
        "lower optimizer.lr in the space, lengthen schedule.warmup, or set regularization.grad_clip",
    ),
}


@final
class CircuitBreaker:
    """Counts consecutive endings of one kind. An outcome that is due to the configuration stops a study only while no
    trial is complete: with a complete one there is something to learn from."""

    def __init__(self, spec: StudySpec, *, has_complete: bool) -> None:
        self._spec = spec
        self._has_complete = has_complete
        self._kind = ""  # of the latest failures, all alike
        self._failed: list[TrialConfig] = []
        self._refused: list[str] = []

    def record_ending(self, config: TrialConfig, ending: Ending) -> None:
        """Counts the ending of a launched trial, or of an attempt that was lost before its first step."""
        if ending.outcome == "complete":
            self._has_complete = True
            self._refused.clear()
        kind = _failure_kind(ending)
        if kind != self._kind:
            self._kind, self._failed = kind, []
        if kind:
            self._failed.append(config)

    def record_refusal(self, reason: str) -> None:
        self._refused.append(reason)

    @property
    def reason(self) -> str:
        """Why the study should stop and what to change; empty while it should continue."""
        if len(self._refused) >= max(_MIN_REFUSED, _REFUSED_SHARE * self._spec.trials):
            remedy = _INFEASIBLE["out_of_memory"].remedy
            return f"{len(self._refused)} proposals in a row do not fit ({self._refused[-1]}): {remedy}"
        if len(self._failed) < _SAME_FAILURES:
            return ""
        if self._kind not in _INFEASIBLE:
            error = self._kind.rstrip(".")
            is_fault = self._kind in FAULTS_OF_THE_MACHINE
            subject = "attempts in a row were lost" if is_fault else "trials in a row crashed"
            return f"{len(self._failed)} {subject} in the same way: {error}. Fix that"
        return "" if self._has_complete else self._explain_infeasible()

    def _explain_infeasible(self) -> str:
        key, verb, remedy = _INFEASIBLE[self._kind]
        values = [flatten_config(config)[key] for config in self._failed]
        if len(values) < _MANY_FAILURES and not self._has_lower_half(key, values):
            return ""
        numbers = [value for value in values if isinstance(value, int | float)]
        span = f", {key} from {min(numbers):g} to {max(numbers):g}" if numbers else ""
        return f"{len(values)} trials in a row {verb}{span}, and none is complete: {remedy}"

    def _has_lower_half(self, key: str, values: list[Scalar]) -> bool:
        parameter = self._spec.space.get(key)
        return parameter is None or any(parameter.share(value) <= 0.5 for value in values)


def _failure_kind(ending: Ending) -> str:
    if ending.outcome == "crashed":
        if ending.cause in FAULTS_OF_THE_MACHINE:
            return ending.cause
        return (ending.error.strip().splitlines() or [""])[-1].strip()
    return ending.outcome if ending.outcome in _INFEASIBLE else ""
