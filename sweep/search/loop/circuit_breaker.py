"""The circuit breaker: when trial after trial fails in the same way, more of them would teach nothing."""

from typing import final

from sweep.config.study import StudySpec
from sweep.config.trial_config import Scalar, TrialConfig, flatten
from sweep.records.attempt_causes import FAULTS_OF_THE_MACHINE
from sweep.records.messages import Ending

_SAME_FAILURES = 5
# So many of one infeasible outcome count wherever they lie. Before that, the gentle half of the range must have failed
# as well: the first points of a wide range may all be hot ones.
_MANY_FAILURES = 15
_MIN_REFUSED = 50
_REFUSED_SHARE = 3  # times the trials that were asked for
# What decides whether a configuration fails so, gentle below and hot above, and what helps.
_CAUSES = {
    "out_of_memory": (
        "batch.micro",
        "ran out of memory",
        "lower batch.micro in the space, add precision.checkpointing = true, or see what fits with `sweep probe`",
    ),
    "diverged": (
        "optimizer.lr",
        "diverged",
        "lower optimizer.lr in the space, lengthen schedule.warmup, or set regularization.grad_clip",
    ),
}


@final
class CircuitBreaker:
    """Hears how trials end and says when to stop. An outcome that is the configuration's own stops a study only while
    no trial is complete: afterwards there is something to learn from."""

    def __init__(self, spec: StudySpec, *, has_complete: bool) -> None:
        self._spec = spec
        self._has_complete = has_complete
        self._kind = ""  # of the latest failures, all alike
        self._failed: list[TrialConfig] = []
        self._refused: list[str] = []

    def hear(self, config: TrialConfig, ending: Ending) -> None:
        """A trial that was launched has ended, or an attempt at one was lost before its first step."""
        if ending.outcome == "complete":
            self._has_complete = True
            self._refused.clear()
        kind = _kind(ending)
        if kind != self._kind:
            self._kind, self._failed = kind, []
        if kind:
            self._failed.append(config)

    def hear_refused(self, reason: str) -> None:
        """A configuration was held back because it will not fit."""
        self._refused.append(reason)

    @property
    def reason(self) -> str:
        """Why the study should stop and what to change; empty while it should go on."""
        if len(self._refused) >= max(_MIN_REFUSED, _REFUSED_SHARE * self._spec.trials):
            remedy = _CAUSES["out_of_memory"][2]
            return f"{len(self._refused)} proposals running do not fit ({self._refused[-1]}): {remedy}"
        if len(self._failed) < _SAME_FAILURES:
            return ""
        if self._kind not in _CAUSES:
            error = self._kind.rstrip(".")
            lost = self._kind in FAULTS_OF_THE_MACHINE
            what = "attempts running were lost" if lost else "trials running crashed"
            return f"{len(self._failed)} {what} in the same way: {error}. Mend that"
        return "" if self._has_complete else self._infeasible()

    def _infeasible(self) -> str:
        key, happened, remedy = _CAUSES[self._kind]
        values = [flatten(config)[key] for config in self._failed]
        if len(values) < _MANY_FAILURES and not self._has_gentle(key, values):
            return ""
        numbers = [value for value in values if isinstance(value, int | float)]
        span = f", {key} from {min(numbers):g} to {max(numbers):g}" if numbers else ""
        return f"{len(values)} trials running {happened}{span}, and none is complete: {remedy}"

    def _has_gentle(self, key: str, values: list[Scalar]) -> bool:
        parameter = self._spec.space.get(key)
        return parameter is None or any(parameter.share(value) <= 0.5 for value in values)


def _kind(ending: Ending) -> str:
    if ending.outcome == "crashed":
        if ending.cause in FAULTS_OF_THE_MACHINE:
            return ending.cause
        return (ending.error.strip().splitlines() or [""])[-1].strip()
    return ending.outcome if ending.outcome in _CAUSES else ""
