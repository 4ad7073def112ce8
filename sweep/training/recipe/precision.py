"""Number formats: what the weights are held in, and what a step computes in."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from sweep.config.recipe_sections import PrecisionSection
from sweep.training.data.data_checks import check_precision
from sweep.training.models.blocks import checkpoint_blocks

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


@final
class LossScaler:
    """Loss scaling for fp16 (Micikevicius et al. 2017, arXiv:1710.03740), which counts the steps that it skips.

    The count stays on the device, so that no step waits for it.
    """

    def __init__(self, device: torch.device) -> None:
        self._scaler = torch.amp.GradScaler(device.type)
        self._one = torch.ones((), device=device)
        self._skipped = torch.zeros((), dtype=torch.int64, device=device)

    def scale(self, loss: Tensor) -> Tensor:
        """``loss`` times the scale."""
        return self._scaler.scale(loss)

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Divides the gradients by the scale, for clipping."""
        self._scaler.unscale_(optimizer)

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes the step, unless a gradient is no finite number."""
        self._scaler.step(optimizer)

    def update(self) -> None:
        """Halves the scale after a skipped step, doubles it after many good ones."""
        before = self._scaler.scale(self._one)
        self._scaler.update()
        self._skipped += self._scaler.scale(self._one) < before

    @property
    def num_skipped(self) -> int:
        """Steps skipped so far; waits for the device."""
        return int(self._skipped)

    def state_dict(self) -> dict[str, Any]:
        """The scale, its history and the count."""
        return {"scaler": self._scaler.state_dict(), "num_skipped": self.num_skipped}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from there."""
        self._scaler.load_state_dict(state["scaler"])
        self._skipped.fill_(state["num_skipped"])


@dataclass(frozen=True)
class Precision:
    """How to compute: ``weights`` is the dtype of parameters and inputs, ``autocast`` that of the heavy operations."""

    device_type: str
    weights: torch.dtype
    autocast: torch.dtype | None
    scaler: LossScaler | None

    def context(self) -> AbstractContextManager[object]:
        """The context of a forward pass."""
        return torch.autocast(self.device_type, self.autocast) if self.autocast else nullcontext()

    @property
    def num_skipped_steps(self) -> int:
        """Optimizer steps that the loss scaler skipped; 0 where there is none."""
        return self.scaler.num_skipped if self.scaler else 0


def make_precision(section: PrecisionSection, device: torch.device) -> Precision:
    """The precision that ``section`` names; sets whether matrix products and convolutions may use TF32.

    Weights stay in 32 bits for bf16 and fp16 (autocast), fp16 with a loss scaler.

    Raises:
        InputError: for tf32 or CUDA graphs without a GPU.
    """
    check_precision(section, device.type)
    if device.type == "cuda":
        # torch allows TF32 in convolutions by default, which would make fp32 a misnomer
        allowed = "tf32" if section.dtype == "tf32" else "ieee"
        backends: Any = torch.backends  # torch leaves these attributes untyped
        backends.cuda.matmul.fp32_precision = allowed
        backends.cudnn.conv.fp32_precision = allowed
    weights = torch.float64 if section.dtype == "fp64" else torch.float32
    scaler = LossScaler(device) if section.dtype == "fp16" else None
    return Precision(device.type, weights, _AUTOCAST.get(section.dtype), scaler)


def place_model(model: nn.Module, section: PrecisionSection, precision: Precision, device: torch.device) -> nn.Module:
    """``model`` on the device, in the precision's dtype and memory format, checkpointed where that was asked for."""
    return arrange_model(model.to(device=device, dtype=precision.weights), section)


def arrange_model(model: nn.Module, section: PrecisionSection) -> nn.Module:
    """``model`` in the precision's memory format, checkpointed where that was asked for."""
    if section.channels_last:
        for parameter in model.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    if section.checkpointing:
        checkpoint_blocks(model)
    return model
