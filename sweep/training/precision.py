"""Number formats of the weights and of the operations of a step, and the moving average of the weights."""

import copy
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from sweep.config.sections import PrecisionSection
from sweep.training.models.build import checkpoint_blocks

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@final
class LossScaler(torch.amp.GradScaler):
    """Loss scaling for fp16 (Micikevicius et al. 2017, arXiv:1710.03740), which counts the steps that it skips.

    The count stays on the device, so that no step waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__(device.type)
        self._one = torch.ones((), device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)
        self.is_taken = torch.ones((), dtype=torch.bool, device=device)  # whether the last step was

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Halves the scale after a skipped step, doubles it after many successful ones."""
        before = self.scale(self._one)
        super().update(new_scale)
        self.is_taken = self.scale(self._one) >= before
        self._skipped += ~self.is_taken

    @property
    def num_skipped(self) -> int:
        return int(self._skipped)

    def state_dict(self) -> dict[str, Any]:
        return {"scaler": super().state_dict(), "num_skipped": self.num_skipped}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict["scaler"])
        self._skipped.fill_(state_dict["num_skipped"])


@dataclass(frozen=True, kw_only=True)
class Precision:
    """``weights`` is the dtype of parameters and inputs, ``autocast`` the one of matrix products and convolutions."""

    device_type: str
    weights: torch.dtype
    autocast: torch.dtype | None
    scaler: LossScaler | None

    def context(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device_type, self.autocast) if self.autocast else nullcontext()

    def scale(self, loss: Tensor) -> Tensor:
        """``loss`` times the factor of the loss scaler, if there is one."""
        return self.scaler.scale(loss) if self.scaler else loss

    @property
    def num_skipped_steps(self) -> int:
        return self.scaler.num_skipped if self.scaler else 0


def make_precision(section: PrecisionSection, device: torch.device) -> Precision:
    """The precision of ``section``; on a GPU also sets whether operations may use TF32.

    Weights stay in 32 bits for bf16 and fp16 (autocast), fp16 with a loss scaler.
    """
    if device.type == "cuda":
        set_tf32(is_allowed=section.dtype == "tf32")  # torch allows it in convolutions by default, also with fp32
    weights = torch.float64 if section.dtype == "fp64" else torch.float32
    scaler = LossScaler(device) if section.dtype == "fp16" else None
    return Precision(device_type=device.type, weights=weights, autocast=_AUTOCAST.get(section.dtype), scaler=scaler)


def set_tf32(*, is_allowed: bool) -> None:
    """Sets whether matrix products, convolutions and recurrent layers on a GPU may use TF32.

    torch has two sets of switches. The getters of the older ones raise an error where only the newer ones were set, or
    only the one of convolutions; the compiler and plug-ins read them. The older setters set both, and the newer ones
    then hold against a plug-in that has changed the setting for all backends.
    """
    backends: Any = torch.backends  # torch leaves these attributes untyped
    torch.set_float32_matmul_precision("high" if is_allowed else "highest")
    backends.cudnn.allow_tf32 = is_allowed
    for switch in (backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        switch.fp32_precision = "tf32" if is_allowed else "ieee"


def arrange_model(model: nn.Module, section: PrecisionSection) -> nn.Module:
    if section.channels_last:
        for parameter in model.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    if section.checkpointing:
        checkpoint_blocks(model)
    return model


@final
class Ema:
    """The exponential moving average of a model, in a model of its own that is never trained.

    After update n (from 0): average <- d average + (1 - d) value with d = min(decay, (1 + n) / (10 + n)), so that the
    initial weights soon have no influence. Running statistics of batch norm are averaged like weights; counters are
    copied.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.model = copy.deepcopy(model).requires_grad_(False)
        self._num_updates: int | Tensor = 0  # a tensor where only the device knows which steps were taken
        self._decay = decay
        # load_state_dict writes into the same tensors, so the pairs remain valid
        self._pairs = list(zip(_tensors(self.model), _tensors(model), strict=True))
        self._averages = [average for average, _ in self._pairs if average.is_floating_point()]
        self._values = [value for _, value in self._pairs if value.is_floating_point()]

    @property
    def num_updates(self) -> int:
        """Updates so far; waits for the device where steps may be skipped."""
        return int(self._num_updates)

    @torch.no_grad()
    def update(self, is_taken: Tensor | None = None) -> None:
        """Includes the present weights; must be called once after each optimizer step.

        ``is_taken``, a scalar on the device, is False where the loss scaler has skipped the step: then neither average
        nor number of updates changes, and no host waits for it. None: the step was taken.
        """
        if is_taken is None:
            count = self.num_updates
            torch._foreach_lerp_(self._averages, self._values, 1 - min(self._decay, (1 + count) / (10 + count)))
            self._num_updates = count + 1
        else:
            num_updates = is_taken.new_zeros((), dtype=torch.float64) + self._num_updates
            weight = (1 - ((1 + num_updates) / (10 + num_updates)).clamp(max=self._decay)) * is_taken
            torch._foreach_lerp_(self._averages, self._values, [weight.to(average.dtype) for average in self._averages])
            self._num_updates = num_updates + is_taken
        for average, value in self._pairs:
            if not average.is_floating_point():
                average.copy_(value)

    @torch.no_grad()
    def reset(self) -> None:
        self._num_updates = 0
        for average, value in self._pairs:
            average.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "num_updates": self.num_updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._num_updates = state["num_updates"]

    def tensors(self) -> list[Tensor]:
        return _tensors(self.model)


def _tensors(model: nn.Module) -> list[Tensor]:
    return [*(parameter.detach() for parameter in model.parameters()), *model.buffers()]
