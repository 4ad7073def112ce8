"""What is known of a trial so far: what its ending reports, whatever the outcome."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, final

import torch
from torch import Tensor

from sweep.measurement.clock import PHASES, Ledger, list_times
from sweep.measurement.quality import find_timing_flags, measure_slowdown, measure_time_error
from sweep.records.messages import Evaluation
from sweep.training.outcomes import DivergedError
from sweep.training.steps.budget import TrainingPoint
from sweep.training.world import SOLO, World

_SLOWDOWN = "slowdown_by_others"
_START = TrainingPoint(0, 0, 0.0)


@final
class LossMeter:
    """Sums the training loss on the device; the host reads it at window edges only.

    The sum runs from evaluation to evaluation, so that it does not depend on where the windows end.
    """

    def __init__(self, device: torch.device, world: World = SOLO) -> None:
        self._world = world
        self._loss = torch.zeros((), dtype=torch.float64, device=device)
        self._samples = 0
        self._window_samples = 0
        self.window_steps = 0

    def add(self, loss: Tensor, samples: int) -> None:
        """Adds a step's mean ``loss``, a scalar, over its ``samples``; with several ranks each adds its own."""
        self._loss += loss * samples
        self._samples += samples
        self._window_samples += samples
        self.window_steps += 1

    def close_window(self, ledger: Ledger, is_full: bool) -> None:
        """Adds the window to ``ledger`` and checks the loss.

        Raises:
            DivergedError: the loss of a step was not a finite number.
        """
        ledger.close_window(self.window_steps, self._window_samples, is_full)
        self._window_samples, self.window_steps = 0, 0
        mean = self._mean()
        if not math.isfinite(mean):
            raise DivergedError(f"the training loss became {mean}")

    def take_mean(self) -> float:
        mean = self._mean()
        self._loss.zero_()
        self._samples = 0
        return mean

    def state_dict(self) -> dict[str, Any]:
        """The sum since the last evaluation. No window may be open."""
        return {"loss": self._world.mean(self._loss), "samples": self._samples}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._loss.copy_(state["loss"])
        self._samples = state["samples"]

    def _mean(self) -> float:
        return float(self._world.mean(self._loss)) / self._samples


@final
@dataclass(kw_only=True)
class TrialState:
    """The ledger, the counters and the figures of one trial."""

    ledger: Ledger = field(default_factory=Ledger)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    facts: dict[str, float] = field(default_factory=dict)  # by name of sweep.config.metrics
    flags: tuple[str, ...] = ()
    bottleneck: str = ""
    correct_images: str = ""  # of the last evaluation, see sweep.records.correct_images
    num_steps: int = 0
    samples: int = 0
    num_train: int = 0
    point: TrainingPoint = _START  # at the last reading of the clock
    retries_before: int = 0  # of the memory allocator, before the training
    evaluations: list[Evaluation] = field(default_factory=list)
    agree: Callable[[float], float] = float  # the time that counts for all ranks

    @property
    def epoch(self) -> float:
        """Passes over the training split, with fractions."""
        return self.samples / self.num_train if self.num_train else 0.0

    def read_clock(self) -> TrainingPoint:
        """Sets ``point`` to the present and returns it; all ranks must call this together where they agree on the time.

        Decisions until the next call use ``point``, because two readings of a clock may lead to different decisions.
        """
        self.point = TrainingPoint(self.num_steps, self.samples, self.agree(self.ledger.running_seconds))
        return self.point

    def state_dict(self) -> dict[str, Any]:
        return {
            "ledger": self.ledger.state_dict(),
            "facts": dict(self.facts),
            "flags": self.flags,
            "num_steps": self.num_steps,
            "samples": self.samples,
            "evaluations": [asdict(evaluation) for evaluation in self.evaluations],
            "correct_images": self.correct_images,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues from the state of an earlier attempt; what this attempt has already spent is added."""
        self.ledger.load_state_dict(state["ledger"])
        self.facts |= state["facts"]
        self.flags = tuple(dict.fromkeys((*state["flags"], *self.flags)))
        self.num_steps, self.samples = state["num_steps"], state["samples"]
        self.correct_images = state["correct_images"]
        self.evaluations = [Evaluation(**evaluation) for evaluation in state["evaluations"]]

    def quality_flags(self) -> tuple[str, ...]:
        even = self.ledger.even_windows
        if not even:
            return self.flags
        num_steps = sum(window.num_steps for window in self.ledger.windows)
        found = find_timing_flags(*list_times(even), num_steps, int(self.facts.get("num_alloc_retries", 0)))
        return tuple(dict.fromkeys((*self.flags, *found)))

    def measurements(self) -> dict[str, float | int]:
        """By name of :mod:`sweep.config.metrics`; without values that are unknown or not finite."""
        ledger = self.ledger
        values = dict(self.facts)
        values |= {f"{name}_seconds": ledger.seconds[name] for name in PHASES if name not in ("data_wait", "step")}
        if ledger.laps:
            values |= {f"{lap}_seconds": seconds for lap, seconds in ledger.laps.seconds.items() if lap != "wait"}
        if ledger.windows:
            values["train_seconds"] = ledger.train_seconds
            values["data_wait_seconds"] = ledger.seconds["data_wait"]
            values["images_per_second"] = ledger.images_per_second
            values["step_seconds_median"] = ledger.step_seconds()
            times = list_times(ledger.even_windows)
            for name, value in (("step_time_error", measure_time_error(*times)), (_SLOWDOWN, measure_slowdown(*times))):
                values[name] = math.nan if value is None else value
        values |= {"num_steps": self.num_steps, "num_epochs": self.epoch, "total_seconds": ledger.total_seconds}
        return {name: value for name, value in values.items() if math.isfinite(value)}
