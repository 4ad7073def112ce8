"""Watches a training script from within: the steps of its optimizer, what its data loaders hand out, its times and its
memory, without a changed line in it and without waiting for the device in a step.

A step is one of the optimizer with the most parameters. Its samples are those that the training data handed out since
the step before; some frameworks read one batch ahead, so that the most frequent number over all steps is the batch. The
clock runs from the end of the first steps, in windows like those of this project's own training
(:class:`sweep.measurement.clock.Ledger`). It stands while other data is read, while a model is in evaluation mode,
after a report and where the script says so. Importing this module does not import torch: a script that uses none is not
slowed down.
"""

import gc
import math
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, final

from sweep.measurement.clock import Ledger, Phase
from sweep.script.channel import Channel, open_channel

_WINDOW_SECONDS, _MESSAGE_SECONDS = 0.1, 0.5
_LISTS, _NUMBERS = (tuple, list), (int, float)
_WARMUP_STEPS = 2  # before the memory of one is measured, and the clock begins
_MUCH = 0.1  # of the timed seconds, without gradients
_NUM_PROJECTIONS = 16
_FEWEST_IN_A_ROW, _SHARE_IN_A_ROW = 3, 0.1  # steps of another size
_MANY_SCHEDULED = 1.5  # steps of the schedule for one of the optimizer


def count_samples(batch: Any) -> int:
    """The length of the first tensor or array of ``batch``; of nested lists, the first in them; of a table that of most
    of its columns, because a detector's boxes are more than its images."""
    if isinstance(batch, _LISTS):  # asked first: it is the usual case, and the other questions take longer
        for item in batch:
            if count := count_samples(item):
                return count
        return len(batch)
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 1
    if isinstance(batch, Mapping):
        counts = Counter(count for item in batch.values() if (count := count_samples(item)))
        return counts.most_common(1)[0][0] if counts else 0
    if isinstance(batch, str | bytes):
        return 0
    if isinstance(batch, Sequence):
        return count_samples(list(batch))
    data = getattr(batch, "data", None)  # a table of a tokenizer
    return count_samples(data) if isinstance(data, Mapping) else 0


@final
class Observer:
    """What was seen of the script in this process."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.ledger = channel, Ledger()
        self.num_steps = self.num_samples = self.num_passes = self.num_tokens = 0
        self.sizes: Counter[int] = Counter()  # samples of a step
        self._run = (0, 0)  # the size of the last step, and how many before it had the same
        self._longest: Counter[int] = Counter()  # by size, of such a run
        self.num_scheduled = 0  # steps of learning-rate schedules
        self.rate, self.decay = 0.0, math.nan  # the highest rate, and the last weight decay
        self.num_leftover = 0  # steps that hold gradients of the pass before
        # Seconds of this thread's processor, which other programs do not change: within the clock; of these, without
        # gradients; of these, probably in an evaluation.
        self._host_seconds = self.no_grad_seconds = self.unmarked_seconds = 0.0
        self.optimizer: Any = None
        self._num_parameters = self._group = 0
        self._training: set[int] = set()  # data that training reads
        self._read_first: Counter[int] = Counter()  # samples handed out by each data set before the first step
        self._passed_first: Counter[int] = Counter()  # its passes before the first step
        self._other = self._other_pending = self._other_last = 0  # data not known as training data, and its samples
        self._last_read = self._pending = self._last = self._carried = 0
        self._is_new_pass = False
        self._window: list[float] = []  # samples of the steps in the open window
        self.is_open = False
        self._opened = self._idle_since = time.perf_counter()
        self._opened_on_host = time.thread_time()
        self._phase: Phase = "setup"  # of the time outside of windows
        self._num_pauses = 0
        self._peak_bytes = 0
        self._recorder: Any = None
        self._gradients: list[Any] = []  # references, before the recorded step
        self._said_at = 0.0
        self._num_timed = 0  # steps
        self.is_in_step = False
        self.is_grad_enabled: Callable[[], bool] = lambda: True
        self.sketch: list[float] = []
        self.varying: list[str] = []

    # ------------------------------------------------------------------ data

    def begin_pass(self, data: int) -> None:
        """A loader of the ``data`` begins."""
        if self.num_steps and (data not in self._training or not self.is_grad_enabled()):
            self.pause()

    def hand_out(self, batch: Any, data: int) -> None:
        """A loader of the ``data`` has handed out ``batch``."""
        if not self.is_grad_enabled():  # an evaluation, which may be one of the training data
            self.pause()
            self._say()
            return
        count = count_samples(batch)
        if not self.num_steps:
            self._read_first[data] += count
            self._last_read = data
        elif data in self._training:
            self._is_new_pass |= bool(self._carried)
            if not self._num_pauses:
                self._open_window()
        else:
            self._other_pending = count + (self._other_pending if data == self._other else 0)
            self._other, self._other_last = data, count
            self.pause()
            self._say()
            return
        self._pending, self._last = self._pending + count, count

    def end_pass(self, data: int) -> None:
        """A loader of the ``data`` is at its end."""
        if not self.is_grad_enabled():
            return
        if not self.num_steps:
            self._passed_first[data] += 1
        elif data in self._training:
            self.num_passes += 1
        else:
            return
        self._carried, self._is_new_pass = self._pending, False

    def trust(self, data: int) -> None:
        """The ``data`` is what the script trains on, by its own word."""
        self._training.add(data)

    # ------------------------------------------------------------------ steps

    def note_zeroed(self) -> None:
        """Gradients were set to zero: what was read before, but for a batch that is under way, is in no step."""
        self._carried = 0
        if self._pending > self._last:
            self._pending = self._last
        if self._other_pending > self._other_last:
            self._other_pending = self._other_last

    def note_step(self, optimizer: Any, samples: int | None = None) -> None:
        """The ``optimizer`` has taken a step; of ``samples`` where the script says it."""
        if optimizer is not self.optimizer and not self._takes_over(optimizer):
            return
        if not self.num_steps:
            self._training.add(self._last_read)
            self._pending = self._read_first[self._last_read]
            self.num_passes = self._passed_first[self._last_read]
            self._begin_training()
        elif not self._pending and self._other_pending:  # of data that was made anew for this pass
            self._training.add(self._other)
            self._pending = self._other_pending
        size = self._pending if samples is None else samples
        self.num_steps, self.num_samples = self.num_steps + 1, self.num_samples + size
        self.sizes[size] += 1
        length = self._run[1] + 1 if size == self._run[0] else 1
        self._run = (size, length)
        if length > self._longest[size]:
            self._longest[size] = length
        # without an optimizer of torch nothing tells when gradients are set to zero
        self.num_leftover += bool(samples is None and self._carried and self._is_new_pass)
        self._pending = self._last = self._carried = self._other_pending = 0
        self._note_rates()
        if self.num_steps <= _WARMUP_STEPS + 1:
            self._warm_up()
        elif self.is_open:
            self._window.append(size)
            if time.perf_counter() - self._opened >= _WINDOW_SECONDS:
                self._close_window()
                self._say()
                self._open_window()
        elif not self._num_pauses:
            self._training.add(self._last_read)
            self._open_window()

    def _takes_over(self, optimizer: Any) -> bool:
        # the optimizer with the most parameters is the one whose steps count
        sizes = [sum(each.numel() for each in group["params"]) for group in getattr(optimizer, "param_groups", [])]
        if self.optimizer is not None and sum(sizes) <= self._num_parameters:
            return False
        if self.optimizer is not None:
            self.num_steps = self.num_samples = 0
            self.rate = 0.0
            self.sizes.clear()
            self._longest.clear()
        self.optimizer, self._num_parameters = optimizer, sum(sizes)
        self._group = sizes.index(max(sizes)) if sizes else 0
        return True

    def _note_rates(self) -> None:
        groups = getattr(self.optimizer, "param_groups", None)
        if groups:
            rate, decay = groups[self._group].get("lr"), groups[self._group].get("weight_decay")
            if isinstance(rate, _NUMBERS) and rate > self.rate:
                self.rate = rate
            if isinstance(decay, _NUMBERS):
                self.decay = decay

    def _begin_training(self) -> None:
        self._count_idle("setup")
        device = self.device
        if device is not None and device.type == "cuda":
            from sweep.measurement.device import identify_gpu, make_moments, make_synchronizer

            self.channel.send("gpu", gpus=[identify_gpu(device)])
            self.ledger.synchronize, self.ledger.moments = make_synchronizer(device), make_moments(device)

    def _warm_up(self) -> None:
        # the first steps are not timed; one of them shows the memory, on a CPU by its allocator's events
        self._count_idle("warmup")
        if self.num_steps == 1 and self.channel.is_probe and hasattr(self.optimizer, "param_groups"):
            self.sketch, self.varying = self._sketch_gradients(), _find_varying_layers()
        if self.num_steps == _WARMUP_STEPS and self.device is not None and self.device.type == "cpu":
            from sweep.measurement.memory import AllocationRecorder, count_held_bytes

            self._peak_bytes = count_held_bytes(self._list_tensors())
            self._gradients = [weakref.ref(each) for each in self._list_gradients()]
            self._recorder = AllocationRecorder()
        if self.num_steps > _WARMUP_STEPS:
            if self._recorder is not None:
                from sweep.measurement.memory import count_held_bytes

                self._peak_bytes += self._recorder.stop_at_peak()
                # gradients that are still the same tensors were held; the release of others is no event
                self._peak_bytes += count_held_bytes(each for ref in self._gradients if (each := ref()) is not None)
                self._recorder = None
                self._count_idle("memory")
            self._open_window()

    def _list_gradients(self) -> Iterator[Any]:
        parameters = (each for group in self.optimizer.param_groups for each in group["params"])
        return (parameter.grad for parameter in parameters if parameter.grad is not None)

    def _list_tensors(self) -> Iterator[Any]:
        # of the model and of the optimizer, without gradients
        for group in self.optimizer.param_groups:
            yield from group["params"]
        for state in self.optimizer.state.values():
            yield from (item for item in state.values() if hasattr(item, "untyped_storage"))

    def _sketch_gradients(self) -> list[float]:
        # projections of all gradients on fixed random directions, and their norm
        import torch

        generator = torch.Generator().manual_seed(0)
        sums = torch.zeros(_NUM_PROJECTIONS + 1, dtype=torch.float64)
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    flat = parameter.grad.detach().double().cpu().flatten()
                    signs = torch.randint(0, 2, (_NUM_PROJECTIONS, len(flat)), generator=generator).double() * 2 - 1
                    sums[:-1] += signs @ flat
                    sums[-1] += flat @ flat
        return [float(each) for each in sums]

    # ------------------------------------------------------------------ time

    @property
    def device(self) -> Any:
        """Where the parameters are; None without a torch optimizer."""
        groups = getattr(self.optimizer, "param_groups", None)
        return groups[self._group]["params"][0].device if groups and groups[self._group]["params"] else None

    def pause(self) -> None:
        """Stops the clock until training data is read again."""
        if self.is_open:
            self._close_window()
        self._phase = "eval" if self.num_steps else "setup"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the clock in the block."""
        self.pause()
        self._num_pauses += 1
        try:
            yield
        finally:
            self._num_pauses -= 1

    def _count_idle(self, phase: Phase | None = None) -> None:
        now = time.perf_counter()
        self.ledger.seconds[phase or self._phase] += now - self._idle_since
        self._idle_since = now

    def _open_window(self) -> None:
        if self.is_open or self.num_steps <= _WARMUP_STEPS:
            return
        self._count_idle()
        self._phase = "eval"
        device = self.device
        if device is not None and device.type == "cuda":
            sys.modules["torch"].cuda.reset_peak_memory_stats(device)
        self.ledger.open_window()
        self._opened, self._opened_on_host = time.perf_counter(), time.thread_time()
        self._window, self.is_open = [], True

    def _close_window(self) -> None:
        self.is_open = False
        self._host_seconds += time.thread_time() - self._opened_on_host
        self._num_timed += len(self._window)
        if self._window:
            usual = self.batch
            is_full = all(size == usual for size in self._window)
            self.ledger.close_window(len(self._window), int(sum(self._window)), is_full)
        self._idle_since = time.perf_counter()
        device = self.device
        if device is not None and device.type == "cuda":
            self._peak_bytes = max(self._peak_bytes, sys.modules["torch"].cuda.max_memory_allocated(device))

    def note_unmarked(self, seconds: float) -> None:
        """A block without gradients took so long of this thread's processor. With the clock running, it is an
        evaluation if it took longer than the rest of a step: the clipping of gradients and the averaging of weights,
        which are training, take less."""
        if self.is_open and not self.is_in_step:
            self.no_grad_seconds += seconds
            rest = self._host_seconds + time.thread_time() - self._opened_on_host - self.no_grad_seconds
            steps = max(self._num_timed + len(self._window), 1)
            self.unmarked_seconds += seconds if seconds * steps > rest else 0.0

    # ------------------------------------------------------------------ messages

    @property
    def batch(self) -> int:
        """The samples of most steps of this process."""
        return max(self.sizes, key=lambda size: (self.sizes[size], size), default=0)

    @property
    def has_changed_batch(self) -> bool:
        """Whether several steps in a row had another size: more than a framework that reads ahead makes at the ends of
        a pass."""
        others = (length for size, length in self._longest.items() if size != self.batch)
        return max(others, default=0) >= max(_FEWEST_IN_A_ROW, _SHARE_IN_A_ROW * self.num_steps)

    def _say(self) -> None:
        now = time.perf_counter()
        if now - self._said_at < _MESSAGE_SECONDS:
            return
        self._said_at = now
        facts = self.measure() if self.channel.is_probe else {}
        self.channel.send(
            "progress", step=self.num_steps, passes=self.num_passes, rate=self.ledger.images_per_second,
            timed=self.ledger.train_seconds, peak=self._peak_bytes, **facts,
        )  # fmt: skip

    def measure(self) -> dict[str, Any]:
        """Everything that was measured until now."""
        from sweep.measurement.quality import find_timing_flags, measure_slowdown, measure_time_error

        ledger, even, seconds = self.ledger, self.ledger.even_windows, self._count_seconds()
        values: dict[str, Any] = {f"{name}_seconds": seconds[name] for name in ("setup", "warmup", "memory", "eval")}
        if ledger.windows:
            values |= {
                "train_seconds": seconds["data_wait"] + seconds["step"], "data_wait_seconds": seconds["data_wait"],
                "images_per_second": ledger.images_per_second, "step_seconds_median": ledger.step_seconds(),
                "step_time_error": measure_time_error(even), "slowdown_by_others": measure_slowdown(even),
            }  # fmt: skip
        if self.num_steps:
            values |= {"num_steps": self.num_steps, "observed_batch_size": self.batch}
            if hasattr(self.optimizer, "param_groups"):
                values |= {"num_parameters": self._num_parameters}
                values |= {"observed_lr": self.rate, "observed_weight_decay": self.decay}
        if self._peak_bytes:
            values["peak_memory_bytes"] = self._peak_bytes
        if self.num_passes:
            values["num_epochs"] = self.num_passes
        if self.num_tokens and ledger.windows:
            per_sample = self.num_tokens / max(self.num_samples, 1)
            values["tokens_per_second"] = per_sample * ledger.images_per_second
        flags = [*find_timing_flags(even, sum(window.num_steps for window in ledger.windows))]
        flags += ["leftover_gradients"] if self.num_leftover else []
        # some frameworks step a schedule once for each rank
        most_scheduled = _MANY_SCHEDULED * self.num_steps * self.channel.world_size + 2
        flags += ["schedule_not_followed"] if self.num_scheduled > most_scheduled else []
        flags += ["evaluation_in_window"] if self.unmarked_seconds > _MUCH * max(self._host_seconds, 1e-9) else []
        return {
            "measurements": {name: each for name, each in values.items() if each is not None and math.isfinite(each)},
            "flags": flags, "has_changed_batch": self.has_changed_batch, "num_ooms": self._count_ooms(),
            "sketch": self.sketch, "varying": self.varying,
            "sizes": [[size, count] for size, count in self.sizes.most_common(3)],
        }  # fmt: skip

    def _count_seconds(self) -> dict[Phase, float]:
        """The seconds of each phase. The first steps, for which no clock runs, count as long as the others; the warm-up
        is what they take beyond that. What was timed before another optimizer took over is part of the training."""
        ledger, seconds = self.ledger, dict(self.ledger.seconds)
        taken, timed = self.num_samples, sum(window.samples for window in ledger.windows)
        if not timed:  # samples are not known
            taken, timed = self.num_steps, sum(window.num_steps for window in ledger.windows)
        untimed = max(taken / timed - 1.0, 0.0) if timed else 0.0
        seconds["warmup"] = max(seconds["warmup"] - untimed * ledger.train_seconds, 0.0)
        for name in ("data_wait", "step"):
            seconds[name] *= 1.0 + untimed
        return seconds

    def describe_machine(self) -> dict[str, Any]:
        """The class of the device, and the environment."""
        from sweep.measurement.device import describe_environment, name_device_class, resolve_device

        device = self.device or resolve_device("cpu")
        name = name_device_class(device, self.channel.world_size)
        return {"device": name, "environment": {**describe_environment(device), "device": name}}

    def _count_ooms(self) -> int:
        device = self.device
        if device is None or device.type != "cuda":
            return 0
        return int(sys.modules["torch"].cuda.memory_stats(device).get("num_ooms", 0))

    def end(self) -> None:
        """The script ends."""
        self.pause()
        if self.num_steps:
            self._count_idle()
        with suppress(Exception):  # the interpreter is ending
            self.channel.send("end", **self.measure(), **self.describe_machine())


def _find_varying_layers() -> list[str]:
    # whose results depend on the micro batch, or on chance
    modules = sys.modules["torch"].nn.modules
    kinds = (modules.batchnorm._BatchNorm, modules.dropout._DropoutNd)
    alive = (item for item in gc.get_objects() if issubclass(type(item), kinds) and item.training)
    return sorted({type(item).__name__ for item in alive if getattr(item, "p", 1.0) > 0})


_observers: list[Observer] = []  # one, once there is a channel


def find_observer() -> Observer | None:
    """The observer of this process; None outside of a study."""
    if not _observers and (channel := open_channel()):
        _observers.append(Observer(channel))
    return _observers[0] if _observers else None
