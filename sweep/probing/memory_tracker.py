"""What a step holds, operation by operation, without computing it: torch's MemTracker over fake tensors.

The one place that touches these parts of torch, which are private (``torch.distributed._tools``, ``torch._subclasses``)
and may change with any version; ``tests/test_estimate.py`` compares them with bytes counted by hand. Fake tensors have
sizes and no content, so nothing is allocated, no random number is drawn and no device is touched.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.utils._python_dispatch import TorchDispatchMode

from sweep.probing.scratch_memory import Operation, find_operation


class HeldBytes(NamedTuple):
    """Bytes that are held at one moment, by category."""

    parameter_bytes: int  # weights and buffers
    gradient_bytes: int
    optimizer_bytes: int  # state and, while the optimizer steps, its temporaries
    activation_bytes: int
    temporary_bytes: int  # of the backward pass

    @property
    def total(self) -> int:
        return sum(self)


# Optimizer steps that hold nothing more than they are given; torch has no fake kernel for some, and would run them.
_IN_PLACE = frozenset({"aten::_fused_sgd_", "aten::_fused_adam_", "aten::_fused_adamw_"})


@contextmanager
def use_fake_tensors() -> Iterator[None]:
    """Every tensor that is made inside has a shape, a dtype and a memory layout, and no memory."""
    with FakeTensorMode(allow_fallback_kernels=False), _Replacement(_IN_PLACE, None):
        yield


def read_zero_values() -> AbstractContextManager[object]:
    """Inside, reading a fake tensor's value gives 0; some initializations of weights read values."""
    return _Replacement(frozenset({"aten::_local_scalar_dense"}), 0)


@final
class _Replacement(TorchDispatchMode):
    """The named operations do nothing and return ``result``."""

    def __init__(self, names: frozenset[str], result: int | None) -> None:
        super().__init__()
        self._names, self._result = names, result

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        return self._result if func.name() in self._names else func(*args, **(kwargs or {}))


def convert_frozen_to_buffers(model: nn.Module) -> None:
    """Makes buffers of the parameters that are not trained; the tracker requires a gradient of every parameter."""
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.requires_grad:
                delattr(module, name)
                module.register_buffer(name, parameter.detach())


@final
class _Tracker(MemTracker):
    def _update_peak_stats(self, peak_state: Any) -> None:
        """Skips the peak of each module after each operation, which is not used and takes most of the time."""


@final
class StepTracker(TorchDispatchMode):
    """A context for one optimizer step of fake tensors; afterwards ``worst`` has, for each distinct operation, what is
    held at most when it ends, its result included; under None, that of all others.

    ``model`` and ``optimizer`` are held from the beginning; ``uncounted`` tensors exist and count nowhere.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, uncounted: tuple[Tensor, ...] = ()) -> None:
        super().__init__()
        self._tracker = _Tracker()
        self._tracker.track_external(model, optimizer, *uncounted)
        self.worst: dict[Operation | None, HeldBytes] = {}

    def __enter__(self) -> Self:
        self._tracker.__enter__()
        super().__enter__()  # entered last, so it is called first and passes everything on
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        self._tracker.__exit__(kind, error, trace)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        held, operation = self._read_held(), find_operation(func, args, kwargs or {})
        if operation not in self.worst or held.total > self.worst[operation].total:
            self.worst[operation] = held
        return result

    def begin_micro_batch(self) -> None:
        """To be called before each; otherwise the tracker treats the model's second call as an error."""
        self._tracker.reset_mod_stats()

    def _read_held(self) -> HeldBytes:
        # only the CPU's fake tensors are tracked, and none are left at the very beginning and end
        (snapshot,) = self._tracker.get_tracker_snapshot().values() or ({},)
        held = {getattr(key, "value", key): num_bytes for key, num_bytes in snapshot.items()}
        buffers, *others = (held.get(name, 0) for name in ("Buffer", "Gradient", "Optstate", "Activation", "Temp"))
        return HeldBytes(held.get("Parameter", 0) + buffers, *others)
